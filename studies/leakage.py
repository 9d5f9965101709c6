"""Are the rows of a fit refused, in every form they may come back in, and fresh rows not?

    python studies/leakage.py                  # writes results/leakage.csv; about three minutes on one core

Part ``methods``: every registered method is fitted on 400 rows (K = 2 and 10) and asked for a certificate, also after
save and load. Part ``rows``: fingerprints see inputs alone, so many sets are drawn without a fit, K = 1000 too. A row
of the file says in how many sets the certificate was refused: own rows should be at 1, fresh rows at 0.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(
        ROOT
    )  # studies are no part of the wheel, and must not hide the package coverage

import numpy as np  # noqa: E402

import hcal  # noqa: E402
from hcal.leakage import RowsOfTheFitError, fingerprint, overlap  # noqa: E402

RESULTS = ROOT / "results" / "leakage.csv"
Array = Any


def logits(n: int, k: int, rng: np.random.Generator) -> Array:
    """Draw logits; of two classes the first is 0."""
    x = 3 * rng.normal(size=(n, k))
    if k == 2:
        x[:, 0] = 0
    return x


def forest(n: int, k: int, rng: np.random.Generator) -> Array:
    """Draw the votes of a forest of a hundred trees, as log-probabilities."""
    p = rng.dirichlet(np.full(k, 1.0), n)
    votes = np.array([rng.multinomial(100, row) for row in p]) / 100
    return np.log(np.maximum(votes, 5e-324))


def _printed(x: Array) -> Array:
    return np.char.mod("%.6g", x).astype(float)


#: Own rows as they may come back: name -> (rows, rng) -> rows.
OWN: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "own": lambda x, _: x,
    "permuted": lambda x, rng: x[rng.permutation(len(x))],
    "half": lambda x, rng: x[rng.permutation(len(x))[: len(x) // 2]],
    "80 rows": lambda x, rng: x[rng.permutation(len(x))[:80]],
    "float32": lambda x, _: x.astype(np.float32),
    "csv, six digits": lambda x, _: _printed(x),
    "half, and as many fresh": lambda x, rng: np.concatenate(
        [x[::2], logits(len(x) // 2, x.shape[1], rng)]
    ),
}
#: Fresh rows: name -> (n, k, rng) -> rows.
FRESH: dict[str, Callable[[int, int, np.random.Generator], Array]] = {
    "fresh": logits,
    "fresh, rounded to 3 digits": lambda n, k, rng: np.round(logits(n, k, rng), 3),
    "fresh, votes of a forest": forest,
}


def rows(sets: int) -> list[dict[str, Any]]:
    """Compare fingerprints without a fit."""
    found = []
    for k, n, many in (
        (2, 400, sets),
        (2, 5000, sets),
        (10, 2000, sets),
        (1000, 500, max(sets // 5, 1)),
    ):
        refused = Counter[str]()
        for number in range(many):
            rng = np.random.default_rng([k, n, number])
            x = logits(n, k, rng)
            kept = fingerprint(x)
            refused.update(
                name for name, form in OWN.items() if overlap(kept, form(x, rng)).refused
            )
            for name, draw in FRESH.items():
                refused[name] += overlap(fingerprint(draw(n, k, rng)), draw(n, k, rng)).refused
        found += [_row("rows", "any", k, n, case, many, refused[case]) for case in (*OWN, *FRESH)]
    return found


def methods(names: list[str]) -> list[dict[str, Any]]:
    """Fit every method and ask for certificates."""
    found = []
    folder = Path(tempfile.mkdtemp())
    for name in names:
        for k in (2, 10):
            rng = np.random.default_rng(k)
            x = logits(400, k, rng)
            y = (hcal.softmax(x / 1.5).cumsum(1) > rng.random((400, 1))).argmax(1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    calibrator = hcal.make_calibrator(name).fit(x, y)
                except (ValueError, ImportError) as error:
                    print(f"{name}, K = {k}: {error}")
                    continue
            hcal.save(calibrator, folder / "m.hcal")
            loaded = hcal.load(folder / "m.hcal")
            cases = {case: form(x, rng) for case, form in OWN.items()} | {
                "fresh": logits(400, k, rng)
            }
            for case, judged in cases.items():
                labels = np.arange(len(judged)) % k
                for when, cal in (("", calibrator), (", after save and load", loaded)):
                    found.append(
                        _row(
                            "methods",
                            name,
                            k,
                            400,
                            case + when,
                            1,
                            _is_refused(cal, judged, labels),
                        )
                    )
    return found


def _is_refused(calibrator: Any, scores: Array, y: Array) -> bool:
    try:
        hcal.certify(calibrator, scores, y)
    except RowsOfTheFitError:
        return True
    return False


def _row(
    part: str, method: str, k: int, n: int, case: str, sets: int, refused: int
) -> dict[str, Any]:
    return {
        "part": part, "method": method, "k": k, "n": n, "case": case, "sets": sets, "refused": int(refused),
        "share": refused / sets,
    }  # fmt: skip


def main() -> None:
    """Run the study and write its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=200)
    found = rows(parser.parse_args().sets) + methods(hcal.list_calibrators())
    with RESULTS.open("w", newline="") as f:
        writer = csv.DictWriter(f, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    for case in (*OWN, *FRESH):
        for part in ("rows", "methods"):
            some = [r for r in found if r["part"] == part and r["case"].startswith(case) and r["case"] in
                    (case, f"{case}, after save and load")]  # fmt: skip
            if some:
                print(
                    f"{part:8s} {case:30s} {sum(r['refused'] for r in some)} of {sum(r['sets'] for r in some)}"
                )


if __name__ == "__main__":
    main()
