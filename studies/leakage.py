"""Are the rows of a fit refused, in every form they may come back in, and fresh rows not?

    python -m studies.leakage                  # writes results/leakage.csv; about three minutes on one core

Part ``methods``: every registered method is fitted on 400 rows (K = 2 and 10) and asked for a certificate, also after
save and load. Part ``rows``: fingerprints see inputs alone, so many sets are drawn without a fit, K = 1000 too. A row
of the file says in how many sets the certificate was refused: own rows should be at 1, fresh rows at 0.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import hcal
from hcal.leakage import RowsOfTheFitError, fingerprint, overlap
from studies.records import RESULTS, stamped, write_rows

FILE: Final = RESULTS / "leakage.csv"
ROWS_OF_A_FIT: Final = 400
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


def two_populations(n: int, k: int, rng: np.random.Generator) -> Array:
    """Draw rows of which one half are as certain as can be and lie close together, and the others do not."""
    x = logits(n, k, rng)
    x[: n // 2, 0] += 40
    return x


def printed(x: Array) -> Array:
    """Return numbers as a csv file with six digits has them."""
    return np.char.mod("%.6g", x).astype(float)


def half_and_fresh(x: Array, rng: np.random.Generator) -> Array:
    """Return every other row, and as many fresh ones."""
    fresh = logits(len(x) // 2, x.shape[1], rng)
    return np.concatenate([x[::2], fresh])


#: Own rows as they may come back: name -> (rows, rng) -> rows.
OWN: Final[dict[str, Callable[[Array, np.random.Generator], Array]]] = {
    "own": lambda x, _: x,
    "permuted": lambda x, rng: x[rng.permutation(len(x))],
    "half": lambda x, rng: x[rng.permutation(len(x))[: len(x) // 2]],
    "80 rows": lambda x, rng: x[rng.permutation(len(x))[:80]],
    "float32": lambda x, _: x.astype(np.float32),
    "csv, six digits": lambda x, _: printed(x),
    "half, and as many fresh": half_and_fresh,
}
#: The rows of a fit, and fresh rows like them: name -> (n, k, rng) -> rows.
FRESH: Final[dict[str, tuple[Callable[..., Array], Callable[..., Array]]]] = {
    "fresh": (logits, logits),
    "fresh, rounded to 3 digits": (
        lambda n, k, rng: np.round(logits(n, k, rng), 3),
        lambda n, k, rng: np.round(logits(n, k, rng), 3),
    ),
    "fresh, votes of a forest": (forest, forest),
    "fresh, of the denser half of the fit": (
        two_populations,
        lambda n, k, rng: two_populations(n, k, rng)[: n // 2],
    ),
}
#: Classes, rows, and the share of the sets that are drawn.
SIZES: Final = ((2, 400, 1.0), (2, 5000, 1.0), (10, 2000, 1.0), (1000, 500, 0.2))


def rows(sets: int) -> Iterator[dict[str, Any]]:
    """Yield how often fingerprints alone refuse, without a fit."""
    for k, n, share in SIZES:
        count = max(int(sets * share), 1)
        refused = Counter[str]()
        for number in range(count):
            refused.update(_refused_cases(n, k, np.random.default_rng([k, n, number])))
        for case in (*OWN, *FRESH):
            yield _row("rows", "any", k, n, case, count, refused[case])


def _refused_cases(n: int, k: int, rng: np.random.Generator) -> Iterator[str]:
    """Yield the cases that are refused in one set of rows."""
    x = logits(n, k, rng)
    kept = fingerprint(x)
    for name, form in OWN.items():
        if overlap(kept, form(x, rng)).refused:
            yield name
    for name, (draw_fitted, draw_judged) in FRESH.items():
        kept = fingerprint(draw_fitted(n, k, rng))
        if overlap(kept, draw_judged(n, k, rng)).refused:
            yield name


def methods(names: list[str]) -> Iterator[dict[str, Any]]:
    """Fit every method, ask for certificates, and yield what was refused."""
    for name in names:
        for k in (2, 10):
            yield from _method_rows(name, k)


def _method_rows(name: str, k: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one method and number of classes; none where the method does not take it."""
    rng = np.random.default_rng(k)
    x = logits(ROWS_OF_A_FIT, k, rng)
    cumulated = hcal.softmax(x / 1.5).cumsum(1)
    y = (cumulated > rng.random((len(x), 1))).argmax(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = hcal.make_calibrator(name).fit(x, y)
    except (ValueError, ImportError) as error:
        print(f"{name}, K = {k}: {error}")
        return
    judged = {case: form(x, rng) for case, form in OWN.items()}
    judged["fresh"] = logits(len(x), k, rng)
    for when, calibrator in (("", fitted), (", after save and load", _loaded_again(fitted))):
        for case, scores in judged.items():
            refused = _is_refused(calibrator, scores, np.arange(len(scores)) % k)
            yield _row("methods", name, k, len(x), case + when, 1, int(refused))


def _loaded_again(calibrator: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.hcal"
        hcal.save(calibrator, path)
        return hcal.load(path)


def _is_refused(calibrator: Any, scores: Array, y: Array) -> bool:
    try:
        hcal.certify(calibrator, scores, y)
    except RowsOfTheFitError:
        return True
    return False


def _row(  # noqa: PLR0913
    part: str, method: str, k: int, n: int, case: str, sets: int, refused: int
) -> dict[str, Any]:
    facts = {"part": part, "method": method, "k": k, "n": n, "case": case}
    return facts | {"sets": sets, "refused": refused, "share": refused / sets}


def summary(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each case: in how many of all sets it was refused."""
    for case in (*OWN, *FRESH):
        chosen = [row for row in results if row["case"].partition(", after")[0] == case]
        refused = sum(row["refused"] for row in chosen)
        yield f"{case:40s} {refused} of {sum(row['sets'] for row in chosen)}"


def main() -> None:
    """Run the study and write its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=200)
    arguments = parser.parse_args()
    results = [*rows(arguments.sets), *methods(hcal.list_calibrators())]
    write_rows(FILE, [stamped(row) for row in results])
    for line in summary(results):
        print(line)


if __name__ == "__main__":
    main()
