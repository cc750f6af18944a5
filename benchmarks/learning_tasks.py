"""What `learning.py` measures: every learning figure of the documents, as data.

A task is a command of `fragflow train` and the number of its result that counts. Its name is that
of its file in `results/learning`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

GREEDY = "eval_return"
"""mean of greedy episodes after training"""
TRAINING = "mean_return"
"""mean of the last episodes of training, at least 100, in which actions are drawn"""
LAST_TENTH = "last_tenth"
"""mean of the episodes that ended in the last tenth of training"""
FIVE = (0, 1, 2, 3, 4)
TRIED = (10, 11, 12)
"""seeds that settings are compared with: what is chosen is then measured with others"""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One figure."""

    title: str
    """its name in a document's table"""
    command: str
    """what follows `fragflow train`, but for the seed"""
    metric: str = GREEDY
    where: str | None
    """the document that has it; None: withdrawn, or not measured yet"""
    seeds: tuple[int, ...] = FIVE
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """variables that the process has besides"""


MILLION = "--total-steps 1000000"
ALGORITHMS = "docs/algorithms.md"
ENVIRONMENTS = "docs/environments.md"
REPLAY = "docs/replay.md"
ASYNC = "--policy single-learner-coarse --sync async --workers 2"

SPREAD = "ippo --env jaxmarl:MPE_simple_spread_v3 --learning-rate 2.5e-4 --total-steps 500000"
CHEETAH = "ppo --env envpool:HalfCheetah-v4 --num-envs 16 --normalise-observations"
BEFORE = f"{CHEETAH} --learning-rate 3e-4 --epochs 10 --minibatches 32 --entropy-coef 0 {MILLION}"
"""the command that other machines gave other returns for"""


SMALL_STEPS = "--learning-rate 3e-4 --epochs 10 --minibatches 32"


def _trial(title: str, settings: str, seeds: tuple[int, ...] = TRIED) -> Task:
    """Settings for HalfCheetah, compared at half of the steps."""
    return Task(
        title=title,
        command=f"{CHEETAH} {settings} --entropy-coef 0 --total-steps 500000",
        metric=TRAINING,
        where=ENVIRONMENTS,
        seeds=seeds,
    )


_TRIALS = (
    _trial("as before", SMALL_STEPS),
    _trial("`--gamma 0.98 --gae-lambda 0.92`", f"{SMALL_STEPS} --gamma 0.98 --gae-lambda 0.92"),
    _trial("`--learning-rate 1e-3`", "--learning-rate 1e-3 --epochs 10 --minibatches 32"),
    _trial("`--hidden 256 256`", f"{SMALL_STEPS} --hidden 256 256", TRIED[:1]),
    _trial("`--rollout-length 64`", f"{SMALL_STEPS} --rollout-length 64"),
    _trial("`--max-grad-norm 5`", f"{SMALL_STEPS} --max-grad-norm 5"),
    _trial(
        "`--learning-rate 1e-3 --gamma 0.98 --gae-lambda 0.92`",
        "--learning-rate 1e-3 --epochs 10 --minibatches 32 --gamma 0.98 --gae-lambda 0.92",
    ),
)

TASKS: dict[str, Task] = {
    "ppo-cartpole": Task(
        title="`ppo`, CartPole-v1",
        command=f"ppo --env CartPole-v1 {MILLION}",
        where=ALGORITHMS,
    ),
    "a2c-cartpole": Task(
        title="`a2c`, CartPole-v1",
        command=f"a2c --env CartPole-v1 {MILLION}",
        where=ALGORITHMS,
    ),
    "a3c-cartpole-async": Task(
        title="`a3c --policy central --sync async --workers 4`, CartPole-v1",
        command=f"a3c --env CartPole-v1 {MILLION} --policy central --sync async --workers 4",
        where=ALGORITHMS,
    ),
    "a2c-acrobot": Task(
        title="`a2c`, Acrobot-v1",
        command=f"a2c --env Acrobot-v1 {MILLION}",
        where=ALGORITHMS,
    ),
    "a2c-pendulum": Task(
        title="`a2c`, Pendulum-v1",
        command=f"a2c --env Pendulum-v1 {MILLION}",
        where=ALGORITHMS,
    ),
    "a2c-pendulum-short": Task(
        title="`a2c --gamma 0.9`, Pendulum-v1",
        command=f"a2c --env Pendulum-v1 {MILLION} --gamma 0.9",
        where=ALGORITHMS,
    ),
    "impala-cartpole": Task(
        title="`impala`, CartPole-v1",
        command=f"impala --env CartPole-v1 {MILLION}",
        where=ALGORITHMS,
    ),
    "impala-cartpole-async": Task(
        title=f"`impala {ASYNC}`, CartPole-v1",
        command=f"impala --env CartPole-v1 {MILLION} {ASYNC}",
        where=ALGORITHMS,
    ),
    "impala-acrobot": Task(
        title="`impala`, Acrobot-v1",
        command=f"impala --env Acrobot-v1 {MILLION}",
        where=ALGORITHMS,
    ),
    "recurrent-ppo-positions": Task(
        title="`recurrent-ppo`, CartPole-positions",
        command=f"recurrent-ppo --env CartPole-positions {MILLION}",
        where=ALGORITHMS,
    ),
    "ppo-positions": Task(
        title="`ppo`, CartPole-positions",
        command=f"ppo --env CartPole-positions {MILLION}",
        where=ALGORITHMS,
    ),
    "dqn-cartpole": Task(
        title="`dqn`, CartPole-v1",
        command="dqn --env CartPole-v1 --total-steps 300000",
        where=REPLAY,
    ),
    "dqn-cartpole-prioritised": Task(
        title="`dqn --prioritised --dueling`, CartPole-v1",
        command="dqn --env CartPole-v1 --total-steps 300000 --prioritised --dueling",
        where=REPLAY,
    ),
    "sac-pendulum": Task(
        title="`sac`, Pendulum-v1",
        command="sac --env Pendulum-v1 --total-steps 20000",
        where=None,
    ),
    "sac-halfcheetah": Task(
        title="`sac`, Gymnasium's HalfCheetah-v5",
        command="sac --env gymnasium:HalfCheetah-v5 --total-steps 100000 --eval-episodes 20",
        where=None,
    ),
    "ppo-halfcheetah": Task(
        title="as it is: XLA uses AVX-512",
        command=BEFORE,
        metric=TRAINING,
        where=ENVIRONMENTS,
    ),
    "ppo-halfcheetah-avx2": Task(
        title="`XLA_FLAGS=--xla_cpu_max_isa=AVX2`",
        command=BEFORE,
        metric=TRAINING,
        where=ENVIRONMENTS,
        environment={"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"},
    ),
    "ippo-tag": Task(
        title="`ippo`, Tag, 100 agents: tags per tagger, of 4",
        command="ippo --env Tag --env-arg agents=100 --num-envs 128 --rollout-length 16 "
        "--total-steps 100000 --eval-episodes 20",
        metric=TRAINING,
        where=None,
    ),
    "ippo-spread": Task(
        title="`ippo`, `jaxmarl:MPE_simple_spread_v3`",
        command=SPREAD,
        metric=LAST_TENTH,
        where=None,
    ),
    "ippo-spread-past-limits": Task(
        title="`ippo --past-limits`, `jaxmarl:MPE_simple_spread_v3`",
        command=f"{SPREAD} --past-limits",
        metric=LAST_TENTH,
        where=None,
    ),
    "mappo-spread": Task(
        title="recurrent `mappo`, `jaxmarl:MPE_simple_spread_v3`",
        command="mappo --env jaxmarl:MPE_simple_spread_v3 --num-envs 128 --before 128 --units 128 "
        "--hidden 128 --chunk-length 32 --learning-rate 2e-3 --total-steps 2000000",
        metric=LAST_TENTH,
        where=None,
    ),
}
TASKS |= {f"ppo-halfcheetah-trial-{k}": trial for k, trial in enumerate(_TRIALS)}
