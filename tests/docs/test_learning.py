"""Learning figures in the documents are those that were measured, and measuring goes on."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import learning  # noqa: E402 # pyright: ignore[reportMissingImports]
import learning_tables as tables  # noqa: E402 # pyright: ignore[reportMissingImports]
from learning_tasks import TASKS, Task  # noqa: E402 # pyright: ignore[reportMissingImports]

DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md"])
LEAST = 5
SEED = re.compile(r"(?<!-)\bseeds? \d", re.I)
"""as in "seeds 0 and 1"; `--seeds 0` is an option"""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def shown_in(path: Path) -> list[str]:
    found = tables.BLOCK.finditer(path.read_text(encoding="utf-8"))
    return [name for match in found for name in match["names"].split()]


@pytest.mark.parametrize("path", tables.documents(), ids=name_of)
def test_tables_are_the_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert tables.current(text) == text, "run benchmarks/learning.py --write"


def test_every_figure_stands_where_its_task_says() -> None:
    wanted = {(name, task.where) for name, task in TASKS.items() if task.where}
    shown = {(name, name_of(path)) for path in tables.documents() for name in shown_in(path)}
    assert shown == wanted


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.where])
def test_a_figure_has_all_of_its_seeds(name: str) -> None:
    rows = tables.finished(name, TASKS[name])
    assert {row["seed"] for row in rows} >= set(TASKS[name].seeds)
    for row in rows:
        assert row["machine"]["cpu"]
        assert row["versions"]["jax"]
        assert row[TASKS[name].metric] is not None


def test_claims_have_enough_seeds() -> None:
    few = {name for name, task in TASKS.items() if len(task.seeds) < LEAST}
    # Settings that were tried are compared with fewer; none of them is a claim.
    assert all("-trial-" in name for name in few)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_no_figure_of_single_seeds_is_left_in_prose(path: Path) -> None:
    prose = tables.BLOCK.sub("", path.read_text(encoding="utf-8"))
    assert not SEED.search(prose), "a figure belongs into a table of benchmarks/learning.py"


def test_the_interval_is_students() -> None:
    found = tables.summarised([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.mean, found.lowest, found.highest) == (3.0, 1.0, 5.0)
    # 2.776 (Student's t, four degrees of freedom) times 1.5811 / sqrt(5)
    assert found.half_width == pytest.approx(1.9632, abs=1e-3)


def test_what_was_interrupted_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = "--num-envs 4 --rollout-length 8 --minibatches 1 --hidden 8 --eval-episodes 2"
    command = f"ppo --env CartPole-v1 --total-steps 256 {settings}"
    task = Task(title="small", command=command, where=None, seeds=(0, 1))
    learning.train("small", task, [0], tmp_path)
    before = json.loads((tmp_path / "small.json").read_text())["runs"]
    monkeypatch.setitem(TASKS, "small", task)
    monkeypatch.setattr(sys, "argv", ["learning.py", "--list", "--results", str(tmp_path)])
    learning.main()
    assert re.search(r"small +1 of 2", capsys.readouterr().out)
    learning.train("small", task, [1], tmp_path)
    after = tables.finished("small", task, tmp_path)
    assert [row["seed"] for row in after] == [0, 1]
    assert after[0] == before[0]
    assert after[0]["params_sha256"] != after[1]["params_sha256"]
    assert after[0]["env_steps"] == 256
    other = Task(title="small", command=command.replace("256", "128"), where=None)
    with pytest.raises(SystemExit, match="another command"):
        tables.finished("small", other, tmp_path)
