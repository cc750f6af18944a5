"""Users name the optimisations to leave out; what older runs said of them is still understood."""

import json
from pathlib import Path
from typing import Any

import pytest

import fragflow as ff
from cli.test_bad_input import error_line
from cli.tiny import TINY
from fragflow.errors import ConfigError
from fragflow.graph.optimisations import OPTIMISATIONS
from fragflow.tools.cli.command_options import TRAIN
from fragflow.tools.cli.main import main
from fragflow.tools.inputs.options import with_config_file
from fragflow.tools.inputs.switched_off import names_without, optimisations_without

SHOW = ["show", "ppo", "--env", "CartPole-v1", "--num-envs", "4"]


@pytest.mark.parametrize("words", [SHOW, [*TINY]])
def test_an_unknown_name_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = error_line(capsys, [*words, "--without", "pack,donat"])
    assert "unknown optimisation 'donat'. Did you mean 'donate'?" in line


@pytest.mark.parametrize("without", ["pack,donate", " pack, donate", ["pack", "donate"]])
def test_names_are_words_or_a_sequence(without: Any) -> None:
    assert names_without(without) == ("pack", "donate")
    made = optimisations_without(without)
    assert [name for name in OPTIMISATIONS if not getattr(made, name)] == ["pack", "donate"]


@pytest.mark.parametrize("without", [3, None, ["pack", 3]])
def test_what_is_no_name_is_refused(without: Any) -> None:
    with pytest.raises(ConfigError, match="expected names of optimisations, like 'pack,donate'"):
        ff.train("ppo", "CartPole-v1", without=without)


def test_show_prints_what_is_then_sent_and_driven(capsys: pytest.CaptureFixture[str]) -> None:
    fine = [*SHOW, "--policy", "single-learner-fine"]

    def printed(*words: str) -> str:
        assert main([*fine, *words]) == 0
        return capsys.readouterr().out

    assert "in all 257 crossings" in printed()
    assert "in all 260 crossings" in printed("--without", "coalesce")
    assert "# environment x1 + learner x1\n" in printed("--format", "driver")
    apart = printed("--format", "driver", "--without", "share-threads", "pack")
    assert "# environment x1\n" in apart
    assert "# learner x1\n" in apart


@pytest.mark.parametrize(
    ("said", "without"),
    [
        ({"optimise": False}, ("hoist", "sink", "coalesce")),
        ({"optimise": True}, ()),
        ({"without": ["pack"]}, ("pack",)),
        ({"without": "pack,sink"}, ("pack", "sink")),
        ({}, ()),
    ],
)
def test_files_of_older_runs_are_understood(
    said: dict[str, Any], without: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(said))
    groups = with_config_file(TRAIN, str(path))
    (option,) = [o for group in groups for o in group.options if o.name == "without"]
    assert option.default == without
