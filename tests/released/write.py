"""Write what a released version of hcal leaves behind: a model file of every method, states, and predictions.

    python tests/released/write.py

It writes the folder of the present version, as often as needed before the release. The release adds its version to
``FROZEN``: from then on the files stay as they are, and ``tests/test_released.py`` reads them with every later version.
"""

from __future__ import annotations

import sys
import warnings
from datetime import date
from pathlib import Path
from typing import Any, Final

import numpy as np

import hcal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from helpers import quick, synthetic

#: The versions that are released: their files are what users have, and are never written again.
FROZEN: Final[tuple[str, ...]] = ()
#: Rows that the models predict; some are far from those of the fits.
ROWS = 12


def fitted(name: str, n_classes: int) -> Any:
    """Return a method, fitted on few rows; None where it does not take so many classes."""
    scores, y = synthetic(120, n_classes, seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return quick(name).fit(scores.round(3), y)
        except ValueError as error:
            if "classes" in str(error):
                return None
            raise


def others() -> dict[str, Any]:
    """Return fitted calibrators that are no methods of the registry: labels, segments, questions, other frequencies."""
    scores, y = synthetic(240, 3, seed=6)
    country = np.where(np.arange(240) % 2, "DE", "FR")
    matrix = (scores > 0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        named = hcal.TemperatureScaling().fit(scores, y, classes=["ant", "bee", "cat"])
        return {
            "named": named,
            "prior": named.with_prior([0.2, 0.3, 0.5]),
            "multilabel": hcal.MultilabelCalibrator("ts").fit(scores, matrix),
            "segmented": hcal.SegmentedCalibrator("ts").fit(scores, y, by=country),
            "questions": hcal.language_models.MultipleChoiceCalibrator("ts").fit(scores, y),
        }


def probe(n_classes: int) -> np.ndarray:
    """Return the rows that are predicted."""
    rows = synthetic(ROWS, n_classes, seed=7)[0].round(3)
    rows[0] = 0.0
    rows[1] *= 100
    return rows


def predictions(name: str, calibrator: Any, rows: np.ndarray) -> np.ndarray:
    """Return what a calibrator predicts."""
    if name == "segmented":
        countries = np.array(["DE", "FR", "IT"])[np.arange(len(rows)) % 3]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # IT is a segment that the fit did not see
            return np.asarray(calibrator.predict_proba(rows, by=countries))
    return np.asarray(calibrator.predict_proba(rows))


def write_states(folder: Path) -> None:
    """Write the state of a monitor and a store of scores, with what they must still say."""
    rng = np.random.default_rng(8)
    probs = rng.dirichlet([1, 1, 1], size=200)
    y = (probs.cumsum(axis=1) > rng.random((200, 1))).argmax(axis=1)
    monitor = hcal.Monitor()
    monitor.update(probs[:100], y[:100], name="monday.npz", digest="1", date="2026-01-05")
    wrong_y = (y[100:] + 1) % 3
    monitor.update(probs[100:], wrong_y, name="tuesday.npz", digest="2", date="2026-01-06")
    monitor.save(folder / "monitor.json")
    store = hcal.ScoreStore(folder / "scores.sqlite", classes=["ant", "bee", "cat"])
    ids = [f"r{row}" for row in range(5)]
    store.add(ids, probs[:5], day=date(2026, 1, 5))
    next_monitor = hcal.Monitor.load(folder / "monitor.json")
    next_monitor.update(probs[:50], y[:50])
    np.savez(
        folder / "states.npz",
        next_probs=probs[:50],
        next_y=y[:50],
        log_evidence=monitor.log_evidence,
        next_log_evidence=next_monitor.log_evidence,
        stored=probs[:5],
    )


def main() -> None:
    """Write the folder of this version; refuse one that is released."""
    if hcal.__version__ in FROZEN:
        raise SystemExit(f"{hcal.__version__} is released: its files are never written again")
    folder = Path(__file__).parent / hcal.__version__
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()  # a method that has gone, or a store that has rows already
    expected: dict[str, np.ndarray] = {f"rows.{k}": probe(k) for k in (2, 3)}
    models = {
        f"{name.replace(':', '-')}.{k}": fitted(name, k)
        for name in hcal.list_calibrators()
        for k in (2, 3)
    }
    models |= {f"{name}.3": calibrator for name, calibrator in others().items()}
    for name, calibrator in models.items():
        if calibrator is not None:
            hcal.save(calibrator, folder / f"{name}.hcal")
            kind, _, k = name.rpartition(".")
            expected[name] = predictions(kind, calibrator, expected[f"rows.{k}"])
    np.savez_compressed(folder / "predictions.npz", **expected)
    write_states(folder)


if __name__ == "__main__":
    main()
