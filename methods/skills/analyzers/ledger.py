"""What analyses cost, added up from several threads."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from methods.skills.analyzer import Usage

_MILLION = 1_000_000


class Ledger:
    """Sums since they were last taken. price_prompt, price_completion: per million tokens, in one currency."""

    def __init__(self, price_prompt: float = 0.0, price_completion: float = 0.0) -> None:
        self._prices = (price_prompt, price_completion)
        self._lock = threading.Lock()
        self._usage = Usage()

    def add(self, **amounts: Any) -> None:
        """Add to fields of Usage by name."""
        with self._lock:
            values = {name: getattr(self._usage, name) + amount for name, amount in amounts.items()}
            self._usage = dataclasses.replace(self._usage, **values)

    def tokens(self, prompt: int, completion: int) -> None:
        """Add the tokens of one answer, and what they cost."""
        cost = (prompt * self._prices[0] + completion * self._prices[1]) / _MILLION
        self.add(prompt_tokens=prompt, completion_tokens=completion, cost=cost)

    def take(self) -> Usage:
        """What came together since the last call."""
        with self._lock:
            taken, self._usage = self._usage, Usage()
        return taken
