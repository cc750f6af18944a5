"""A rival's side of `host_envs.py`: PPO of Stable-Baselines3 on its synchronous environments."""

import argparse
from importlib.metadata import version

import torch
from measure import serve
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="environment steps per order")
    options = parser.parse_args()
    environments = make_vec_env("CartPole-v1", n_envs=options.envs, seed=0)
    ppo = PPO(
        "MlpPolicy",
        environments,
        n_steps=128,
        batch_size=128 * options.envs // 4,
        n_epochs=4,
        learning_rate=1e-3,
        max_grad_norm=0.5,
        ent_coef=0.01,
        policy_kwargs={
            "net_arch": {"pi": [64, 64], "vf": [64, 64]},
            "activation_fn": torch.nn.Tanh,
        },
        device="cpu",
        seed=0,
    )

    def run() -> None:
        before = ppo.num_timesteps
        ppo.learn(options.steps, reset_num_timesteps=False)
        assert ppo.num_timesteps - before == options.steps

    packages = ("stable-baselines3", "torch", "gymnasium", "numpy")
    serve({"go": run}, {"versions": {name: version(name) for name in packages}})


if __name__ == "__main__":
    main()
