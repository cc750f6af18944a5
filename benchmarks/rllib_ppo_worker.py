"""A rival's side of `rllib.py`: PPO of RLlib, its env runners actors of a cluster that is there."""

import argparse
import json
import logging
import shutil
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import ray
from measure import serve
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

PACKAGES = ("ray", "torch", "gymnasium", "mujoco", "numpy")


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("what", choices=["speed", "learning"])
    add("--address", required=True, help="of the Ray cluster")
    add("--game", type=json.loads, required=True, help="what to train, and how")
    add("--runners", type=int, required=True)
    add("--vectorization", default="sync", help="how a runner steps its environments")
    add("--seed", type=int, default=0)
    add("--seconds", type=float, required=True, help="of an order; of learning: at most")
    add("--began", type=float, default=0.0, help="when this process was started")
    options = parser.parse_args()
    # The cluster was started by another environment's interpreter: its workers are to use ours.
    ray.init(
        address=options.address,
        runtime_env={"py_executable": sys.executable},
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    algorithm: Any = configured(options).build_algo()
    info = {"versions": {name: version(name) for name in PACKAGES}}
    if options.what == "speed":
        runs, more = speed(algorithm, options)
    else:
        runs, more = {}, learning(algorithm, options)
    serve(runs, {**info, **more})
    algorithm.stop()
    shutil.rmtree(algorithm.logdir, ignore_errors=True)  # it is empty, in the user's home
    ray.shutdown()


def configured(options: argparse.Namespace) -> PPOConfig:
    game = options.game
    settings = game["settings"]
    batch = game["envs"] * settings["rollout_length"]
    is_scaled = settings.get("normalise_observations", False)
    return (
        PPOConfig()
        .environment(game["env"])
        .env_runners(
            num_env_runners=options.runners,
            num_envs_per_env_runner=game["envs"] // options.runners,
            gym_env_vectorize_mode=options.vectorization,
            rollout_fragment_length=settings["rollout_length"],
            env_to_module_connector=(lambda *_, **__: MeanStdFilter()) if is_scaled else None,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=batch,
            minibatch_size=batch // settings["minibatches"],
            num_epochs=settings["epochs"],
            lr=settings["learning_rate"],
            gamma=settings["gamma"],
            lambda_=settings["gae_lambda"],
            clip_param=settings["clip"],
            entropy_coeff=settings["entropy_coef"],
            grad_clip=settings["max_grad_norm"],
            grad_clip_by="global_norm",
            use_kl_loss=False,
            vf_clip_param=float("inf"),
            vf_loss_coeff=game["rival_value_coef"],
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(settings["hidden"]),
                fcnet_activation="tanh",
                vf_share_layers=False,
                free_log_std=game["is_continuous"],
            )
        )
        .callbacks(on_episode_end=report_return if options.what == "learning" else None)
        .reporting(min_time_s_per_iteration=0)
        .debugging(seed=options.seed, log_level="ERROR")
    )


def report_return(*, episode: Any, env_runner: Any, metrics_logger: Any, **_: Any) -> None:
    """Every return by itself: the mean that RLlib reports is of one iteration, by runner.

    An episode is in pieces, one per rollout; the runner keeps those before the last.
    """
    pieces = [*env_runner._ongoing_episodes_for_metrics.get(episode.id_, ()), episode]
    whole = sum(piece.get_return() for piece in pieces)
    metrics_logger.log_value("every_return", whole, reduce="item_series")


def speed(
    algorithm: Any, options: argparse.Namespace
) -> tuple[dict[str, Callable[[], object]], dict[str, Any]]:
    """As many iterations as take about the seconds wanted, after a few that warm up."""
    per_iteration = steps_of(algorithm.train())
    algorithm.train()
    began = time.perf_counter()
    for _ in range(2):
        algorithm.train()
    each = (time.perf_counter() - began) / 2
    count = max(1, round(options.seconds / each))

    def run() -> None:
        for _ in range(count):
            algorithm.train()

    return {"go": run}, {"iterations": count, "steps": count * per_iteration}


def learning(algorithm: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Trains until recent episodes return as much as wanted, or for as long as allowed."""
    began = time.perf_counter()
    start_seconds = time.time() - options.began
    curve, steps = [], 0
    recent: deque[float] = deque(maxlen=options.game["recent"])
    while True:
        result = algorithm.train()
        steps += steps_of(result)
        recent += map(float, result["env_runners"].get("every_return", ()))
        found = sum(recent) / len(recent) if recent else None
        seconds = time.perf_counter() - began
        curve.append([round(seconds, 2), steps, found])
        is_there = found is not None and found >= options.game["goal"]
        if is_there or seconds >= options.seconds:
            return {"start_seconds": start_seconds, "is_there": is_there, "curve": curve}


def steps_of(result: dict[str, Any]) -> int:
    return int(result["env_runners"]["num_env_steps_sampled"])


if __name__ == "__main__":
    main()
