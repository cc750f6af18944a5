"""`ff.train`: compiles and runs, in one call."""

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from fragflow.api import Algorithm
from fragflow.api.environment_batch import AnyEnvironment
from fragflow.tools.experiment.compile import EVAL_EPISODES, compile
from fragflow.tools.experiment.error_report import reported
from fragflow.tools.experiment.restore_settings import as_before
from fragflow.tools.experiment.result import Result
from fragflow.tools.inputs.settings import Settings


@reported
@as_before()
def train(
    algorithm: Algorithm | type[Algorithm] | str,
    env: AnyEnvironment | str,
    *,
    run_dir: Path | str | None = None,
    eval_every: int | None = None,
    eval_episodes: int = EVAL_EPISODES,
    quiet: bool = False,
    stop: Callable[[], bool] = lambda: False,
    **settings: Unpack[Settings],
) -> Result:
    """Trains an agent and returns what came out: `ff.compile(...).run(...)`.

    Afterwards the process is as it was, except that JAX has started: with as many devices as the
    policy needs.

    Args:
        algorithm: the name of one, `module:attribute`, a class or an instance.
        env: the name of one, `library:name`, `module:attribute` or an object.
        run_dir: where configuration, metrics, weights and a summary are kept for `ff.load`.
        eval_every: evaluate whenever so many more environment steps were made.
        eval_episodes: greedy episodes per evaluation; 0 for none.
        quiet: show nothing on the terminal.
        stop: asked between chunks of iterations; True ends the run in good order.
        settings: those of `ff.compile`: num_envs, total_steps, seed, policy, workers, ...

    Returns:
        The final state, returns, metrics, and what the run says of itself.
    """
    return compile(algorithm, env, quiet=quiet, **settings).run(
        run_dir=run_dir,
        eval_every=eval_every,
        eval_episodes=eval_episodes,
        quiet=quiet,
        stop=stop,
    )
