"""A rival's side of `sac_returns.py`: SAC of Stable-Baselines3 with its defaults."""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import gymnasium
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor


def main() -> None:
    steps, episodes, seed = map(int, sys.argv[1:4])
    torch.set_num_threads(1)
    model = SAC("MlpPolicy", gymnasium.make("HalfCheetah-v5"), seed=seed, device="cpu")
    model.learn(steps)
    fresh = Monitor(gymnasium.make("HalfCheetah-v5"))
    mean, _ = evaluate_policy(model, fresh, n_eval_episodes=episodes, deterministic=True)
    found = {"return": float(mean), "version": version("stable-baselines3")}
    Path(sys.argv[4]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
