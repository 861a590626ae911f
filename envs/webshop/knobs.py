"""WebShop's own settings (`env.knobs`). Light: planning reads them."""

from __future__ import annotations

from dataclasses import dataclass

from core.knobs import read_knobs
from core.names import require_known
from envs.interface import EnvConfig
from envs.search import names as rankers
from envs.webshop.goals import KINDS
from envs.webshop.pages import FORMS

NOUNS = ("stored", "words")


@dataclass(frozen=True)
class Knobs:
    """WebShop's own settings; sweeps/env/webshop.yaml explains each."""

    products: int | None = 1000
    text: str = "text_rich"
    goals: str = "synthetic"
    strict_options: bool = False
    attributes_page: bool = False
    nouns: str = "stored"
    product_file: str = "items_shuffle_1000.json"
    attribute_file: str = "items_ins_v2_1000.json"
    human_file: str = "items_human_ins.json"
    review_file: str | None = None
    ranker: str = "own"


def knobs_of(config: EnvConfig) -> Knobs:
    """The configuration's knobs. Raises ValueError naming the key of a wrong one."""
    knobs = read_knobs(Knobs, config.knobs, "env.knobs")
    require_known("env.knobs.text", knobs.text, FORMS)
    require_known("env.knobs.goals", knobs.goals, KINDS)
    require_known("env.knobs.nouns", knobs.nouns, NOUNS)
    rankers.check("env.knobs.ranker", knobs.ranker)
    if knobs.products is not None and knobs.products < 1:
        raise ValueError(f"env.knobs.products={knobs.products} makes an empty shop; give at least 1")
    if knobs.products is None and config.data is None:
        raise ValueError("env.knobs.products=null means all products of env.data; a generated catalogue needs a number")
    return knobs
