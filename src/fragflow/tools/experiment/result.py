"""The result of a run: its facts, the final state and the metrics."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fragflow.error_owner import judging
from fragflow.run import Outcome
from fragflow.tools.experiment.progress import Display
from fragflow.tools.experiment.run_directory import RunDirectory, sha256_of, versions
from fragflow.tools.experiment.watch import Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run: the facts of its summary, the final state and the metrics."""

    algorithm: str
    env: str
    policy: str
    sync: str
    """synchronisation of the policy's fragments"""
    runtime: str
    workers: int
    learners: int
    seed: int
    env_steps: int
    iterations: int
    compile_seconds: float
    """to trace, cut and compile, and to start workers"""
    trial_seconds: float
    """to probe the cut and to compare bits, before training"""
    train_seconds: float
    """evaluations are not counted"""
    steps_per_second: float
    mean_return: float | None
    """of the episodes that ended in the last iterations, at least 100; None if none ended"""
    eval_return: float | None
    """mean over greedy episodes; None if there were none"""
    episodes: int
    params_sha256: str
    """over the bytes of the parameters in pytree order"""
    devices: Mapping[str, Sequence[str]]
    """by fragment, where each of its replicas was: `cpu:0`, in processes each's own"""
    programs: int
    messages: int
    bytes_moved: int
    replacements: int
    """worker processes that were lost, and replaced"""
    equality: str
    """relation of this run to one undivided program"""
    probe: str
    """result of the probe of that before the run, or the reason that there was no probe"""
    implementations: Mapping[str, str]
    """by kernel, the implementation that computed it"""
    load: float
    """average number of busy processes in the last minute"""
    interrupted: bool
    versions: Mapping[str, str]
    params: Any = field(repr=False)
    """the part of the state that the trained agent acts with"""
    state: Any = field(repr=False)
    metrics: Sequence[Mapping[str, Any]] = field(repr=False)
    """one row per iteration"""
    run_dir: Path | None

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in ("params", "state", "metrics", "run_dir")
        }


@judging(is_running=True)
def result_of(
    asked: Mapping[str, Any],
    outcome: Outcome,
    params: Any,
    watcher: Watcher,
    directory: RunDirectory | None,
) -> Result:
    train_seconds = outcome.train_seconds - watcher.eval_seconds
    return Result(
        **{
            name: asked[name]
            for name in ("algorithm", "env", "policy", "sync", "runtime", "workers", "learners")
        },
        seed=asked["seed"],
        env_steps=outcome.env_steps,
        iterations=len(outcome.rows),
        compile_seconds=outcome.compile_seconds,
        trial_seconds=outcome.start.trial_seconds,
        train_seconds=train_seconds,
        steps_per_second=outcome.env_steps / train_seconds if train_seconds > 0 else 0.0,
        mean_return=outcome.mean_return,
        eval_return=watcher.evaluate_at_end(outcome.state),
        episodes=outcome.episodes,
        params_sha256=sha256_of(params),
        devices=outcome.start.devices,
        programs=outcome.start.programs,
        messages=outcome.messages,
        bytes_moved=outcome.bytes_moved,
        replacements=outcome.replacements,
        equality=outcome.equality,
        probe=outcome.start.probe,
        implementations=outcome.start.implementations,
        load=os.getloadavg()[0],
        interrupted=watcher.interrupted,
        versions=versions(),
        params=params,
        state=outcome.state,
        metrics=watcher.metrics,
        run_dir=None if directory is None else directory.path,
    )


def show_result(result: Result, display: Display) -> None:
    display.note(
        f"{'stopped early' if result.interrupted else 'done'}: {result.env_steps:,} steps in "
        f"{result.train_seconds:.1f} s ({result.steps_per_second:,.0f} steps/s), "
        f"{result.messages:,} messages, {result.bytes_moved:,} bytes moved"
    )
    if result.replacements:
        display.note(f"lost and replaced {result.replacements} worker processes on the way")
    returns = []
    if result.mean_return is not None:
        returns.append(
            f"return {result.mean_return:.2f} (the last of {result.episodes:,} episodes)"
        )
    if result.eval_return is not None:
        returns.append(f"eval return {result.eval_return:.2f} (greedy)")
    if returns:
        display.note(", ".join(returns))
    if result.run_dir is not None:
        display.note(f"saved in {result.run_dir}")
