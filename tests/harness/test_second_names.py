"""A configuration file may be another's second name; a sweep knows its values by either."""

from __future__ import annotations

import pytest

from harness.compose import named


@pytest.mark.parametrize(
    ("file", "expected"), [("tiny", "tiny-s"), ("tiny-m", "tiny-m"), ("tiny-s", "tiny-s"), ("absent", "absent")]
)
def test_only_a_file_that_says_nothing_else_is_a_second_name(file, expected):
    assert named("backbone", file) == expected


def test_a_sweep_selects_by_a_second_name(plan_of):
    assert [cell.config.backbone.name for cell in plan_of("sweep=quick", "backbone=tiny", "method=grpo").selected] == [
        "tiny-s"
    ]
