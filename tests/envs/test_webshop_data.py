"""Catalogues and goals: load rules, fixed prices and bounds, splits, panels, files of the user, the command line."""

from __future__ import annotations

import http.server
import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from webshop_helpers import config, goal, product

from envs.interface import EnvConfig
from envs.panels import assert_disjoint, build_panel, panel_identity
from envs.webshop import fetch, generator, goals, nouns, spec, store
from envs.webshop.__main__ import main
from envs.webshop.catalogue import CatalogueError, options_of, price_of, products
from envs.webshop.data import store_of, tasks_of
from envs.webshop.jsonfiles import read_array, read_json
from envs.webshop.knobs import Knobs, knobs_of
from envs.webshop.reward import matched_options
from envs.webshop.sources import data_version
from envs.webshop.words import HUMAN_FRAMES, KINDS, OPTIONS, SYNTHETIC_FRAMES


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop cache")


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like the user's: files in WebShop's formats and names."""
    folder = tmp_path_factory.mktemp("webshop files")
    content = generator.files(generator.generate(5, 300))
    names = {"items_shuffle.json": "items_shuffle_1000.json", "items_ins_v2.json": "items_ins_v2_1000.json"}
    for name in ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json", "nouns.json"):
        (folder / names.get(name, name)).write_bytes(content[name])
    return folder


def raw(asin: str = "B000000001", **changes: Any) -> dict[str, Any]:
    entry = {
        "asin": asin,
        "category": "fashion",
        "query": " Shirts ",
        "name": "Shirt",
        "product_category": "Clothing › Men › Shirts",
        "full_description": "A shirt",
        "small_description": ["Soft"],
        "pricing": "$12.99",
        "customization_options": {},
        "images": ["x.jpg"],
    }
    return {**entry, **changes}


def loaded(*entries: dict[str, Any], attributes: dict[str, Any] | None = None) -> list[Any]:
    return list(products(entries, attributes or {}, {e["asin"]: ["shirt"] for e in entries}, 0))


# ------------------------------------------------------------------------------------------------------ load rules
def test_unusable_and_repeated_asins_are_skipped() -> None:
    found = loaded(raw("nan"), raw("B00000000012"), raw("B1"), raw("B1", name="again"), raw("B2"))
    assert [(p.asin, p.title) for p in found] == [("B1", "Shirt"), ("B2", "Shirt")]


def test_fields_are_normalised() -> None:
    (found,) = loaded(
        raw(
            small_description="one text",
            customization_options={"Color": [{"value": " Red/Blue "}, {"value": "NAVY"}], "Size": None},
        )
    )
    assert found.query == "shirts" and found.type_path == ("Clothing", "Men", "Shirts")
    assert found.bullets == ("one text",) and found.options == {"color": ("red | blue", "navy")}
    assert found.attributes == ("DUMMY_ATTR",) and found.rating == "N.A."
    assert found.document() == "shirt a shirt one text color: red | blue, navy"
    assert loaded(raw(), attributes={"B000000001": {"attributes": ["soft"]}})[0].attributes == ("soft",)


@pytest.mark.parametrize(
    ("pricing", "price", "tag"),
    [(None, 100.0, "$100.0"), ("", 100.0, "$100.0"), ("$12.99", 12.99, "$12.99"), ("$1,299.00", 1299.0, "$1299.0")],
)
def test_prices(pricing: str | None, price: float, tag: str) -> None:
    assert price_of("B1", pricing, 0) == (price, tag)


def test_the_price_of_a_range_is_drawn_once_from_the_asin() -> None:
    price, tag = price_of("B1", "$10.5$20.0$99", 0)
    assert 10.5 <= price <= 20.0 and tag == "$10.5 to $20.0"
    assert price_of("B1", "$10.5$20.0", 0)[0] == price != price_of("B2", "$10.5$20.0", 0)[0]


def test_a_broken_entry_is_named() -> None:
    broken = raw()
    del broken["product_category"]
    with pytest.raises(CatalogueError, match=r"B000000001 \(entry 0\) is not in WebShop's format: KeyError"):
        loaded(broken)
    with pytest.raises(CatalogueError, match="entry 0 has no asin"):
        list(products([{}], {}, {}, 0))
    with pytest.raises(CatalogueError, match="no nouns are stored for product B000000001"):
        list(products([raw()], {}, {}, 0))


def test_options_without_values() -> None:
    assert options_of(None) == {} and options_of({"a": []}) == {"a": ()}


# ----------------------------------------------------------------------------------------------------------- goals
@pytest.mark.parametrize("price", [0.5, 9.99, 10.0, 455.0, 969.99])
def test_bounds_are_two_of_the_next_four_tens_the_larger(price: float) -> None:
    seen = {goals.price_bound(price, f"g{k}", 0) for k in range(200)}
    above = [10.0 * k for k in range(1, 100) if 10.0 * k > price][:4]
    assert {upper for upper, _ in seen} == set(above[1:])  # the smallest can never be the larger of two
    assert all(text == f", and price lower than {upper:.2f} dollars" for upper, text in seen)


def test_dear_products_have_no_bound() -> None:
    assert goals.price_bound(985.0, "g", 0) == goals.price_bound(5000.0, "g", 0) == (goals.NO_BOUND, "")
    assert goals.price_bound(979.0, "g", 0)[0] == 990.0


def test_synthetic_goals_are_all_combinations_with_one_bound() -> None:
    entry = {"B000000001": {"instruction": "Find me a shirt", "instruction_attributes": ["machine wash"]}}
    found = list(goals.synthetic([product(), product("B2")], entry, 0))
    assert [g.options for g in found] == [
        (("color", a), ("size", b)) for a in ("red", "blue") for b in ("small", "large")
    ]
    assert found[1].id == "B000000001-1" and len({g.price_upper for g in found}) == 1
    assert found[1].instruction == (
        f"Find me a shirt with color: red, and size: large, and price lower than {found[1].price_upper:.2f} dollars"
    )
    with pytest.raises(CatalogueError, match="comes without attributes"):
        list(goals.synthetic([product()], {"B000000001": {"instruction": "x", "instruction_attributes": []}}, 0))


def test_human_goals_need_attributes() -> None:
    entries = {
        "B000000001": [
            {"instruction": "a red shirt.", "instruction_attributes": [], "instruction_options": ["red"]},
            {"instruction": "a red shirt.", "instruction_attributes": ["soft"], "instruction_options": ["red"]},
        ]
    }
    (found,) = goals.human([product()], entries, 0)
    assert found.id == "B000000001-h1" and found.options == (("", "red"),)
    assert found.instruction.startswith("a red shirt, and price lower than")


def test_the_split_of_given_files_is_the_originals_shuffle() -> None:
    everything = [goal(id=f"g{k}", instruction=f"goal {k}") for k in range(1600)]
    order = list(range(1600))
    random.Random(233).shuffle(order)
    shares = goals.split(everything)
    assert [len(shares[name]) for name in ("test", "validation", "train")] == [500, 1000, 100]
    assert [g.id for name in ("test", "validation", "train") for g in shares[name]] == [f"g{k}" for k in order]
    with pytest.raises(ValueError, match="1500 goals are too few"):
        goals.split(everything[:1500])


def test_training_gives_way_where_content_repeats() -> None:
    twins = [goal(id="a", asin="A"), goal(id="b", asin="A"), goal(id="c", asin="C")]
    shares = goals.split(twins, {"A": "train", "C": "test"})
    assert [g.id for g in shares["train"]] == ["a"]
    again = goals.split([goal(id="t", asin="A"), goal(id="v", asin="B")], {"A": "train", "B": "validation"})
    assert again["train"] and again["validation"]


# ------------------------------------------------------------------------------------------------- generated shops
def test_option_values_and_attributes_cannot_be_mixed_up() -> None:
    for name, values in OPTIONS.items():
        for wanted in values:
            for chosen in values:
                for named in (name, ""):
                    aim = goal(options=((named, wanted),))
                    assert matched_options(aim, {name: chosen}) == (wanted == chosen), (name, wanted, chosen)
    values_and_names = {word for pool in OPTIONS.values() for value in pool for word in value.split()}
    frames = " ".join((*SYNTHETIC_FRAMES, *HUMAN_FRAMES)).lower().split()
    assert not values_and_names & set(frames)
    assert all(len(kind.attributes) == len(set(kind.attributes)) == 8 for kind in KINDS)


def test_a_seed_gives_the_same_files_and_another_seed_others() -> None:
    first, again = generator.files(generator.generate(1, 100)), generator.files(generator.generate(1, 100))
    assert first == again and first != generator.files(generator.generate(2, 100))


def test_families_do_not_depend_on_how_many_there_are() -> None:
    few, many = generator.generate(1, 250), generator.generate(1, 500)
    assert all(p in many.products for p in few.products)


def test_a_catalogue_is_what_it_says() -> None:
    catalogue = generator.generate(0, 1000)
    assert len({p["asin"] for p in catalogue.products}) == 1000
    assert len({p["category"] for p in catalogue.products}) == 5
    assert len({p["query"] for p in catalogue.products}) == 25
    found = list(products(catalogue.products, catalogue.attributes, catalogue.nouns, 0))
    for item in found:
        combinations = 1
        for values in item.options.values():
            combinations *= len(values)
        assert 2 <= combinations <= 12
        assert item.price <= 200 and set(item.attributes) >= set(
            catalogue.attributes[item.asin]["instruction_attributes"]
        )
    siblings = Counter((p["query"], p["name"].split()[0]) for p in catalogue.products)
    assert sorted(siblings.values())[1] >= generator.SIBLINGS  # the last family is cut off
    with pytest.raises(ValueError, match=r"env\.knobs\.products=24 is fewer than the 25"):
        generator.generate(0, 24)


def test_panels_are_disjoint_by_content_and_by_product(cache: Path) -> None:
    settings = config(cache, train_per_type=8, eval_per_type=4, validation_per_type=2)
    panels = {name: spec.load_panel(settings, name) for name in spec.PANELS}
    assert_disjoint(panels["train"], panels["validation"], panels["test"])
    assert_disjoint(panels["validation"], panels["test"])
    about = {name: {task.id.split("-")[0] for task in panel.tasks} for name, panel in panels.items()}
    assert not about["train"] & (about["test"] | about["validation"]) and not about["test"] & about["validation"]
    assert {name: len(panel.tasks) for name, panel in panels.items()} == {"train": 40, "validation": 10, "test": 20}
    for panel in panels.values():
        assert {task.type for task in panel.tasks} == set(spec.TASK_TYPES)
        assert len(about[panel.name]) > len(panel.tasks) / 2  # goals of many products, not many goals of few


def test_panels_do_not_depend_on_the_order_of_tasks(cache: Path) -> None:
    version, tasks = tasks_of(config(cache), "test")
    panel = spec.load_panel(config(cache), "test")
    random.Random(0).shuffle(tasks)
    assert build_panel("webshop", version, "test", tasks) == panel
    assert panel == spec.load_panel(config(cache), "test")


def test_a_larger_panel_holds_the_smaller_one(cache: Path) -> None:
    few, many = ({t.id for t in spec.load_panel(config(cache, train_per_type=k), "train").tasks} for k in (3, 9))
    assert few < many


def test_another_cache_has_the_same_panels(cache: Path, tmp_path: Path) -> None:
    assert spec.load_panel(config(cache), "train") == spec.load_panel(config(tmp_path), "train")


def test_identity_follows_what_decides_a_panel(cache: Path) -> None:
    base = config(cache)
    identity = panel_identity(base, "train")
    assert panel_identity(replace(base, max_steps=3, prompt="full"), "train") == identity
    for other in (
        replace(base, world_seed=1),
        replace(base, train_per_type=4),
        config(cache, knobs={"goals": "human"}),
        config(cache, knobs={"products": 200}),
    ):
        assert panel_identity(other, "train") != identity
    assert panel_identity(replace(base, train_per_type=4), "test") == panel_identity(base, "test")


def test_too_few_goals_are_an_error_that_names_the_key(cache: Path) -> None:
    with pytest.raises(ValueError, match=r"env\.eval_per_type=9999, but panel 'test' .* has only \d+ goals"):
        spec.load_panel(config(cache, eval_per_type=9999), "test")
    with pytest.raises(ValueError, match=r"env\.validation_per_type=0 makes an empty panel"):
        spec.load_panel(config(cache, validation_per_type=0), "validation")
    with pytest.raises(ValueError, match="'seen' is unknown"):
        spec.load_panel(config(cache), "seen")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"text": "html"}, r"env\.knobs\.text='html' is unknown"),
        ({"goals": "synthetik"}, "did you mean 'synthetic'"),
        ({"nouns": "none"}, r"env\.knobs\.nouns='none'"),
        ({"products": 0}, "makes an empty shop"),
        ({"products": None}, "a generated catalogue needs a number"),
        ({"prodcts": 5}, "did you mean 'products'"),
    ],
)
def test_wrong_knobs_are_named(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        knobs_of(EnvConfig(name="webshop", knobs=knobs))
    assert knobs_of(EnvConfig(name="webshop")) == Knobs()


# ----------------------------------------------------------------------------------------------------- store files
def test_a_store_is_made_once_and_checked(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        found = [goal(), goal(id="h", asin="B2")]
        store.write(folder, "v", [product(), product("B2")], lambda shelf: found, {"B000000001": "train", "B2": "test"})

    folder = tmp_path / "shop"
    assert store.ensure(folder, make) == store.ensure(folder, make) == folder and len(made) == 1
    opened = store.Store(folder)
    assert len(opened) == 2 and opened.product(0) == product() and list(opened.numbers("test")) == [1]
    assert store.problems(folder) == []
    (folder / "idf.npy").write_bytes(b"x")
    (folder / "terms.txt").unlink()
    assert ["was changed" in line or "is missing" in line for line in store.problems(folder)] == [True, True]
    with pytest.raises(store.StoreError, match="cannot be opened"):
        store.Store(folder)


def test_a_maker_that_was_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    (tmp_path / ".shop.99999").mkdir()
    folder.mkdir()  # without a manifest

    def fail(temporary: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        store.ensure(folder, fail)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["shop", "shop.lock"]


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
@pytest.mark.parametrize("text", ["[]", " [ ] ", '[1, 23, "]", {"a": [1, 2]}, "é\\n,"]', "[[], {}, null, -1.5e3]\n"])
def test_long_arrays_are_read_element_by_element(text: str, chunk: int, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    assert list(read_array(tmp_path / "x.json", chunk)) == json.loads(text)


@pytest.mark.parametrize("text", ["", "{}", "[1, 2", '[{"a": 1', "[1 2]", "[,]"])
def test_what_is_no_array_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"x\.json is no JSON array"):
        list(read_array(tmp_path / "x.json", 3))
    if text:
        (tmp_path / "x.json").write_text(text + "?")
    with pytest.raises(ValueError, match=r"x\.json is no JSON file"):
        read_json(tmp_path / "x.json")


# ------------------------------------------------------------------------------------------------- the user's files
def test_the_users_files_are_read_unchanged(official: Path, cache: Path) -> None:
    settings = EnvConfig(name="webshop", data=str(official), cache=str(cache))
    assert len(store_of(settings)) == 300
    test = spec.load_panel(settings, "test")
    assert len(test.tasks) == 500 and len(spec.load_panel(settings, "validation").tasks) == 1000
    assert test.data_version.startswith("official-") and panel_identity(settings, "test").endswith("/test")
    first = EnvConfig(name="webshop", data=str(official), cache=str(cache), knobs={"products": 280})
    assert len(store_of(first)) == 280 and data_version(first) != data_version(settings)


def test_words_may_stand_in_for_nouns(official: Path, cache: Path) -> None:
    settings = EnvConfig(name="webshop", data=str(official), cache=str(cache), knobs={"nouns": "words"})
    item = store_of(settings).product(0)
    assert item.nouns and set(item.nouns) <= set(item.title.lower().replace(",", "").split())


def test_a_missing_file_is_named(official: Path, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "items_shuffle_1000.json").write_bytes(b"[]")
    settings = EnvConfig(name="webshop", data=str(tmp_path), cache=str(cache))
    with pytest.raises(FileNotFoundError, match=r"items_ins_v2_1000\.json \(env\.knobs\.attribute_file\)") as error:
        spec.load_panel(settings, "test")
    assert "nouns.json is made with `python -m envs.webshop nouns" in str(error.value)


# ---------------------------------------------------------------------------------------------------- command line
def test_generate_and_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--products", "500", "--cache", str(tmp_path / "cache")]
    assert main(["generate", *common]) == 0 and main(["verify", *common]) == 0
    out = capsys.readouterr().out
    assert "500 products" in out and "test: 100 goals, panel hash" in out
    folder = next((tmp_path / "cache" / "webshop").glob("generated-*/"))
    (folder / "weights.npy").write_bytes(b"broken")
    store.open_store.cache_clear()
    assert main(["verify", *common]) == 2  # it cannot even be opened
    assert "delete the folder" in capsys.readouterr().err


def test_files_that_changed_since_they_were_recorded_are_named(
    official: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in official.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    arguments = ["verify", "--data", str(tmp_path), "--cache", str(cache)]
    assert main([*arguments, "--record"]) == 0 and main(arguments) == 0
    out = capsys.readouterr().out
    assert "300 (its authors count 1000)" in out and "train:" in out
    entries = json.loads((tmp_path / "items_shuffle_1000.json").read_text())
    (tmp_path / "items_shuffle_1000.json").write_text(json.dumps(entries[:-1]))
    assert main(arguments) == 1
    assert "items_shuffle_1000.json was changed" in capsys.readouterr().err
    (tmp_path / "nouns.json").unlink()
    assert main(arguments) == 1
    assert "nouns.json (env.knobs.nouns) missing" in capsys.readouterr().err
    assert main(["verify", "--record", "--cache", str(cache)]) == 2


def test_generated_files_can_be_written_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new"
    assert main(["generate", "--products", "50", "--out", str(out)]) == 0
    assert sorted(p.name for p in out.iterdir())[:2] == ["items_human_ins.json", "items_ins_v2.json"]
    assert main(["generate", "--products", "50", "--out", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_generated_files_keep_their_panels_when_they_are_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shuffle would put siblings of one family on both sides."""
    out = tmp_path / "new"
    assert main(["generate", "--products", "300", "--out", str(out)]) == 0
    knobs = {"product_file": "items_shuffle.json", "attribute_file": "items_ins_v2.json"}
    settings = EnvConfig(name="webshop", data=str(out), cache=str(tmp_path), knobs=knobs)
    belongs = json.loads((out / "panels.json").read_text())
    for panel in spec.PANELS:
        goals_ = [goal for _, goal in store_of(settings).goals(panel)]
        assert goals_ and {belongs[goal.asin] for goal in goals_} == {panel}
    before = data_version(settings)
    arguments = ["verify", "--data", str(out), "--cache", str(tmp_path)]
    arguments += [f"--knob={key}={value}" for key, value in knobs.items()]
    for change, said in (
        (lambda panels: panels.popitem(), "no panel is named for product"),
        (lambda panels: panels.update(B1="exam"), "panels that do not exist: exam"),
    ):
        panels = dict(belongs)
        change(panels)
        (out / "panels.json").write_text(json.dumps(panels))
        assert data_version(settings) != before
        assert main(arguments) == 2 and said in capsys.readouterr().err
    (out / "panels.json").write_text(json.dumps(belongs))
    stored = json.loads((out / "nouns.json").read_text())
    stored.popitem()
    (out / "nouns.json").write_text(json.dumps(stored))
    assert main(arguments) == 2 and "no nouns are stored for product" in capsys.readouterr().err


@pytest.fixture
def served() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<html>confirm</html>" if self.path == "/page" else b'[{"asin": "B1", "name": "red shirt"}]'
            self.send_response(404 if self.path == "/gone" else 200)
            self.send_header("Content-Length", str(len(body) + (5 if self.path == "/short" else 0)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_fetch(served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "--out", str(tmp_path), "--url", f"{served}/x", "--name", "items.json"]) == 0
    assert json.loads((tmp_path / "items.json").read_text())[0]["asin"] == "B1"
    assert "come without a licence" in capsys.readouterr().err
    for path, message in (
        ("gone", "cannot download"),
        ("page", "no JSON file"),
        ("short", "broke off|cannot download"),
    ):
        with pytest.raises((OSError, ValueError), match=message):
            fetch.download(f"{served}/{path}", tmp_path / "other.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["items.json"]  # nothing half done
    with pytest.raises(ValueError, match="neither http nor https"):
        fetch.download("file:///etc/passwd", tmp_path / "x")
    assert main(["fetch"]) == 2 and main(["fetch", "--url", served]) == 2
    assert main(["fetch", "--list", "--full"]) == 0
    assert "items_shuffle.json\thttps://" in capsys.readouterr().out


def test_nouns_are_written_beside_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [{"asin": "B1", "name": "Red Shirt"}, {"asin": "B2", "name": "Lamp"}]
    count = nouns.write_nouns(entries, lambda titles: ([t.lower()] for t in titles), tmp_path / "nouns.json")
    assert count == 2 and json.loads((tmp_path / "nouns.json").read_text()) == {"B1": ["red shirt"], "B2": ["lamp"]}
    assert main(["nouns", "--data", str(tmp_path)]) == 2
    assert "items_shuffle_1000.json is missing" in capsys.readouterr().err
    with pytest.raises(ValueError, match="cannot be loaded"):
        nouns.spacy_tagger("no_such_model_anywhere")


def test_planning_needs_neither_numpy_nor_a_catalogue() -> None:
    code = (
        "import sys; from envs import registry; from envs.interface import EnvConfig\n"
        "spec = registry.get('webshop')\n"
        "spec.metadata['panel_identity'](EnvConfig(name='webshop', cache='/nowhere'), 'train')\n"
        "heavy = {'torch', 'transformers', 'mlflow', 'pandas', 'numpy', 'spacy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
