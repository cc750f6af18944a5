"""fragflow's side of `rllib.py`: PPO with `--runtime ray`, its workers actors of a cluster."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from host_engine import HostEngine
from measure import serve

from fragflow.algorithms.ppo import PPO
from fragflow.environments import make_environment
from fragflow.policies import named_policy
from fragflow.remote.launch.cluster import Cluster
from fragflow.remote.launch.on_ray import RayLauncher
from fragflow.run import Experiment, Row, Silent, Start, run
from fragflow.runtime.programs.devices import compute_in_calling_thread

PACKAGES = ("fragflow", "ray", "jax", "jaxlib", "gymnasium", "mujoco", "numpy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("what", choices=["speed", "learning"])
    add("--address", required=True, help="of the Ray cluster")
    add("--game", type=json.loads, required=True, help="what to train, and how")
    add("--runners", type=int, required=True)
    add("--vectorization", default="auto", help="how a worker steps its environments")
    add("--seed", type=int, default=0)
    add("--seconds", type=float, required=True, help="of an order; of learning: at most")
    add("--began", type=float, default=0.0, help="when this process was started")
    options = parser.parse_args()
    info = {"versions": {name: version(name) for name in PACKAGES}}
    if options.what == "learning":
        serve({}, info | learning(options))
        return
    engine = _engine(options)
    runs, more = speed(engine, options)
    serve(runs, info | more)
    engine.close()


def _engine(options: argparse.Namespace) -> HostEngine:
    game, cluster = options.game, Cluster(address=options.address)
    settings = _settings(game)
    return HostEngine(
        f"gymnasium:{game['env']}",
        {"vectorization": options.vectorization},
        game["envs"],
        settings.pop("rollout_length"),
        settings,
        workers=options.runners,
        launcher=lambda: RayLauncher(cluster),
    )


def _settings(game: dict[str, Any]) -> dict[str, Any]:
    """The rate stays as it is: the rival knows no end that it could fall towards."""
    return game["settings"] | {"hidden": tuple(game["settings"]["hidden"]), "anneal": False}


def speed(
    engine: HostEngine, options: argparse.Namespace
) -> tuple[dict[str, Callable[[], object]], dict[str, Any]]:
    """As many iterations as take about the seconds wanted, after a few that warm up."""
    engine.advance(3)
    began = time.perf_counter()
    engine.advance(3)
    count = max(1, round(3 * options.seconds / (time.perf_counter() - began)))
    steps = count * engine.num_envs * engine.rollout
    return {"go": lambda: engine.advance(count)}, {"iterations": count, "steps": steps}


def learning(options: argparse.Namespace) -> dict[str, Any]:
    """Trains until recent episodes return as much as wanted, or for as long as allowed."""
    compute_in_calling_thread()
    game = options.game
    watch = Watch(game["goal"], game["recent"], options.seconds)
    run(
        Experiment(
            algorithm=PPO(**_settings(game)),
            environment=make_environment(
                f"gymnasium:{game['env']}", vectorization=options.vectorization
            ),
            num_envs=game["envs"],
            total_steps=2**30,
            seed=options.seed,
        ),
        named_policy("single-learner-coarse"),
        workers=options.runners,
        runtime="ray",
        cluster=Cluster(address=options.address),
        observer=watch,
    )
    return {
        "start_seconds": watch.started_at - options.began,
        "is_there": watch.is_there,
        "curve": watch.curve,
    }


class Watch(Silent):
    """Stops a run when it has learnt enough, or has taken too long."""

    def __init__(self, goal: float, recent: int, seconds: float):
        self._goal, self._recent, self._seconds = goal, recent, seconds
        self._rows: list[Row] = []
        self.curve: list[list[float | None]] = []
        self.is_there = False

    def started(self, start: Start) -> None:
        del start
        self.started_at = time.time()

    def rows(self, rows: Sequence[Row]) -> None:
        self._rows += rows
        found, row = self._mean(), rows[-1]
        self.curve.append([round(row.seconds, 2), row.env_steps, found])
        self.is_there = self.is_there or (found is not None and found >= self._goal)

    def should_stop(self) -> bool:
        return self.is_there or bool(self._rows and self._rows[-1].seconds >= self._seconds)

    def _mean(self) -> float | None:
        """Of the last iterations that make as many episodes as count."""
        count, total = 0, 0.0
        for row in reversed(self._rows):
            count, total = count + row.episodes, total + row.return_sum
            if count >= self._recent:
                break
        return total / count if count else None


if __name__ == "__main__":
    main()
