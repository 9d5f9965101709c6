"""The section of the reproduction page on the central claim: does the h objective beat proper scores?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hcal.bench.catalog import PAPER_METRICS
from hcal.bench.render import render_tables
from hcal.bench.store import Results
from hcal.bench.tables import ResultTable
from studies import findings


def figure_link(links: dict[str, str], name: str, words: str) -> str:
    return f"![{words}]({links[name]})\n" if name in links else ""


def as_markdown(*tables: ResultTable) -> str:
    return render_tables([t for t in tables if t.rows], "markdown")


def central_claim(extra: Results, links: dict[str, str]) -> str:
    if not all(f"obj-{o}/top" in extra.methods for o in findings.OBJECTIVES):
        return ""
    kept = extra.select(methods=[m for m in extra.methods if m.startswith("obj-")])
    shown = [m for m in PAPER_METRICS if m in kept.metrics]
    relative, absolute = (sum(_h_is_best(kept, m, relative=r) for m in shown) for r in (True, False))
    return f"""## Does the h objective beat proper scores?

The paper: with equal maps and training, h is better than NLL and Brier on all its metrics by ARE. Here: the
same maps, starts, optimiser, schedule and selectors; only the loss changes. This is a small version (three of
the twelve maps, identity start, one seed), and its intervals are wide: one task can decide a line. All maps,
starts and seeds: [the central experiment](central-experiment.md), whose verdicts count.
"Inside the noise" means that these ten tasks cannot tell, not that there is nothing.

{_answers(kept)}

h is the best of the three on {relative} of {len(shown)} metrics by ARE, on {absolute} by AE.

{as_markdown(findings.objective_table(kept), findings.objective_metric_table(kept))}
{figure_link(links, "objectives", "Objectives compared")}
{_undone(kept)}
{_to_the_end(kept, extra)}"""


def _answers(kept: Results) -> str:
    word = {"lower": "yes", "higher": "no, worse", "noise": "no difference beyond the noise"}
    lines = []
    for level in findings.LEVELS:
        for other, name in (("nll", "NLL"), ("brier", "Brier")):
            gap, _, count = findings.objective_differences(kept, level, other)
            if count:
                lines.append(
                    f"- {level}, against {name}: **{word.get(gap.verdict, 'too few tasks to say')}**"
                )
    return "\n".join(lines)


def _h_is_best(kept: Results, metric: str, *, relative: bool) -> bool:
    values = {o: float(np.nanmean(findings.errors(kept, o, metric, relative))) for o in findings.OBJECTIVES}
    return min(values, key=lambda o: values[o]) == "h"


def renamed(results: Results, old: str, new: str) -> Results:
    """Return the cells of the methods that begin with ``old``, which becomes ``new``."""
    part = [c for k, c in results.cells.items() if k.method.startswith(old)]
    return Results(replace(c, key=c.key._replace(method=new + c.key.method.removeprefix(old))) for c in part)


def _to_the_end(kept: Results, extra: Results) -> str:
    """Why, as far as the results tell: the same objectives trained without the early stop."""
    patient = renamed(extra, "end-", "obj-")
    if not all(f"obj-{o}/top" in patient.methods for o in findings.OBJECTIVES):
        return ""
    tables = [findings.objective_table(patient), findings.tasks_table(patient, "top-label")]
    tables = [replace(t, title=f"{t.title}, no early stop") for t in tables]
    tables.insert(1, findings.tasks_table(kept, "top-label"))
    return f"""The schedule is part of the reason. It watches ECE^ew and neither the loss nor a proper score:
a network that starts with a small ECE^ew is left when its first epochs do not lower it.
{_stopped(kept, patient)} The same objectives with a constant learning rate and no early stop, best epoch and
map by the same selectors:

{_answers(patient)}

{_where(patient)}

{as_markdown(*tables)}"""


def _where(patient: Results) -> str:
    """Name the tasks on which the h objective has the lower top-label error, and those where clearly so."""
    rows = findings.tasks_table(patient, "top-label").rows
    ratio = {r.label: number_of(r.values[0]) / number_of(r.values[1]) for r in rows}
    lower = [t for t, v in ratio.items() if v < 1]
    clearly = [t for t, v in ratio.items() if v < 0.8]
    other = [t for t, v in ratio.items() if v > 1.25]
    return (
        f"Against NLL, h then has the lower mean top-label error on {len(lower)} of {len(rows)} tasks, by "
        f"more than a fifth on {', '.join(clearly) or 'none'}; NLL has it by as much on "
        f"{', '.join(other) or 'none'}. "
        "A reading of this, not tested here: a map that all classes share cannot fit the top class and the "
        "rest at once; with many classes most of the likelihood is about the rest, while h weighs all levels "
        "of probability alike."
    )


def _stopped(kept: Results, patient: Results) -> str:
    """Say when the fits that raised ECE^ew were stopped, and what they reach if they are not."""
    words = []
    for task in kept.tasks:
        before, after = kept.before(task, "ece_ew"), kept.value(task, "obj-h/top", "ece_ew")
        epochs = findings.epochs_trained(kept, task, "obj-h/top")
        if after > before and epochs is not None:
            end = patient.value(task, "obj-h/top", "ece_ew")
            words.append(
                f"On {task} the h fit stopped after {epochs} epochs at {after:.4f}; not stopped, it reaches "
                f"{end:.4f} (before: {before:.4f})."
            )
    return " ".join(words)


def _undone(kept: Results) -> str:
    table = findings.calibrated_tasks_table(kept)
    worse = [r.label for r in table.rows if number_of(r.values[1]) > number_of(r.values[0])]
    same = [r.label for r in table.rows if number_of(r.values[2]) > number_of(r.values[0])]
    words = "the h objective raised ECE^ew on " + (", ".join(worse) or "none of the tasks")
    other = f"NLL did so on {', '.join(same)}" if same else "NLL on none"
    return f"""Where a network is calibrated already there is little to gain and something to lose. In this
ablation (three maps, identity start, one seed; not the paper protocol, not the default): {words};
{other}. Maps and epochs are selected on the data they were trained on, which is why nothing stops this; the
default calibrator judges out of fold.

{as_markdown(table)}"""


def number_of(value: float | str | None) -> float:
    return float("nan") if value is None else float(value)
