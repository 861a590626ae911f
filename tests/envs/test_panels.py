from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.interface import EnvConfig, Panel, Task
from envs.panels import (
    PanelError,
    assert_disjoint,
    assert_each_once,
    build_panel,
    digest,
    panel_identity,
    permutation,
    subset,
)

TYPES = ("pick", "look", "heat")


def task(n: int, kind: str | None = None, content: str | None = None) -> Task:
    return Task(f"split/{n:03d}", kind or TYPES[n % 3], content or digest("task", str(n)))


def panel(n: int = 30, name: str = "train", start: int = 0) -> Panel:
    return build_panel("env", "v1", name, [task(i) for i in range(start, start + n)])


def test_a_panel_does_not_depend_on_the_order_in_which_tasks_are_found() -> None:
    tasks = [task(i) for i in range(30)]
    random.Random(1).shuffle(tasks)
    shuffled = build_panel("env", "v1", "train", tasks)
    assert shuffled == panel()
    assert [t.id for t in shuffled.tasks] == sorted(t.id for t in tasks)
    assert permutation(shuffled) == permutation(panel())


def test_the_hash_covers_env_version_split_and_content_but_no_names() -> None:
    base = panel().hash
    tasks = [task(i) for i in range(30)]
    assert build_panel("other", "v1", "train", tasks).hash != base
    assert build_panel("env", "v2", "train", tasks).hash != base
    assert build_panel("env", "v1", "seen", tasks).hash != base
    assert build_panel("env", "v1", "train", [*tasks[:-1], task(29, content=digest("changed"))]).hash != base
    renamed = [Task(f"x{t.id}", t.type, t.content_hash, location="elsewhere") for t in tasks]
    assert build_panel("env", "v1", "train", renamed).hash == base


def test_digest_knows_where_a_text_ends() -> None:
    assert digest("ab", "c") != digest("a", "bc")


def test_empty_panels_and_double_ids_are_refused() -> None:
    with pytest.raises(PanelError, match="no tasks"):
        build_panel("env", "v1", "train", [])
    with pytest.raises(PanelError, match="split/003"):
        build_panel("env", "v1", "train", [task(3), task(3)])


def test_content_that_is_trained_on_is_found_under_any_id() -> None:
    train = panel()
    assert_disjoint(train, panel(10, "seen", 100), panel(10, "unseen", 200))
    leak = build_panel("env", "v1", "seen", [task(100), task(101, content=train.tasks[4].content_hash)])
    with pytest.raises(PanelError, match=r"split/101 \(trained as split/004\)"):
        assert_disjoint(train, leak)


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.integers(1, 60))
def test_fractions_are_nested_and_rounded_up(one: float, other: float, size: int) -> None:
    whole = panel(size)
    small, large = (subset("env", whole, f) for f in sorted((one, other)))
    assert {t.id for t in small.tasks} <= {t.id for t in large.tasks}
    assert len(small.tasks) >= min(one, other) * size - 1e-6
    assert len(small.tasks) < min(one, other) * size + 1


def test_fractions_are_exact_where_binary_numbers_are_not() -> None:
    assert [len(subset("env", panel(30), f).tasks) for f in (0.1, 0.2, 0.3, 0.7, 1.0)] == [3, 6, 9, 21, 30]
    assert subset("env", panel(), 1.0) is not None and subset("env", panel(), 1.0) == panel()


def test_every_prefix_of_the_permutation_has_the_mixture_of_types() -> None:
    mixed = build_panel("env", "v1", "train", [task(i, "big" if i % 4 else "small") for i in range(80)])
    for fraction in (0.1, 0.25, 0.5):
        chosen = subset("env", mixed, fraction).tasks
        small = sum(t.type == "small" for t in chosen)
        assert abs(small - len(chosen) / 4) <= 1


@pytest.mark.parametrize("fraction", [0.0, -0.2, 1.01, float("nan")])
def test_impossible_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(PanelError, match="outside"):
        subset("env", panel(), fraction)


def test_each_task_exactly_once() -> None:
    small = panel(5)
    ids = [t.id for t in small.tasks]
    assert_each_once(small, ids)
    assert_each_once(small, ids[:-1], excluded={ids[-1]: "engine crash"})
    assert_each_once(small, [*ids, *ids], repeats=2)
    with pytest.raises(PanelError, match=r"1 played fewer than 1 times: split/004"):
        assert_each_once(small, ids[:-1])
    with pytest.raises(PanelError, match=r"more than 1 times: split/000"):
        assert_each_once(small, [*ids, ids[0]])
    with pytest.raises(PanelError, match=r"not in the panel: split/999"):
        assert_each_once(small, [*ids, "split/999"])
    with pytest.raises(PanelError, match=r"more than 1"):
        assert_each_once(small, ids, excluded={ids[0]: "graded and excluded"})


def test_an_unknown_panel_has_no_identity() -> None:
    with pytest.raises(ValueError, match=r"alfworld has no panel 'test'; it has train, seen, unseen"):
        panel_identity(EnvConfig(), "test")
