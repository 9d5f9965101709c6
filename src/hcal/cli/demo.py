"""``hcal demo``: train a small over-confident network, calibrate it, show the result and write files.

scikit-learn comes with 1,797 handwritten digits of 8 × 8 pixels. A multi-layer perceptron with far more parameters
than images is trained on a few hundred noisy ones until it has memorised them. Like many large networks, it is then
right less often than it claims. Every held-out digit is used four times, each time with new noise, to have enough
rows to measure on. Copies of one digit depend on each other: they are a group, in the fit and in what is proven.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from hcal.cli import console
from hcal.cli.options import Command, Method, command
from hcal.progress import logger

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier

    from hcal.frames import AnyArray
    from hcal.io import DataFile
    from hcal.methods.base import Calibrator
    from hcal.numerics import NumpyArray

_TRAIN, _CAL = 400, 700  # digits; the other 697 are the test part
_COPIES = 4  # times that a held-out digit is shown
_NOISE = 0.25  # standard deviation of the noise on pixels in 0..1
_EPOCHS, _WIDTH = 300, 256
_GROUPS = "digit"  # the column that says which rows are copies of one digit


def train_digits() -> dict[str, NumpyArray]:
    """Train the network and return its logits on held-out digits, a calibration and a test part, and the labels.

    ``digit_cal`` and ``digit_test`` are the numbers of the digits, four copies of each.

    >>> train_digits()["logits_test"].shape
    (2788, 10)
    """
    import numpy as np
    from sklearn.datasets import load_digits

    pixels, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    pixels = pixels[order] / 16
    y = y[order].astype(np.int64)

    def noisy(part: NumpyArray) -> NumpyArray:
        return part + rng.normal(0, _NOISE, part.shape)

    held_out = np.concatenate([noisy(pixels[_TRAIN:]) for _ in range(_COPIES)])
    network = _trained_network(noisy(pixels[:_TRAIN]), y[:_TRAIN])
    # One axis per copy, so that all copies of a digit fall into the same part.
    logits = _logits_of(network, held_out).reshape(_COPIES, -1, 10)
    labels = np.tile(y[_TRAIN:], (_COPIES, 1))
    digit = np.tile(np.arange(_TRAIN, len(y)), (_COPIES, 1))
    cal = np.s_[:, :_CAL]
    test = np.s_[:, _CAL:]
    return {
        "logits_cal": logits[cal].reshape(-1, 10),
        "logits_test": logits[test].reshape(-1, 10),
        "y_cal": labels[cal].ravel(),
        "y_test": labels[test].ravel(),
        "digit_cal": digit[cal].ravel(),
        "digit_test": digit[test].ravel(),
    }


def _trained_network(pixels: NumpyArray, y: NumpyArray) -> MLPClassifier:
    """Return a network that was trained for too long on a few images."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    network = MLPClassifier(
        (_WIDTH, _WIDTH),
        random_state=0,
        alpha=0.0,
        batch_size=_TRAIN,
        max_iter=_EPOCHS,
        tol=0.0,
        n_iter_no_change=_EPOCHS,
    )
    # For a network this small, threads only wait.
    with threadpool_limits(1), warnings.catch_warnings():
        # It is meant to be trained for too long.
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(pixels, y)
    return network


def _logits_of(network: MLPClassifier, pixels: NumpyArray) -> NumpyArray:
    """Return what the last layer says before the softmax."""
    import numpy as np

    *hidden, last = zip(network.coefs_, network.intercepts_, strict=True)
    values = pixels
    for weights, bias in hidden:
        values = np.maximum(values @ weights + bias, 0.0)
    return np.asarray(values @ last[0] + last[1])


@command("demo", "hcal demo", "hcal demo --method ts --output /tmp/demo")
@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Train an over-confident network on digits, calibrate it, show before and after."""

    schema = "hcal/demo/1"

    output: Annotated[Path, Option("--output", "-o", help="the folder to write to")] = Path(
        "hcal-demo"
    )
    method: Method = None

    def run(self) -> None:
        """Write a task, a model, a picture and the report into a folder."""
        import numpy as np

        import hcal
        from hcal.io import Request, atomic_path, read
        from hcal.metrics.scores import score_probs
        from hcal.operation.fitting import fit_to_file, remember_file

        calibrator = hcal.make_calibrator(self.method or "pool")
        self.output.mkdir(parents=True, exist_ok=True)
        task = self.output / "digits.npz"
        model = self.output / "model.hcal"
        page = self.output / "report.html"
        with console.working("training a network on scikit-learn's digits", quiet=self.silent):
            digits: dict[str, AnyArray] = train_digits()
        with atomic_path(task) as temporary:
            np.savez_compressed(temporary, **digits)

        request = Request(groups=_GROUPS)
        cal = read(task, request, part="cal")
        with console.working(f"calibrating it with {calibrator.name}", quiet=self.silent):
            fit_to_file(calibrator, cal)
        remember_file(calibrator, request, cal)
        hcal.save(calibrator, model)

        test = read(task, request, part="test")
        sides = {
            "before": hcal.softmax(test.values),
            "after": calibrator.predict_proba(test.values),
        }
        scores = {when: score_probs(probs, test.y) for when, probs in sides.items()}
        files = [task, model, *_picture(self.output / "reliability.png", sides, test), page]
        with console.working("writing the report", quiet=self.silent):
            _write_report(page, test, calibrator, model)
        facts = {
            "folder": str(self.output),
            "files": [path.name for path in files],
            "method": calibrator.name,
        }
        self.show({**facts, **scores}, lambda: _show(files, calibrator, sides, test, scores))


def _write_report(page: Path, test: DataFile, calibrator: Calibrator, model: Path) -> None:
    """Write the report of the test part."""
    from hcal.io import checksum
    from hcal.reporting import Source, measure_report, write_page

    source = Source(
        name=str(test.path),
        part=test.part,
        kind=test.kind,
        checksum=test.checksum(),
        model=str(model),
        options=f"--groups {_GROUPS}",
        model_checksum=checksum(model),
    )
    content = measure_report(test.values, test.y, calibrator, groups=test.groups, source=source)
    write_page(page, content)


def _show(
    files: list[Path],
    calibrator: Calibrator,
    sides: dict[str, NumpyArray],
    test: DataFile,
    scores: dict[str, dict[str, float]],
) -> None:
    import hcal

    out = console.out()
    before, after = scores.values()
    right = before["accuracy"]
    claimed = before["mean_confidence"]
    out.print(
        f"A network was trained on noisy digits. On {len(test.values):,} new pictures it is right "
        f"[bold]{right:.1%}[/],"
    )
    out.print(
        f"but claims [bold red]{claimed:.1%}[/]: over-confident by {100 * (claimed - right):.1f} "
        "points.\n"
    )
    raw, probs = sides.values()
    changed = int((raw.argmax(axis=1) != probs.argmax(axis=1)).sum())
    same = "Not one prediction changed" if changed == 0 else f"{changed} predictions changed"
    now = f"[bold green]{after['mean_confidence']:.1%}[/]"
    out.print(
        f"{calibrator.title} learned from {_CAL * _COPIES:,} other pictures. {same}, and now it "
        f"claims {now}."
    )
    for note in calibrator.fit_.notes:
        out.print(console.name(note))
    for when, probabilities in sides.items():
        out.print(f"\n[bold]{when}[/]")
        console.show_lines(hcal.reliability(probabilities, test.y, groups=test.groups))
    out.print(console.before_after(scores, "\non the test rows"))
    out.print(f"\nwrote {', '.join(f'[bold]{console.name(path)}[/]' for path in files)}")
    out.print(
        f"next:  open [cyan]{console.name(files[-1])}[/] in a browser, then try your own file:"
    )
    out.print("       [cyan]hcal fit CAL.npz -o model.hcal[/]")


def _picture(path: Path, sides: dict[str, NumpyArray], test: DataFile) -> list[Path]:
    """Write the reliability diagram if matplotlib is installed."""
    import hcal
    from hcal.extras import install_command
    from hcal.io import atomic_path

    try:
        from matplotlib.figure import Figure
    except ImportError:
        logger.info("no picture without matplotlib: %s", install_command("plot"))
        return []
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    for axis, (title, probs) in zip(figure.subplots(1, 2), sides.items(), strict=True):
        diagram = hcal.reliability(probs, test.y, groups=test.groups)
        diagram.plot(axis)
        axis.set_title(f"{title}: ECE {diagram[0].error:.3f}")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
    return [path]
