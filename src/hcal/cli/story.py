"""``hcal demo``: the whole story in the terminal, and the files to go on with."""

from __future__ import annotations

from pathlib import Path

import hcal
from hcal.calibrators import make_calibrator
from hcal.calibrators.base import Calibrator
from hcal.calibrators.files import save
from hcal.cli import console, demo, diagram
from hcal.cli.report import write
from hcal.extras import install_command
from hcal.io import read
from hcal.io.atomic import atomic_path
from hcal.metrics.scores import score_probs
from hcal.numerics import FloatArray, IntArray, softmax

_RESULTS = ("accuracy", "mean_confidence", "ece_ew", "nll", "brier")


def run_demo(folder: Path, *, method: str, random_state: int, quiet: bool, json: bool) -> None:
    """Train, calibrate, show, and write data, model, picture and report into a folder, new if need be."""
    silent = quiet or json
    calibrator = make_calibrator(method)
    folder.mkdir(parents=True, exist_ok=True)
    with console.working("training a network on scikit-learn's digits", quiet=silent):
        digits = demo.train_digits(random_state)
    digits.save(folder / "digits.npz")
    with console.fitting(calibrator, f"calibrating it with {method}", quiet=silent):
        calibrator.fit(digits.logits_cal, digits.y_cal)
    save(calibrator, folder / "model.hcal")
    raw, y = softmax(digits.logits_test), digits.y_test
    probs = calibrator.predict_proba(digits.logits_test)
    files = ["digits.npz", "model.hcal", *_pictures(folder, raw, probs, y), "report.html"]
    with console.working("writing the report", quiet=silent):
        write(folder / "report.html", read(folder / "digits.npz"), calibrator)
    before, after = _scores(raw, y), _scores(probs, y)
    if json:
        console.print_json({"folder": str(folder), "files": files, "method": method,
                            "before": before, "after": after})  # fmt: skip
    elif not quiet:
        _show(folder, files, calibrator, raw, probs, y, before, after)


def _scores(probs: FloatArray, y: IntArray) -> dict[str, float]:
    scores = score_probs(probs, y)
    return {name: scores[name] for name in _RESULTS}


def _show(
    folder: Path,
    files: list[str],
    calibrator: Calibrator,
    raw: FloatArray,
    probs: FloatArray,
    y: IntArray,
    before: dict[str, float],
    after: dict[str, float],
) -> None:
    out = console.out()
    out.print(
        f"A network was trained on grainy digits. On {len(y):,} new pictures it is right "
        f"[bold]{before['accuracy']:.1%}[/] of the time,\nbut says "
        f"[bold red]{before['mean_confidence']:.1%}[/]: over-confident by "
        f"{100 * (before['mean_confidence'] - before['accuracy']):.1f} points.\n"
    )
    out.print(diagram.draw_text(hcal.reliability(raw, y, bins=10)[0], title="before"))
    changed = int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
    same = "Not one prediction changed" if changed == 0 else f"{changed} predictions changed"
    out.print(
        f"\n{calibrator.title} learned from {demo.CAL_ROWS:,} other pictures. {same}, "
        f"and now it says [bold green]{after['mean_confidence']:.1%}[/].\n"
    )
    out.print(diagram.draw_text(hcal.reliability(probs, y, bins=10)[0], title="after"))
    out.print(f"[dim]{diagram.LEGEND}[/]\n")
    out.print(console.before_after(before, after, title="on the test rows"))
    out.print(f"\nwrote {', '.join(f'[bold]{console.name(folder / name)}[/]' for name in files)}")
    page = console.name(folder / "report.html")
    out.print(f"next:  open [cyan]{page}[/] in a browser, then try your own file:")
    out.print("       [cyan]hcal fit CAL.npz -o model.hcal[/]")


def _pictures(folder: Path, raw: FloatArray, probs: FloatArray, y: IntArray) -> list[str]:
    """Write the reliability diagram where matplotlib is installed."""
    from hcal.evaluation.drawing import draw_curve

    try:
        from matplotlib.figure import Figure
    except ImportError:
        hint = console.name(install_command("plot"))
        console.err().print(f"no picture: matplotlib is not installed ({hint})")
        return []
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    for axis, title, p in zip(figure.subplots(1, 2), ("before", "after"), (raw, probs), strict=True):
        diagram = hcal.reliability(p, y)
        draw_curve(diagram[0], diagram.ci, axis)
        axis.set_title(f"{title}: ECE {diagram[0].error:.3f}")
    with atomic_path(folder / "reliability.png") as temporary:
        figure.savefig(temporary, dpi=130)
    return ["reliability.png"]
