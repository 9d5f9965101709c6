"""The page of the central experiment: log-ratios of errors over tasks, in tables, one figure, one paragraph.

``python -m studies.central_page results/central.csv`` writes ``docs/central-experiment.md``; the file comes
from :mod:`studies.central_experiment`. Everything the page says is computed from the file.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from hcal.bench.render import render_tables, write_text
from hcal.bench.style import PALETTE, SUBJECT, save_figure, styled
from hcal.bench.tables import ResultTable, Row
from studies.central_losses import CONSTANTS
from studies.central_results import LEVELS, RIVALS, SCHEDULES, STARTS, TIE, Experiment, read_entries
from studies.paired import PairedInterval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _times(x: PairedInterval) -> str:
    if math.isnan(x.value):
        return "–"
    if math.isnan(x.low):
        return f"{math.exp(x.value):.2f}"
    return f"{math.exp(x.value):.2f} [{math.exp(x.low):.2f}, {math.exp(x.high):.2f}]"


def ratio_table(data: Experiment, schedule: str, start: str) -> ResultTable:
    """Return error of h / error of each rival by level and part of the tasks."""
    rows = []
    for level in LEVELS:
        for part, tasks in data.parts().items():
            counts = [data.differences(r, schedule, start, level, tasks).size for r in RIVALS]
            if not (most := max(counts)):
                continue
            values: list[float | str | None] = [
                _times(data.ratio(r, schedule, start, level, tasks)) + (f" ({n})" if 0 < n < most else "")
                for r, n in zip(RIVALS, counts, strict=True)
            ]
            rows.append(Row(f"{level}, {part} ({most})", values))
    title = f"Error of h / error of the rival: {start} start, {SCHEDULES[schedule]}"
    return ResultTable(title, "level, tasks", list(RIVALS.values()), rows, [_RATIO_NOTE])


_RATIO_NOTE: Final = (
    "geometric mean over tasks of the mean over seeds and metrics, 95 % Student interval over tasks; "
    "below 1: h is better; not corrected for the number of cells; in brackets how many tasks were compared, "
    "the tables of one data set counted as one"
)


def win_table(data: Experiment) -> ResultTable:
    """Return wins and losses of h against each rival, task by task."""
    rows = []
    for schedule in SCHEDULES:
        for start in STARTS:
            for level in LEVELS:
                counts = [data.wins(r, schedule, start, level) for r in RIVALS]
                said: list[float | str | None] = [f"{a} : {b} of {n}" for a, b, n in counts]
                rows.append(Row(f"{level}, {start}, {SCHEDULES[schedule]}", said))
    note = "the tables of one data set count as one; a difference of less than 2 % is a tie"
    return ResultTable(
        "Tasks won by h : by the rival", "level, start, schedule", list(RIVALS.values()), rows, [note]
    )


def collapse_table(data: Experiment) -> ResultTable:
    """Return the share of collapsed choices by objective, start and selector."""
    rows = []
    objectives = ("h", *RIVALS)
    for schedule in SCHEDULES:
        for start in STARTS:
            for selector in ("top-label", "class-wise", "nll"):
                counts = [data.collapsed(o, schedule, start, selector) for o in objectives]
                label = f"{selector} selector, {start}, {SCHEDULES[schedule]}"
                rows.append(Row(label, [f"{a} of {b}" if b else "–" for a, b in counts]))
    return ResultTable("Collapsed choices", "selector, start, schedule", ["h", *RIVALS.values()], rows)


def truth_table(data: Experiment) -> ResultTable:
    """Return the distance to the known truth, by objective, of the generated tasks."""
    tasks = [t for t in data.tasks if "truth_tv" in data.before[t].scores]
    rows, further = [], 0
    for t in tasks:
        before = data.before[t].scores["truth_tv"]
        values: list[float | str | None] = [before]
        for o in ("h", *RIVALS):
            found = data.chosen(t, o, "early-stop", "identity", "nll")
            values.append(float(np.mean([e.scores["truth_tv"] for e in found])) if found else None)
        rows.append(Row(t, values))
        further += all(v > before for v in values[1:] if isinstance(v, float))
    note = (
        "half the L1 distance of the probability vectors, mean over rows; NLL selector, identity start; on "
        f"{further} of {len(rows)} every objective ends further away than it began"
    )
    return ResultTable("Distance to the truth", "task", ["before", "h", *RIVALS.values()], rows, [note])


def constants_table(data: Experiment) -> ResultTable:
    """Return the error with one constant of h changed / the error with the paper's, by level."""
    rows = []
    for name in CONSTANTS[1:]:
        found = [data.differences(name, "early-stop", "identity", level) for level in LEVELS]
        if found[0].size:
            values: list[float | str | None] = [f"{math.exp(-d.mean()):.3f}" for d in found]
            rows.append(Row(name.removeprefix("h:"), values))
    classes = sorted({e.n_classes for e in data.before.values()})
    note = (
        f"geometric mean over the metrics of a level, on {', '.join(data.tasks)} "
        f"(K = {', '.join(map(str, classes))}), all twelve maps, identity start, published "
        "schedule, one seed; above 1: worse than window=200, scale=1e5, epsilon=1e-20, k-means weights"
    )
    return ResultTable("Constants of the objective", "constant", list(LEVELS), rows, [note])


def spoiled_words(data: Experiment) -> str:
    """Name the tasks whose NLL h more than doubles, chosen by NLL, and what the rivals do there."""
    said = []
    for task in data.tasks:
        before = data.before[task].scores["nll"]
        times = {
            name: float(np.mean([e.scores["nll"] for e in found])) / before
            for o, name in {"h": "h", **RIVALS}.items()
            if (found := data.chosen(task, o, "early-stop", "identity", "nll"))
        }
        if times.get("h", 0.0) > 2:
            said.append(f"{task} ({', '.join(f'{name} × {x:.1f}' for name, x in times.items())})")
    if not said:
        return ""
    return (
        " Maps and epochs are selected on the rows that they were trained on; where those hold next to no "
        "error a map sharpens without end, and the NLL of the test rows more than doubles: "
        f"{', '.join(said)}. One such task moves the means of its group."
    )


def constants_words(constants: Experiment, data: Experiment) -> str:
    """Say which constants matter more than the seed does in the main run of the same tasks."""
    spread, beyond = [], []
    for level in LEVELS:
        seeds = [data.by_seed(t, "h", "early-stop", "identity", level) for t in constants.tasks]
        noise = max((float(np.ptp(s)) for s in seeds if s.size > 1), default=0.0)
        spread.append(f"× {math.exp(noise):.2f} ({level})")
        for name in CONSTANTS[1:]:
            d = constants.differences(name, "early-stop", "identity", level)
            if d.size and abs(d.mean()) > max(noise, TIE):
                beyond.append(f"{name.removeprefix('h:')} ({level} × {math.exp(-d.mean()):.2f})")
    return (
        "One constant of h changed at a time. In the main run its seeds differ by up to "
        f"{', '.join(spread)} on the same tasks; beyond that and 2 %: {', '.join(beyond) or 'none'}."
    )


def paragraph(data: Experiment) -> str:
    """Return what is true, in one paragraph that other pages may cite."""
    words = {"lower": "lower", "higher": "higher", "noise": "not clearly different", "unknown": "unknown"}
    said = []
    for level, rival in (("top-label", "nll"), ("top-label", "brier"), ("class-wise", "nll")):
        x = data.ratio(rival, "early-stop", "identity", level)
        said.append(f"{level} error against {RIVALS[rival]} × {_times(x)} ({words[x.verdict]})")
    many = data.ratio("nll", "early-stop", "identity", "top-label", data.parts()["K > 10"])
    by_kind = ", ".join(
        f"{kind} × {_times(data.ratio('nll', 'early-stop', 'identity', 'top-label', tasks))}"
        for kind, tasks in data.kinds().items()
    )
    unstopped = ", ".join(
        f"{RIVALS[r]} × {_times(data.ratio(r, 'to-the-end', 'identity', 'top-label'))}"
        for r in ("nll", "brier")
    )
    by_objective = [data.collapsed(o, "early-stop", "published", "class-wise") for o in ("h", *RIVALS)]
    collapsed = ", ".join(
        f"{name} {a} of {b}" for name, (a, b) in zip(("h", *RIVALS.values()), by_objective, strict=True) if b
    )
    first, of = data.untrained(data.kinds().get("generated", []), "identity", "class-wise")
    hardly = (
        f" On the generated tasks the class-wise selector keeps the first epoch in {first} of {of} choices "
        "from the identity start: class-wise ratios there compare maps that were hardly trained."
    )
    return (
        f"On {len(data.tasks)} tasks ({data.described()}), with the paper's twelve maps, identity start and "
        f"up to {data.seeds} seeds, the same selectors for every objective, h has: {'; '.join(said)}. "
        f"With more than ten classes its top-label error is × {_times(many)} that of NLL; "
        f"by kind of task: {by_kind}. Without the early stop, where that ran: against {unstopped}. "
        f"Near-uniform choices by objective, from the published start with the published class-wise "
        f"selector: {collapsed}.{hardly if first else ''}"
        f"{spoiled_words(data)}"
    )


def figure(data: Experiment) -> Figure:
    """Draw the ratios with their intervals: a panel a level, a line a rival and part of the tasks."""
    parts = data.parts()
    with styled() as plt:
        out, panels = plt.subplots(1, len(LEVELS), figsize=(9.0, 4.6), sharey=True)
        step = len(parts) + 1.5  # a line a part, and a gap
        places = {(r, p): step * i + j for i, r in enumerate(RIVALS) for j, p in enumerate(parts)}
        colours = dict(zip(parts, (SUBJECT, *(c for c in PALETTE if c != SUBJECT)), strict=False))
        for axes, level in zip(panels, LEVELS, strict=True):
            for (rival, part), place in places.items():
                x = data.ratio(rival, "early-stop", "identity", level, parts[part])
                if math.isnan(x.value):
                    continue
                if not math.isnan(x.low):
                    axes.plot([x.low, x.high], [place, place], color=colours[part], linewidth=1.2)
                axes.plot(x.value, place, "o", color=colours[part], label=part if rival == "nll" else None)
            axes.axvline(0, color="black", linewidth=0.8)
            axes.set_title(level, loc="left")
            axes.set_xlabel("log(error of h / error of rival)")
        middles = [step * i + (len(parts) - 1) / 2 for i in range(len(RIVALS))]
        panels[0].set_yticks(middles, list(RIVALS.values()))
        panels[0].invert_yaxis()
        panels[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        out.tight_layout()
    return out  # type: ignore[no-any-return]


def page_text(data: Experiment, link: str, source: str, constants: Experiment | None = None) -> str:
    """Return the page as Markdown; ``constants`` adds the table of the objective's constants."""
    tables: list[Callable[[], ResultTable]] = [
        *(lambda s=s, i=i: ratio_table(data, s, i) for i in reversed(STARTS) for s in SCHEDULES),
        lambda: win_table(data),
        lambda: collapse_table(data),
        lambda: truth_table(data),
        *([lambda: constants_table(constants)] if constants else []),
    ]
    shown = render_tables([t for t in (make() for make in tables) if t.rows], "markdown")
    if constants:
        shown += f"\n{constants_words(constants, data)}\n"
    return f"""# The central experiment

Generated by `python -m studies.central_page {source}`; do not edit. Does the h objective beat its rivals with
equal maps, starts, training and selectors? Objectives: h, NLL, Brier (proper scores), focal loss and smoothed
labels (not proper). Maps: the paper's twelve; best epoch and map by the calibration rows' dECE (for top-label
numbers), CWECE_a (class-wise) or NLL (scores), the same for every objective. *Published schedule*: Adam,
learning rate halved and training stopped by ECE^ew; *no early stop*: constant learning rate to the end. From
the published start the class-wise selector takes collapsed predictors under every objective (counted below),
so those class-wise ratios compare one collapse with another. The tasks were used in the development of hcal;
the tables are those that the machine's time allowed, taken by size (results/README.md names the rest).

{paragraph(data)}

![Error of h against each rival]({link})

{shown}"""


def write_page(results: Path, out: Path) -> list[Path]:
    """Write the page and its figure.

    Parameters
    ----------
    results : Path
        A ``constants.csv`` beside it is shown too.
    out : Path

    Returns
    -------
    list of Path
    """
    data = Experiment(read_entries(results))
    picture = save_figure(figure(data), out.parent / "assets" / "reproduction" / "central.png")
    source = f"{results.parent.name}/{results.name}" if results.parent.name else results.name
    other = results.with_name("constants.csv")
    constants = Experiment(read_entries(other)) if other.exists() else None
    write_text(out, page_text(data, f"assets/reproduction/{picture.name}", source, constants))
    return [out, picture]


def main() -> None:
    """Read the arguments and write the page."""
    parser = argparse.ArgumentParser(description="Write the page of the central experiment and its figure.")
    parser.add_argument("results", type=Path, help="of studies.central_experiment")
    parser.add_argument("--out", "-o", type=Path, default=Path("docs/central-experiment.md"))
    asked = parser.parse_args()
    for path in write_page(asked.results, asked.out):
        print(path)


if __name__ == "__main__":
    main()
