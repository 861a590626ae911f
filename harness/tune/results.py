"""What a search found: tune.csv and tune.md, and trials.jsonl with everything that Optuna knows of each trial."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.commandline import CommandLine
from harness.compose import render
from harness.errors import describe
from harness.files import atomic_write
from harness.tune.objectives import SUCCESS
from harness.tune.searches import Search
from harness.tune.study import Entry, Study

OPTIMISTIC = (
    "The best of several trials looks better than it is: it was chosen by the number that is shown. What it is worth "
    "on a panel that nothing was chosen by says a table run with these settings."
)


def write_results(folder: Path, studies: Sequence[Study], command: CommandLine, title: str) -> dict[str, Any]:
    """Write the files into `folder`; returns their paths under `csv`, `md`, `jsonl`, and the page under `text`."""
    folder.mkdir(parents=True, exist_ok=True)
    page = f"# {title}\n\n" + "\n".join(study_page(study, command) for study in studies)
    written = {"csv": folder / "tune.csv", "md": folder / "tune.md", "jsonl": folder / "trials.jsonl"}
    atomic_write(written["csv"], _csv(studies).encode())
    atomic_write(written["md"], page.encode())
    atomic_write(written["jsonl"], "".join(_records(studies)).encode())
    return {**written, "text": page}


# ------------------------------------------------------------------------------------------------------------- records
def _records(studies: Sequence[Study]) -> list[str]:
    lines = []
    for study in studies:
        search = study.search
        for entry in study.entries():
            point = search.points[0]
            about = {
                "study": search.name,
                "row": search.row.id,
                "env": point.env,
                "backbone": point.backbone,
                "fraction": point.fraction,
            }
            content = {**about, **asdict(entry), "looks": {str(k): v for k, v in sorted(entry.looks.items())}}
            lines.append(json.dumps(content, allow_nan=False) + "\n")
    return lines


def _csv(studies: Sequence[Study]) -> str:
    keys = list(dict.fromkeys(d.key for study in studies for d in study.search.dimensions))
    objectives = list(dict.fromkeys(o.name for study in studies for o in study.search.objectives))
    header = ["study", "row", "env", "backbone", "fraction", "trial", "state", "best", *keys, *objectives]
    header += ["seeds", "episodes", "success_low", "success_high", "looks", "seconds", "runs", "reason"]
    out = io.StringIO()
    writer = csv.DictWriter(out, header, lineterminator="\n")
    writer.writeheader()
    for study in studies:
        best = study.best()
        point = study.search.points[0]
        for entry in study.entries():
            low, high = interval(entry)
            writer.writerow(
                {
                    "study": study.search.name,
                    "row": study.search.row.id,
                    "env": point.env,
                    "backbone": point.backbone,
                    "fraction": point.fraction,
                    "trial": entry.number,
                    "state": entry.state,
                    "best": int(entry.number in best),
                    **{key: describe(value) for key, value in entry.params.items()},
                    **entry.values,
                    "seeds": len(entry.seeds),
                    "episodes": sum(seed["episodes"] for seed in entry.seeds),
                    "success_low": low,
                    "success_high": high,
                    "looks": " ".join(f"{step}:{value:.4g}" for step, value in sorted(entry.looks.items())),
                    "seconds": "" if entry.seconds is None else f"{entry.seconds:.1f}",
                    "runs": " ".join(entry.fingerprints),
                    "reason": entry.reason,
                }
            )
    return out.getvalue()


def interval(entry: Entry) -> tuple[float | str, float | str]:
    """95 % bounds of the success of a complete trial: over its seeds, or of one seed's episodes; "" without."""
    if entry.state != "COMPLETE" or not entry.seeds:
        return "", ""
    from analysis.stats.intervals import rate_interval

    found = rate_interval([seed["values"][SUCCESS] for seed in entry.seeds], entry.seeds[0]["episodes"])
    return found.lo, found.hi


# --------------------------------------------------------------------------------------------------------------- pages
def study_page(study: Study, command: CommandLine) -> str:
    """One search as Markdown: its space, its trials, what is best and what that takes."""
    search, entries = study.search, study.entries()
    lines = [f"## {search.label}: {search.place}", "", *space_lines(study), f"- {progress(study)}", ""]
    if entries:
        lines += [*_table(search, entries, study.best()), ""]
    if best := [entry for entry in entries if entry.number in study.best()]:
        lines += _best(search, best, command)
        lines += _importance(study)
        lines += ["", OPTIMISTIC, ""]
    return "\n".join(lines)


def space_lines(study: Study) -> list[str]:
    """What is searched, and how, as a list."""
    search, tune = study.search, study.tune
    lines = [f"- {d.key}: {d.describe()}" for d in search.dimensions]
    start = "first trial: the row's own settings" if search.start else "the row's own settings lie outside the space"
    sought = ", ".join(f"{o.name} ({o.direction})" for o in search.objectives)
    seeds = ", ".join(map(str, search.seeds))
    return [
        *lines,
        f"- objectives: {sought}; seeds of a trial: {seeds}; {search.steps} training steps",
        f"- sampler {tune.sampler}, pruner {tune.pruner}, both after {tune.startup} trials; {start}",
    ]


def progress(study: Study) -> str:
    """How many trials ended in which way, of how many."""
    entries = study.entries()
    states = [entry.state for entry in entries if not entry.retried]
    words = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "under way or left unfinished"}
    told = ", ".join(f"{states.count(state)} {word}" for state, word in words.items() if states.count(state))
    left = max(0, study.tune.trials - len(states))
    again = len(entries) - len(states)
    more = f" ({again} more failed, and others are in their place)" if again else ""
    return f"{study.tune.trials} trials: {told + ', ' if told else ''}{left} to begin{more}"


def _table(search: Search, entries: Sequence[Entry], best: Sequence[int]) -> list[str]:
    keys = [d.key for d in search.dimensions]
    header = ["trial", "state", *keys, *(o.name for o in search.objectives), "95 % of success", "runs", "reason"]
    rows = []
    for entry in entries:
        low, high = interval(entry)
        rows.append(
            [
                f"{entry.number} (best)" if entry.number in best else str(entry.number),
                "failed, done once more" if entry.retried else entry.state.lower(),
                *(_number(entry.params.get(key, "")) for key in keys),
                *(_number(entry.values.get(o.name, "")) for o in search.objectives),
                f"{low:.3f} to {high:.3f}" if isinstance(low, float) and isinstance(high, float) else "",
                " ".join(entry.fingerprints),
                entry.reason.replace("|", "/").replace("\n", " "),
            ]
        )
    cells = [[*header], *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else ("" if value == "" else describe(value))


def _best(search: Search, best: Sequence[Entry], command: CommandLine) -> list[str]:
    several = len(search.objectives) > 1
    lines = ["Trials that no other beats in every objective:" if several else "Best trial:", ""]
    for entry in best:
        settings = ", ".join(f"{key}={_number(value)}" for key, value in entry.params.items())
        values = ", ".join(f"{o.name} {entry.values[o.name]:.4g}" for o in search.objectives)
        low, high = interval(entry)
        episodes = entry.seeds[0]["episodes"] if entry.seeds else 0
        told = f"{low:.3f} to {high:.3f}" if isinstance(low, float) and isinstance(high, float) else "none"
        lines.append(
            f"- trial {entry.number}: {settings}: {values}; 95 % interval of the success {told} "
            f"(n = {len(entry.seeds)} seeds x {episodes} episodes)"
        )
    lines += ["", "To run a table's cell with it:", "", f"    {again(search, best[0].params, command)}", ""]
    return lines


def again(search: Search, params: Mapping[str, Any], command: CommandLine) -> str:
    """The command that runs a trial's settings as an ordinary run, on the panels that tables are judged by."""
    point = search.points[0]
    words = [f"method={search.row.method}", f"env={point.env}", f"backbone={point.backbone}"]
    words += [f"fraction={point.fraction:g}"] if point.fraction != 1.0 else []
    words += [text.lstrip("+") for key, text in command.fixed.items() if key.partition(".")[0] not in ("sweep",)]
    words += [f"{key}={render(value)}" for key, value in params.items()]
    return "python -m harness " + " ".join(shlex.quote(word) for word in words)


def _importance(study: Study) -> list[str]:
    found = study.importances()
    if isinstance(found, str):
        return [f"Importance of the keys: {found}."]
    n = sum(entry.state == "COMPLETE" for entry in study.entries())
    told = ", ".join(f"{key} {share:.2f}" for key, share in found.items())
    first = study.search.objectives[0].name
    return [f"Importance of the keys for {first} (PED-ANOVA, shares, n = {n} complete trials): {told}."]
