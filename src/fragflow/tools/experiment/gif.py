"""Draws an episode, as an animated GIF."""

import importlib.util
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fragflow.errors import ConfigError
from fragflow.ops import within_bounds

MAX_STEPS = 1000
MILLISECONDS = 60
"""that each picture is shown"""


def record(
    algorithm: Any,
    environment: Any,
    params: Any,
    path: Path,
    *,
    seed: int = 0,
    explore: bool = False,
    most_steps: int = MAX_STEPS,
) -> int:
    """Plays one episode and writes its pictures to `path`; how many there are."""
    check_drawable(environment, path)
    from PIL import Image

    reset_key, play_key = jax.random.split(jax.random.key(seed))

    @jax.jit
    def advance(state: Any, obs: Any, memory: Any, key: jax.Array) -> tuple[Any, Any]:
        act_key, step_key = jax.random.split(key)
        action, memory = algorithm.policy(params, obs, memory, act_key, explore=explore)
        action = within_bounds(environment.action, action)
        return environment.step(state, action, step_key), memory

    state, obs = jax.jit(environment.reset)(reset_key)
    memory = None
    frames = [environment.draw(state)]
    for k in range(most_steps):
        step, memory = advance(state, obs, memory, jax.random.fold_in(play_key, k))
        state, obs = step.state, step.obs
        frames.append(environment.draw(jax.tree.map(np.asarray, state)))
        if np.all(np.asarray(step.terminated) | np.asarray(step.truncated)):
            break
    first, *others = (Image.fromarray(frame) for frame in frames)
    first.save(path, save_all=True, append_images=others, duration=MILLISECONDS, loop=0)
    return len(frames)


def check_drawable(environment: Any, path: Path) -> None:
    """Refuses what cannot be drawn, or not there."""
    if not hasattr(environment, "draw"):
        raise ConfigError(
            f"--record: {environment.name} cannot be drawn: it has no method draw(state) that "
            "returns a picture, uint8 [height, width, 3]"
        )
    if path.suffix.lower() != ".gif":
        raise ConfigError(f"--record {path}: expected the name of a GIF, like episode.gif")
    if not path.parent.is_dir():
        raise ConfigError(f"--record {path}: there is no directory {path.parent}")
    if importlib.util.find_spec("PIL") is None:
        raise ConfigError(
            "--record needs pillow, which is not installed: pip install 'fragflow[draw]'"
        )
