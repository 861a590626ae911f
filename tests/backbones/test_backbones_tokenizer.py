"""The word-level tokenizer: nothing that the environment says or accepts is lost."""

import random

import pytest
from transformers import AutoTokenizer

from envs.alfworld import worlds
from envs.alfworld.demos import demonstration
from envs.alfworld.hindsight import caution, workflow
from envs.alfworld.lexicon import lexicon
from envs.alfworld.native import Game, scene_of_world
from envs.alfworld.prompts import shorten
from envs.alfworld.tracker import read_instruction
from harness.backbones.tokenizer import END, UNKNOWN, build_tokenizer, token_parts, vocabulary


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(lexicon())


def _ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("split", ("train", "unseen"))
def test_every_command_survives_encoding_and_no_text_has_unknown_words(tokenizer, split):
    unknown, rng = tokenizer.convert_tokens_to_ids(UNKNOWN), random.Random(0)
    for world in worlds.draw(split, 4, 2):
        game = Game(scene_of_world(world))
        texts = [
            game.reset(),
            workflow(read_instruction(world.instruction)),
            caution(read_instruction(world.instruction)),
        ]
        for _ in range(30):
            commands = game.admissible()
            for command in commands:
                assert tokenizer.decode(_ids(tokenizer, command)) == command
            texts.append(game.step(rng.choice(commands))[0])
        for text in texts:
            assert unknown not in _ids(tokenizer, text), text


def test_entities_and_phrases_are_one_token_and_fillers_none(tokenizer):
    tokens = tokenizer.convert_ids_to_tokens(_ids(tokenizer, "On the shelf 12, you see a mug 1, and a pan 2."))
    assert tokens == ["on", "shelf 12", "you see", "mug 1", "pan 2"]
    assert tokenizer.convert_ids_to_tokens(_ids(tokenizer, "go to countertop 1")) == ["go to", "countertop 1"]


def test_shortened_observations_keep_every_entity():
    text = "You arrive at fridge 1. The fridge 1 is closed."
    assert shorten(text) == "The fridge 1 is closed."
    assert shorten("You open the fridge 1. The fridge 1 is open. In it, you see a egg 2.") == (
        "In the fridge 1, you see a egg 2."
    )
    assert shorten("Nothing happens.") == "Nothing happens."


def test_chat_template_and_round_trip_through_a_folder(tokenizer, tmp_path):
    messages = [{"role": "user", "content": "look"}, {"role": "assistant", "content": "go to shelf 1"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\ngo to shelf 1<|im_end|>\n"
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert _ids(again, text) == _ids(tokenizer, text)
    assert again.eos_token == END and again.chat_template == tokenizer.chat_template


def test_token_parts_share_type_and_number():
    assert token_parts(["mug 2", "go to", "mug"]) == [("mug", 2), ("go to", 0), ("mug", 0)]
    tokens = vocabulary(lexicon())
    assert len(tokens) == len(set(tokens))


def test_demonstrations_have_no_unknown_words(tokenizer):
    unknown = tokenizer.convert_tokens_to_ids(UNKNOWN)
    for i in range(200):
        d = demonstration(3, i)
        for text in [d.episode_skill or "", *(t.prompt.text for t in d.turns), *(t.step_skill or "" for t in d.turns)]:
            assert unknown not in _ids(tokenizer, text), text
