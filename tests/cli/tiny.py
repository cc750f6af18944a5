"""The smallest run that still does everything."""

from dataclasses import dataclass
from pathlib import Path

TINY = (
    *("train", "ppo", "--env", "CartPole-v1", "--num-envs", "4", "--total-steps", "64"),
    *("--rollout-length", "8", "--hidden", "8", "--epochs", "1", "--minibatches", "2"),
    *("--eval-episodes", "4"),
)
"""two iterations of 32 steps"""


@dataclass(frozen=True)
class Finished:
    """A run that has ended, and what it printed."""

    path: Path
    output: str
