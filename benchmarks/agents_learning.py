"""What many agents learn: MAPPO and IPPO of fragflow beside JaxMARL's baselines, at equal steps.

The game is JaxMARL's MPE_simple_spread_v3, with three agents, in the same version on both sides.
Its baselines are scripts in its repository, not in its package: `--jaxmarl` is a checkout of it.
They run unchanged, with the settings of their files: `mappo_rnn_mpe.py` and `ippo_ff_mpe.py`.

A return is the sum of an agent's rewards in an episode, here the mean over agents; JaxMARL's
scripts log it multiplied by the number of agents. What is compared is its mean over the last tenth
of training, in which both sides still sample their actions.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import measure
from measure import HERE, Worker, cache, print_table, rival_python, serve

GAME = "MPE_simple_spread_v3"
RIVAL = (
    *("jaxmarl==0.2.0", "jax==0.10.2", "flax==0.12.8", "optax==0.2.8", "distrax==0.1.9"),
    *("hydra-core==1.3.8", "omegaconf==2.3.1", "matplotlib==3.11.2"),
)
SIDES = ("jaxmarl", "fragflow")
COMMON = {
    "rollout_length": 128,
    "epochs": 4,
    "minibatches": 4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "entropy_coef": 0.01,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
    "anneal": True,
}
OURS: dict[str, dict[str, Any]] = {
    "mappo": COMMON
    | {"learning_rate": 2e-3, "before": (128,), "units": 128, "hidden": (128,)}
    # JaxMARL's gradients flow through whole rollouts; of four minibatches, this is the longest.
    | {"chunk_length": 32},
    "ippo": COMMON | {"learning_rate": 2.5e-4, "hidden": (64, 64)},
}
ENVS = {"mappo": 128, "ippo": 16}
THEIR_NAMES = {
    "learning_rate": "LR",
    "rollout_length": "NUM_STEPS",
    "epochs": "UPDATE_EPOCHS",
    "minibatches": "NUM_MINIBATCHES",
    "gamma": "GAMMA",
    "gae_lambda": "GAE_LAMBDA",
    "clip": "CLIP_EPS",
    "entropy_coef": "ENT_COEF",
    "value_coef": "VF_COEF",
    "max_grad_norm": "MAX_GRAD_NORM",
    "anneal": "ANNEAL_LR",
    "before": "FC_DIM_SIZE",
    "units": "GRU_HIDDEN_DIM",
}
SCRIPTS = {
    "mappo": ("MAPPO/mappo_rnn_mpe.py", "MAPPO/config/mappo_homogenous_rnn_mpe.yaml"),
    "ippo": ("IPPO/ippo_ff_mpe.py", "IPPO/config/ippo_ff_mpe.yaml"),
}
PARTS = 20
"""points of a curve; the last tenth of training is the last two"""


def main() -> None:
    options = _options()
    if options.worker:
        _work(options)
        return
    for side in options.only:
        for run in _trained(side, options):
            _add(side, run, options)
    results = _results(options)
    _report(results[options.algorithm], options)
    measure.write(options.json, results)


def _results(options: argparse.Namespace) -> dict[str, Any]:
    """What the file has, and room for this algorithm's runs."""
    results: dict[str, Any] = {"game": GAME}
    if options.json and options.json.exists():
        results |= json.loads(options.json.read_text(encoding="utf-8"))
    setup = {
        "total_steps": options.total_steps,
        "num_envs": ENVS[options.algorithm],
        "settings": json.loads(json.dumps(OURS[options.algorithm])),
    }
    earlier = results.setdefault(options.algorithm, setup)
    if any(earlier[name] != value for name, value in setup.items()):
        raise SystemExit(f"{options.json} has runs with other settings: name another file")
    return results


def _add(side: str, run: dict[str, Any], options: argparse.Namespace) -> None:
    """One run more in the file, at once: none is lost if a later one fails."""
    results = _results(options)
    runs = {old["seed"]: old for old in results[options.algorithm].get(side, [])}
    runs[run["seed"]] = run
    results[options.algorithm][side] = [runs[seed] for seed in sorted(runs)]
    measure.write(options.json, results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--algorithm", choices=tuple(OURS), default="mappo")
    add("--jaxmarl", type=Path, help="a checkout of JaxMARL, with its folder baselines")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="a training run for each")
    add("--total-steps", type=int, default=2_000_000, help="environment steps per training run")
    add("--only", nargs="+", choices=SIDES, default=list(SIDES), help="others: as in the file")
    add("--json", type=Path, help="where to write the results as data")
    add("--venv", type=Path, default=cache() / "jaxmarl" / "venv", help="where the rival is")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    add("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "jaxmarl" in options.only and options.jaxmarl is None and not options.worker:
        parser.error("--jaxmarl is needed: where JaxMARL's baselines are")
    # Whole iterations, as many as its scripts make.
    per_iteration = ENVS[options.algorithm] * COMMON["rollout_length"]
    options.total_steps -= options.total_steps % per_iteration
    return options


def _trained(side: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every seed's curve on one side."""
    _results(options)
    with tempfile.TemporaryDirectory() as name:
        common = (
            *("--total-steps", options.total_steps, "--folder", name),
            *("--seeds", *options.seeds),
        )
        if side == "jaxmarl":
            script, config = (
                options.jaxmarl / "baselines" / path for path in SCRIPTS[options.algorithm]
            )
            words = ("--script", script, "--config", config, *common)
            python = rival_python(options.venv, RIVAL)
            worker = Worker(HERE / "jaxmarl_worker.py", *words, python=python)
            _check_equal(worker.info["config"], options.algorithm)
        else:
            words = ("--worker", "--algorithm", options.algorithm, *common)
            worker = Worker(HERE / "agents_learning.py", *words)
        about = {"machine": measure.machine(), "versions": worker.info["versions"]}
        for seed in options.seeds:
            sample = worker.run(str(seed))
            returns = json.loads((Path(name) / f"{side}-{seed}.json").read_text(encoding="utf-8"))
            curve = _curve(returns)
            final = statistics.mean(returns[-(len(returns) // 10) :])
            print(f"  {side}, seed {seed}: {final:.2f} after {sample.seconds:,.0f} s", flush=True)
            yield {"seed": seed, "mean_return": final, "curve": curve, **asdict(sample), **about}
        worker.close()


def _curve(returns: Sequence[float]) -> list[float]:
    """The mean return of each twentieth of training."""
    ends = [len(returns) * k // PARTS for k in range(PARTS + 1)]
    parts = [returns[a:b] for a, b in itertools.pairwise(ends) if b > a]
    return [round(statistics.mean(part), 3) for part in parts]


def _check_equal(config: dict[str, Any], algorithm: str) -> None:
    """Settings are those of the rival's own file."""
    ours = {THEIR_NAMES[k]: v for k, v in OURS[algorithm].items() if k in THEIR_NAMES}
    ours |= {"NUM_ENVS": ENVS[algorithm], "ENV_NAME": GAME}
    for name, value in ours.items():
        if config[name] not in (value if isinstance(value, tuple) else [value]):
            raise SystemExit(f"JaxMARL's file has {name} = {config[name]}, fragflow's side {value}")


def _report(results: dict[str, Any], options: argparse.Namespace) -> None:
    sides = {side: results[side] for side in SIDES if side in results}
    seeds = sorted({run["seed"] for runs in sides.values() for run in runs})
    rows = []
    for side, runs in sides.items():
        returns = {run["seed"]: run["mean_return"] for run in runs}
        each = [f"{returns[seed]:.2f}" if seed in returns else "" for seed in seeds]
        summary = (statistics.mean(returns.values()), min(returns.values()), max(returns.values()))
        times = [_median(run[name] for run in runs) for name in ("seconds", "cpu_seconds")]
        rows.append((side, *each, *(f"{x:.2f}" for x in summary), *times))
    title = (
        f"{options.algorithm}, {GAME}, {results['num_envs']} environments, "
        f"{results['total_steps']:,} steps: mean return in the last tenth"
    )
    spans = ("mean", "min", "max", "s per run", "CPU s")
    print_table(title, ("", *(f"seed {seed}" for seed in seeds), *spans), rows)
    if len(sides) == 2:
        theirs = [run["mean_return"] for run in sides["jaxmarl"]]
        ours = statistics.mean(run["mean_return"] for run in sides["fragflow"])
        results["within_or_above"] = ours >= min(theirs)
        band = f"{min(theirs):.2f} to {max(theirs):.2f}"
        print(f"  fragflow's mean within JaxMARL's seeds ({band}) or above:", end=" ")
        print("met" if results["within_or_above"] else "MISSED")


def _median(seconds: Iterable[float | None]) -> str:
    known = [x for x in seconds if x is not None]
    return f"{statistics.median(known):,.0f}" if known else ""


def _work(options: argparse.Namespace) -> None:
    """fragflow's training: the only place where JAX is imported."""
    import engines

    from fragflow.algorithms import algorithm_class
    from fragflow.environments import make_environment
    from fragflow.policies.named import named_policy
    from fragflow.run import Experiment, Row, Silent, run

    class Progress(Silent):
        def rows(self, rows: Sequence[Row]) -> None:
            last = rows[-1]
            text = f"{last.env_steps:,} steps: {last.return_sum / last.episodes:.2f}"
            print(text, file=sys.stderr, flush=True)

    algorithm = algorithm_class(options.algorithm)(**OURS[options.algorithm])

    def train(seed: int) -> None:
        experiment = Experiment(
            algorithm=algorithm,
            environment=make_environment(f"jaxmarl:{GAME}"),
            num_envs=ENVS[options.algorithm],
            total_steps=options.total_steps,
            seed=seed,
        )
        rows = run(experiment, named_policy("gpu-only"), observer=Progress()).rows
        assert rows[-1].env_steps == options.total_steps
        curve = [row.return_sum / row.episodes for row in rows]
        (options.folder / f"fragflow-{seed}.json").write_text(json.dumps(curve), encoding="utf-8")

    serve(
        {str(seed): (lambda s=seed: train(s)) for seed in options.seeds},
        {"versions": engines.versions()},
    )


if __name__ == "__main__":
    main()
