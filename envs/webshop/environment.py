"""One WebShop environment: reset to a goal, step with actions, graded when something is bought."""

from __future__ import annotations

import re

from envs.interface import EnvironmentFailure, Observation, StepResult, Task
from envs.webshop import pages
from envs.webshop.goals import Goal
from envs.webshop.reward import Score, score
from envs.webshop.shop import END, MOST_RESULTS, RESULTS, Visit, read_action
from envs.webshop.store import Store

LONGEST_ACTION = 1000  # characters; the rest is cut off, so that no policy can make searching slow
_NUMBERED = re.compile(r"item (\d{1,3})")
_NO_GOAL = Goal("", "", "", "", (), (), "", (), (), 0.0)


class WebshopEnvironment:
    """An `envs.interface.Environment`.

    form: of pages, `text` or `text_rich`; max_steps: actions after which an episode is over; strict_options: see
    `reward`; short_names: also understand what a small vocabulary can say: `click[item 3]` for the third product of the
    page, and names without their signs (`click[prev]`)
    """

    def __init__(
        self,
        store: Store,
        max_steps: int,
        form: str = "text",
        strict_options: bool = False,
        attributes_page: bool = False,
        short_names: bool = False,
    ) -> None:
        if max_steps < 1:
            raise ValueError(f"env.max_steps={max_steps} allows no action; give at least 1")
        self.store, self.max_steps, self.form = store, max_steps, form
        self.strict_options, self.attributes_page, self.short_names = strict_options, attributes_page, short_names
        self.goal = _NO_GOAL
        self.visit = self._new_visit()
        self._steps = 0
        self._running = False

    def _new_visit(self) -> Visit:
        return Visit(self.store.product, self._find, self.attributes_page)

    def _find(self, query: str) -> tuple[int, ...]:
        return self.store.index.search(query, MOST_RESULTS)

    def close(self) -> None:
        """Nothing to release: the catalogue belongs to the process."""

    def reset(self, task: Task) -> Observation:
        """Begin the task. Raises EnvironmentFailure if the catalogue has another goal in its place, or none."""
        self._running = False
        try:
            goal = self.store.goal(int(task.location))
        except (ValueError, IndexError) as error:
            raise EnvironmentFailure(f"goal {task.id} is not at {task.location!r} of {self.store.folder}") from error
        if goal.content_hash() != task.content_hash:
            raise EnvironmentFailure(
                f"goal {task.id} has changed since the panel was made: {self.store.folder} has "
                f"{goal.content_hash()[:12]}, the panel {task.content_hash[:12]}; run `python -m envs.webshop verify`"
            )
        self.goal, self.visit, self._steps, self._running = goal, self._new_visit(), 0, True
        return self._look()

    def step(self, action: str) -> StepResult:
        """Act. What cannot be done changes nothing. RuntimeError after the end of an episode."""
        if not self._running:
            raise RuntimeError("the episode is over or was never begun; call reset first")
        accepted = self.visit.act(self._plain_name(action[:LONGEST_ACTION]))
        self._steps += 1
        bought = self.visit.page == END
        reached = self.grade().total if bought else 0.0
        done = bought or self._steps >= self.max_steps
        self._running = not done
        success = reached == 1.0
        return StepResult(self._look(), float(success), done, success, reached, accepted, truncated=done and not bought)

    def grade(self) -> Score:
        """What buying the product looked at, with the options chosen, is worth."""
        return score(self.visit.product(), self.goal, self.visit.chosen, self.strict_options)

    def _look(self) -> Observation:
        instruction = self.goal.instruction
        text = pages.render(self.visit, instruction, self.form)
        return Observation(text, instruction, tuple(sorted(pages.commands(self.visit))))

    def _plain_name(self, action: str) -> str:
        """The action with a short name replaced by what the page calls it."""
        name, argument = read_action(action)
        if not self.short_names or name != "click" or not argument:
            return action
        clickable = self.visit.clickable()
        if argument in clickable:
            return action
        numbered = _NUMBERED.fullmatch(argument)
        if numbered and self.visit.page == RESULTS:
            shown = self.visit.shown()
            k = int(numbered.group(1))
            return f"click[{self.store.product(shown[k - 1]).asin}]" if 1 <= k <= len(shown) else action
        wanted = short_name(argument)
        fits = [n for n in clickable if short_name(n) == wanted] if wanted else []
        return f"click[{fits[0]}]" if len(fits) == 1 else action


def short_name(name: str) -> str:
    """Letters, digits, apostrophes and single blanks only: `< prev` is `prev`."""
    return " ".join(re.findall(r"[a-z0-9']+", name.lower()))
