"""Errors about names."""

import pytest

from core.names import require_known, unknown_name


def test_the_nearest_name_is_suggested() -> None:
    assert unknown_name("method.name", "opdi", ["opid", "grpo"]) == (
        "method.name='opdi' is unknown; did you mean 'opid'? Known: grpo, opid."
    )


def test_without_a_near_name_all_are_listed() -> None:
    assert unknown_name("env", "zzz", ["b", "a"]) == "env='zzz' is unknown. Known: a, b."
    assert unknown_name("env", "zzz", []) == "env='zzz' is unknown. Known: none."


def test_the_hint_comes_last_and_any_value_can_be_shown() -> None:
    assert unknown_name("env", "a", ["b"], "(see docs)").endswith("Known: b. (see docs)")
    assert "steps=3 is unknown" in unknown_name("steps", 3, ["three"])


def test_known_names_pass_and_others_do_not() -> None:
    require_known("kind", "b", iter(["a", "b"]))
    with pytest.raises(ValueError, match=r"kind='c' is unknown. Known: a, b. here"):
        require_known("kind", "c", iter(["a", "b"]), "here")
