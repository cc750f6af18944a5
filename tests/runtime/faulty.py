"""A Gymnasium environment that does what environments must not; importing registers it."""

import os
import time
from typing import Any

import gymnasium
import numpy as np


class Faulty(gymnasium.Env):
    """Counts its steps; `fault` happens at step `at`.

    It happens in the environment with seed 2 modulo 4, or in `every` one.
    """

    observation_space: gymnasium.Space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str = "", at: int = 3, every: bool = False):
        self.fault, self.at, self.every = fault, at, every
        self.total = 0
        if fault == "range":
            low, high = np.array([0, -np.inf], np.float32), np.array([5, np.inf], np.float32)
            self.observation_space = gymnasium.spaces.Box(low, high)
        elif fault == "choice":
            self.observation_space = gymnasium.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.is_bad = self.every or seed % 4 == 2
        self.steps = 0
        if self.fault == "reset" and self.is_bad:
            raise RuntimeError("no ball")
        return self._obs(), {}

    def _obs(self) -> Any:
        is_out = self.is_bad and self.total == self.at
        if self.fault == "choice":
            return 6 if is_out else self.steps
        place = -1 if is_out and self.fault == "range" else self.steps
        return np.array([place, self.np_random.normal()], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        self.total += 1
        obs = self._obs()
        if self.is_bad and self.total == self.at:
            match self.fault:
                case "raise":
                    raise RuntimeError("the ball is gone")
                case "shape":
                    obs = obs[:1]
                case "nan":
                    obs = obs * np.nan
                case "exit":
                    os._exit(7)
                case "abort":
                    os.abort()
                case "hang":
                    time.sleep(60.0)
        return obs, float(action), False, self.steps % 5 == 0, {}


gymnasium.register("Faulty-v0", "runtime.faulty:Faulty")


class Parts(gymnasium.Env):
    """Observations and actions of two parts."""

    observation_space = gymnasium.spaces.Dict(
        {
            "place": gymnasium.spaces.Box(-1, 1, (2,), np.float32),
            "mood": gymnasium.spaces.Discrete(3),
        }
    )
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def _obs(self) -> dict[str, Any]:
        place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"place": place, "mood": self.np_random.integers(3)}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        assert self.action_space.contains(action.astype(np.int64)), action
        self.steps += 1
        return self._obs(), float(action.sum()), False, self.steps == 5, {}


gymnasium.register("Parts-v0", "runtime.faulty:Parts")
