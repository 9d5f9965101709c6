"""``hcal demo``: the whole story in the terminal, and the files to go on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hcal import demo, io
from hcal.calibrators import make_calibrator
from hcal.calibrators.base import Calibrator
from hcal.cli import console, diagram
from hcal.metrics.summary import score_probs
from hcal.numerics import FloatArray, IntArray, softmax

_RESULTS = ("accuracy", "mean_confidence", "ece_ew", "nll", "brier")


def tell(folder: Path, *, method: str, seed: int, quiet: bool, json: bool) -> None:
    """Train, calibrate, show and write.

    Parameters
    ----------
    folder : Path
        Made where it does not exist: ``digits.npz``, ``model.hcal``, ``reliability.png``, ``report.html``.
    method : str
    seed : int
    quiet, json : bool
    """
    silent = quiet or json
    calibrator = make_calibrator(method)
    folder.mkdir(parents=True, exist_ok=True)
    with console.working("training a network on scikit-learn's digits", quiet=silent):
        digits = demo.train_digits(seed)
    digits.save(folder / "digits.npz")
    with console.working(f"calibrating it with {method}", quiet=silent):
        calibrator.fit(digits.logits_cal, digits.y_cal)
    io.save(calibrator, folder / "model.hcal")
    raw, y = softmax(digits.logits_test), digits.y_test
    probs = calibrator.predict_proba(digits.logits_test)
    files = ["digits.npz", "model.hcal", *_pictures(folder, raw, probs, y)]
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
        f"A network was trained on grainy digits. On {len(y)} new ones it is right "
        f"[bold]{before['accuracy']:.1%}[/] of the time,\nbut says "
        f"[bold red]{before['mean_confidence']:.1%}[/]: over-confident by "
        f"{100 * (before['mean_confidence'] - before['accuracy']):.1f} points.\n"
    )
    out.print(diagram.draw(diagram.bins_of(raw, y), title="before"))
    changed = int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
    same = "Not one prediction changed" if changed == 0 else f"{changed} predictions changed"
    out.print(
        f"\n{calibrator.title} learned from {demo.CAL_ROWS} other rows. {same}, "
        f"and now it says [bold green]{after['mean_confidence']:.1%}[/].\n"
    )
    out.print(diagram.draw(diagram.bins_of(probs, y), title="after"))
    out.print("[dim]bar: accuracy, │: mean confidence; ░ over-confident, ▓ under-confident[/]\n")
    out.print(console.before_after(before, after, title="on the test rows"))
    out.print(f"\nwrote {', '.join(f'[bold]{folder / name}[/]' for name in files)}")
    out.print(f"next:  [cyan]hcal evaluate {folder}/digits.npz --model {folder}/model.hcal[/]")


def _pictures(folder: Path, raw: FloatArray, probs: FloatArray, y: IntArray) -> list[str]:
    """Write the reliability diagram where matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        console.err().print("no picture: matplotlib is not installed (pip install 'hcal[plot]')")
        return []
    _plot(folder / "reliability.png", raw, probs, y)
    return ["reliability.png"]


def _plot(path: Path, raw: FloatArray, probs: FloatArray, y: IntArray) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, title, p in zip(axes, ("before", "after"), (raw, probs), strict=True):
        _panel(axis, title, diagram.bins_of(p, y))
    axes[0].set_ylabel("accuracy")
    with io.atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)


def _panel(axis: Any, title: str, bins: list[diagram.Bin]) -> None:
    low = [b.low for b in bins]
    width = bins[0].high - bins[0].low
    axis.bar(low, [b.accuracy for b in bins], width, align="edge", color="#2f6f9f", edgecolor="white")
    gaps = [b.confidence - b.accuracy for b in bins]
    axis.bar(low, gaps, width, [b.accuracy for b in bins], align="edge", color="#d1495b", alpha=0.35)
    axis.plot([0, 1], [0, 1], "--", color="#555555", linewidth=1)
    axis.set(title=title, xlabel="confidence", xlim=(0, 1), ylim=(0, 1), aspect="equal")
