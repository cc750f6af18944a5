"""The map names every module, the list of old names leads somewhere, and a word has one meaning."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fragflow"
MODULES = sorted(p for p in SOURCE.rglob("*.py") if p.name != "__init__.py")
GONE = (
    *("crew", "roster", "station", "berth", "seat", "office", "desk", "letter", "door", "lane"),
    *("slab", "duty"),
)
"""words that were ours once"""
NOT_OURS = {
    "letter": ("table.py", "options.py", "policy_table.py", "hashes.py"),  # of the alphabet
    "lane": ("pallas.py",),  # a TPU's
}


def test_the_map_names_every_module():
    words = set(re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text()))
    names = {word.rpartition("/")[2] for word in words}
    assert [str(p.relative_to(SOURCE)) for p in MODULES if p.name not in names] == []


def test_the_map_names_no_other_module():
    words = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text())
    files = [f"/{p.relative_to(SOURCE)}" for p in SOURCE.rglob("*.py")]
    assert [w for w in words if not any(file.endswith(f"/{w}") for file in files)] == []


def test_old_names_lead_to_modules():
    page = (ROOT / "docs" / "old-names.md").read_text()
    now = re.findall(r"^\| `[a-z_/]+` \| `([a-z_/]+)` \|$", page, re.M)
    assert len(now) > 100
    assert [name for name in now if not (SOURCE / f"{name}.py").exists()] == []


def test_a_public_class_has_a_name_of_its_own():
    """Algorithms apart, where `State`, `Rollout` and `Batch` are each file's own."""
    found = defaultdict(list)
    for path in MODULES:
        if path.parent.name != "algorithms":
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_the_glossary_has_one_row_for_each_word():
    page = (ROOT / "docs" / "glossary.md").read_text()
    words = [w.strip() for w in re.findall(r"^\| ([^|]+) \|", page, re.M)]
    words = [w for w in words if w not in ("word", "---")]
    assert len(words) == len(set(words))
    assert 35 <= len(words) <= 60


def test_words_that_are_gone_stay_away():
    pattern = re.compile(rf"(?<![a-z])({'|'.join(GONE)})s?(?![a-z])", re.I)
    pages = [p for p in (ROOT / "docs").glob("*.md") if p.name not in ("old-names.md", "proofs.md")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in (*SOURCE.rglob("*.py"), ROOT / "README.md", *pages)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (match := pattern.search(line))
        and path.name not in NOT_OURS.get(match[1].lower().rstrip("s"), ())
        and not ("letter" in match[0] and path.suffix == ".md")
    ]
    assert found == []
