"""A rival's side of `host_envs.py`: PPO in one plain PyTorch loop over EnvPool."""

import argparse
from importlib.metadata import version

import envpool
import numpy as np
import torch
from measure import serve
from torch import nn
from torch.distributions import Normal

ROLLOUT, GAMMA, LAMBDA, CLIP = 128, 0.99, 0.95, 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", required=True)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--minibatches", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="environment steps per order")
    options = parser.parse_args()
    trainer = Trainer(options)

    def run() -> None:
        for _ in range(options.steps // (ROLLOUT * options.envs)):
            trainer.iterate()

    packages = ("torch", "envpool", "numpy")
    serve({"go": run}, {"versions": {name: version(name) for name in packages}})


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


class Trainer:
    """Rolls out and learns, one after the other."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        count = options.envs
        self.pool = envpool.make(
            options.env, env_type="gymnasium", num_envs=count, num_threads=2, seed=0
        )
        space = self.pool.action_space
        self.low, self.high, self.type = space.low, space.high, space.dtype
        size, actions = self.pool.observation_space.shape[0], space.shape[0]
        self.actor, self.critic = network(size, actions), network(size, 1)
        self.log_std = nn.Parameter(torch.zeros(actions))
        parameters = [*self.actor.parameters(), *self.critic.parameters(), self.log_std]
        self.parameters = parameters
        self.adam = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)
        self.obs = torch.as_tensor(self.pool.reset()[0], dtype=torch.float32)
        self.done = torch.zeros(count)
        self.buffers = {
            "obs": torch.zeros(ROLLOUT, count, size),
            "action": torch.zeros(ROLLOUT, count, actions),
            **{n: torch.zeros(ROLLOUT, count) for n in ("log_prob", "reward", "done", "value")},
        }
        self.mean, self.variance, self.number = torch.zeros(size), torch.ones(size), 1e-4

    def scaled(self, obs: torch.Tensor) -> torch.Tensor:
        return ((obs - self.mean) / torch.sqrt(self.variance + 1e-8)).clamp(-10, 10)

    def iterate(self) -> None:
        buffers = self.buffers
        for t in range(ROLLOUT):
            with torch.no_grad():
                seen = self.scaled(self.obs)
                distribution = Normal(self.actor(seen), self.log_std.exp())
                action = distribution.sample()
                buffers["log_prob"][t] = distribution.log_prob(action).sum(-1)
                buffers["value"][t] = self.critic(seen).squeeze(-1)
            buffers["obs"][t], buffers["action"][t], buffers["done"][t] = seen, action, self.done
            self._include(self.obs)
            bounded = np.clip(action.numpy(), self.low, self.high).astype(self.type)
            obs, reward, terminated, truncated, _ = self.pool.step(bounded)
            self.obs = torch.as_tensor(obs, dtype=torch.float32)
            buffers["reward"][t] = torch.as_tensor(reward)
            self.done = torch.as_tensor(terminated | truncated, dtype=torch.float32)
        self._learn(self._advantages())

    def _include(self, obs: torch.Tensor) -> None:
        count = len(obs)
        delta = obs.mean(0) - self.mean
        share = count / (self.number + count)
        self.variance += (obs.var(0, unbiased=False) - self.variance) * share
        self.variance += delta**2 * share * (1 - share)
        self.mean += delta * share
        self.number += count

    @torch.no_grad()
    def _advantages(self) -> torch.Tensor:
        buffers = self.buffers
        advantages = torch.zeros_like(buffers["reward"])
        following, value, done = 0.0, self.critic(self.scaled(self.obs)).squeeze(-1), self.done
        for t in reversed(range(ROLLOUT)):
            delta = buffers["reward"][t] + GAMMA * value * (1 - done) - buffers["value"][t]
            following = delta + GAMMA * LAMBDA * (1 - done) * following
            advantages[t] = following
            value, done = buffers["value"][t], buffers["done"][t]
        return advantages

    def _learn(self, advantages: torch.Tensor) -> None:
        flat = {name: buffer.flatten(0, 1) for name, buffer in self.buffers.items()}
        advantage = advantages.flatten()
        target = advantage + flat["value"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        total = len(advantage)
        for _ in range(self.options.epochs):
            for rows in torch.randperm(total).split(total // self.options.minibatches):
                distribution = Normal(self.actor(flat["obs"][rows]), self.log_std.exp())
                log_prob = distribution.log_prob(flat["action"][rows]).sum(-1)
                ratio = (log_prob - flat["log_prob"][rows]).exp()
                a = advantage[rows]
                policy = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
                value = self.critic(flat["obs"][rows]).squeeze(-1)
                loss = policy + 0.25 * (value - target[rows]).square().mean()
                self.adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, 0.5)
                self.adam.step()


if __name__ == "__main__":
    main()
