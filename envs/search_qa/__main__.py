"""python -m envs.search_qa fetch | verify | serve | questions"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from envs.interface import EnvConfig
from envs.panels import PanelError
from envs.search import names
from envs.search_qa import corpus

_FETCH = """The official questions and passages are not redistributed here. Where there is internet, with the hub's
command line tool (package huggingface_hub):

    hf download PeterJinGo/nq_hotpotqa_train --repo-type dataset --local-dir {folder}
    hf download PeterJinGo/wiki-18-corpus --repo-type dataset --local-dir {folder}/wiki-18
    hf download PeterJinGo/wiki-18-e5-index --repo-type dataset --local-dir {folder}/wiki-18-index

then `python -m envs.search_qa verify {folder}` and env=search_qa env.data={folder}. The passages are served by a
retrieval server of yours (env.knobs.retriever=URL); `python -m envs.search_qa serve --passages FILE` serves a
JSON-lines corpus that fits in memory, by BM25."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m envs.search_qa", description="Data of Search-QA, and a retriever.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="say how the official data are downloaded")
    fetch.add_argument("folder", nargs="?", default="search_qa_data")
    verify = commands.add_parser("verify", help="check a folder of official data, or the embedded corpus")
    verify.add_argument("folder", nargs="?", help="with train.parquet and test.parquet; nothing: the embedded corpus")
    serve = commands.add_parser("serve", help="a /retrieve server")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--passages", help="JSON-lines file, {id, contents} per line; nothing: the embedded corpus")
    serve.add_argument("--encoder", help="folder of a sentence encoder: dense retrieval instead of BM25")
    serve.add_argument("--query-prefix", help="what the encoder wants before queries (E5: 'query: '); default: nothing")
    serve.add_argument("--passage-prefix", help="and before passages (E5: 'passage: '); default: nothing")
    serve.add_argument("--ranker", default="own", choices=names.NAMES, help="who ranks (default: the own BM25)")
    commands.add_parser("questions", help="count the embedded questions and show some")
    given = parser.parse_args(argv)
    try:
        return _COMMANDS[given.command](given)
    except PanelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _fetch(given: argparse.Namespace) -> int:
    print(_FETCH.format(folder=given.folder))
    return 0


def _verify(given: argparse.Namespace) -> int:
    if given.folder:
        from envs.search_qa import official

        folder = Path(given.folder)
        problems = official.problems(folder)
        for problem in problems:
            print(problem)
        if problems:
            print(f"{len(problems)} problem(s)")
            return 1
        panels, left_out = official.sound_panels(folder, EnvConfig(name="search_qa", data=given.folder))
        for name, panel in panels.items():
            print(f"{name}: {len(panel.tasks)} questions, panel hash {panel.hash[:16]}")
        print(f"{left_out} rows of train are in no panel: they repeat a question of train, or stand in test")
        print("all is well: no question that is trained on is judged or validated on")
        return 0
    passages = corpus.embedded()
    print(f"{len(passages)} passages, sha256 {corpus.digest_of(passages)}")
    print(corpus.ATTRIBUTION)
    return 0


def _serve(given: argparse.Namespace) -> int:
    from envs.search_qa.server import serve
    from envs.search_qa.settings import passages_of, retriever_of
    from envs.search_qa.sources import served

    knobs = {
        "retriever": "dense" if given.encoder else "lexical",
        "encoder": given.encoder,
        "query_prefix": given.query_prefix,
        "passage_prefix": given.passage_prefix,
        "ranker": given.ranker,
        "passages": given.passages,
    }
    config = EnvConfig(name="search_qa", knobs=knobs)
    retriever = retriever_of(config)
    about = given.passages or corpus.ATTRIBUTION
    print(
        f"serving {len(passages_of(given.passages))} passages at http://{given.host}:{given.port}/retrieve", flush=True
    )
    serve(retriever, about, served(config), given.host, given.port)
    return 0


def _questions(given: argparse.Namespace) -> int:
    from envs.search_qa.questions import KINDS, embedded_questions

    questions = embedded_questions()
    counts = Counter((q.kind, q.held_out) for q in questions)
    for kind in KINDS:
        print(f"{kind}: {counts[kind, False]} to train on, {counts[kind, True]} held out")
        for question in [q for q in questions if q.kind == kind][:3]:
            print(f"    {question.text} {' / '.join(question.answers)}")
    print(corpus.ATTRIBUTION)
    return 0


_COMMANDS = {"fetch": _fetch, "verify": _verify, "serve": _serve, "questions": _questions}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
