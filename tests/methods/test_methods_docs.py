"""docs/methods.md is what the registry says."""

from pathlib import Path

from methods.__main__ import render


def test_the_page_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "methods.md"
    assert page.read_text(encoding="utf-8") == render(), "run: python -m methods > docs/methods.md"
