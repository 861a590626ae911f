"""Configurations as text: what OmegaConf would write, and what it reads back."""

from __future__ import annotations

import pytest
import yaml
from omegaconf import OmegaConf

from harness.config import RunConfig
from harness.record import parse_config
from harness.yaml_text import to_yaml

WORDS = "null ~ yes No ON off y N true False = << # * &a ' \" \\ {x} - é\u200b 漢字"
NUMBERS = "1 -1 +1 1_000 0x1f 0o7 1:30 1.5 .5 1e5 1E-5 1e-6 inf -inf nan infinity .inf .NaN 2026-01-01"
NASTY = [
    *(*WORDS.split(), *NUMBERS.split(), "", " ", "a: b", "- a", "[1, 2]", "a\nb", "\ttab", "${oc.env:HOME}", "${a.b}"),
    "x" * 300,
    "word " * 60,
]
VALUES: list[object] = [None, True, 0, -3, 1e-6, 1e22, 0.1, float("inf"), [], {}, [[1], {"a": []}]]


def test_any_text_comes_back_in_the_words_of_omegaconf() -> None:
    config = RunConfig()
    config.launcher.setup = NASTY
    config.launcher.environment = {f"NAME{i}": text for i, text in enumerate(NASTY)}
    written = to_yaml(config)
    assert written == OmegaConf.to_yaml(OmegaConf.structured(config))
    # `${...}` is for OmegaConf to resolve, now as before
    config.launcher.setup = [text for text in NASTY if "$" not in text]
    config.launcher.environment = {f"NAME{i}": text for i, text in enumerate(config.launcher.setup)}
    config.method.knobs = {text: text for text in config.launcher.setup if text}
    assert parse_config(to_yaml(config), "here") == config


def test_any_value_comes_back_in_the_words_of_omegaconf() -> None:
    config = RunConfig()
    config.method.knobs = {f"value{i}": value for i, value in enumerate(VALUES)}
    written = to_yaml(config)
    assert written == OmegaConf.to_yaml(OmegaConf.structured(config))
    assert parse_config(written, "here") == config


def test_what_libyaml_escapes_comes_back() -> None:
    config = RunConfig()
    config.launcher.setup = ["🙂"]  # OmegaConf would write it as it is
    assert parse_config(to_yaml(config), "here") == config


def test_what_stands_twice_is_written_twice() -> None:
    shared = [1, 2]
    config = RunConfig()
    config.method.knobs = {"one": shared, "two": shared}
    assert "&" not in to_yaml(config) and "*" not in to_yaml(config)


def test_what_has_no_form_is_an_error() -> None:
    config = RunConfig()
    config.method.knobs = {"one": object()}
    with pytest.raises(yaml.YAMLError, match="cannot represent"):
        to_yaml(config)
