"""A run directory, and a file of options, are data: what they name is never imported."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fragflow as ff
from cli.tiny import Finished
from fragflow.algorithms.ppo import PPO
from fragflow.environments import ADAPTERS
from fragflow.errors import ConfigError, UserCodeError
from fragflow.tools.cli.command_options import TRAIN
from fragflow.tools.cli.main import main
from fragflow.tools.inputs.names_from_files import is_known_environment, own_settings
from fragflow.tools.inputs.options import hyperparameters

MARKER = """
from pathlib import Path

Path({proof!r}).write_text(__name__)
raise SystemExit("imported")
"""
NAMES = (
    *("marker", "marker:X", "marker:X-v0", "marker.X", "marker:X:Y", ":marker", "marker:"),
    *("marker.py", "marker.py:X", "./marker.py", "run/marker.py:X", "file://marker.py"),
    *("run.marker", "run.marker:X", "run:marker", "run/marker", "../marker:X"),
    *(" marker:X", "marker :X", "marker\n:X", "marker:X\n", "\x1b[2Jmarker:X", "-marker:X"),
)
"""of a module that can be imported, and of one inside the run directory"""
BEHIND_A_LIBRARY = (
    *("marker", "marker:X", "marker:CartPole-v1", "run.marker:CartPole-v1", "marker.X", ".marker"),
    *("run.marker", "marker_v0", "marker:X_v0", "../marker", "marker:marker:X", ":marker", ""),
)


SOME = (
    *("marker:X", "run.marker:X", "\x1b[2Jmarker:X\n"),
    *(f"{library}:marker:CartPole-v1" for library in ADAPTERS),
)
"""for commands, each of which takes a tenth of a second to read its options"""


def every_name() -> Iterator[str]:
    yield from NAMES
    for library in ADAPTERS:
        yield from (f"{library}:{name}" for name in BEHIND_A_LIBRARY)


SETTINGS = (
    *("entry_point", "vector_entry_point", "env_id", "id", "kwargs", "xml_file", "base_path"),
    *("module", "backend", "render_mode", "map_name", "vectorization", "observation_bounds"),
    *("map_params", "wrappers", "additional_wrappers", "task", "name", "max_episode_steps"),
)
"""that libraries have, or could have"""


@pytest.fixture
def proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that a planted module writes when it is imported; it can be, from everywhere."""
    proof = tmp_path / "PROOF"
    (tmp_path / "run").mkdir()
    for folder in (tmp_path, tmp_path / "run"):
        (folder / "marker.py").write_text(MARKER.format(proof=str(proof)))
    monkeypatch.syspath_prepend(tmp_path)
    path = list(sys.path)
    yield proof
    assert not proof.exists(), f"{proof.read_text()} was imported"
    assert sys.path == path, "a file must not change where modules are found"


@pytest.fixture
def config(finished: Finished, proof: Path) -> dict[str, Any]:
    """The configuration of a run, whose weights are in `run`."""
    weights = "weights.safetensors"
    Path("run", weights).write_bytes((finished.path / weights).read_bytes())
    return json.loads((finished.path / "config.json").read_text())


def write(config: dict[str, Any]) -> None:
    Path("run/config.json").write_text(json.dumps(config))


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command is refused."""
    code = main(words)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert (code, len(lines)) == (2, 1), (words, code, captured.err)
    assert lines[0].startswith("fragflow: error: ")
    assert lines[0].isprintable(), lines[0]
    return lines[0]


def test_the_marker_is_found_by_who_names_it(proof: Path) -> None:
    """Otherwise, none of the tests here could fail."""
    with pytest.raises(UserCodeError, match="SystemExit: imported"):
        ff.train("marker:X", "CartPole-v1")
    assert proof.read_text() == "marker"
    proof.unlink()


@pytest.mark.parametrize("vectorization", ["process", "sync"])
def test_modules_of_a_run_directory_that_one_stands_in(
    vectorization: str, config: dict[str, Any], proof: Path
) -> None:
    """Not even by the names of modules that every process imports, wherever it is started."""
    for name in ("numpy", "sitecustomize", "gymnasium", "fragflow"):
        Path("run", f"{name}.py").write_text(MARKER.format(proof=str(proof)))
    write(config | {"env": "gymnasium:CartPole-v1", "env_args": {"vectorization": vectorization}})
    done = subprocess.run(
        [Path(sys.executable).with_name("fragflow"), "eval", ".", "--episodes", "2"],
        cwd="run",
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "2 episodes" in done.stdout


@pytest.mark.parametrize("key", ["env", "algorithm"])
def test_names_in_a_run(
    key: str, config: dict[str, Any], capsys: pytest.CaptureFixture[str], proof: Path
) -> None:
    for name in every_name():
        for needs in ([], [key]):
            write(config | {key: name, "load_needs": needs, "named": {key: name}})
            with pytest.raises(ConfigError):
                ff.load("run")
        if name in SOME:
            refused(["eval", "run", "--episodes", "1"], capsys)


def test_settings_in_a_run(config: dict[str, Any], proof: Path) -> None:
    environments = ["CartPole-v1", "marker:X", *(f"{library}:CartPole-v1" for library in ADAPTERS)]
    environments += ["brax:ant", "jaxmarl:MPE_simple_v3", "pettingzoo:simple_v3", "fragflow:Tag"]
    for env in environments:
        for setting in SETTINGS:
            for name in ("marker", "run.marker:X"):
                for value in (name, [name], {"module": name}, {name: 1}):
                    write(config | {"env": env, "env_args": {setting: value}})
                    with pytest.raises(ConfigError):
                        ff.load("run")


def planted(value: Any, name: str) -> Any:
    """`value` with `name` in every place, at every depth."""
    if isinstance(value, dict):
        return {key: planted(item, name) for key, item in value.items()} | {name: name}
    return [planted(item, name) for item in value] + [name] if isinstance(value, list) else name


USED = ("algorithm", "hyperparameters", "env", "env_args", "wrap", "num_envs", "load_needs")


def test_everything_else_in_a_run_is_not_looked_at(
    config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("marker", "marker:X", "gymnasium:marker:CartPole-v1", "run.marker:X"):
        rest = {key: planted(value, name) for key, value in config.items() if key not in USED}
        more = {key: name for key in ("policy", "cluster", "implementations", "named", "network")}
        write({**config, **rest, **more, "load_needs": [name]})
        ff.load("run")
    assert main(["eval", "run", "--episodes", "1"]) == 0
    assert "1 episodes" in capsys.readouterr().out


def test_what_is_used_of_a_run_has_its_type(config: dict[str, Any], proof: Path) -> None:
    for key in ("hyperparameters", "wrap"):
        known = {**config[key], "network": None, "frame_stack": 1, "scale_actions": True}
        for field in (*known, "marker"):
            for name in ("marker", "marker:X", "gymnasium:marker:CartPole-v1"):
                for value in (name, [name], {"module": name}):
                    write(config | {key: config[key] | {field: value}})
                    with pytest.raises(ConfigError):
                        ff.load("run")
    for key in USED:
        write(config | {key: planted(config[key], "marker:X")})
        if key != "load_needs":
            with pytest.raises(ConfigError):
                ff.load("run")


def test_names_in_a_file_of_options(capsys: pytest.CaptureFixture[str], proof: Path) -> None:
    # The last word is found out after all others: CartPole's actions are no numbers.
    rest = ["--config", "a.json", "--wrap", "scale-actions", "--run-dir", "new"]
    for key in ("env", "policy"):
        env = [] if key == "env" else ["--env", "CartPole-v1"]
        for name in (*NAMES[::3], *SOME):
            Path("a.json").write_text(json.dumps({key: name}))
            refused(["train", "ppo", *env, *rest], capsys)


def test_every_option_of_a_file(capsys: pytest.CaptureFixture[str], proof: Path) -> None:
    for option in (option for group in (*TRAIN, hyperparameters(PPO)) for option in group.options):
        words = ["train", "ppo", "--config", "a.json"]
        words += ["--env", "CartPole-v1"] if option.name != "env" else []
        words += ["--wrap", "scale-actions"] if option.name != "wrap" else []
        for name in ("gymnasium:marker:CartPole-v1", "marker"):
            for value in (name, {"xml_file": name}):
                Path("a.json").write_text(json.dumps({option.name: value}))
                refused(words, capsys)


def test_a_file_cannot_say_that_it_is_trusted(
    capsys: pytest.CaptureFixture[str], proof: Path
) -> None:
    for key in ("trust_config", "trust-config"):
        Path("a.json").write_text(json.dumps({key: True, "env": "marker:X"}))
        line = refused(["train", "ppo", "--config", "a.json"], capsys)
        assert f"{key!r} can only be given on the command line" in line


@pytest.mark.parametrize(
    ("name", "known"),
    [
        *(("CartPole-v1", True), ("gymnax:Asterix-MinAtar", True), ("fragflow:Tag", True)),
        *(("gymnasium:ALE/Pong-v5", True), ("brax:ant", True), ("envpool:Pong-v5", True)),
        *(("jaxmarl:MPE_simple_spread_v3", True), ("pettingzoo:simple_spread_v3", True)),
        *(("pettingzoo:conftest", False), ("gymnasium:os:CartPole-v1", False), ("os:sep", False)),
        *(("gymnasium:Cart.Pole-v1", False), ("CartPole-v1\n", False), ("", False)),
    ],
)
def test_known_environments(name: str, known: bool) -> None:
    assert is_known_environment(name) is known


@pytest.mark.parametrize(
    ("env", "settings", "given"),
    [
        ("CartPole-v1", {"gravity": 9.8, "sizes": [1, 2], "more": {"a": None}}, ()),
        ("gymnasium:FrozenLake-v1", {"map_name": "8x8", "is_slippery": False}, ()),
        ("brax:ant", {"backend": "spring"}, ()),
        ("playground:CartpoleBalance", {"impl": "jax", "ctrl_dt": 0.02}, ()),
        ("gymnasium:Ant-v5", {"backend": "spring"}, ("--env-arg", "backend=spring")),
        (
            "gymnasium:Ant-v5",
            {"xml_file": "a b.xml", "frame_skip": 2},
            ("--env-arg", "xml_file=a b.xml", "--env-arg", "frame_skip=2"),
        ),
        ("rover:Rover", {"map": "5"}, ("--env-arg", 'map="5"')),
        ("rover:Rover", {"map": "\x1b[2J"}, ("--env-arg", "NAME=VALUE")),
    ],
)
def test_settings_that_a_file_may_give(
    env: str, settings: dict[str, Any], given: tuple[str, ...]
) -> None:
    assert tuple(word for own in own_settings(env, settings) for word in own.words) == given
