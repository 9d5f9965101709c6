"""What a calibrator remembers of the rows that it learned from, so that nobody is judged on them unawares.

A sketch of bounded size, kept in ``info_`` and in the model file: the smallest 64-bit hashes of the rows'
scores, the hashes of what the calibrator makes of the same rows, and one sum over all rows. It holds no score
and no label. Rows that occur more than once (saturated or discrete scores) identify nothing and are left out.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.calibrators.on_device import probs_of_rows
from hcal.io.provenance import mix, row_hashes
from hcal.runtime.device_rows import DeviceRows, Logits
from hcal.numerics import FloatArray, IntArray

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator

#: Rows remembered: 4 KB of hashes of scores and as many of outputs.
KEPT = 512
KEY = "calibration_rows"
_FEWEST = 20  # fewer rows than this coincide by chance
_fitted: WeakSet[Any] = WeakSet()
_lock = threading.Lock()
Hashes = NDArray[np.uint64]


def hash_rows(x: Logits) -> Hashes:
    """Return a 64-bit hash of every row, from its values in float32: one unit in the last place is no news.

    Shapes: x (N, K) → (N,) in uint64.

    >>> a = hash_rows(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> bool(a[0] == a[2]), bool(a[0] == a[1])
    (True, False)
    """
    if isinstance(x, DeviceRows):
        return row_hashes(DeviceRows(x.tensor.float()))
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and hashed as such
        return row_hashes(np.asarray(x, dtype=np.float32))


def _centred(x: Logits) -> Logits:
    """Logits up to the constant of each row, which means nothing."""
    if isinstance(x, DeviceRows):
        return x.below_top()
    with np.errstate(over="ignore"):
        return np.asarray(x - x.max(axis=1, keepdims=True))


def checked_rows(calibrator: Calibrator, scores: Any) -> FloatArray:
    """Return scores (N, K) as the sketch of a calibrator sees them; one for questions has rows of its own."""
    own = getattr(calibrator, "rows", None)
    if own is not None:
        return np.asarray(own(scores))
    return inputs.check_logits(scores, input=calibrator.input, n_classes=calibrator.n_classes_)[0]


def sketch(x: Logits, y: IntArray) -> tuple[dict[str, Any], NDArray[np.intp]]:
    """Return the sketch of rows without what becomes of them, and the rows that it keeps."""
    hashes = hash_rows(_centred(x))
    _, first, times = np.unique(hashes, return_index=True, return_counts=True)
    single = first[times == 1][:KEPT]  # np.unique sorts: these are the smallest hashes
    found = {
        "n": len(x),
        "scores": _packed(hashes[single]),
        "unique": float((times == 1).sum() / len(x)),
        "outputs": _packed(np.empty(0, dtype=np.uint64)),
        "unique_outputs": 0.0,
        "all": str(_digest(hashes, y)),
    }
    return found, single


class RowSketch:
    """The sketch of rows that come block by block: a partial result (:mod:`hcal.partial`).

    It keeps the smallest hashes with how often each came; of those that came once the first ``KEPT`` are
    those of :func:`sketch`, and their share stands for that of all.

    >>> x, y = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100) % 3
    >>> parts = RowSketch().update(x[:30], y[:30]).merge(RowSketch().update(x[30:], y[30:]))
    >>> parts.result() == sketch(x, y)[0]
    True
    """

    _WIDTH = 4 * KEPT

    def __init__(self) -> None:
        self.n, self._sum = 0, np.uint64(0)
        self.hashes, self._times = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)

    def update(self, x: FloatArray, y: IntArray) -> Self:
        """Add a block of checked logits (B, K) with labels (B,)."""
        hashes = hash_rows(_centred(x))
        found, times = np.unique(hashes, return_counts=True)
        return self._add(len(x), np.uint64(_digest(hashes, y)), found, times)

    def merge(self, other: RowSketch) -> Self:
        """Add what another has seen."""
        return self._add(other.n, other._sum, other.hashes, other._times)

    def _add(self, n: int, digest: np.uint64, found: Hashes, times: NDArray[np.int64]) -> Self:
        both, place = np.unique(np.concatenate([self.hashes, found]), return_inverse=True)
        counts = np.bincount(place, weights=np.concatenate([self._times, times])).astype(np.int64)
        # A hash among the smallest of all is among the smallest of every part: its count is whole.
        self.hashes, self._times = both[: self._WIDTH], counts[: self._WIDTH]
        with np.errstate(over="ignore"):
            self.n, self._sum = self.n + n, self._sum + digest
        return self

    @property
    def state(self) -> dict[str, Any]:
        """What was seen."""
        return {"n": self.n, "sum": self._sum, "hashes": self.hashes, "times": self._times}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Go on from a state."""
        return cls()._add(state["n"], state["sum"], state["hashes"], state["times"])

    @property
    def kept(self) -> Hashes:
        """The smallest hashes that came once."""
        return np.asarray(self.hashes[self._times == 1][:KEPT])

    def result(self, outputs: Hashes | None = None) -> dict[str, Any]:
        """Return the sketch, with the hashes of what becomes of the kept rows where they are known."""
        made = np.empty(0, dtype=np.uint64) if outputs is None else _came_once(outputs)
        whole = len(self.hashes) < self._WIDTH
        unique = float(self._times[self._times == 1].sum() / (self.n if whole else self._times.sum()))
        return {
            "n": self.n,
            "scores": _packed(self.kept),
            "unique": unique,
            "outputs": _packed(made),
            "unique_outputs": unique * len(made) / max(len(self.kept), 1),
            "all": str(int(self._sum)),
        }


def outputs_of(x: FloatArray, probs: FloatArray, kept: Hashes) -> Hashes:
    """Return the hashes of the outputs (B, K) of those rows (B, K) whose hashes were kept."""
    return hash_rows(_shown(probs[np.isin(hash_rows(_centred(x)), kept)]))


def keep_sketch(calibrator: Calibrator, found: dict[str, Any]) -> None:
    """Add a sketch to a calibrator that has just learned from its rows."""
    calibrator.info_ = calibrator.info_ | {KEY: found}
    with _lock:
        _fitted.add(calibrator)


def _came_once(hashes: Hashes) -> Hashes:
    found, times = np.unique(hashes, return_counts=True)
    return np.asarray(found[times == 1])


def remember(calibrator: Calibrator, x: Logits, y: IntArray) -> None:
    """Add the sketch of the calibration rows (N, K) to a calibrator that has just learned from them."""
    found, single = sketch(x, y)
    outputs = _outputs(calibrator, x, single)
    found["outputs"] = _packed(outputs)
    found["unique_outputs"] = found["unique"] * len(outputs) / max(len(single), 1)
    keep_sketch(calibrator, found)


def _outputs(calibrator: Calibrator, x: Logits, rows: NDArray[np.intp]) -> Hashes:
    if not len(rows):
        return np.empty(0, dtype=np.uint64)
    if isinstance(x, DeviceRows):
        return _came_once(hash_rows(_shown(probs_of_rows(calibrator, x.take(rows)).cpu().numpy())))
    return _came_once(hash_rows(_shown(calibrator._predict_blocks(x[rows]))))


def _shown(probs: FloatArray) -> FloatArray:
    """What identifies an output: P(class 1) alone of two classes, given as one column or as two."""
    return probs[:, 1:] if probs.shape[1] == 2 else probs


def _digest(hashes: Hashes, y: IntArray) -> int:
    """One number for a whole set of labelled rows in any order."""
    with np.errstate(over="ignore"):
        return int(mix(hashes ^ mix(y.astype(np.uint64))).sum(dtype=np.uint64))


def _packed(hashes: Hashes) -> str:
    return base64.b64encode(hashes.astype("<u8").tobytes()).decode("ascii")


def _unpacked(text: str) -> Hashes:
    return np.frombuffer(base64.b64decode(text), dtype="<u8").astype(np.uint64)


def share_seen(calibrator: Calibrator, scores: FloatArray, y: IntArray) -> float:
    """Return the share of a calibrator's calibration rows that are among these scores.

    Scores (N, K) are checked logits. It is 0 where no more rows coincide than discrete scores do by chance,
    and for a calibrator of a version that remembered nothing.

    >>> import hcal
    >>> x, y = np.random.default_rng(0).normal(size=(100, 3)), np.arange(100) % 3
    >>> x[np.arange(100), y] += 1
    >>> cal = hcal.make_calibrator("ts").fit(x, y)
    >>> share_seen(cal, x[:50], y[:50]) > 0.3, share_seen(cal, x + 1e-3 * x**2, y)
    (True, 0.0)
    """
    return SeenRows(calibrator.info_.get(KEY)).update(scores, y).result()


class SeenRows:
    """Which rows of a fit are among others: a partial result (:mod:`hcal.partial`).

    ``kept`` is what the calibrator remembers, under ``KEY`` of its ``info_``; nothing is found where that is
    nothing.

    >>> SeenRows(None).update(np.eye(3), np.arange(3)).result()
    0.0
    """

    def __init__(self, kept: dict[str, Any] | None) -> None:
        self._kept = kept
        self._remembered = _unpacked(kept["scores"] if kept else "")
        self._found = np.zeros(len(self._remembered), dtype=bool)
        self._rows, self._sum = 0, 0

    def update(self, scores: FloatArray, y: IntArray) -> Self:
        """Look at more rows: checked logits (N, K), and labels (N,)."""
        if self._kept is not None:
            hashes = hash_rows(_centred(scores))
            self._found |= np.isin(self._remembered, hashes)
            self._add(len(hashes), _digest(hashes, y))
        return self

    def merge(self, other: SeenRows) -> Self:
        """Add what another has found of the same fit."""
        self._found |= other._found
        self._add(other._rows, other._sum)
        return self

    def _add(self, rows: int, digest: int) -> None:
        self._rows, self._sum = self._rows + rows, (self._sum + digest) % 2**64

    @property
    def state(self) -> dict[str, Any]:
        """What was found so far."""
        return {"kept": self._kept, "found": self._found, "rows": self._rows, "sum": str(self._sum)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Go on from a state."""
        made = cls(state["kept"])
        made._found = np.array(state["found"], dtype=bool)
        made._add(int(state["rows"]), int(state["sum"]))
        return made

    def result(self) -> float:
        """Return the share of the fit's rows that were found; see :func:`share_seen`."""
        kept = self._kept
        if kept is None:
            return 0.0
        if self._rows == kept["n"] >= _FEWEST and str(self._sum) == kept["all"]:
            return 1.0
        return _share(self._found, self._rows, kept["unique"], kept["n"])


def shares_predicted(calibrators: Iterable[Calibrator], probs: FloatArray) -> dict[str, float]:
    """Return, by method, the shares of calibration rows whose calibrated probabilities are among these.

    Probabilities (N, K) are as ``predict_proba`` gave them; methods without such rows are left out. Of two
    calibrators of one method the larger share counts.
    """
    judged = [
        c for c in calibrators if c.n_classes_ == probs.shape[1] and c.name != "uncal" and KEY in c.info_
    ]
    hashes = hash_rows(_shown(probs)) if judged else np.empty(0, dtype=np.uint64)
    found = sorted((_share_of_outputs(hashes, c.info_[KEY]), c.name) for c in judged)
    return {name: share for share, name in found if share}


def _share_of_outputs(hashes: Hashes, kept: dict[str, Any]) -> float:
    found = np.isin(_unpacked(kept["outputs"]), hashes)
    return _share(found, len(hashes), kept["unique_outputs"], kept["n"])


def _share(found: NDArray[np.bool_], rows: int, unique: float, n: int) -> float:
    if len(found) < min(_FEWEST, n):
        return 0.0
    share = float(found.mean())
    # Where rows of the calibration set repeat each other, fresh rows repeat them too.
    by_chance = 3 * (1 - unique) * max(1.0, rows / n)
    return share if share > max(0.05, by_chance) else 0.0


def fitted_here() -> list[Any]:
    """Return the calibrators that were fitted in this process and are still alive."""
    with _lock:
        alive = list(_fitted)
    return [c for c in alive if "state_" in vars(c)]
