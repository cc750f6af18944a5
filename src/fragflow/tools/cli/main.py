"""The command line. Heavy modules are imported where they are needed: `--help` must be quick."""

import io
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fragflow.error_owner import first_error, judging
from fragflow.errors import ConfigError, FragflowError, RunError, did_you_mean
from fragflow.tools.cli.command_options import CHECK, EVAL, HELP, SHOW, TRAIN
from fragflow.tools.experiment.error_report import line_of, printable, silence_callbacks
from fragflow.tools.inputs.options import (
    OptionGroup,
    first_line,
    given_by_file,
    hyperparameters,
    parse,
    value_of,
    with_config_file,
)

if TYPE_CHECKING:
    from fragflow.tools.checks.contract import Finding

DEBUG = "--debug"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    debug = DEBUG in words
    if not debug:
        silence_callbacks()
    try:
        with judging(is_running=False):
            return _dispatch([word for word in words if word != DEBUG])
    except FragflowError as error:
        if not debug:
            print(f"fragflow: error: {line_of(error)}", file=sys.stderr)
            return error.exit_code
        raw = first_error(error)
    except SystemExit as stop:  # the help was printed
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe has seen enough
        _drop_output()
        return 141
    except OSError as error:  # a full disk, a directory that is gone
        if debug:
            raise
        _drop_output()
        print(f"fragflow: error: {printable(str(error))}", file=sys.stderr)
        return RunError.exit_code
    raise raw


def _drop_output() -> None:
    """Discards unwritten output, which Python would otherwise complain about when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _dispatch(words: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": _train,
        "show": _show,
        "eval": _eval,
        "check": _check,
        "list": _list,
    }
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if words else 2
    if words[0] == "--version":
        from fragflow.tools.experiment.run_directory import version_of

        print(f"fragflow {version_of('fragflow')}")
        return 0
    if words[0] not in commands:
        raise ConfigError(
            f"unknown command {words[0]!r}.{did_you_mean(words[0], commands)} "
            "`fragflow --help` shows all commands."
        )
    return commands[words[0]](words[1:])


def _train(words: list[str]) -> int:
    _, values, hyper = _algorithm_options(
        "train",
        "Train an agent. Keeps configuration, metrics, weights and a summary in a run directory.",
        TRAIN,
        words,
    )
    from fragflow.remote.launch.cluster import find_cluster
    from fragflow.tools.cli.signals import Interrupts
    from fragflow.tools.experiment.compile import compile
    from fragflow.tools.experiment.run_directory import default_path

    with Interrupts(_notice) as interrupts:
        compiled = compile(
            values["algorithm"],
            values["env"],
            **_settings(values, hyper),
            **{name: values[name] for name in ("total_steps", "seed", "runtime", "probe", "quiet")},
            deterministic=values["deterministic"],
            cluster=find_cluster(values["cluster"], values["ray_address"]),
        )
        run_dir = values["run_dir"] or default_path(
            values["algorithm"], values["env"], compiled.policy.name, values["seed"]
        )
        result = compiled.run(
            run_dir=run_dir,
            **{name: values[name] for name in ("eval_every", "eval_episodes", "quiet")},
            stop=lambda: interrupts.stopped,
        )
    return interrupts.exit_code if result.interrupted else 0


def _settings(values: Mapping[str, Any], hyper: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `ff.compile` that training and showing have in common."""
    from fragflow.tools.inputs.resolve import parse_arguments, parse_wrappers

    same = ("num_envs", "policy", "sync", "first", "workers", "learners", "without")
    return {
        **{name: values[name] for name in same},
        "hyperparameters": hyper,
        "implementations": parse_arguments(values["implementation"], "--implementation"),
        "env_args": parse_arguments(values["env_arg"]),
        "wrap": parse_wrappers(values["wrap"]),
    }


def _notice() -> None:
    print(
        "\nfragflow: stopping and saving (press Ctrl-C again to quit without saving)",
        file=sys.stderr,
        flush=True,
    )


def _show(words: list[str]) -> int:
    _, values, hyper = _algorithm_options(
        "show", "Print the fragments and messages that a policy makes of an algorithm.", SHOW, words
    )
    from fragflow.tools.experiment.compile import compile, show_stage

    settings, after = _settings(values, hyper), values["after"]
    if after is not None:
        if values["format"] != "text":
            raise ConfigError(f"--after {after} prints text: leave out --format {values['format']}")
        print(show_stage(after, values["algorithm"], values["env"], **settings).rstrip("\n"))
        return 0
    compiled = compile(values["algorithm"], values["env"], **settings, elsewhere=True)
    shown = compiled.driver() if values["format"] == "driver" else compiled.show(values["format"])
    print(shown.rstrip("\n"))
    if compiled.shortage is not None:
        print(
            f"fragflow: threads of this machine cannot run this: {compiled.shortage}",
            file=sys.stderr,
        )
    return 0


def _eval(words: list[str]) -> int:
    run_dir, rest = _split_positional(words, EVAL)
    values = parse(
        "fragflow eval RUN", "Play episodes with the agent that a run trained.", EVAL, rest
    )
    if run_dir is None:
        raise ConfigError("which run? `fragflow eval RUN`, where RUN is a run directory")
    import numpy as np

    from fragflow.tools.experiment.compile_cache import use_compilation_cache
    from fragflow.tools.experiment.evaluate_agent import evaluator_for
    from fragflow.tools.experiment.gif import check_drawable, record
    from fragflow.tools.experiment.load import load
    from fragflow.tools.inputs.names_from_files import NotNamed
    from fragflow.tools.inputs.resolve import parse_arguments
    from fragflow.tools.inputs.values import require_whole

    require_whole("episodes", values["episodes"], 1)
    require_whole("seed", values["seed"], 0)
    use_compilation_cache()
    try:
        agent = load(
            run_dir,
            **{name: values[name] or None for name in ("algorithm", "env")},
            env_args=parse_arguments(values["env_arg"]) if values["env_arg"] else None,
            trust=values["trust_run"],
        )
    except NotNamed as error:
        raise error.instead_of(["fragflow", "eval", *words]) from None
    recording = None if values["record"] is None else Path(values["record"])
    if recording is not None:
        check_drawable(agent.environment, recording)
    play = evaluator_for(
        agent.algorithm,
        agent.environment,
        episodes=values["episodes"],
        explore=values["explore"],
    )
    evaluation = play(agent.params, values["seed"])
    returns = evaluation.returns
    print(
        f"return {evaluation.mean_return:.2f} ± {np.std(returns):.2f} (from {np.min(returns):.2f} "
        f"to {np.max(returns):.2f}), length {np.mean(evaluation.lengths):.1f}, "
        f"{len(returns)} episodes"
    )
    cut = int(np.sum(~evaluation.ended))
    if cut:
        print(f"{cut} episodes did not end by themselves and were cut off")
    if recording is not None:
        pictures = record(
            agent.algorithm,
            agent.environment,
            agent.params,
            recording,
            seed=values["seed"],
            explore=values["explore"],
        )
        print(f"{recording}: an episode in {pictures} pictures")
    return 0


def _check(words: list[str]) -> int:
    env, rest = _split_positional(words, CHECK)
    values = parse(
        "fragflow check ENV",
        "Play an environment and report where it breaks its contract; with --twin, where a port "
        "differs from its original. The exit code is 1 if it does.",
        CHECK,
        rest,
    )
    if env is None:
        raise ConfigError("which environment? `fragflow check ENV`; `fragflow list` shows some")
    if values["steps"] < 1:
        raise ConfigError(f"steps is {values['steps']}: expected at least 1")
    environment = _environment(env, values)
    if values["twin"] is not None:
        return _check_twin(env, environment, values)
    for option in ("twin_arg", "state_map", "seed", "tolerance"):
        if values[option]:
            raise ConfigError(f"--{option.replace('_', '-')} needs --twin OTHER")
    from fragflow.tools.checks.contract import Checker

    print(f"{env}: observations {environment.observation}, actions {environment.action}")
    failed = _print_findings(Checker(environment, values["steps"]).run())
    print(failed or "keeps the contract")
    return 1 if failed else 0


def _check_twin(env: str, port: Any, values: dict[str, Any]) -> int:
    """Compares a port with its original."""
    from fragflow.tools.checks.compare_twin import TwinChecker
    from fragflow.tools.inputs import resolve
    from fragflow.tools.inputs.values import require_whole

    name = values["state_map"]
    state_map = resolve.import_attribute("state map", name, ConfigError) if name else None
    if name and not callable(state_map):
        raise ConfigError(f"state map {name!r} is of type {type(state_map).__name__}: not callable")
    given = {word: values[word] for word in ("seed", "tolerance") if values[word] is not None}
    require_whole("seed", given.get("seed", 0), 0)
    if not given.get("tolerance", 0.0) >= 0:
        raise ConfigError(f"tolerance is {given['tolerance']}: expected at least 0")
    original = resolve.find_environment(
        values["twin"], resolve.parse_arguments(values["twin_arg"], "--twin-arg")
    )
    checker = TwinChecker(port, original, state_map, steps=values["steps"], **given)
    findings = checker.run()
    print(f"{env} and its twin {values['twin']}")
    if checker.how:
        print(f"  the twin's state is set before every step: {checker.how}")
    failed = _print_findings(findings)
    print(f"they differ: {failed}" if failed else "they agree")
    return 1 if failed else 0


def _print_findings(findings: Sequence["Finding"]) -> str:
    """Prints them and says how many rules are broken; nothing if none is."""
    for finding in findings:
        print(f"  {finding.verdict:<5} {finding.rule}{': ' * bool(finding.text)}{finding.text}")
    failed = sum(finding.verdict == "FAIL" for finding in findings)
    return f"{failed} of {len(findings)} rules broken" if failed else ""


def _list(words: list[str]) -> int:
    parse("fragflow list", "Print the names that the command line knows.", (), words)
    from fragflow.policies import POLICIES

    print("policies:")
    for policy in POLICIES.values():
        print(f"  {policy.name:<22} {policy.summary}")
    from fragflow.algorithms import ALGORITHMS, algorithm_class

    print("\nalgorithms:", flush=True)
    for name in ALGORITHMS:
        print(f"  {name:<22} {first_line(algorithm_class(name))}")
    from fragflow.environments import ADAPTERS, command_to_install, environment_names

    print("\nenvironments (a bare name means the first library that has it):", flush=True)
    by_library: dict[str, list[str]] = {}
    for full in environment_names():
        library, _, name = full.rpartition(":")
        by_library.setdefault(library, []).append(name)
    for library, names in by_library.items():
        missing = command_to_install(library)
        print(
            textwrap.fill(
                ", ".join(names) + (f" ({missing})" if missing else ""),
                width=100,
                initial_indent=f"  {library + ':':<22} ",
                subsequent_indent=" " * 25,
                break_on_hyphens=False,
            )
        )
    others = ", ".join(library for library in ADAPTERS if library not in by_library)
    print(f"  and those of {others}, as library:name")
    from fragflow.environments.wrapping.wrappers import WRAPPERS, takes_value

    print("\nwrappers of environments:")
    for name, wrapper in WRAPPERS.items():
        flag = name.replace("_", "-") + ("=N" if takes_value(name) else "")
        print(f"  {flag:<22} {first_line(wrapper)}")
    return 0


def _environment(name: str, values: Mapping[str, Any]) -> Any:
    from fragflow.environments.wrapping.wrappers import wrap
    from fragflow.tools.inputs import resolve

    found = resolve.find_environment(name, resolve.parse_arguments(values["env_arg"]))
    return wrap(found, **resolve.parse_wrappers(values["wrap"]))


def _algorithm_options(
    command: str, summary: str, groups: Sequence[OptionGroup], words: list[str]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The algorithm, the values of the options, and its hyperparameters."""
    name, rest = _split_positional(words, groups)
    if name is None:
        if "-h" in rest or "--help" in rest:
            more = f" `fragflow {command} ALGO --help` adds the hyperparameters of an algorithm."
            parse(f"fragflow {command} ALGO", summary + more, groups, ["--help"])
        raise ConfigError(
            f"which algorithm? `fragflow {command} ALGO --env ENV`; `fragflow list` shows them"
        )
    from fragflow.tools.inputs.resolve import find_algorithm

    algorithm = find_algorithm(name)
    hyper = hyperparameters(algorithm)
    all_groups = [*groups, *([hyper] if hyper.options else [])]
    config = value_of("--config", rest) if command == "train" else None
    filled = all_groups if config is None else with_config_file(all_groups, config)
    values = parse(f"fragflow {command} {name}", summary, filled, rest)
    if config is not None and not values["trust_config"]:
        from fragflow.tools.inputs.names_from_files import require_named

        from_file = given_by_file(all_groups, filled, rest)
        require_named(config, values, from_file, ["fragflow", command, *words])
    chosen = {option.name: values.pop(option.name) for option in hyper.options}
    return algorithm, {**values, "algorithm": name}, chosen


def _split_positional(
    words: list[str], groups: Sequence[OptionGroup]
) -> tuple[str | None, list[str]]:
    """The first word that is neither an option nor an option's value; and the others."""
    with_value = {o.flag for g in groups for o in g.options if o.kind is not bool}
    skip = False
    for index, word in enumerate(words):
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in with_value
        else:
            return word, [*words[:index], *words[index + 1 :]]
    return None, words


if __name__ == "__main__":
    sys.exit(main())
