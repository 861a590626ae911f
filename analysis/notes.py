"""What a table must say in words: what its scale is worth, and how every number in it is defined."""

from __future__ import annotations

import math

from analysis import stats
from analysis.collect import Records
from analysis.curves import WINDOW
from analysis.setting_notes import setting_notes
from analysis.tableset import Tables
from analysis.text import listed, number

SCALES = {
    "local": (
        "scale=local measures the pipeline and the methods' mechanics with a tiny model on small panels; its numbers "
        "are not comparable with paper numbers."
    ),
    "test": (
        "scale=test takes a few steps on a handful of games to see that everything works; its numbers mean nothing."
    ),
    "device": (
        "scale=device trains a small model on one accelerator; its numbers are not comparable with paper numbers."
    ),
    "paper": "scale=paper follows the papers' sizes; the last note of the files says where the evaluation differs.",
}


def scales(records: Records) -> list[str]:
    return sorted({line.scale for line in records.lines})


def title(records: Records) -> str:
    scale = ", ".join(scales(records))
    tiny = ": a tiny model, to measure pipeline and mechanics; not comparable with paper numbers"
    what = {"paper": "", "local": tiny, "test": tiny}.get(scale, ": not comparable with paper numbers")
    return f"{records.title} — scale={scale}{what}"


def lead(tables: Tables) -> tuple[str, ...]:
    total, done = len(tables.records.cells), int(tables.records.cells["complete"].sum())
    return (*map(scale_note, scales(tables.records)), f"{done} of {total} planned runs are complete.")


def scale_note(scale: str) -> str:
    return SCALES.get(scale, f"scale={scale} is not one of the papers' settings; not comparable with paper numbers.")


def notes(tables: Tables) -> tuple[str, ...]:
    """Numbered notes; captions and other notes refer to numbers 3, 4, 11 and 13."""
    reference, untrained = tables.label_of(tables.reference), tables.label_of(tables.untrained)
    return (
        "Seeds: complete runs behind the number / runs planned. A run that failed, stopped or has not started is in no "
        "number and is listed under its state; nothing planned is left out. “mixed”: the runs of the row are not "
        "replicates of one experiment; “invalid”: an evaluation contradicts itself. Both take the place of the number, "
        "and the warnings say why. “!”: a warning below is about this row.",
        "Intervals: mean over seeds with the 95 % t interval over seeds (n − 1 degrees of freedom); for success, "
        "clipped to 0–100. What a seed replicates: note 13. ᵉ: evaluation-only. With one seed, or with seeds that all "
        "gave the same value, the interval is Wilson's over the tasks of the panel (for macro with their effective "
        "number); it says nothing about another seed. A ± in the terminal is the distance to the farther end of the "
        "same interval, never a standard deviation.",
        f"Bold ▲ (better) and ▼ (worse): the paired difference to {reference} on the same seeds and tasks has a 95 % t "
        "interval over seeds and a bootstrap interval that both exclude zero. A difference is bold by the same rule in "
        "either direction; nothing else is bold. Areas under curves and gaps between panels have no tasks to pair: "
        f"there the t interval alone decides. Rows with another prompt than {reference}'s are never marked, and "
        "nothing is on a panel that has one task of some type: there is no bootstrap interval.",
        _attainable(tables),
        "Micro: mean of success over the tasks of the panel. Macro: unweighted mean over task types of their mean "
        "success. Score, of environments that grade their results (WebShop): mean over tasks of the grade, from 0 to "
        "100; it is no rate and stands in no column with one. Every task is played the same number of times; excluded "
        "episodes (infrastructure failures) are in none of them and are listed with the bounds that they leave. Steps: "
        "environment steps per episode. Malformed: share of steps whose response broke the format. Refused: share of "
        "steps whose action the environment did not accept; malformed ones may be among them.",
        f"Bootstrap: {stats.RESAMPLES} resamples of seeds, then of tasks within their type, the same tasks for all "
        "seeds; percentiles, stretched for the number of seeds so that they cover in 95 % of cases. p (t): paired t "
        "test over seeds; p (Holm): adjusted over all rows and panels of the table, micro and macro as families of "
        "their own; p exact: all sign assignments of the seeds' differences.",
        _areas(tables),
        f"First and last: mean of training success over the first and the last {WINDOW} steps of a run (they overlap "
        f"in runs of fewer than {2 * WINDOW} steps). Training rollouts are sampled at the training temperature on "
        "training tasks and are no evaluation; what training changed on a panel is the paired difference to "
        f"{untrained}.",
        _cost(tables),
        "Prompt: whether skills stand in the evaluation prompt, layout of the context, prompt and response format, and "
        "sampling temperature of the evaluation. Selection: which checkpoint was evaluated; “last”: that of the last "
        "planned step. No checkpoint is chosen on an evaluation panel. Panel: first 8 digits of the panel's hash.",
        "Published numbers are quoted from the table named; “imported”: the paper's row equals, cell by cell, a row of "
        "the earlier paper named. The papers' column Avg mixes two definitions: it is the macro mean in some rows and "
        "the episode mean (micro) in others. Each printed average stands under the definition that fits its own row, "
        "and ‡ marks the other one, derived from the printed cells and never published. ≈ before it: several counts of "
        "episodes fit the printed cells, and this is the average under the most likely one. Seeds and intervals were "
        "not published.",
        "Status: “measured here” comes from the records of this sweep; “smaller scale” when its scale is not the "
        "papers'; “quoted” and “imported” are numbers of other people.",
        *setting_notes(tables.records),
    )


def _attainable(tables: Tables) -> str:
    families = [*tables.versus.values(), tables.versus_base]
    counts = sorted({cell.n_seeds for family in families for cell in family.values() if cell.n_seeds})
    if not counts:
        done = any(tables.complete.values())
        return f"No {'rows could be compared' if done else 'run is complete'}, so no test was made."
    n = counts[-1]
    paired, split = stats.smallest_sign_flip_p(n), stats.smallest_permutation_p(n, n)
    verdict = "can reach 0.05" if paired <= 0.05 else "cannot reach 0.05"
    start = "no permutation test over seeds can reach 0.05: " if min(paired, split) > 0.05 else ""
    effect = stats.minimum_detectable_effect(1.0, n, paired=True) if n > 1 else math.nan
    found = (
        f" A paired t test finds, in four of five cases, differences of at least {effect:.1f} times the standard "
        f"deviation of the seeds' differences: {3 * effect:.1f} points if that is 3 points."
        if n > 1
        else ""
    )
    if len(counts) > 1:
        found += f" That is for the comparisons with most seeds; others rest on {listed(counts[:-1])}, and find less."
    return (
        f"With {n} {'seed' if n == 1 else 'seeds'}, {start}the smallest attainable two-sided p is {paired:.3g} when "
        f"seeds are paired (sign flips, which {verdict}) and {split:.3g} for {n} against {n} unpaired seeds.{found}"
    )


def _areas(tables: Tables) -> str:
    limits = [
        f"{b.steps} steps" + (f" and {number(b.seconds, 's')} {b.clock}" if b.clock else ", no equal time")
        for b in tables.budgets.values()
    ]
    told = f" Here: {'; '.join(dict.fromkeys(limits))}." if limits else ""
    return (
        "Area under the learning curve: mean training success over equally many steps (the fewest of any complete "
        "run), and over equal time (the least of any complete run), where each step weighs as much as the time "
        "it took and the curve is cut off, never extended. Where runs were not measured with one clock, or held other "
        f"numbers of GPUs, no time is equal and there is no such area.{told}"
    )


def _cost(tables: Tables) -> str:
    names = {clock.name for clock in tables.clocks.values() if clock}
    kinds = {
        "CPU": "CPU seconds of the run's process, environments in processes of their own left out",
        "wall": "wall seconds where a GPU does the work or engine=verl trains, and GPU hours, which are wall hours "
        "times the GPUs held",
    }
    told = "; ".join(text for name, text in kinds.items() if name in names or not names)
    return (
        f"Cost: seconds of training steps, without start-up and evaluation: {told}. Sampling, environment, teacher "
        "(scoring under a teacher), analyzer (writing skills), update, reference (scoring under the initial policy) "
        "and validation while training are parts of the total. Runs that are only the teacher of a row are in no table "
        "of success; they stand in the tables of cost and of runs that are not complete."
    )
