"""The page of algorithms and policies is what the compiler says."""

from policy_table import PAGE, page


def test_the_page_is_current() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert page().strip() == written.strip(), "run scripts/policy_table.py --write"
