"""Input checks: scores, labels, weights and groups from any array library become plain numpy arrays.

The rules and the error messages are here and nowhere else, so every calibrator and metric refuses the same input
with the same sentence.
"""

from __future__ import annotations

from typing import Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from hcal.frames import AnyArray
from hcal.frames import Origin as Origin
from hcal.frames import is_on_accelerator as is_on_accelerator
from hcal.frames import restore as restore
from hcal.frames import to_numpy as to_numpy
from hcal.numerics import (
    FloatArray,
    IntArray,
    NumpyArray,
    is_ragged,
    log_softmax_options,
    pad_options,
    row_blocks,
    softmax,
)
from hcal.xp import Array, namespace

InputKind = Literal["logits", "probs", "log_probs"]
INPUT_KINDS: tuple[InputKind, ...] = ("logits", "probs", "log_probs")
#: The logarithm that stands for ln 0, in every float width: what is given in float32 must not come out otherwise.
_LOG_ZERO = float(np.log(np.finfo(np.float64).tiny))
#: The most rows that one weight may stand for.
MOST_ROWS_OF_WEIGHT = 1e12
#: The largest of all weights may not be smaller, because weights are squared.
LEAST_ROWS_OF_WEIGHT = 1e-100


#: Scores (N, K) in float32 or float64, and the form in which they were given.
Checked = tuple[FloatArray, Origin]


def _as_float(array: NumpyArray, what: str) -> FloatArray:
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{what} must hold real numbers, got dtype {array.dtype}")
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def _first(mask: NDArray[np.bool_]) -> str:
    where = np.argwhere(mask)[0]
    return ", ".join(f"{axis} {i}" for axis, i in zip(("row", "column"), where, strict=False))


def _refuse_shape(shape: tuple[int, ...], what: str, n_classes: int | None) -> NoReturn:
    """Raise a ValueError for a shape that is neither (N, K) nor (N,) of two classes, or has no rows."""
    if len(shape) not in (1, 2):
        raise ValueError(
            f"{what} must have shape (N, K), or (N,) for a binary score; got {len(shape)} "
            f"dimensions {shape}. Outputs (N, K, H, W) of segmentation: see "
            "hcal.integrations.dense."
        )
    if shape[0] == 0:
        raise ValueError(f"{what} is empty: shape {shape}")
    if len(shape) == 1:
        raise ValueError(
            f"{what} has one number a row, shape {shape}, and the calibrator was fitted on "
            f"{n_classes} classes: pass shape (N, {n_classes}), for a single row (1, {n_classes})"
        )
    if shape[1] < 2:
        raise ValueError(f"{what} needs at least 2 classes (columns), got shape {shape}")
    raise ValueError(f"{what} has {shape[1]} classes, but the calibrator was fitted on {n_classes}")


def _refuse_infinite(x: FloatArray, what: str, *, allow_minus_inf: bool = False) -> None:
    """Raise a ValueError that names the first value that is not finite; return if all are."""
    infinite = np.isposinf(x) if allow_minus_inf else np.isinf(x)
    for problem, bad in (("NaN", np.isnan(x)), ("an infinite value", infinite)):
        if bad.any():
            raise ValueError(f"{what} contains {problem}, first at {_first(bad)}")
    nothing = np.asarray(np.isneginf(x).all(axis=1))
    if nothing.any():
        raise ValueError(f"{what}: a row is -inf everywhere ({_first(nothing)})")


def _columns_of_binary(x: FloatArray, kind: InputKind) -> FloatArray:
    """Return scores (N, 2) of two classes from scores (N,) of class 1."""
    if kind == "probs":
        outside = (x < 0) | (x > 1)
        if outside.any():
            hint = 'if they are logits, say input="logits"'
            if x.min() >= 0 and x.max() <= 100:
                hint = "if they are per cent, divide by 100"
            row = int(outside.argmax())
            raise ValueError(
                f"one probability a row is P(class 1), from 0 to 1, and row {row} is {x[row]:.4g}: "
                f"{hint}"
            )
    with np.errstate(divide="ignore"):
        columns: FloatArray = two_columns(x[:, None], kind)
    return columns


def two_columns(positive: Array, kind: str) -> Array:
    """Return scores (N, 2) of two classes from scores (N, 1) of class 1, in numpy and torch alike.

    >>> two_columns(np.array([[0.3]]), "probs")
    array([[0.7, 0.3]])
    """
    xp = namespace(positive)
    if kind == "logits":
        return xp.concat([xp.zeros_like(positive), positive])
    if kind == "probs":
        return xp.concat([1 - positive, positive])
    return xp.concat([xp.log(-xp.expm1(xp.minimum(positive, 0.0))), positive])


def sum_to_one(probs: Array, sums: Array) -> Array:
    """Return probabilities (N, K) divided by the sums (N, 1) of their rows where these are not 1 up to rounding.

    >>> probs = np.array([[0.5, 0.5001]])
    >>> sum_to_one(probs, probs.sum(axis=1, keepdims=True)).sum()
    np.float64(1.0)
    """
    xp = namespace(probs)
    return xp.where(xp.abs(sums - 1.0) > xp.eps(probs), probs / sums, probs)


def whole_rows(scores: Array, kind: str, tolerance: float = 1e-4) -> Array:
    """Return scores (N, K) as a formula without other checks takes them.

    Rows of probabilities are divided by their sums. A row of probabilities, or of their logarithms, that
    ``predict_proba`` refuses becomes NaN.

    >>> with np.errstate(all="ignore"):
    ...     whole_rows(np.array([[0.5, 0.50001], [-1.0, 2.0]]), "probs").round(4)
    array([[0.5, 0.5],
           [nan, nan]])
    """
    if kind == "logits":
        return scores
    xp = namespace(scores)
    sums = xp.row_sum(scores if kind == "probs" else xp.exp(scores))
    sound = xp.abs(sums - 1.0) <= (tolerance if kind == "probs" else max(tolerance, 1e-3))
    whole = scores
    if kind == "probs":
        sound = sound & (xp.row_min(scores) >= 0.0)
        whole = sum_to_one(scores, sums)
    return whole + zero_or_nan(xp.astype(sound, scores))


def zero_or_nan(sound: Array) -> Array:
    """Return 0 where ``sound`` is 1, and NaN where it is 0, in every language that a formula is written in.

    The square root of −1 is NaN in all of them. A product with 0 is not: compilers of graphs make it 0.

    >>> with np.errstate(invalid="ignore"):
    ...     zero_or_nan(np.array([1.0, 0.0]))
    array([ 0., nan])
    """
    xp = namespace(sound)
    return xp.sqrt(sound - 1.0)


def check_probs(probs: AnyArray) -> Checked:
    """Check probabilities and renormalise their rows.

    Parameters
    ----------
    probs : array-like of shape (N, K), or (N,) for P(class 1) of a binary problem
        In a list of rows of different lengths, the short ones are filled up with zeros.

    Returns
    -------
    array of shape (N, K) in float32 or float64, Origin

    Examples
    --------
    >>> check_probs([[0.25, 0.75]])[0]
    array([[0.25, 0.75]])
    """
    return check_scores(pad_options(probs, 0.0) if is_ragged(probs) else probs, input="probs")


def _distributions(x: FloatArray, what: str) -> FloatArray:
    """Refuse rows that are no probability distributions; divide a row by its sum where that is not 1 up to rounding.

    Each row is treated on its own, so its result does not depend on the other rows.
    """
    with np.errstate(all="ignore"):
        sums = x.sum(axis=1, dtype=np.float64)
        lowest = float(x.min())
    tolerance = 1e-3 if x.dtype == np.float32 else 1e-4
    off = np.abs(sums - 1)
    if not (lowest >= 0 and off.max() <= tolerance):
        _refuse_infinite(x, what)
        if lowest < 0:
            raise ValueError(f"{what} has a negative value {lowest:.3g}, first at {_first(x < 0)}")
        if np.abs(sums - 100).max() <= 1:
            raise ValueError(f"{what} sum to 100 in every row, so they are per cent: divide by 100")
        row = int(np.argmax(off > tolerance))
        raise ValueError(
            f"{what} must sum to 1 in every row (within {tolerance:g}); "
            f"row {row} sums to {sums[row]:.6g}. "
            'If these are logits, say input="logits".'
        )
    if not (off > np.finfo(x.dtype).eps).any():
        return x
    divided: FloatArray = sum_to_one(x, sums.astype(x.dtype)[:, None])
    return divided


def check_kind(input: InputKind) -> None:
    """Raise a ValueError if ``input`` is not one of the three kinds of scores."""
    if input not in INPUT_KINDS:
        raise ValueError(f"input must be one of {', '.join(map(repr, INPUT_KINDS))}, got {input!r}")


def check_logits(
    logits: AnyArray, *, input: InputKind = "logits", n_classes: int | None = None
) -> Checked:
    """Check scores of any declared kind and return them as finite logits.

    Parameters
    ----------
    logits : array-like of shape (N, K), or (N,) for the score of class 1 of a binary problem
    input : {"logits", "probs", "log_probs"}
        What the array holds; hcal never guesses it. Probabilities are replaced by their logarithm; a probability of
        0 counts as the smallest positive normal number of float64, in float32 too, so the logarithm is finite.
    n_classes : int, optional
        The number of classes that the calibrator was fitted on.

    Returns
    -------
    array of shape (N, K) in float32 or float64, Origin

    Examples
    --------
    >>> check_logits([0.0, 2.0])[0]
    array([[0., 0.],
           [0., 2.]])
    """
    scores, origin = check_scores(logits, input=input, n_classes=n_classes)
    return to_logits(scores, input), origin


def check_scores(
    logits: AnyArray, *, input: InputKind = "logits", n_classes: int | None = None
) -> Checked:
    """Check scores as :func:`check_logits` does, and return them without conversion to logits.

    Examples
    --------
    >>> check_scores([[0.5, 0.5]], input="probs")[0]
    array([[0.5, 0.5]])
    """
    array, origin = to_numpy(logits, input)
    return check_array(array, input, n_classes=n_classes), origin


def check_array(array: NumpyArray, input: InputKind, *, n_classes: int | None = None) -> FloatArray:
    """Check scores as :func:`check_scores` does, in a numpy array.

    >>> check_array(np.array([0.5]), "probs")
    array([[0.5, 0.5]])
    """
    # A prediction of one row costs mostly calls: two of them are made only where they are needed.
    if input not in INPUT_KINDS:
        check_kind(input)
    scores = array if array.dtype in (np.float32, np.float64) else _as_float(array, input)
    # Row by row in memory: sums along rows would otherwise depend on how the array was laid out, and ties with them.
    x = np.ascontiguousarray(scores) if scores.ndim == 2 else scores
    if x.ndim == 1 and x.size and n_classes in (None, 2):
        x = _columns_of_binary(x, input)
    if x.ndim != 2 or len(x) == 0 or x.shape[1] < 2 or x.shape[1] != (n_classes or x.shape[1]):
        _refuse_shape(scores.shape, input, n_classes)
    if input == "probs":
        return _distributions(x, input)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.vdot(x, x)  # one fast pass; finite for nearly every valid input
    if not np.isfinite(total):
        _refuse_infinite(x, input, allow_minus_inf=input == "log_probs")
    # In a prediction, a few binary logits may all lie in [0, 1] by chance; in a calibration set they do not.
    if input == "logits" and (scores.ndim == 2 or n_classes is None):
        unit = _unit_of_probs(scores)
        if unit is not None:
            _refuse_probs(scores, unit, fitted=n_classes is not None)
    if input == "log_probs":
        _check_log_probs(x)
    return x


def to_logits(scores: Array, kind: str) -> Array:
    """Return scores (N, K) of the given kind as finite logits.

    A class of probability 0 gets a finite logit that no other class is below. Logits beyond ±1e98 (in float32 ±1e15)
    are cut to that size, so that differences and squares cannot overflow.

    >>> to_logits(np.array([[0.0, 1.0]]), "probs").round(1)
    array([[-708.4,    0. ]])
    """
    if kind == "logits" and isinstance(scores, np.ndarray):
        with np.errstate(over="ignore"):
            if np.vdot(scores, scores) < 1e30:  # one fast pass; nearly every input returns here
                return scores
    xp = namespace(scores)
    if kind == "logits":
        limit = 1e98 if scores.itemsize == 8 else 1e15
        return xp.clip(scores, -limit, limit)
    if kind == "probs":
        logarithms = xp.log(xp.maximum(scores, xp.tiny(scores)))
        return logarithms if scores.itemsize == 8 else xp.where(scores > 0, logarithms, _LOG_ZERO)
    lowest_finite = xp.row_min(xp.where(scores < -1e15, 0.0, scores))
    lowest = xp.minimum(lowest_finite, _LOG_ZERO)
    return xp.maximum(scores, lowest)


def _unit_of_probs(x: FloatArray) -> int | None:
    """Return what rows of "logits" sum to where they can only be probabilities (1) or per cent (100), else None.

    Genuine logits do not look so by chance: a matrix has at least two rows, no negative value, row sums that are all 1
    or all 100 (within 1e-6 of it; from ten rows on within 1e-3, for probabilities printed with few digits), and some
    value that is not a whole number: whole numbers may be votes. A vector has at least two values, all in [0, 1].
    """
    if len(x) < 2:
        return None
    if x.ndim == 1:
        return 1 if x.min() >= 0 and x.max() <= 1 else None
    tolerance = 1e-6 if len(x) < 10 else 1e-3
    with np.errstate(over="ignore", invalid="ignore"):
        first_sum = x[0].sum(dtype=np.float64)
    unit = 1 if first_sum < 50 else 100
    # For nearly every input the first row decides, and the others need not be read.
    if not abs(first_sum / unit - 1) <= tolerance or not x.min() >= 0:
        return None
    sums = x.sum(axis=1, dtype=np.float64) / unit
    if not np.abs(sums - 1).max() <= tolerance:
        return None
    shares = x / unit
    return unit if (shares != np.rint(shares)).any() else None


def _refuse_probs(x: FloatArray, unit: int, *, fitted: bool) -> NoReturn:
    """Refuse "logits" whose rows are probabilities or per cent."""
    if unit == 100:
        raise ValueError(
            'logits look like per cent (rows sum to 100): divide by 100 and say input="probs"'
        )
    advice = 'say input="probs"'
    if fitted:
        advice = (
            "pass their logarithms, because the fit, or what they are compared with, had logits"
        )
    rows = "rows sum to 1"
    insist = "add 1 to all of them, which does not change their softmax"
    if x.ndim == 1:
        rows = "one score a row"
        insist = "pass two columns, zeros and the score"
    raise ValueError(
        f"logits look like probabilities (all in [0, 1], {rows}): {advice}. "
        f"If they really are logits, {insist}."
    )


def _check_log_probs(x: FloatArray) -> None:
    blocks = row_blocks(x.shape, 1 << 16)  # small enough for the cache
    sums = np.concatenate([np.exp(x[rows]).sum(axis=1, dtype=np.float64) for rows in blocks])
    off = np.abs(sums - 1) > 1e-3
    if off.any():
        row = int(np.argmax(off))
        raise ValueError(
            "log_probs must be logarithms of rows that sum to 1; "
            f"exp of row {row} sums to {sums[row]:.6g}. "
            'If these are unnormalised scores, say input="logits".'
        )


def check_labels(y: AnyArray, n_rows: int, n_classes: int) -> IntArray:
    """Check labels (N,), one integer 0..K−1 a row, and return them as int64. A class may have no rows.

    Examples
    --------
    >>> check_labels([0, 2], 2, 3)
    array([0, 2])
    """
    labels, _ = to_numpy(y, "y")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and len(labels) == n_rows and np.isin(labels, (0, 1)).all():
        if (labels.sum(axis=1) == 1).all():
            raise ValueError("y is one-hot: pass one integer label a row, y.argmax(axis=1)")
        raise ValueError(
            "y has several labels a row (a matrix of 0 and 1): use hcal.MultilabelCalibrator"
        )
    if labels.ndim != 1:
        raise ValueError(f"y must have shape (N,), got {labels.shape}")
    if len(labels) != n_rows:
        raise ValueError(f"y has {len(labels)} labels for {n_rows} rows")
    if labels.dtype.kind not in "biuf":
        raise ValueError(
            f"y must hold integers 0..K-1, got {labels.dtype}; for names say classes=[…]"
        )
    integers = _integers(labels)
    outside = (integers < 0) | (integers >= n_classes)
    if outside.any():
        label = integers[outside][0]
        hint = ""
        if label in (-1, -100, 255):
            hint = f": if that marks rows without a label, leave them out (--ignore-index {label})"
        raise ValueError(f"y must lie in 0..{n_classes - 1}; {_first(outside)} is {label}{hint}")
    return integers


def _integers(labels: NumpyArray) -> IntArray:
    with np.errstate(invalid="ignore"):
        integers = labels.astype(np.int64)
    bad = integers != labels  # a fraction, an infinite number, or NaN
    if bad.any():
        hint = ", which is no class; hcal does no regression, for that see MAPIE or crepes"
        if np.isnan(labels).any():
            hint = " (no label): hcal.drop_unlabelled(scores, y) leaves such rows out"
        raise ValueError(f"y must hold integers 0..K-1; {_first(bad)} is {labels[bad][0]}{hint}")
    return integers


def check_weight(sample_weight: AnyArray, n_rows: int) -> NDArray[np.float64] | None:
    """Check that sample weights (N,) are finite, non-negative and not all zero; None stays None.

    A weight below 10⁻¹² of the largest one is rounding, and counts as 0.

    Examples
    --------
    >>> check_weight([1, 2], 2)
    array([1., 2.])
    """
    if sample_weight is None:
        return None
    array, _ = to_numpy(sample_weight, "sample_weight")
    weight = _as_float(array, "sample_weight").astype(np.float64)
    if weight.shape != (n_rows,):
        raise ValueError(f"sample_weight must have shape ({n_rows},), got {weight.shape}")
    bad = ~(np.isfinite(weight) & (weight >= 0))
    if bad.any():
        raise ValueError(
            f"sample_weight must be finite and non-negative; {_first(bad)} is {weight[bad][0]}"
        )
    if not weight.any():
        raise ValueError("sample_weight is zero everywhere")
    if weight.max() > MOST_ROWS_OF_WEIGHT:
        row = int(weight.argmax())
        raise ValueError(
            f"sample_weight counts rows, and row {row} is {weight[row]:.3g}: divide all by a "
            "constant"
        )
    if weight.max() < LEAST_ROWS_OF_WEIGHT:
        raise ValueError(
            f"sample_weight counts rows, and its largest value is {weight.max():.3g}: multiply all "
            "by a constant"
        )
    return np.where(weight < 1e-12 * weight.max(), 0.0, weight)


def check_groups(groups: AnyArray, n_rows: int) -> IntArray | None:
    """Check group names (N,), text or numbers, and return them as numbers 0..G−1; None stays None.

    Examples
    --------
    >>> check_groups(["a", "b", "a"], 3)
    array([0, 1, 0])
    """
    if groups is None:
        return None
    numbers, _ = numbered_groups(groups, n_rows)
    return numbers


def numbered_groups(groups: AnyArray, n_rows: int) -> tuple[IntArray, NumpyArray]:
    """Check group names (N,), and return the number 0..G−1 of each row's group, and the G names.

    >>> numbered_groups(["b", "a", "b"], 3)
    (array([1, 0, 1]), array(['a', 'b'], dtype='<U1'))
    """
    values = check_names(groups, n_rows, "groups")
    try:
        names, numbers = np.unique(values, return_inverse=True)
    except TypeError:  # texts beside numbers have no order
        names, numbers = np.unique(values.astype(np.str_), return_inverse=True)
    return numbers.astype(np.int64), names


def check_names(names: AnyArray, n_rows: int, what: str) -> NumpyArray:
    """Return one name a row (N,), text or numbers; a missing one is refused, because it is no name.

    >>> check_names(["a", float("nan")], 2, "by")
    Traceback (most recent call last):
    ...
    ValueError: by has no value in 1 of 2 rows, first at row 1: fill it, or leave these rows out
    """
    values, _ = to_numpy(names, what)
    if isinstance(names, list | tuple) and values.dtype.kind == "U":
        # numpy writes NaN beside texts as the text "nan"
        refuse_missing(np.array(names, dtype=object), what)
    if values.shape != (n_rows,):
        raise ValueError(f"{what} must have shape ({n_rows},), got {values.shape}")
    refuse_missing(values, what)
    return values


def refuse_missing(values: NumpyArray, what: str) -> None:
    """Raise a ValueError if there is a NaN, a None or an empty text among names (N,) or (N, C)."""
    if values.dtype.kind == "f":
        missing = np.isnan(values)
    elif values.dtype.kind in "mM":
        missing = np.isnat(values)
    elif values.dtype.kind in "OSUT":
        # A missing value of pandas is neither equal nor unequal to itself.
        absent = [value is None or _is_empty(value) for value in values.ravel().tolist()]
        missing = np.array(absent, dtype=bool).reshape(values.shape)
    else:
        return
    if missing.any():
        rows = np.atleast_1d(missing if missing.ndim == 1 else missing.any(axis=1))
        raise ValueError(
            f"{what} has no value in {int(rows.sum()):,} of {len(rows):,} rows, first at "
            f"{_first(rows)}: fill it, or leave these rows out"
        )


def _is_empty(value: object) -> bool:
    """Return whether a value is NaN, a missing value of pandas, or a text without letters."""
    if isinstance(value, str | bytes):
        return not value.strip()
    equal = value == value  # False for NaN and NaT; pandas' NA says neither
    return type(equal).__name__ == "NAType" or not equal


def check_confidence(confidence: float | np.number) -> float:
    """Return the confidence level of intervals and proofs as a number between 0 and 1.

    >>> check_confidence(95)
    Traceback (most recent call last):
    ...
    ValueError: confidence must lie between 0 and 1, such as 0.95, got 95
    """
    if not (isinstance(confidence, int | float | np.number) and 0 < confidence < 1):
        raise ValueError(f"confidence must lie between 0 and 1, such as 0.95, got {confidence!r}")
    return float(confidence)


def to_probs(scores: AnyArray, kind: InputKind) -> FloatArray:
    """Return the probabilities (N, K) of scores of the given kind.

    In a list of rows of different lengths, each row is a question and its entries are the question's options.
    Options that a question does not have get the probability 0.

    >>> to_probs([[0.0, 0.0], [0.0, 0.0, 0.0]], "logits").round(3)
    array([[0.5  , 0.5  , 0.   ],
           [0.333, 0.333, 0.333]])
    """
    if kind == "probs":
        probs, _ = check_probs(scores)
        return probs
    if is_ragged(scores):
        for row in scores:
            if len(row) > 1:  # a question with one option needs no check: its probability is 1
                check_scores(np.atleast_2d(row), input=kind)
        return np.exp(log_softmax_options(pad_options(scores, -np.inf)))
    checked, _ = check_scores(scores, input=kind)
    return probs_of(checked, kind)


def probs_of(checked: FloatArray, kind: InputKind) -> FloatArray:
    """Return the probabilities (N, K) that checked scores state; a log-probability of −inf becomes 0.

    >>> probs_of(np.array([[0.0, 0.0]]), "logits")
    array([[0.5, 0.5]])
    """
    if kind == "probs":
        return checked
    logs = to_logits(checked, kind) if kind == "logits" else checked
    return np.asarray(softmax(logs))
