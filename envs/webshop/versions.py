"""Versions of what decides WebShop's numbers. Each is raised whenever the same input would give other output."""

from __future__ import annotations

PLAY_VERSION = 1  # what the shop answers, and the reward
PROMPTS_VERSION = 1  # user messages and how responses are read
RULES_VERSION = 1  # hindsight and workflow, with the expert behind them
GENERATOR_VERSION = 1  # products and goals of a seed
CATALOGUE_VERSION = 1  # load rules, goals and split of given files
STORE_VERSION = 1  # layout of a catalogue on disk
DEMONSTRATIONS_VERSION = 1  # demonstrations of (seed, index)
