"""The commands' help texts and options."""

from typing import Literal, get_args

from fragflow.graph.optimisations import OPTIMISATIONS
from fragflow.tools.inputs.options import Option, OptionGroup

HELP = """\
usage: fragflow COMMAND [OPTIONS]

Write a training loop once; a distribution policy cuts it into fragments at deployment.

commands:
  train ALGO --env ENV   train an agent; keeps a run directory
  show ALGO --env ENV    print the fragments a policy makes of an algorithm
  eval RUN               play episodes with a trained agent
  check ENV              play an environment and report where it breaks its contract, or
                         (--twin OTHER) where a port differs from its original
  list                   print the known algorithms, environments and policies

options:
  -h, --help             this text; `fragflow COMMAND --help` explains a command, and
                         `fragflow train ALGO --help` also an algorithm's hyperparameters
  --version              print the version
  --debug                print where an error came from

Your own algorithms, environments and policies are named as module:attribute.

example:
  fragflow train ppo --env CartPole-v1 --policy single-learner-coarse --total-steps 524288
"""

EXPERIMENT = (
    Option(
        name="env",
        kind=str,
        metavar="ENV",
        help="environment, library:environment, or module:attribute of your own",
        required=True,
    ),
    Option(
        name="env_arg",
        kind=tuple[str, ...],
        metavar="K=V",
        default=(),
        help="setting of the environment",
        shown_default="repeatable",
        is_repeatable=True,
    ),
    Option(
        name="wrap",
        kind=tuple[str, ...],
        metavar="NAME[=V]",
        default=(),
        help="frame-stack=N, time-limit=N, scale-actions, clip-actions or scale-rewards=X; the "
        "first is innermost",
        shown_default="repeatable",
        is_repeatable=True,
    ),
    Option(
        name="num_envs",
        kind=int,
        metavar="N",
        help="number of environments",
        shown_default="default: the algorithm's",
    ),
)

DEPLOYMENT = (
    Option(
        name="policy",
        kind=str,
        metavar="P",
        help="distribution policy, or module:attribute of your own",
        shown_default="default: gpu-only where the environment compiles",
    ),
    Option(
        name="sync",
        kind=str,
        metavar="S",
        help="lockstep; lag=K: workers act on parameters K iterations old, while newer ones are "
        "learnt; async[=K]: messages are handled as they come, at most K updates late",
        shown_default="default: the policy's",
    ),
    Option(
        name="first",
        kind=int,
        metavar="K",
        help="act on the first K environments of a worker that have answered, not on all together "
        "(for EnvPool's and others that answer one by one)",
        shown_default="default: the policy's",
    ),
    Option(name="workers", kind=int, metavar="N", default=1, help="number of workers"),
    Option(name="learners", kind=int, metavar="N", default=1, help="number of learners"),
    Option(
        name="deterministic",
        kind=bool,
        default=False,
        has_no_form=False,
        help="the same bits however the work is spread, at some cost in speed",
    ),
    Option(
        name="implementation",
        kind=tuple[str, ...],
        metavar="NAME=HOW",
        default=(),
        help="how to compute a kernel: discounted_sums=xla|cpp|pallas, or one of your own; by "
        "default the workers pick",
        shown_default="repeatable",
        is_repeatable=True,
    ),
    Option(
        name="without",
        kind=tuple[str, ...],
        metavar="NAMES",
        default=(),
        help=f"optimisations to leave out: {', '.join(OPTIMISATIONS)}, or all; changes no result",
        shown_default="default: none",
    ),
)

TRAIN = (
    OptionGroup(
        title="experiment",
        summary="what to learn",
        options=(
            *EXPERIMENT,
            Option(
                name="total_steps",
                kind=int,
                metavar="N",
                default=1_048_576,
                help="environment steps, rounded up to whole iterations",
            ),
            Option(name="seed", kind=int, metavar="S", default=0, help="seed of all randomness"),
        ),
    ),
    OptionGroup(
        title="deployment",
        summary="where to run it; what is learned does not change",
        options=(
            *DEPLOYMENT,
            Option(
                name="runtime",
                kind=Literal["local", "processes", "ray", "eager"],
                default="local",
                help="local: threads and devices of this process; processes: workers in processes "
                "of their own; ray: in actors of a Ray cluster; eager: uncompiled, for debugging",
            ),
            Option(
                name="probe",
                kind=bool,
                default=True,
                help="before a run whose work is divided, compare what replicas compute with the "
                "undivided program, in double precision; the result is remembered",
            ),
            Option(
                name="ray_address",
                kind=str,
                metavar="HOST:PORT",
                help="address of a Ray cluster's head",
                shown_default="default: a cluster of its own on this machine",
            ),
            Option(
                name="cluster",
                kind=str,
                metavar="FILE",
                help="a cluster.toml: a Ray cluster's address, and the resources of fragments",
                shown_default="optional",
            ),
        ),
    ),
    OptionGroup(
        title="output",
        summary="what to keep and to show",
        options=(
            Option(
                name="run_dir",
                kind=str,
                metavar="DIR",
                help="a new or empty directory for the run",
                shown_default="default: runs/ALGO-ENV-POLICY-sSEED-TIME",
            ),
            Option(
                name="eval_every",
                kind=int,
                metavar="N",
                help="evaluate during training, about every N environment steps",
                shown_default="default: at the end only",
            ),
            Option(
                name="eval_episodes",
                kind=int,
                metavar="N",
                default=100,
                help="greedy episodes per evaluation; 0 for none",
            ),
            Option(
                name="config",
                kind=str,
                metavar="FILE",
                help="JSON object of options by name; the command line overrides it. Your own "
                "environment or policy must be named on the command line too",
                shown_default="optional",
            ),
            Option(
                name="trust_config",
                kind=bool,
                default=False,
                has_no_form=False,
                help="import and run the code that the file of --config names",
            ),
            Option(
                name="quiet", kind=bool, default=False, has_no_form=False, help="show no progress"
            ),
        ),
    ),
)

StageName = Literal["trace", "program", "kinds", "owners", "split", "messages", "fragments", "plan"]
"""the compiler's stages, in the order in which they are made"""

SHOW = (
    OptionGroup(title="experiment", summary="what to cut", options=EXPERIMENT),
    OptionGroup(
        title="deployment",
        summary="how to cut it",
        options=tuple(option for option in DEPLOYMENT if option.name != "deterministic"),
    ),
    OptionGroup(
        title="output",
        options=(
            Option(
                name="format",
                kind=Literal["text", "mermaid", "json", "driver"],
                default="text",
                help="output format; driver prints the Python code that drives each thread",
            ),
            Option(
                name="after",
                kind=StageName | None,
                metavar="STAGE",
                help="print what the compiler has made after this stage: "
                + ", ".join(get_args(StageName)),
                shown_default="optional",
            ),
        ),
    ),
)

EVAL = (
    OptionGroup(
        title="evaluation",
        options=(
            Option(name="episodes", kind=int, metavar="N", default=100, help="episodes to play"),
            Option(name="seed", kind=int, metavar="S", default=0, help="seed of the episodes"),
            Option(
                name="explore",
                kind=bool,
                default=False,
                has_no_form=False,
                help="act as during training, not greedily",
            ),
            Option(
                name="record",
                kind=str,
                metavar="FILE.gif",
                help="draw one more episode into this file, if the environment can be drawn",
                shown_default="optional",
            ),
            Option(
                name="algorithm",
                kind=str,
                metavar="MODULE:ATTRIBUTE",
                help="the run's algorithm, if it is your own: a run directory is data, and what "
                "its files name is never imported",
                shown_default="optional",
            ),
            Option(
                name="env",
                kind=str,
                metavar="MODULE:ATTRIBUTE",
                help="the run's environment, if it is your own",
                shown_default="optional",
            ),
            Option(
                name="env_arg",
                kind=tuple[str, ...],
                metavar="K=V",
                help="setting of the environment; replaces all that the run had",
                shown_default="default: the run's, where they are numbers; repeatable",
                is_repeatable=True,
            ),
            Option(
                name="trust_run",
                kind=bool,
                default=False,
                has_no_form=False,
                help="import and run the code that the run's files name, this time",
            ),
        ),
    ),
)

CHECK = (
    OptionGroup(
        title="check",
        options=(
            *(option for option in EXPERIMENT if option.is_repeatable),
            Option(name="steps", kind=int, metavar="N", default=1000, help="steps to play"),
        ),
    ),
    OptionGroup(
        title="twin",
        summary="compare a JAX port, ENV, with its original on the host, step by step",
        options=(
            Option(
                name="twin",
                kind=str,
                metavar="OTHER",
                help="the original, like gymnasium:CartPole-v1",
                shown_default="optional",
            ),
            Option(
                name="twin_arg",
                kind=tuple[str, ...],
                metavar="K=V",
                default=(),
                help="setting of the original",
                shown_default="repeatable",
                is_repeatable=True,
            ),
            Option(
                name="state_map",
                kind=str,
                metavar="MODULE:FUNCTION",
                help="function (state, env) that sets the host environment env to the port's state",
                shown_default="default: the state's numbers become its attribute `state`",
            ),
            Option(
                name="seed",
                kind=int,
                metavar="S",
                help="seed of the actions and of the starts of episodes",
                shown_default="default: 0",
            ),
            Option(
                name="tolerance",
                kind=float,
                metavar="X",
                help="largest difference of two numbers after a step; relative to the larger one "
                "if that is above 1",
                shown_default="default: 1e-05",
            ),
        ),
    ),
)
