"""What the documents say is true: their code runs, prints what they show, and their links exist.

A `python` block runs, after the blocks before it. A `text` block right after it is what it prints;
`...` stands for anything and line breaks do not matter. Blocks marked `no-run` are not run.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fragflow.runtime.planning.print_plan import STAGE_NAMES
from fragflow.tools.cli.main import main

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    code: str
    line: int
    printed: str | None
    """what the document says it prints, if it does"""


def blocks(text: str) -> list[Block]:
    found = list(BLOCK.finditer(text))
    runnable = []
    for i, match in enumerate(found):
        following = found[i + 1] if i + 1 < len(found) else None
        if match["info"].strip() != "python":
            continue
        is_next = following is not None and not text[match.end() : following.start()].strip()
        shown = following["body"] if following and is_next and following["info"] == "text" else None
        line = text.count("\n", 0, match.start("body"))
        runnable.append(Block(match["body"], line, shown))
    return runnable


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if blocks(p.read_text())], ids=name_of)
def test_code_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block, printed in played(path, blocks(path.read_text())):
        if block.printed is not None:
            shown = squeezed(block.printed)
            pattern = ".*".join(map(re.escape, shown.split("...")))
            assert re.fullmatch(pattern, printed), f"line {block.line}: it printed {printed}"


def played(path: Path, found: Sequence[Block]) -> Iterator[tuple[Block, str]]:
    """Runs blocks one after the other, each with what it prints."""
    namespace: dict[str, Any] = {"__name__": path.stem.replace("-", "_")}
    for block in found:
        output = io.StringIO()
        with redirect_stdout(output):
            # Line breaks in front, so that errors name the line of the document.
            exec(compile("\n" * block.line + block.code, str(path), "exec"), namespace)
        yield block, squeezed(output.getvalue())


ANOTHER_LOOP = """
import fragflow as ff
from graph.toy import Drift, Toy

algorithm, environment = Toy(), Drift()
"""


def test_the_story_of_the_compiler_can_be_told_of_another_loop() -> None:
    path = ROOT / "docs" / "inside-the-compiler.md"
    loop, *story = blocks(path.read_text())
    told = list(played(path, [replace(loop, code=ANOTHER_LOOP), *story]))
    for block, printed in told[1:]:
        assert printed, f"line {block.line} printed nothing"
    text = " ".join(printed for _, printed in told)
    for name in STAGE_NAMES:
        assert f"{name} · " in text or f"{name} from " in text
    assert "params.unused" in text


def test_picture_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text()
    (picture,) = [m["body"] for m in BLOCK.finditer(text) if m["info"] == "mermaid"]
    (command,) = re.findall(r"^`fragflow (show [^`]*mermaid)`", text, re.M)
    assert main(command.split()) == 0
    assert capsys.readouterr().out == picture


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_exist(path: Path) -> None:
    prose = BLOCK.sub("", path.read_text())
    for match in LINK.finditer(prose):
        target, _, anchor = match["target"].partition("#")
        if "://" in target:
            continue
        linked = path.parent / target if target else path
        assert linked.exists(), f"{match['target']} does not exist"
        if anchor:
            assert anchor in headings(linked), f"{match['target']} has no such heading"


def headings(path: Path) -> set[str]:
    """Anchors as they are made from a document's headings."""
    lines = BLOCK.sub("", path.read_text()).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}
