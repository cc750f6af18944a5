"""A rival's side of `host_envs.py`: PPO of RLlib, its environments in its own process."""

import argparse
import warnings
from importlib.metadata import version

import ray
from measure import serve
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="environment steps per order")
    options = parser.parse_args()
    ray.init(address="local", include_dashboard=False, num_cpus=2, logging_level="ERROR")
    batch = 128 * options.envs
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=options.envs)
        .training(
            train_batch_size_per_learner=batch,
            minibatch_size=batch // 4,
            num_epochs=4,
            lr=1e-3,
            grad_clip=0.5,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .debugging(seed=0, log_level="ERROR")
    )
    algorithm = config.build_algo()

    def run() -> None:
        for _ in range(options.steps // batch):
            algorithm.train()

    packages = ("ray", "torch", "gymnasium", "numpy")
    serve({"go": run}, {"versions": {name: version(name) for name in packages}})


if __name__ == "__main__":
    main()
