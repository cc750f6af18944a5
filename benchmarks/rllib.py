"""PPO on a Ray cluster: fragflow with `--runtime ray` against RLlib, in one run on one cluster.

- cartpole: Gymnasium's CartPole-v1, 64 environments;
- halfcheetah: Gymnasium's HalfCheetah-v5, 16 environments.

The benchmark starts a Ray cluster on this machine, which both sides join by its address and with
its token; their versions of Ray and Python are the same. fragflow runs `single-learner-coarse` with
two workers, RLlib two env runners and a learner in the process that drives them. One side computes
at a time; the other one's actors wait, and how much all compute while they wait is printed.

Two questions: how many steps per second in the steady state, in samples that alternate; and how
long until recent episodes return as much as a goal says, each time in a new process, its start
apart.

Both sides have the same rollout length, epochs, minibatches, optimiser, learning rate (constant),
discount, lambda, clipping of ratios and of gradients, entropy bonus, and separate networks of two
tanh layers of 64; observations of HalfCheetah are standardised, and its policy's deviation does not
depend on them. RLlib's loss has no KL term, and its value loss is not clipped. What remains
different is each library's own doing:

- fragflow's critic counts in units of recent returns, RLlib's in rewards. There its loss would
  drown the policy's, since their gradients are clipped together, so its weight is that
  of RLlib's own example of CartPole-v1, 0.01, in both games;
- fragflow makes minibatches of whole time steps, RLlib of shuffled samples, among which are a few
  artificial ones at the ends of fragments that its loss leaves out;
- fragflow starts with orthogonal weights and a nearly uniform policy, and Adam's epsilon is 1e-5;
  RLlib has PyTorch's defaults;
- where a Gymnasium environment has an implementation for many at once, fragflow takes it, RLlib if
  told to. CartPole-v1 has one: both ways are measured on both sides;
- RLlib depends on an earlier Gymnasium.
"""

import argparse
import contextlib
import json
import logging
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measure
from measure import HERE, Worker, as_data, cache, interleaved, median, print_table, rival_python

TORCH = "torch==2.13.0"
RUNNERS = 2
CPUS = 16
"""that the cluster believes in: room for the actors of all sides"""
WAITING_SECONDS = 5.0
CURVE_POINTS = 50
KEPT = ("start_seconds", "seconds", "steps")
COMMON = {
    "rollout_length": 128,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "max_grad_norm": 0.5,
    "hidden": [64, 64],
}


@dataclass(frozen=True, kw_only=True)
class Game:
    """What both sides train."""

    env: str
    envs: int
    settings: dict[str, Any]
    """of fragflow's PPO; the rival's are made from them"""
    is_continuous: bool
    rival_value_coef: float
    goal: float
    """the mean return of recent episodes that is to be reached"""
    recent: int
    """episodes"""
    target: float
    """times the rival's steps per second"""
    ways: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """by name, whose side, and how it steps environments"""


FRAGFLOW, RIVAL = "fragflow", "RLlib"
GAMES = {
    "cartpole": Game(
        env="CartPole-v1",
        envs=64,
        settings=COMMON
        | {"epochs": 4, "minibatches": 4, "learning_rate": 1e-3, "entropy_coef": 0.01},
        is_continuous=False,
        rival_value_coef=0.01,
        goal=400.0,
        recent=100,
        target=8.0,
        ways={
            "fragflow": (FRAGFLOW, "vector"),
            "fragflow, one by one": (FRAGFLOW, "sync"),
            "RLlib": (RIVAL, "sync"),
            "RLlib, many at once": (RIVAL, "vector_entry_point"),
        },
    ),
    "halfcheetah": Game(
        env="HalfCheetah-v5",
        envs=16,
        settings=COMMON
        | {"epochs": 10, "minibatches": 32, "learning_rate": 3e-4, "entropy_coef": 0.0}
        | {"normalise_observations": True},
        is_continuous=True,
        rival_value_coef=0.01,
        goal=500.0,
        recent=32,
        target=3.0,
        ways={"fragflow": (FRAGFLOW, "sync"), "RLlib": (RIVAL, "sync")},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", choices=list(GAMES), help="one of the games")
    add("--repeats", type=int, default=5, help="samples of each side")
    add("--seconds", type=float, default=10.0, help="about how long a sample takes")
    add("--seeds", type=int, default=5, help="how often each side learns; 0: not at all")
    add("--limit", type=float, default=300.0, help="seconds after which learning is given up")
    add("--json", type=Path, help="where to write the results as data")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": measure.machine()}
    requirements = (TORCH, f"ray[rllib]=={version('ray')}", "gymnasium[mujoco]")
    python = rival_python(cache() / "rllib-same-ray", requirements)
    with cluster() as address:
        for name in [options.only] if options.only else GAMES:
            sides = Sides(GAMES[name], address, python)
            results[name] = {"game": asdict(GAMES[name])}
            if options.repeats:
                results[name]["speed"] = compare_speed(sides, options)
            if options.seeds:
                results[name]["learning"] = compare_learning(sides, options)
            measure.write(options.json, results)


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """A Ray cluster on this machine that asks for a token; its address."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        token = Path(folder) / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), encoding="utf-8")
        # Ray reads them when it is imported; the sides inherit them.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))
        import ray

        ray.init(
            address="local",
            num_cpus=CPUS,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            ray.shutdown()


@dataclass(frozen=True)
class Sides:
    """Starts either side on a game."""

    game: Game
    address: str
    rival: str
    """its interpreter"""

    def start(self, way: str, what: str, seconds: float, seed: int = 0) -> Worker:
        side, vectorization = self.game.ways[way]
        script, more = "ray_engine.py", {}
        if side == RIVAL:
            script, more = "rllib_ppo_worker.py", {"python": self.rival}
        return Worker(
            HERE / script,
            what,
            *("--address", self.address, "--game", json.dumps(asdict(self.game))),
            *("--runners", RUNNERS, "--vectorization", vectorization, "--seed", seed),
            *("--seconds", seconds, "--began", time.time()),
            **more,
        )


def compare_speed(sides: Sides, options: argparse.Namespace) -> dict[str, Any]:
    game = sides.game
    workers = {way: sides.start(way, "speed", options.seconds) for way in game.ways}
    waiting = measure.busy_cores(WAITING_SECONDS)
    samples = interleaved(
        {way: (lambda w=worker: w.run("go")) for way, worker in workers.items()}, options.repeats
    )
    for worker in workers.values():
        worker.close()
    rates = {way: workers[way].info["steps"] / median(all_) for way, all_ in samples.items()}
    rows = []
    for way, all_ in samples.items():
        each = [workers[way].info["steps"] / s.seconds for s in all_]
        rows.append([way, *(f"{r:,.0f}" for r in (rates[way], min(each), max(each)))])
    print_table(
        f"Gymnasium {game.env} on Ray, {game.envs} environments x 128 steps, "
        f"{game.settings['epochs']} x {game.settings['minibatches']}, {RUNNERS} workers",
        ("", "steps/s", "slowest", "fastest"),
        rows,
    )
    ratios = {way: rates["fragflow"] / rates[way] for way in rates}
    print("  against RLlib", measure.verdict(ratios["RLlib"], game.target, "x", at_least=True))
    if "fragflow, one by one" in rates:
        for ours, theirs in (
            ("fragflow, one by one", "RLlib"),
            ("fragflow", "RLlib, many at once"),
        ):
            ratios[f"{ours} / {theirs}"] = rates[ours] / rates[theirs]
            print(f"  {ours} / {theirs}: {rates[ours] / rates[theirs]:.2f}x")
    print(f"  {measure.quiet(samples)}")
    if waiting is not None:
        print(f"  while all sides wait, they and Ray use {waiting:.2f} cores")
    return {
        "steps_per_second": rates,
        "ratios": ratios,
        "steps_per_sample": {way: worker.info["steps"] for way, worker in workers.items()},
        "cores_while_waiting": waiting,
        "versions": {way: worker.info["versions"] for way, worker in workers.items()},
        **as_data(samples),
    }


def compare_learning(sides: Sides, options: argparse.Namespace) -> dict[str, Any]:
    game = sides.game
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ("fragflow", "RLlib")}
    for seed in range(options.seeds):
        for way, found in runs.items():
            load = os.getloadavg()[0]
            worker = sides.start(way, "learning", options.limit, seed)
            worker.close()
            run = {k: worker.info[k] for k in ("start_seconds", "is_there", "curve")}
            seconds, steps, last = run["curve"][-1]
            run["curve"] = thinned(run["curve"])
            found.append(run | {"seconds": seconds, "steps": steps, "return": last, "load": load})
    rows, medians = [], {}
    for way, found in runs.items():
        medians[way] = {k: statistics.median(r[k] for r in found) for k in KEPT}
        reached = sum(r["is_there"] for r in found)
        start, seconds, steps = (medians[way][k] for k in KEPT)
        both = statistics.median(r["start_seconds"] + r["seconds"] for r in found)
        numbers = (f"{start:.1f}", f"{seconds:.1f}", f"{both:.1f}", f"{steps:,.0f}")
        rows.append([way, f"{reached} of {len(found)}", *numbers])
    print_table(
        f"to a mean return of {game.goal:g} over {game.recent} episodes, medians of "
        f"{options.seeds} seeds, at most {options.limit:g} s each",
        ("", "reached", "start s", "training s", "both s", "steps"),
        rows,
    )
    ratio = medians["RLlib"]["seconds"] / medians["fragflow"]["seconds"]
    is_bound = not all(r["is_there"] for r in runs["RLlib"])
    print(f"  RLlib trains {'at least ' if is_bound else ''}{ratio:.1f} times as long")
    return {"ratio": ratio, "medians": medians, "runs": runs}


def thinned(curve: list[list[float]]) -> list[list[float]]:
    """Some points of a curve, with its last."""
    every = -(-len(curve) // CURVE_POINTS)
    return curve[::-1][::every][::-1]


if __name__ == "__main__":
    main()
