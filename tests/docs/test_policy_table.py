"""The page of algorithms and policies is what the compiler says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    script = ROOT / "scripts" / "policy_table.py"
    made = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=900
    )
    page = (ROOT / "docs" / "algorithms-and-policies.md").read_text(encoding="utf-8")
    assert made.stdout.strip() == page.strip(), "run scripts/policy_table.py --write"
