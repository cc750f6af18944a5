"""A rival's side of `host_envs.py`: PPO in one plain PyTorch loop over EnvPool.

Observations are vectors, which are normalised, or images.
"""

import argparse
from importlib.metadata import version

import envpool
import numpy as np
import torch
from measure import serve
from torch import nn
from torch.distributions import Categorical, Distribution, Independent, Normal

ROLLOUT, GAMMA, LAMBDA, CLIP = 128, 0.99, 0.95, 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", required=True)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--minibatches", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--steps", type=int, required=True, help="environment steps per order")
    options = parser.parse_args()
    trainer = Trainer(options)

    def run() -> None:
        for _ in range(options.steps // (ROLLOUT * options.envs)):
            trainer.iterate()

    packages = ("torch", "envpool", "numpy")
    serve({"go": run}, {"versions": {name: version(name) for name in packages}})


def on_vectors(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


def on_images(channels: int, outputs: int) -> nn.Sequential:
    """For screens of 84 x 84 pixels (Mnih et al. 2015)."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.Tanh()),
        nn.Linear(512, outputs),
    )


class Trainer:
    """Rolls out and learns, one after the other."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        count = options.envs
        self.pool = envpool.make(
            options.env, env_type="gymnasium", num_envs=count, num_threads=2, seed=0
        )
        self.space = self.pool.action_space
        self.is_discrete = not self.space.shape
        shape = self.pool.observation_space.shape
        self.is_image = len(shape) == 3
        actions = self.space.n if self.is_discrete else self.space.shape[0]
        network = on_images if self.is_image else on_vectors
        self.actor, self.critic = network(shape[0], actions), network(shape[0], 1)
        self.log_std = nn.Parameter(torch.zeros(actions))
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.parameters += [] if self.is_discrete else [self.log_std]
        self.adam = torch.optim.Adam(self.parameters, lr=options.learning_rate, eps=1e-5)
        self.type = torch.uint8 if self.is_image else torch.float32
        self.obs = torch.as_tensor(self.pool.reset()[0], dtype=self.type)
        self.done = torch.zeros(count)
        self.buffers = {
            "obs": torch.zeros(ROLLOUT, count, *shape, dtype=self.type),
            "action": torch.zeros(ROLLOUT, count, *self.space.shape),
            **{n: torch.zeros(ROLLOUT, count) for n in ("log_prob", "reward", "done", "value")},
        }
        self.mean, self.variance, self.number = torch.zeros(shape), torch.ones(shape), 1e-4

    def scaled(self, obs: torch.Tensor) -> torch.Tensor:
        """What is kept of an observation."""
        if self.is_image:
            return obs
        return ((obs - self.mean) / torch.sqrt(self.variance + 1e-8)).clamp(-10, 10)

    def seen(self, kept: torch.Tensor) -> torch.Tensor:
        return kept.float() / 255.0 if self.is_image else kept

    def policy(self, seen: torch.Tensor) -> Distribution:
        output = self.actor(seen)
        if self.is_discrete:
            return Categorical(logits=output)
        return Independent(Normal(output, self.log_std.exp()), 1)

    def value(self, seen: torch.Tensor) -> torch.Tensor:
        return self.critic(seen).squeeze(-1)

    def iterate(self) -> None:
        buffers = self.buffers
        for t in range(ROLLOUT):
            with torch.no_grad():
                kept = self.scaled(self.obs)
                seen = self.seen(kept)
                distribution = self.policy(seen)
                action = distribution.sample()
                buffers["log_prob"][t] = distribution.log_prob(action)
                buffers["value"][t] = self.value(seen)
            buffers["obs"][t], buffers["action"][t], buffers["done"][t] = kept, action, self.done
            if not self.is_image:
                self._include(self.obs)
            obs, reward, terminated, truncated, _ = self.pool.step(self._bounded(action))
            self.obs = torch.as_tensor(obs, dtype=self.type)
            buffers["reward"][t] = torch.as_tensor(reward)
            self.done = torch.as_tensor(terminated | truncated, dtype=torch.float32)
        self._learn(self._advantages())

    def _bounded(self, action: torch.Tensor) -> np.ndarray:
        chosen = action.numpy()
        if not self.is_discrete:
            chosen = np.clip(chosen, self.space.low, self.space.high)
        return chosen.astype(self.space.dtype)

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
        following, value, done = 0.0, self.value(self.seen(self.scaled(self.obs))), self.done
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
                seen = self.seen(flat["obs"][rows])
                distribution = self.policy(seen)
                log_prob = distribution.log_prob(flat["action"][rows])
                ratio = (log_prob - flat["log_prob"][rows]).exp()
                a = advantage[rows]
                policy = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
                value = self.value(seen)
                loss = policy + 0.25 * (value - target[rows]).square().mean()
                loss = loss - 0.01 * distribution.entropy().mean()
                self.adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, 0.5)
                self.adam.step()


if __name__ == "__main__":
    main()
