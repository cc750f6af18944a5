"""The page of primitives is what the replica check says, and what it says is shown by tests."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from fragflow.graph.replicas.rules.table import TABLE
from graph.families import BY_ALL, FAMILIES
from graph.test_outside import OUTSIDE
from graph.test_rows import ROWS
from graph.test_unknown import UNPROVEN
from hunt.equations import WITHOUT_OPERANDS
from hunt.primitives import NOT_DRAWN

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "primitives.md").read_text(encoding="utf-8")
OF = re.findall(r"primitive that JAX ([\d.]+\d) lists", PAGE)[0]
"""the JAX whose primitives the page has"""
PROGRAMS = {name for functions in FAMILIES.values() for name in functions}
PROGRAMS |= {*BY_ALL, "by its name (test_unknown.py)"}
PROGRAMS |= {f"{name} (test_unknown.py)" for name in UNPROVEN}
PROGRAMS |= {f"{name} (test_outside.py)" for name in OUTSIDE}
PROGRAMS |= {f"{name} (test_rows.py)" for name in ROWS}


def rows(section: str) -> dict[str, list[str]]:
    """The cells of a section's table, by its primitives."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = [
        [c.strip() for c in row.split("|")[1:-1]] for row in re.findall(r"^\|.*\|$", text, re.M)
    ]
    return {name: row[1:] for row in cells[2:] for name in re.findall(r"`([^`]+)`", row[0])}


RULED, OPENED = rows("With a rule"), rows("Read inside")
BATCHED, ALONE = rows("Believed by JAX's batching rule"), rows("Without operands or results")
REFUSED, UNMET = rows("Refused"), rows("Not met")


@pytest.mark.skipif(jax.__version__ != OF, reason=f"the page is of JAX {OF}")
@pytest.mark.timeout(900)
def test_the_page_is_current():
    script = ROOT / "scripts" / "primitives_page.py"
    made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == PAGE.strip(), "run scripts/primitives_page.py --write"


def test_the_page_is_of_the_oldest_jax_of_the_lock():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert min(re.findall(r"^jax==([\d.]+)", lock, re.M)) == OF


def test_every_rule_is_on_the_page():
    """Those of other versions of JAX too, so that this fails whichever is here."""
    others = set(re.findall(r"`([^`]+)`", PAGE.partition("## Of other versions")[2]))
    ours = {"all_reduce", "host_call", "host_program"}
    assert RULED.keys() | OPENED.keys() | others == TABLE.keys() - ours


def test_a_primitive_stands_on_the_page_once():
    tables = (RULED, OPENED, BATCHED, ALONE, REFUSED, UNMET)
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))


def test_what_is_treated_is_shown_by_a_test():
    counted = set[str]()
    for found in json.loads((ROOT / "docs" / "proofs.json").read_text(encoding="utf-8")).values():
        counted |= found.get("primitives", {}).keys()
    for name, (*_, shown) in {**RULED, **OPENED, **BATCHED, **ALONE, **REFUSED}.items():
        by = set(shown.split("; "))
        assert by & {"proofs", "hunt", *PROGRAMS}, f"{name}: {shown}"
        assert by <= {"proofs", "hunt", *PROGRAMS}, f"{name}: {shown}"
        assert name in {*counted, *WITHOUT_OPERANDS} or by != {"hunt"}, name


def test_what_is_not_met_is_not_drawn():
    assert UNMET.keys() <= NOT_DRAWN.keys()
