"""Resampling: bootstrap replicates, labels drawn from the predictions, and intervals built from them.

There are four kinds of interval:

* means (NLL, Brier, accuracy): from the spread and the skewness of their rows, and Wilson's for shares. Percentiles
  of a bootstrap miss the truth in one of six samples of 30 rows, and have no width where all predictions are right;
* scores of yours: percentiles of the bootstrap distribution;
* U-statistics (skce, hce): the estimate ± z standard errors from the jackknife; D² and AUC: from the infinitesimal
  jackknife, that is, from what each row adds to first order;
* plug-in errors, and binned ones whose debiasing leaves a part: *bias-aware*. A plug-in error is positive by chance,
  most of all if the truth is 0, and a bootstrap adds to that bias instead of showing it. The bias lies between 0 and
  its value for calibrated predictions, which labels drawn from the predictions show. The interval therefore runs from
  the estimate minus that value minus z standard errors (not below 0) to the estimate plus z standard errors. Where
  rows of a group depend on each other, noise is larger by :func:`dependence`. For dkde_ce the standard error comes
  from the influence of its rows and the bias from a formula; its interval is for the smoothed error.

Where an interval could not keep its promise there is none, and :func:`missing_intervals` says why.

Many rows of two classes are resampled fast because rows that hardly differ become one row with a weight
(:func:`merged_samples`). A metric of 200,000 rows changes by less than a thousandth of its interval if rows with the
same label, and with nearly the same probability, share their mean probability. Each resample then costs what it costs
for a few thousand rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import logit, ndtri

from hcal.metrics.estimates import FEWEST_GROUPS, Estimate, weighted_mean, weighted_share
from hcal.metrics.registry import METRICS, Metric, get_metric
from hcal.metrics.sample import BLOCK, Sample, Vector
from hcal.numerics import Float64, IntArray
from hcal.progress import progress

#: Means of losses need as many wrong predictions as this, observed or expected: rare large losses are unseen in fewer.
FEWEST_ERRORS = 3
#: Standard errors and chance levels need fewer replicates than percentiles.
SPREAD_RESAMPLES, CHANCE_RESAMPLES = 100, 100
#: Samples of no more rows are resampled as they are.
MOST_ROWS: Final = 20_000
#: Rows that are merged hold at most this share of all rows, and their log-odds lie within a step of this width.
_SHARE: Final = 1 / 2000
_STEP: Final = 0.02
#: Merging has to leave at most this share of the rows, or it does not pay.
_LEFT: Final = 1 / 4


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float
    kind: str  # {"mean", "percentile", "jackknife", "bias-aware"}
    #: For a plug-in error: what calibrated predictions would show on these rows by chance.
    chance: float | None = None


def measure(s: Sample, names: Iterable[str]) -> tuple[dict[str, float], list[str]]:
    """Return every metric, and a note that names those computed on ``s.subset`` and their standard errors.

    >>> measure(Sample([[0.2, 0.8]] * 10, [1] * 8 + [0] * 2), ["accuracy", "skce"])[1]
    []
    """
    values = {}
    sampled = []
    for metric in map(get_metric, names):
        rows = s.subset if metric.large else s
        if rows is s or rows.weight is not None or metric.shares is None:
            values[metric.name] = metric.function(rows)
            sampled += [metric.name] if rows is not s else []
        else:
            shares = metric.shares(rows)
            values[metric.name] = float(shares.mean())
            error = float(shares.std(ddof=1) / np.sqrt(rows.n))
            sampled.append(f"{metric.name} (standard error {error:.2g})")
    if not sampled:
        return values, []
    size = f"{s.subset.n:,} of {s.n:,} rows"
    return values, [f"computed on a systematic sample of {size}: {', '.join(sampled)}"]


def bootstrap_weights(
    s: Sample, resamples: int, rng: np.random.Generator, groups: IntArray | None = None
) -> Float64:
    """Draw rows with replacement, or whole groups (N,), as counts times the sample's own weights, shape (B, N).

    A whole weight stands for that many copies of a row, and copies are drawn one by one.

    >>> s = Sample([[0.2, 0.8]] * 5, [1] * 5)
    >>> bootstrap_weights(s, 3, np.random.default_rng(0)).sum(axis=1)
    array([5., 5., 5.])
    >>> bootstrap_weights(s, 1, np.random.default_rng(0), np.array([0, 0, 0, 1, 1]))
    array([[0., 0., 0., 2., 2.]])
    """
    if groups is None and s.weight is not None and s.is_whole:
        return resampled_copies(s, resamples, rng)
    counts = np.empty((resamples, s.n))
    # Rows of weight 0 are never drawn: a sample of them alone has no mean.
    drawable = np.flatnonzero(s.w > 0)
    unit = np.arange(s.n) if groups is None else groups
    units = np.unique(unit[drawable])
    for row in counts:
        drawn = units[rng.integers(0, len(units), len(units))]
        row[:] = np.bincount(drawn, minlength=int(unit.max()) + 1)[unit]
    counts[:, s.w == 0] = 0.0
    return counts if s.weight is None else counts * s.weight


def replicates(
    s: Sample, names: Iterable[str], weights: Float64, *, first_order: bool = False
) -> dict[str, Vector]:
    """Return every metric under every row of weights (B, N), each of shape (B,).

    With ``first_order``, metrics over all pairs of rows are replaced by the weighted means of their ``shares``, which
    are computed once.
    """
    names, out = list(names), {}
    for metric in (METRICS[n] for n in names):
        rows = metric.rows or (metric.shares if first_order else None)
        if rows is not None:
            w = weights[:, s.subset_rows] if metric.large else weights
            values = rows(s.subset if metric.large else s)
            out[metric.name] = w @ values / w.sum(axis=1)
    rest = [n for n in names if n not in out]
    if rest:
        table = _table(rest, _reweighted(s, rest, weights))
        out.update(zip(rest, table.T, strict=True))
    return {name: out[name] for name in names}


def _table(names: Sequence[str], samples: Iterable[Sample]) -> Float64:
    """Return every metric of every sample, shape (samples, metrics)."""
    functions = [METRICS[name].function for name in names]
    return np.array([[function(s) for function in functions] for s in samples])


def _reweighted(s: Sample, names: list[str], weights: Float64) -> Iterator[Sample]:
    """Yield the sample under each row of weights; one matrix product computes the column sums of a block of them."""
    wide = any(METRICS[n].level == "class-wise" for n in names)
    step = max(1, BLOCK // max(s.n, s.k))
    for i in range(0, len(weights), step):
        block = weights[i : i + step]
        sums = s.data.column_sums(block) if wide else None
        for b, w in enumerate(block):
            other = s.replicate(w)
            if sums is not None:
                other.__dict__["column_sums"] = sums[b]
            yield other


def resample_blocks(count: int, n_rows: int) -> list[int]:
    """Return the sizes of blocks into which ``count`` draws of all rows are split to bound the memory.

    >>> resample_blocks(5, BLOCK * 2)
    [2, 2, 1]
    """
    step = max(1, 4 * BLOCK // n_rows)
    return [min(step, count - i) for i in range(0, count, step)]


def bootstrap(
    samples: Sequence[Sample],
    names: Iterable[str],
    resamples: int,
    rng: np.random.Generator,
    *,
    first_order: bool = False,
    groups: IntArray | None = None,
) -> list[dict[str, Vector]]:
    """Return the replicates of every metric for each sample; all samples use the same draws of rows or groups.

    Weights are drawn in blocks, so memory does not grow with N times the number of replicates. Of many rows of two
    classes, similar ones are merged first (:func:`merged_samples`).
    ``first_order`` as for :func:`replicates`.
    """
    names = list(names)
    small = merged_samples(samples) if groups is None else None
    samples = small or samples
    parts: list[list[dict[str, Vector]]] = [[] for _ in samples]
    with progress("bootstrap", resamples) as advance:
        for size in resample_blocks(resamples, samples[0].n):
            if small is None:
                weights = bootstrap_weights(samples[0], size, rng, groups)
            else:
                weights = resampled_copies(samples[0], size, rng)
            for part, s in zip(parts, samples, strict=True):
                part.append(replicates(s, names, weights, first_order=first_order))
            advance(size)
    return [_joined(names, part) for part in parts]


def _joined(names: Iterable[str], parts: Sequence[Mapping[str, Vector]]) -> dict[str, Vector]:
    """Return the replicates of every metric from those of several blocks."""
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def chance(
    s: Sample, names: Iterable[str], n_draws: int, rng: np.random.Generator
) -> dict[str, Vector]:
    """Return every metric on ``n_draws`` sets of labels drawn from the predictions, each of shape (D,)."""
    names = list(names)
    table = _table(names, _drawn(s, names, n_draws, rng))
    return dict(zip(names, table.T, strict=True))


def _drawn(s: Sample, names: list[str], n_draws: int, rng: np.random.Generator) -> Iterator[Sample]:
    """Yield the sample with labels drawn from the predictions."""
    small = merged_samples([s])
    if small is not None:
        yield from with_drawn_labels(small[0], n_draws, rng)
        return
    if any(METRICS[n].level == "class-wise" for n in names):
        _ = s.column_sums  # one pass over N x K for all draws
    for size in resample_blocks(n_draws, s.n):
        for labels in s.data.drawn(size, rng):
            yield s.relabelled(labels)


def percentile(values: Vector, confidence: float) -> tuple[float, float]:
    """Return the percentile interval of bootstrap values.

    >>> percentile(np.arange(101.0), 0.5)
    (25.0, 75.0)
    """
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.quantile(values, ends)
    return float(low), float(high)


def intervals(  # noqa: PLR0913
    s: Sample,
    values: Mapping[str, float],
    confidence: float,
    *,
    by_chance: Mapping[str, float] | None = None,
    resamples: int = 1000,
    random_state: int = 0,
    groups: IntArray | None = None,
) -> dict[str, Interval]:
    """Return the interval of every metric that has one; the top of this module explains the kinds.

    ``values`` are metric names with their estimates, and ``by_chance`` what plug-in errors show by chance; without it,
    drawn labels tell it.

    >>> s = Sample([[0.2, 0.8]] * 10, [1] * 8 + [0] * 2)
    >>> interval = intervals(s, {"accuracy": 0.8}, 0.9, resamples=100)["accuracy"]
    >>> interval.low < 0.8 <= interval.high
    True
    """
    rng = np.random.default_rng(random_state)
    z = float(ndtri((1 + confidence) / 2))
    metrics = [METRICS[name] for name in values]
    out: dict[str, Interval] = {}
    for metric in metrics:
        if metric.rows is not None and (interval := mean_interval(metric, s, confidence, groups)):
            out[metric.name] = interval

    resampled = [metric for metric in metrics if metric.ends is None and metric.rows is None]
    if groups is not None:
        enough = len(np.unique(groups)) >= FEWEST_GROUPS
        # What debiasing leaves is not known where rows depend on each other.
        resampled = [metric for metric in resampled if enough and metric.kind != "debiased"]
    plain = [metric.name for metric in resampled if metric.interval == "bootstrap"]
    plugin = {m.name: values[m.name] for m in resampled if m.interval == "bias-aware"}
    replicated = bootstrap([s], plain, resamples, rng, groups=groups)[0]
    for name, drawn in replicated.items():
        out[name] = Interval(*percentile(drawn, confidence), "percentile")
    if plugin:
        spread = bootstrap([s], plugin, min(resamples, SPREAD_RESAMPLES), rng, groups=groups)[0]
        null = chance(s, plugin, CHANCE_RESAMPLES, rng)
        noise = 1.0 if groups is None else dependence(s, groups)
        for name, value in plugin.items():
            level = noise * (by_chance or {}).get(name, float(null[name].mean()))
            margin = z * _spread(spread[name], noise * null[name])
            out[name] = _bias_aware(METRICS[name], value, level, margin)
    # The jackknife treats every row as one independent observation.
    if s.weight is None and groups is None and s.n > 2:
        out |= _jackknife(s, values, z)
    return {name: out[name] for name in values if name in out}


def missing_intervals(
    s: Sample, values: Mapping[str, float], ranges: Mapping[str, Interval], *, grouped: bool
) -> list[str]:
    """Return why metrics that have a value have no interval, in words.

    >>> s = Sample([[0.01, 0.99]] * 10, [1] * 10)
    >>> missing_intervals(s, {"nll": 0.01}, {}, grouped=False)
    ['no interval of nll: the rows, or their groups, tell too little about it']
    """
    names_by_reason: dict[str, list[str]] = {}
    for name, value in values.items():
        if name in ranges or np.isnan(value):
            continue
        metric = METRICS[name]
        reason = "the rows, or their groups, tell too little about it"
        if metric.ends is not None and (grouped or s.weight is not None):
            reason = "it needs independent rows of weight 1"
        names_by_reason.setdefault(reason, []).append(name)
    return [
        f"no interval of {', '.join(names)}: {reason}" for reason, names in names_by_reason.items()
    ]


# -- means ------------------------------------------------------------------------------------------


def mean_interval(
    metric: Metric,
    s: Sample,
    confidence: float,
    groups: IntArray | None = None,
    other: Sample | None = None,
) -> Interval | None:
    """Return the interval of a metric that is a mean over rows, or of its difference from another predictor's.

    None where rows tell too little: of fewer than 20 groups, or with too few wrong predictions.

    >>> s = Sample([[0.1, 0.9]] * 20, [1] * 20)
    >>> interval = mean_interval(METRICS["accuracy"], s, 0.95)
    >>> round(interval.low, 3), interval.high
    (0.82, 1.0)
    """
    if metric.rows is None:
        raise ValueError(f"{metric.name} is not a mean over rows")
    values = np.asarray(metric.rows(s), dtype=np.float64)
    if other is not None:
        values = values - metric.rows(other)
    whole = np.array_equal(values, np.rint(values)) and np.abs(values).max() <= 1
    if whole and other is None:
        estimate = weighted_share(values, s.w, groups, confidence)
    elif whole and other is not None and groups is None and s.weight is None:
        estimate = _change_of_share(values, confidence, same=_same_predictions(s, other))
    elif not whole and _few_errors(s) and (other is None or _few_errors(other)):
        return None
    else:
        estimate = weighted_mean(values, s.w, groups, confidence)
    if np.isnan(estimate.low):
        return None
    low = max(estimate.low, 0.0) if other is None and values.min() >= 0 else estimate.low
    return Interval(low, estimate.high, "mean")


def _few_errors(s: Sample) -> bool:
    """Return whether so few predictions are wrong, and expected to be, that rare large losses are unseen."""
    observed = float(s.w @ (1 - s.data.top_hit))
    expected = float(s.w @ (1 - s.data.top_conf))
    return max(observed, expected) < FEWEST_ERRORS


def _same_predictions(s: Sample, other: Sample) -> bool:
    return bool(np.array_equal(s.data.pred, other.data.pred))


def _change_of_share(differences: Vector, confidence: float, *, same: bool) -> Estimate:
    """Return a mean of −1, 0 and 1 with an interval that has a width where all are 0 (Bonett, Price, 2012).

    Predictions that are the ``same`` in all rows differ by nothing.
    """
    n = len(differences)
    change = float(differences.mean())
    if same:
        return Estimate(change, 0.0, 0.0)
    gained = (float((differences > 0).sum()) + 1) / (n + 2)
    lost = (float((differences < 0).sum()) + 1) / (n + 2)
    variance = (gained + lost - (gained - lost) ** 2) / (n + 2)
    margin = float(ndtri((1 + confidence) / 2)) * float(np.sqrt(variance))
    centre = gained - lost
    return Estimate(change, max(centre - margin, -1.0), min(centre + margin, 1.0))


# -- plug-in errors, and metrics with a standard error of their own ----------------------------------


def dependence(s: Sample, groups: IntArray) -> float:
    """Return how many times as large noise is where rows of a group (N,) depend on each other; at least 1.

    It is the root of the design effect of the residuals [y = k] − p of all classes.

    >>> s = Sample(np.full(40, 0.5), np.repeat([0, 1], 20))
    >>> round(dependence(s, np.arange(40) // 4), 3)
    2.108
    """
    unit = np.unique(groups, return_inverse=True)[1]
    count = int(unit.max()) + 1
    of_rows = 0.0
    of_groups = 0.0
    for k in range(s.k):
        residual = s.w * ((s.y == k) - s.data.column(k))
        sums = np.bincount(unit, residual)
        of_rows += float(residual @ residual)
        of_groups += float(sums @ sums) * count / max(count - 1, 1)
    return float(np.sqrt(max(of_groups / of_rows, 1.0))) if of_rows > 0 else 1.0


def _spread(replicated: Vector, null: Vector) -> float:
    """Return the standard error of a plug-in error.

    If the true error is near 0, the bootstrap spread of an absolute value is too small; that of drawn labels is not.
    """
    return max(float(replicated.std(ddof=1)), float(null.std(ddof=1)))


def _bias_aware(metric: Metric, estimate: float, level: float, margin: float) -> Interval:
    """Return the interval of an error that is positive by chance; a debiased one may be negative too."""
    low = estimate - max(level, 0.0) - margin
    if metric.kind == "debiased":
        return Interval(low, estimate + margin, "bias-aware")
    return Interval(max(low, 0.0), estimate + margin, "bias-aware", level)


def _jackknife(s: Sample, values: Mapping[str, float], z: float) -> dict[str, Interval]:
    """Return the intervals of the metrics that have a standard error of their own."""
    out = {}
    for name, value in values.items():
        metric = METRICS[name]
        if metric.ends is None:
            continue
        ends = metric.ends(s.subset if metric.large else s, value, z)
        if ends is not None:
            out[name] = Interval(*ends, metric.interval)
    return out


# -- similar rows as one row with a weight ----------------------------------------------------------


def merged_samples(samples: Sequence[Sample]) -> list[Sample] | None:
    """Return samples of the same rows with similar rows merged; None where all rows are needed.

    Row 2·c has label 0 and row 2·c + 1 label 1, and both have the mean probabilities of cell c. The weights say for how
    many rows they stand.

    >>> s = Sample(np.linspace(0.1, 0.9, 50_000), np.arange(50_000) % 2)
    >>> small = merged_samples([s])[0]
    >>> small.n < 5_000, float(small.total), abs(small.mean(small.data.conf) - 0.5) < 1e-12
    (True, 50000.0, True)
    """
    first = samples[0]
    weighted = any(s.weight is not None for s in samples)
    if first.n <= MOST_ROWS or first.k != 2 or weighted:
        return None
    cell = _cells(first)
    for sample in samples[1:]:
        pair = cell * (first.n + 1) + _cells(sample)
        cell = np.unique(pair, return_inverse=True)[1]
    n_cells = int(cell.max()) + 1
    if 2 * n_cells > _LEFT * first.n:
        return None
    copies = np.bincount(2 * cell + first.y, minlength=2 * n_cells)
    return [_merged(sample, cell, copies.astype(np.float64)) for sample in samples]


def _cells(sample: Sample) -> IntArray:
    """Return the cell of each row: rows of one cell have nearly the same rank and the same log-odds."""
    positive = sample.data.column(1)
    order = np.argsort(positive, kind="stable")
    ascending = positive[order]
    # Equal probabilities are never separated.
    begins = np.diff(ascending, prepend=-1.0) > 0
    run = np.cumsum(begins) - 1
    first_of_run = np.flatnonzero(begins)[run]
    rank = np.floor(first_of_run / (_SHARE * sample.n))
    with np.errstate(divide="ignore"):
        log_odds = np.clip(logit(ascending), -1e3, 1e3)
    step = np.floor(log_odds / _STEP)
    new_rank = np.diff(rank, prepend=rank[0]) > 0
    new_step = np.diff(step, prepend=step[0]) > 0
    new_cell = new_rank | new_step
    cells = np.empty(sample.n, dtype=np.int64)
    cells[order] = np.cumsum(new_cell)
    return cells


def _merged(sample: Sample, cell: IntArray, copies: Float64) -> Sample:
    size = copies.reshape(-1, 2).sum(axis=1)
    positive = np.bincount(cell, sample.data.column(1)) / size
    of_cells = np.stack([1 - positive, positive], axis=1)
    probs = np.repeat(of_cells, 2, axis=0)
    labels = np.tile([0, 1], len(size))
    data = sample.data
    return Sample(probs, labels, copies, event=data.event, positive=data.positive)


def resampled_copies(s: Sample, resamples: int, rng: np.random.Generator) -> Float64:
    """Draw, for merged rows, how often each of them is drawn when all rows are drawn with replacement; (B, N)."""
    copies = round(s.total)
    return rng.multinomial(copies, s.w / copies, size=resamples).astype(np.float64)


def with_drawn_labels(s: Sample, n_draws: int, rng: np.random.Generator) -> Iterator[Sample]:
    """Yield merged rows with labels drawn from the predictions: the weights change, and the labels stay."""
    size = s.w.reshape(-1, 2).sum(axis=1).astype(np.int64)
    positive = np.clip(s.data.column(1)[::2], 0.0, 1.0)
    for _ in range(n_draws):
        happened = rng.binomial(size, positive)
        copies: Vector = np.stack([size - happened, happened], axis=1).astype(np.float64)
        yield s.replicate(copies.ravel())
