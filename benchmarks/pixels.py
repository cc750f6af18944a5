"""Learning from pixels: PPO of fragflow beside that of rejax, at equal steps and settings.

The game is gymnax's Breakout-MinAtar, 10 x 10 pixels. The settings are those that rejax's authors
chose for it. Two networks:

- convolutions: the one that fragflow's PPO puts on small images, given to rejax as well;
- flat: rejax's own, which takes an image for a vector, given to fragflow as well.

Actors of both sides are evaluated by one program, on one version of the game.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import measure
from fused import RIVAL
from measure import HERE, Worker, cache, print_table, rival_python, serve

GAME = "Breakout-MinAtar"
NETWORKS = ("convolutions", "flat")
EPISODES = 256
ENVS = 32
OURS = {
    "rollout_length": 32,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 2.567e-4,
    "max_grad_norm": 1.0,
    "gamma": 0.995,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "entropy_coef": 0.01,
    "value_coef": 0.5,
}
RIVALS_NAMES = {
    "rollout_length": "num_steps",
    "epochs": "num_epochs",
    "minibatches": "num_minibatches",
    "clip": "clip_eps",
    "entropy_coef": "ent_coef",
    "value_coef": "vf_coef",
}
THEIRS = {"num_envs": ENVS} | {RIVALS_NAMES.get(name, name): OURS[name] for name in OURS}
ALWAYS_THEIRS = {"clip_value": True, "anneal": False}
"""what rejax does without asking"""


def main() -> None:
    options = _options()
    if options.worker:
        _work(options)
        return
    results: dict[str, Any] = {"machine": measure.machine(), "game": GAME, "episodes": EPISODES}
    for network in options.only:
        results[network] = _compare(network, options)
    measure.write(options.json, results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS), help="the networks")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="a training run for each")
    add("--steps", type=int, default=2**20, help="environment steps per training run")
    add("--json", type=Path, help="where to write the results as data")
    add("--venv", type=Path, default=cache() / "rejax", help="where the rival is installed")
    add("--worker", choices=NETWORKS, help=argparse.SUPPRESS)
    add("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps % (ENVS * OURS["rollout_length"]):
        parser.error(f"--steps must be a multiple of {ENVS} x {OURS['rollout_length']}")
    return options


def _compare(network: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        common = ("--steps", options.steps, "--seeds", *options.seeds, "--folder", name)
        workers = {
            "fragflow": Worker(HERE / "pixels.py", "--worker", network, *common),
            "rejax": Worker(
                *(HERE / "rejax_pixels_worker.py", "--env", GAME, "--network", network, *common),
                *("--settings", json.dumps(THEIRS)),
                python=rival_python(options.venv, RIVAL),
            ),
        }
        samples: dict[str, list[measure.Sample]] = {side: [] for side in workers}
        for seed in options.seeds:
            for side, worker in workers.items():
                samples[side].append(worker.run(str(seed)))
        for worker in workers.values():
            worker.close()
        sides = {side: _evaluated(network, side, Path(name), options.seeds) for side in workers}
    returns = {side: [run["mean_return"] for run in runs] for side, runs in sides.items()}
    is_enough = statistics.mean(returns["fragflow"]) >= min(returns["rejax"])
    title = (
        f"PPO, {GAME}, {network}: {ENVS} environments x {OURS['rollout_length']} steps, "
        f"{OURS['epochs']} x {OURS['minibatches']}, {options.steps:,} steps per seed\n"
        f"  mean return of {EPISODES} episodes with sampled actions (with the likeliest ones)"
    )
    header = ("", *(f"seed {s}" for s in options.seeds), "mean", "min", "max", "s per seed")
    print_table(title, header, [_row(side, runs) for side, runs in sides.items()])
    band = f"{min(returns['rejax']):.1f} to {max(returns['rejax']):.1f}"
    print(f"  fragflow's mean within rejax's seeds ({band}) or above:", end=" ")
    print("met" if is_enough else "MISSED")
    print(f"  {measure.quiet(samples)}")
    return {
        **sides,
        "steps": options.steps,
        "num_envs": ENVS,
        "settings": OURS | ALWAYS_THEIRS,
        "within_or_above": is_enough,
        "versions": {side: worker.info["versions"] for side, worker in workers.items()},
    }


def _row(side: str, runs: list[dict[str, Any]]) -> tuple[str, ...]:
    returns = [run["mean_return"] for run in runs]
    summary = (statistics.mean(returns), min(returns), max(returns))
    seconds = statistics.median(run["seconds"] for run in runs)
    cells = [f"{run['mean_return']:.1f} ({run['greedy_return']:.0f})" for run in runs]
    return (side, *cells, *(f"{x:.1f}" for x in summary), f"{seconds:.1f}")


# Evaluation of both sides, and fragflow's training: the only places where JAX is imported.


def _evaluated(network: str, side: str, folder: Path, seeds: list[int]) -> list[dict[str, Any]]:
    """What each seed's actor reaches on gymnax as fragflow uses it."""
    import jax
    import numpy as np

    from fragflow.environments import make_environment
    from fragflow.tools.experiment.evaluate_agent import Evaluator

    ppo, game = _ppo(network), make_environment(GAME)
    sampled = Evaluator(ppo, game, episodes=EPISODES, explore=True)
    greedy = Evaluator(ppo, game, episodes=EPISODES)
    actor = ppo.network.init(jax.random.key(0), game.observation, game.action)["actor"]
    rows = []
    for seed in seeds:
        stored = np.load(folder / f"{side}-{seed}.npz")
        params = {"actor": jax.tree.map_with_path(lambda path, _, s=stored: s[_name(path)], actor)}
        rows.append(
            {
                "seed": seed,
                "mean_return": sampled(params).mean_return,
                "greedy_return": greedy(params).mean_return,
                "seconds": float(stored["seconds"]),
            }
        )
    return rows


def _name(path: Any) -> str:
    """`convolutions.0.kernel`"""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path)


def _ppo(network: str) -> Any:
    from pixel_networks import FlatActorCritic

    from fragflow import ops
    from fragflow.algorithms.ppo import PPO

    chosen = FlatActorCritic() if network == "flat" else ops.MLPActorCritic()
    return PPO(network=chosen, **OURS, **ALWAYS_THEIRS)


def _work(options: argparse.Namespace) -> None:
    import engines
    import jax
    import numpy as np

    from fragflow.environments import make_environment
    from fragflow.policies.named import named_policy
    from fragflow.run import Experiment, run

    def train(seed: int) -> None:
        experiment = Experiment(
            algorithm=_ppo(options.worker),
            environment=make_environment(GAME),
            num_envs=ENVS,
            total_steps=options.steps,
            seed=seed,
        )
        outcome = run(experiment, named_policy("gpu-only"))
        actor = jax.tree.leaves_with_path(outcome.state.params["actor"])
        np.savez(
            options.folder / f"fragflow-{seed}.npz",
            seconds=outcome.train_seconds,
            **{_name(path): np.asarray(leaf) for path, leaf in actor},
        )

    serve(
        {str(seed): (lambda s=seed: train(s)) for seed in options.seeds},
        {"versions": engines.versions()},
    )


if __name__ == "__main__":
    main()
