"""The text of `python -m harness --help`. Reads the configuration files of the package; needs no Hydra."""

from __future__ import annotations

import textwrap

from harness.compose import GROUPS, PROTOCOL, package_files, project_files
from harness.config import CommandConfig
from harness.configs import lost, shadowed
from harness.errors import describe
from harness.schema import keys, value

_USAGE = """\
usage: python -m harness [sweep=NAME] [KEY=VALUE ...] [do=run|plan|status|tables|...]

Trains and evaluates agents, and makes tables of the results. The same command again is always safe: it does only what
is missing, and two at the same time run each cell once.

examples
  python -m harness sweep=main_table                run what is missing of the main table, then print it
  python -m harness sweep=main_table do=plan        the cells, their states and costs; starts nothing
  python -m harness sweep=main_table do=status      how far each cell is
  python -m harness sweep=main_table do=preflight   what would go wrong; a step of each method, starts no run
  python -m harness sweep=main_table launcher=slurm     submit and return; do=plan first: job scripts and GPU hours
  python -m harness sweep=main_table method=grpo seed=1     only these cells of the sweep
  python -m harness sweep=main_table sweep.axes.seed=[0,1,2,3,4]     the sweep, with more seeds
  python -m harness sweep=quick out=/tmp/try        one short cell per method, in a folder of its own
  python -m harness sweep=ablation do=plan          what each row changes in its base, key by key
  python -m harness sweep=main_table protocol=paper backbone.max_positions=8192 do=plan     with the papers' settings
  python -m harness method=opid env=alfworld backbone=tiny-s seed=3     one run
  python -m harness method=grpo training.lr=1e-4,3e-4 seed=0,1      a small grid without a sweep
  python -m harness sweep=tune method=opid env=alfworld     search its settings on the validation panel: docs/tuning.md
"""

_KEYS = """\
keys
  do                    run: run what is missing, print the table | plan: show it, start nothing | preflight: what
                        would go wrong | status | sync: copy records to the tracker (wait=true: go on) | tables |
                        retry: as run, failed cells once more | watch: look on | cancel: end jobs of launcher=slurm
  wait                  launcher=slurm: true stays until every cell has an outcome, and submits lost ones again; a
                        search (sweep=tune) always stays
  fraction, seed        share of the training tasks in (0, 1]; of training and evaluation. Several values: seed=0,1,2
  protocol              {protocols}: settings of papers or of their authors' scripts, see sweeps/protocol
  method.knobs.NAME     settings of one method's own, env.knobs.NAME of one environment's; see their files
  out                   folder for runs/ and results/ (short for runtime.out)
  workers               runs at a time, 0 for one per core (short for launcher.workers)
"""

_FLAGS = """\
flags
  --cfg job             print the composed configuration and stop; with comments it is in the package `sweeps`
  --config-dir DIR      a folder with configuration files of your own (DIR/method/mine.yaml -> method=mine)
  --info                how Hydra composed it: defaults, search path, ...
  -m hydra/launcher=X   through Hydra: harness_local, harness_slurm or another installed launcher: docs/extending.md
  -sc install=bash      shell completion for the command `harness`:  eval "$(harness -sc install=bash)"

exit status
  0 all cells complete (launcher=slurm: or their jobs under way)   2 bad configuration, nothing started
  3 cells failed or are missing   130 interrupted
"""

_WRAP = textwrap.TextWrapper(
    width=116, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
)
_HIDDEN = ("sweep", "expected_seconds", "scale", "backbones", "by_env")  # of files alone, or told above


def help_text() -> str:
    """Usage, examples, every group with its choices, every key with its default, flags and exit statuses."""
    text = _KEYS.format(protocols=" | ".join(package_files((PROTOCOL,))[PROTOCOL]))
    return "\n".join([_USAGE, _groups(), text + _all_keys(), _FLAGS]).rstrip()


def _groups() -> str:
    lines = ["groups (GROUP=CHOICE; see the files in the package `sweeps`)"]
    for group, files in package_files().items():
        width = max((len(name) for name in files), default=0)
        for number, (name, comment) in enumerate(files.items()):
            head = group if number == 0 else ""
            lines.append(f"  {head:<10}{name.ljust(width)}  {comment}".rstrip())
    wrong = [*lost(), *shadowed({group: list(project_files(group)) for group in GROUPS})]
    lines += ["", *(f"  not usable: {line}" for line in wrong)] if wrong else []
    return "\n".join(lines) + "\n"


def _all_keys() -> str:
    """Each section's keys with the defaults of the schema; files may say otherwise."""
    defaults = CommandConfig()
    lines = []
    first = [key for name, key in keys().items() if "." not in name and name not in _HIDDEN]
    top = [key.name for key in first if not key.branch]
    for section in ("", *(key.name for key in first if key.branch)):
        prefix = f"{section}." if section else ""
        names = top if not section else [k for k, key in keys().items() if k.startswith(prefix) and not key.branch]
        shown = ", ".join(f"{name.removeprefix(prefix)}={describe(value(defaults, name))}" for name in names)
        text = f"{prefix}{{{shown}}}" if section else shown
        lines.append(_WRAP.fill(text))
    return "\n".join(lines) + "\n"
