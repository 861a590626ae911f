"""Whole episodes: experts, do-nothing and adversarial policies, many environments at once, memory, worker processes."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from webshop_helpers import config, environment_of, shop_expert, succeeded

from envs import registry
from envs.interface import EnvConfig, EnvironmentFailure, Observation, StepResult, Task
from envs.pool import EnvPool
from envs.webshop import spec
from envs.webshop.data import store_of
from envs.webshop.reading import read_instruction, read_page


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop cache")


@pytest.fixture(scope="module")
def full_size(cache: Path) -> EnvConfig:
    """The default shop and panels, in full prompts."""
    return EnvConfig(name="webshop", engine="native", cache=str(cache), max_steps=15, prompt="full")


@pytest.mark.parametrize("compact", [True, False])
def test_the_expert_solves_the_panels(full_size: EnvConfig, compact: bool) -> None:
    settings = replace(full_size, prompt="compact" if compact else "full")
    environment = spec.make(settings)
    for name in spec.PANELS:
        tasks = spec.load_panel(settings, name).tasks
        won = [succeeded(shop_expert(environment, task, compact)) for task in tasks]
        assert sum(won) >= 0.95 * len(won), (name, sum(won), len(won))


@pytest.mark.parametrize("knobs", [{"text": "text"}, {"goals": "human"}])
def test_the_expert_solves_other_settings(full_size: EnvConfig, knobs: dict[str, str]) -> None:
    settings = replace(full_size, knobs=knobs)
    environment = spec.make(settings)
    tasks = spec.load_panel(settings, "test").tasks
    assert sum(succeeded(shop_expert(environment, task, False)) for task in tasks) >= 0.95 * len(tasks)


def test_search_alone_does_not_decide(full_size: EnvConfig) -> None:
    settings = replace(full_size, prompt="compact")
    environment = spec.make(settings)
    tasks = spec.load_panel(settings, "test").tasks
    right = 0
    for task in tasks:
        wish = read_instruction(environment.reset(task).task)
        results = read_page(
            environment.step(f"search[{' '.join([*wish.words, *wish.options.values()])}]").observation.text
        )
        first = next((k for k, found in enumerate(results.results, 1) if wish.affordable(found.high)), 1)
        item = read_page(environment.step(f"click[item {first}]").observation.text)
        for name, values in item.options.items():
            environment.step(f"click[{wish.choice(name, values) or values[0]}]")
        right += environment.step("click[buy now]").success
    assert 0.4 < right / len(tasks) < 0.85


def test_walkthroughs_win(full_size: EnvConfig) -> None:
    environment = spec.make(full_size)
    for task in spec.load_panel(full_size, "validation").tasks:
        environment.reset(task)
        results = [environment.step(action) for action in spec.walkthrough(full_size, task)]
        assert results[-1].success and results[-1].score == results[-1].reward == 1.0
        assert all(result.admissible and not result.reward for result in results[:-1])


def test_random_policies_hardly_ever_win(full_size: EnvConfig) -> None:
    environment = spec.make(full_size)
    rng, scores, wins = random.Random(0), [], 0
    for task in spec.load_panel(full_size, "test").tasks:
        seen, done = environment.reset(task), False
        while not done:
            action = rng.choice([*seen.admissible, f"search[{rng.choice(task.slots['product'].split())}]"])
            result = environment.step(action)
            seen, done = result.observation, result.done
        scores.append(result.score)
        wins += result.success
    assert wins <= 3 and sum(scores) / len(scores) < 0.4


# ------------------------------------------------------------------------------------------------------ one episode
def test_scores_are_graded_and_success_is_everything_right(cache: Path) -> None:
    settings = config(cache, prompt="full")
    task = spec.load_panel(settings, "train").tasks[0]
    environment = environment_of(spec.make(settings))
    actions = spec.walkthrough(settings, task)
    environment.reset(task)
    for action in [*actions[:-2], actions[-1]]:  # without the last option
        result = environment.step(action)
    parts = len(environment.goal.attributes) + 2 + 1
    assert result.done and not result.success and result.reward == 0.0
    assert result.score == pytest.approx((parts - 1) / parts)
    with pytest.raises(RuntimeError, match="call reset first"):
        environment.step("click[buy now]")


def test_episodes_end_after_max_steps_with_nothing(cache: Path) -> None:
    settings = config(cache, max_steps=3)
    environment = spec.make(settings)
    environment.reset(spec.load_panel(settings, "train").tasks[0])
    results = [environment.step("look") for _ in range(3)]
    assert [r.done for r in results] == [False, False, True]
    assert not any(r.admissible or r.success or r.score for r in results)
    with pytest.raises(ValueError, match=r"env\.max_steps=0"):
        spec.make(config(cache, max_steps=0))


def test_strict_options_can_be_asked_for(cache: Path) -> None:
    assert environment_of(spec.make(config(cache, knobs={"strict_options": True}))).strict_options
    shown = spec.make(config(cache, knobs={"attributes_page": True}, prompt="full"))
    task = spec.load_panel(config(cache), "train").tasks[0]
    shown.reset(task)
    actions = spec.walkthrough(config(cache), task)
    opened = next(k for k, action in enumerate(actions) if action.startswith("click[b0"))
    for action in actions[: opened + 1]:
        last = shown.step(action)
    assert "click[attributes]" in last.observation.admissible


def test_short_names_are_understood_in_compact_prompts_only(cache: Path) -> None:
    for prompt, understood in (("compact", True), ("full", False)):
        settings = config(cache, prompt=prompt)
        environment = environment_of(spec.make(settings))
        environment.reset(spec.load_panel(settings, "train").tasks[0])
        environment.step("search[shoes]")
        assert environment.step("click[item 3]").admissible is understood
        if understood:
            assert environment.visit.item == environment.visit.hits[2]
            assert environment.step("click[prev]").admissible and environment.step("click[next]").admissible
            for wrong in ("click[item 0]", "click[item 11]", "click[item 99999]", "click[]", "click[...]"):
                assert not environment.step(wrong).admissible


def test_goals_that_changed_are_a_failure_of_the_environment(cache: Path) -> None:
    settings = config(cache)
    task = spec.load_panel(settings, "train").tasks[0]
    environment = spec.make(settings)
    with pytest.raises(EnvironmentFailure, match="has changed since the panel was made"):
        environment.reset(replace(task, content_hash="0" * 64))
    for location in ("", "x", "99999999"):
        with pytest.raises(EnvironmentFailure, match="is not at"):
            environment.reset(replace(task, location=location))


def test_the_same_actions_give_the_same_episode(cache: Path) -> None:
    settings = config(cache)
    task = spec.load_panel(settings, "test").tasks[0]
    first, second = (shop_expert(spec.make(settings), task) for _ in range(2))
    assert first == second


# --------------------------------------------------------------------------------------------- many at once, badly
def noise(rng: random.Random) -> str:
    """Actions that no policy should send."""
    kind = rng.randrange(9)
    if kind == 0:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(60))).decode("latin-1")
    if kind == 1:
        return rng.choice(("search[", "click[", "")) + "x[" * rng.randrange(5000)
    if kind == 2:
        return "<action>" * 50 + "click[buy now]" + "</action>" * 50
    if kind == 3:
        return (
            "search["
            + "".join(chr(rng.choice((0x4E2D, 0x1F600, 0x202E, 0, 0x300, 0x110000 - 1))) for _ in range(40))
            + "]"
        )
    if kind == 4:
        return "search[" + "red shoes " * 20000 + "]"
    if kind == 5:
        return rng.choice(("search[<r>]", "search[<a> x]", "search[<c>]", "search[<q> shoes]", "click[search]"))
    if kind == 6:
        return rng.choice(
            ("click[item 1]", "click[next >]", "click[< prev]", "click[back to search]", "click[features]")
        )
    if kind == 7:
        return "\n".join(("search[shoes]", "click[buy now]")) * rng.randrange(3)
    return rng.choice(
        ("click[" + "b0" * 300 + "]", "CLICK[Description]", "search[\x00]", "click[\n]", " ", "[]", "][", "search[[]]")
    )


def test_bad_policies_break_nothing_and_experts_beside_them_still_win(cache: Path) -> None:
    settings = config(cache, train_per_type=10)
    tasks = spec.load_panel(settings, "train").tasks
    rng = random.Random(3)
    slots: dict[int, tuple[str, Task]] = {
        slot: (("expert", "nothing", "noise", "noise")[slot % 4], tasks[slot % len(tasks)]) for slot in range(200)
    }
    scripts = {task.id: spec.walkthrough(settings, task) for task in tasks}
    with EnvPool(spec.make, settings) as pool:
        started = pool.reset({slot: task for slot, (_, task) in slots.items()})
        assert all(isinstance(observation, Observation) for observation in started.values())
        results: dict[int, StepResult] = {}
        for step in range(15):
            actions = {}
            for slot, (policy, task) in slots.items():
                if slot in results and results[slot].done:
                    continue
                script = scripts[task.id]
                actions[slot] = {"expert": script[min(step, len(script) - 1)], "nothing": "", "noise": noise(rng)}[
                    policy
                ]
            for slot, result in pool.step(actions).items():
                assert isinstance(result, StepResult), (slot, actions[slot][:80], result)
                results[slot] = result
    by_policy = {
        name: [results[s] for s, (p, _) in slots.items() if p == name] for name in ("expert", "nothing", "noise")
    }
    assert all(result.success for result in by_policy["expert"])
    assert all(result.done and result.score == 0 for result in by_policy["nothing"])
    assert all(result.done for result in by_policy["noise"])


def test_memory_is_flat_over_a_thousand_resets(cache: Path) -> None:
    settings = config(cache)
    tasks = spec.load_panel(settings, "train").tasks
    environment = spec.make(settings)

    def play(times: int) -> None:
        for k in range(times):
            environment.reset(tasks[k % len(tasks)])
            for action in ("search[shoes non slip]", "click[item 1]", "click[features]"):
                environment.step(action)

    play(100)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    play(1000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 200_000, grown


def test_an_environment_weighs_little(cache: Path) -> None:
    settings = config(cache)
    task = spec.load_panel(settings, "train").tasks[0]
    spec.make(settings).reset(task)
    tracemalloc.start()
    many = [spec.make(settings) for _ in range(100)]
    for environment in many:
        environment.reset(task)
        environment.step("search[shoes]")
    assert tracemalloc.get_traced_memory()[0] / 100 < 20_000  # bytes
    tracemalloc.stop()
    assert len({id(environment_of(environment).store) for environment in many}) == 1


def test_worker_processes_give_the_same_episodes(cache: Path) -> None:
    settings = config(cache)
    tasks = dict(enumerate(spec.load_panel(settings, "test").tasks[:6]))
    scripts = {slot: spec.walkthrough(settings, task) for slot, task in tasks.items()}
    played = []
    for workers in (0, 2):
        with EnvPool(registry.get("webshop").make, settings, workers) as pool:
            log: list[object] = [pool.reset(tasks)]
            for step in range(max(map(len, scripts.values()))):
                log.append(pool.step({slot: script[step] for slot, script in scripts.items() if step < len(script)}))
            played.append(log)
    assert played[0] == played[1]


def test_two_processes_that_need_the_shop_make_it_once(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with EnvPool(spec.make, settings, 2) as pool:
        task = Task("t", "fashion", "0", location="0")
        answers = pool.reset({0: task, 1: replace(task, content_hash="1")})
    assert all("has changed since" in str(answer) for answer in answers.values())
    assert len([p for p in (tmp_path / "webshop").iterdir() if p.is_dir()]) == 1
    assert len(store_of(settings)) == 150
