"""Write golden models of methods that have none yet: ``python tests/golden/make.py``.

Existing files are never rewritten: a later version must read what this one wrote. A new schema gets a new
folder beside ``v1``. (Before the first release a method may still change what it stores: delete its file and
run this again.)
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

import hcal

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from conftest import synthetic  # noqa: E402


def main() -> None:
    folder = HERE / "v1"
    expected = folder / "expected.npz"
    held = dict(np.load(expected)) if expected.exists() else {"logits": synthetic(6, 4, seed=7)[0]}
    logits, y = synthetic(300, 4)
    for name in hcal.list_calibrators():
        path = folder / f"{name}.hcal"
        if path.exists():
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator = hcal.make_calibrator(name).fit(logits, y)
        hcal.save(calibrator, path)
        held[name] = calibrator.predict_proba(held["logits"])
        print("wrote", path)
    np.savez_compressed(expected, **held)


if __name__ == "__main__":
    main()
