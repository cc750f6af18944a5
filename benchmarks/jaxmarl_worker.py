"""The rival's side of `agents_learning.py`: a baseline of JaxMARL, unchanged, in its own venv.

JaxMARL's baselines are scripts beside its package. This imports one and calls its `make_train`.
"""

import argparse
import importlib.util
import json
import sys
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from measure import serve
from omegaconf import OmegaConf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--script", type=Path, required=True)
    add("--config", type=Path, required=True)
    add("--total-steps", type=int, required=True)
    add("--seeds", type=int, nargs="+", required=True)
    add("--folder", type=Path, required=True, help="where returns go")
    options = parser.parse_args()
    logged: list[dict[str, Any]] = []
    baseline = _imported(options.script, logged)
    config: Any = OmegaConf.to_container(OmegaConf.load(options.config))
    config["TOTAL_TIMESTEPS"] = options.total_steps
    as_read = dict(config)
    train = jax.jit(baseline.make_train(config)).lower(jax.random.PRNGKey(0)).compile()
    agents = config["NUM_ACTORS"] // config["NUM_ENVS"]

    def run(seed: int) -> None:
        logged.clear()
        out = jax.block_until_ready(train(jax.random.PRNGKey(seed)))
        jax.effects_barrier()
        if "metrics" in out:
            returns = out["metrics"]["returned_episode_returns"]
        else:
            returns = [row["returns"] for row in sorted(logged, key=lambda row: row["env_step"])]
        # Its wrapper counts every agent's reward once per agent.
        curve = [float(x) / agents for x in returns]
        (options.folder / f"jaxmarl-{seed}.json").write_text(json.dumps(curve), encoding="utf-8")

    packages = ("jaxmarl", "jax", "jaxlib", "flax", "optax", "distrax", "numpy")
    serve(
        {str(seed): (lambda s=seed: run(s)) for seed in options.seeds},
        {"versions": {name: version(name) for name in packages}, "config": as_read},
    )


def _imported(script: Path, logged: list[dict[str, Any]]) -> Any:
    """The script as a module; what it would send to Weights & Biases goes to `logged`."""
    wandb: Any = types.ModuleType("wandb")
    wandb.log = logged.append
    sys.modules["wandb"] = wandb
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
