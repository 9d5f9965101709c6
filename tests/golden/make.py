"""Write golden models of methods that have none yet: ``python tests/golden/make.py``.

Existing files are never rewritten: a later version must read what this one wrote. A new schema gets a new
folder beside ``v1``, with the models of the one before in it. (Before the first release a method may still
change what it stores: delete its file and run this again.)
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import hcal
from hcal.calibrators.h.paper import PaperSettings, fit_paper
from hcal.io.model_file import SCHEMA
from hcal.solvers.adam import AdamSettings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from helpers import synthetic  # noqa: E402


def models() -> dict[str, Callable[[Any, Any], Any]]:
    """Return every method as it comes, the other promises of the default, and a map of each family."""
    found: dict[str, Callable[[Any, Any], Any]] = {}
    for name in hcal.list_calibrators():
        found[name] = hcal.make_calibrator(name).fit
    found["h-order"] = hcal.HCalibrator(preserve="order").fit
    found["h-none"] = hcal.HCalibrator(preserve=None).fit
    for name in ("ensemble-16", "piecewise-100", "monotonic-10"):
        found[f"h-paper-{name}"] = partial(paper_map, name)
    return found


def paper_map(name: str, logits: Any, y: Any) -> hcal.HCalibrator:
    """Return the paper protocol with one candidate."""
    settings = PaperSettings(("nll",), maps=(name,), adam=AdamSettings(epochs=60))
    calibrator = hcal.HCalibrator(protocol="paper", select="nll")
    calibrator._remember(fit_paper(logits, y, settings)["nll"], logits.shape[1])
    calibrator._score_fit(logits, y, None)
    return calibrator


def main() -> None:
    folder, before = (HERE / f"v{schema}" for schema in (SCHEMA, SCHEMA - 1))
    folder.mkdir(exist_ok=True)
    expected = folder / "expected.npz"
    held = dict(np.load(expected if expected.exists() else before / "expected.npz"))
    logits, y = synthetic(300, 4)
    for name, fit in models().items():
        path = folder / f"{name}.hcal"
        if path.exists():
            continue
        old = before / path.name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator = hcal.load(old) if old.exists() else fit(logits, y)
        hcal.save(calibrator, path)
        if not old.exists():
            held[name] = calibrator.predict_proba(held["logits"])
        print("wrote", path)
    np.savez_compressed(expected, **held)


if __name__ == "__main__":
    main()
