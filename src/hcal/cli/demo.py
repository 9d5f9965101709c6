"""``hcal demo``: a small, real, over-confident network is calibrated, shown and written to files.

scikit-learn ships 1,797 handwritten digits of 8 × 8 pixels. A multi-layer perceptron with far more
parameters than images, trained on a few hundred noisy ones until it knows them by heart, does what large
networks do: it is right less often than it says. Every held-out digit is shown four times, each time with
new noise, so that there are enough rows to measure on. Copies of one digit are not independent, so the
demo's intervals are a little too narrow.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hcal
from hcal.calibrators import make_calibrator
from hcal.calibrators.base import Calibrator
from hcal.calibrators.files import save
from hcal.cli import console
from hcal.extras import install_command
from hcal.io import atomic_path, checksum
from hcal.metrics.scores import score_probs
from hcal.numerics import FloatArray, IntArray, softmax
from hcal.reporting import Source, measure_report, write_page

_TRAIN, _CAL = 400, 700  # digits; the other 697 are the test part
_COPIES = 4  # times that a held-out digit is shown
CAL_ROWS = _CAL * _COPIES
_NOISE = 0.25  # standard deviation of the noise on pixels in 0..1
_EPOCHS, _WIDTH = 300, 256


@dataclass(frozen=True)
class Digits:
    """Logits of the trained network on rows it has not seen, in a calibration and a test part."""

    logits_cal: FloatArray
    y_cal: IntArray
    logits_test: FloatArray
    y_test: IntArray

    def save(self, path: Path) -> None:
        """Write a task file that every ``hcal`` command reads."""
        with atomic_path(path) as temporary:
            np.savez_compressed(temporary, **vars(self))


def train_digits(random_state: int = 0) -> Digits:
    """Train the network and return its logits on held-out digits; all draws follow ``random_state``.

    >>> train_digits().logits_test.shape
    (2788, 10)
    """
    from sklearn.datasets import load_digits

    pixels, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(random_state)
    order = rng.permutation(len(y))
    pixels, y = pixels[order] / 16, y[order].astype(np.int64)

    def noisy(part: FloatArray) -> FloatArray:
        return part + rng.normal(0, _NOISE, part.shape)

    held_out = np.concatenate([noisy(pixels[_TRAIN:]) for _ in range(_COPIES)])
    logits = _train(noisy(pixels[:_TRAIN]), y[:_TRAIN], held_out, random_state)
    # One axis per copy, so that all copies of a digit fall into the same part.
    shown, labels = logits.reshape(_COPIES, -1, 10), np.tile(y[_TRAIN:], (_COPIES, 1))
    cal, test = slice(0, _CAL), slice(_CAL, None)
    return Digits(
        shown[:, cal].reshape(-1, 10),
        labels[:, cal].ravel(),
        shown[:, test].reshape(-1, 10),
        labels[:, test].ravel(),
    )


def _train(x: FloatArray, y: IntArray, held_out: FloatArray, random_state: int) -> FloatArray:
    """Train on (x, y) and return the logits of held-out rows, computed from the network's weights."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    net = MLPClassifier(
        (_WIDTH, _WIDTH),
        alpha=0.0,
        batch_size=len(x),
        max_iter=_EPOCHS,
        tol=0.0,
        n_iter_no_change=_EPOCHS,
        random_state=random_state,
    )
    with threadpool_limits(1), warnings.catch_warnings():  # for a network this small, threads only wait
        warnings.simplefilter("ignore", ConvergenceWarning)  # it is meant to be trained for too long
        net.fit(x, y)
    *hidden, last = zip(net.coefs_, net.intercepts_, strict=True)
    for weights, bias in hidden:
        held_out = np.maximum(held_out @ weights + bias, 0.0)
    return np.asarray(held_out @ last[0] + last[1])


_RESULTS = ("accuracy", "mean_confidence", "ece_ew", "nll", "brier")


def run_demo(folder: Path, *, method: str, random_state: int, quiet: bool, json: bool) -> None:
    """Train, calibrate, show, and write data, model, picture and report into a folder, new if need be."""
    silent = quiet or json
    calibrator = make_calibrator(method)
    folder.mkdir(parents=True, exist_ok=True)
    with console.working("training a network on scikit-learn's digits", quiet=silent):
        digits = train_digits(random_state)
    digits.save(folder / "digits.npz")
    with console.fitting(calibrator, f"calibrating it with {method}", quiet=silent):
        calibrator.fit(digits.logits_cal, digits.y_cal)
    save(calibrator, folder / "model.hcal")
    raw, y = softmax(digits.logits_test), digits.y_test
    probs = calibrator.predict_proba(digits.logits_test)
    files = ["digits.npz", "model.hcal", *_pictures(folder, raw, probs, y), "report.html"]
    with console.working("writing the report", quiet=silent):
        task = folder / "digits.npz"
        source = Source(str(task), "test", "logits", checksum(task), str(folder / "model.hcal"))
        write_page(folder / "report.html", measure_report(digits.logits_test, y, calibrator, source=source))
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
        f"A network was trained on noisy digits. On {len(y):,} new pictures it is right "
        f"[bold]{before['accuracy']:.1%}[/] of the time,\nbut says "
        f"[bold red]{before['mean_confidence']:.1%}[/]: over-confident by "
        f"{100 * (before['mean_confidence'] - before['accuracy']):.1f} points.\n"
    )
    out.print(console.draw_reliability(hcal.reliability(raw, y, bins=10)[0], title="before"))
    changed = int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
    same = "Not one prediction changed" if changed == 0 else f"{changed} predictions changed"
    out.print(
        f"\n{calibrator.title} learned from {CAL_ROWS:,} other pictures. {same}, "
        f"and now it says [bold green]{after['mean_confidence']:.1%}[/]."
    )
    for note in calibrator.info_.get("notes", []):
        out.print(console.name(note))
    out.print()
    out.print(console.draw_reliability(hcal.reliability(probs, y, bins=10)[0], title="after"))
    out.print(f"[dim]{console.LEGEND}[/]\n")
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
