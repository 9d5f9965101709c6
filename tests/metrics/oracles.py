"""Slow, literal implementations of the definitions, with loops where the library has sums. For tests only.

Written from the definitions, sharing no code with the library.
"""

from __future__ import annotations

import inspect
import itertools
import math

import numpy as np
from scipy.cluster.vq import kmeans
from scipy.integrate import trapezoid
from scipy.stats import foldnorm, norm

# scipy 1.15 renamed the seed.
SEED = "rng" if "rng" in inspect.signature(kmeans).parameters else "seed"


def top(p, y):
    pred = p.argmax(1)
    conf = [float(p[i, k]) for i, k in enumerate(pred)]
    hit = [float(k == y[i]) for i, k in enumerate(pred)]
    return conf, hit


def judged(p, y):
    """P(class 1) and [y = 1] of two classes, else the top label."""
    if p.shape[1] == 2:
        return p[:, 1].astype(float).tolist(), [float(label == 1) for label in y]
    return top(p, y)


def _by_bins(values, marks, inside):
    """List (count, mean value, mean mark) of the bins that hold something."""
    out = []
    for test in inside:
        members = [(v, m) for v, m in zip(values, marks, strict=True) if test(v)]
        if members:
            n = len(members)
            mean_value = sum(v for v, _ in members) / n
            mean_mark = sum(m for _, m in members) / n
            out.append((n, mean_value, mean_mark))
    return out


def _upper_closed(edges):
    """Bins (lo, hi], the first one [lo, hi]."""
    pairs = list(itertools.pairwise(edges))
    pairs[0] = (-math.inf, pairs[0][1])
    return [lambda v, lo=lo, hi=hi: lo < v <= hi for lo, hi in pairs]


def ece_ew(p, y, bins=15, order=1):
    conf, hit = judged(p, y)
    b = _by_bins(conf, hit, _upper_closed(np.linspace(0, 1, bins + 1)))
    terms = [n / len(conf) * abs(c - a) ** order for n, c, a in b]
    return sum(terms) ** (1 / order)


def ece_r2(p, y):
    return ece_ew(p, y, order=2)


def mce(p, y):
    conf, hit = judged(p, y)
    bins = _by_bins(conf, hit, _upper_closed(np.linspace(0, 1, 16)))
    return max(abs(c - a) for _, c, a in bins)


def ace(p, y):
    eps = np.finfo(np.float32).eps
    conf, hit = judged(np.clip(p, eps, 1 - eps), y)
    edges = np.linspace(0, 1, 16)
    inside = [lambda v, lo=lo, hi=hi: lo <= v < hi for lo, hi in itertools.pairwise(edges)]
    inside[-1] = lambda v: edges[-2] <= v <= edges[-1]
    b = _by_bins(conf, hit, inside)
    return sum(abs(c - a) for _, c, a in b) / len(b)


def ece_em(p, y):
    conf, hit = judged(p, y)
    n = len(conf)
    ranks = np.linspace(0, n, 16)
    edges = np.interp(ranks, np.arange(n), np.sort(conf))
    if p.shape[1] > 2 and n > 1 and conf.count(min(conf)) == 1:  # as published, it is in no bin
        lowest = conf.index(min(conf))
        del conf[lowest], hit[lowest]
    bins = _by_bins(conf, hit, _upper_closed(edges))
    return sum(m / n * abs(c - a) for m, c, a in bins)


def _sorted(p, y):
    conf, hit = judged(p, y)
    order = sorted(range(len(conf)), key=lambda i: conf[i])  # Python's sort is stable
    return [conf[i] for i in order], [hit[i] for i in order]


def _past_ties(conf, rank):
    """The first rank from this one on that does not cut a run of equal values."""
    while 0 < rank < len(conf) and conf[rank] == conf[rank - 1]:
        rank += 1
    return rank


def dece(p, y):
    conf, hit = _sorted(p, y)
    n = len(conf)
    ranks = [round(n * k / 15) for k in range(16)]  # Python rounds half to even
    cuts = [_past_ties(conf, rank) for rank in ranks]
    plug, corrections, sizes = 0.0, [], []
    for a, b in itertools.pairwise(cuts):
        if a == b:
            continue
        c = np.mean(conf[a:b])
        h = np.mean(hit[a:b])
        plug += (b - a) / n * abs(c - h)
        mu = h - c
        s = math.sqrt(h * (1 - h) / (b - a))
        corrections.append(foldnorm.mean(abs(mu) / s, scale=s) if s else abs(mu))
        sizes.append(b - a)
    weights = None if cuts == ranks else sizes
    return 2 * plug - float(np.average(corrections, weights=weights))


def _sweep(p, y, order):
    conf, hit = _sorted(p, y)
    n = len(conf)

    def groups(b):
        out = [[] for _ in range(b)]
        for i in range(n):
            first_of_run = conf.index(conf[i])
            out[first_of_run * b // n].append(i)
        return [group for group in out if group]

    best = 1
    for b in range(2, n):
        acc = [np.mean([hit[i] for i in g]) for g in groups(b)]
        if any(u > v for u, v in itertools.pairwise(acc)):
            break
        best = b
    total = 0.0
    for g in groups(best):
        mean_hit = np.mean([hit[i] for i in g])
        mean_conf = np.mean([conf[i] for i in g])
        total += len(g) / n * abs(mean_hit - mean_conf) ** order
    return total ** (1 / order)


def ece_s1(p, y):
    return _sweep(p, y, 1)


def ece_s2(p, y):
    return _sweep(p, y, 2)


def ks(p, y):
    conf, hit = _sorted(p, y)
    gap, worst = 0.0, 0.0
    rows_of_all = list(zip(conf, hit, strict=True))
    for value, rows in itertools.groupby(rows_of_all, key=lambda row: row[0]):
        gap += sum(value - h for _, h in rows)
        worst = max(worst, abs(gap))
    return worst / len(conf)


def kuiper(p, y):
    """The largest |sum of gaps| of the rows whose confidence lies in any interval."""
    conf, hit = judged(p, y)
    values = sorted(set(conf))
    sums = []
    for value in values:
        sums.append(sum(c - h for c, h in zip(conf, hit, strict=True) if c == value))
    worst = 0.0
    for i, j in itertools.combinations(range(len(sums) + 1), 2):
        worst = max(worst, abs(sum(sums[i:j])))
    return worst / len(conf)


def spiegelhalter(p, y):
    """(Brier of the top label − its expectation) / its standard deviation; there, 1 is 1 − eps."""
    conf, hit = judged(p, y)
    squared_gaps = sum((h - c) ** 2 for c, h in zip(conf, hit, strict=True))
    expected = sum(c * (1 - c) for c in conf)
    eps = float(np.finfo(np.float32).eps)
    within = [min(max(c, eps), 1 - eps) for c in conf]
    slopes = [1 - 2 * c for c in conf]
    variance = sum(s**2 * c * (1 - c) for s, c in zip(slopes, within, strict=True))
    return abs(squared_gaps - expected) / math.sqrt(variance)


def smece(p, y):
    """The fixed point, with the reflected kernel written out and the integral by the trapezoid rule."""
    conf, hit = (np.array(v) for v in judged(p, y))
    t = np.linspace(0, 1, 6001)

    def error(sigma):
        smooth = np.zeros_like(t)
        for c, h in zip(conf, hit, strict=True):
            mirrored = [m + 2 * shift for m in (c, -c) for shift in range(-4, 5)]
            near = [m for m in mirrored if abs(m - 0.5) < 0.5 + 9 * sigma]
            smooth += (h - c) * sum(norm.pdf(t, m, sigma) for m in near)
        return trapezoid(np.abs(smooth), t) / len(conf)

    low, high = 1e-4, 1.0
    for _ in range(22):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return (low + high) / 2


def mmce(p, y):
    conf, hit = judged(p, y)
    n = len(conf)
    total = 0.0
    for i in range(n):
        for j in range(n):
            kernel = math.exp(-2.5 * abs(conf[i] - conf[j]))
            total += (hit[i] - conf[i]) * (hit[j] - conf[j]) * kernel
    return math.sqrt(total) / n


def kde_ece(p, y):
    """Densities by direct summation over the binned data instead of a Fourier transform."""
    score, event = (np.array(v) for v in judged(p, y))
    grid = np.linspace(-0.6, 1.6, 2**14)
    step = grid[1] - grid[0]
    half = 3 * score[event == 1].std() * (2 * len(score)) ** -0.2

    def density(data):
        both = np.concatenate([data, np.where(data < 0.5, -data, 2 - data)])
        out = np.zeros_like(grid)
        for v in both:
            i = int((v - grid[0]) // step)
            part = (v - grid[i]) / step
            for j, weight in ((i, 1 - part), (i + 1, part)):
                u = (grid - grid[j]) / half
                kernel = 35 / (32 * half) * np.clip(1 - u * u, 0, None) ** 3
                out += weight / len(both) * kernel
        return np.where((grid > 0) & (grid < 1), 2 * out, 0)

    pp1 = density(score[event == 1])
    pp2 = density(score)
    keep = (grid >= 0) & (grid <= 1)
    x = grid[keep]
    pp1 = pp1[keep]
    pp2 = pp2[keep]
    value = np.zeros_like(x)
    last = 0.0
    for i in range(len(x)):
        if max(pp1[i], pp2[i]) > 1e-6:
            acc = min(event.mean() * pp1[i] / pp2[i], 1.0)
            last = abs(x[i] - acc) * pp2[i]
        value[i] = last
    return float(trapezoid(value, x) / trapezoid(pp2, x))


def _class_errors(p, y, bins, order):
    edges = np.linspace(0, 1, bins + 1)
    out = []
    for k in range(p.shape[1]):
        marks = [float(v == k) for v in y]
        b = _by_bins(p[:, k].tolist(), marks, _upper_closed(edges))
        terms = [n / len(p) * abs(c - a) ** order for n, c, a in b]
        out.append(sum(terms) ** (1 / order))
    return out


def cwece_a(p, y):
    return float(np.mean(_class_errors(p, y, 15, 1)))


def cwece_s(p, y):
    return float(np.sum(_class_errors(p, y, 14, 1)))


def cwece_r2(p, y):
    return float(np.mean(_class_errors(p, y, 15, 2)))


def _kept_error(values, marks, bin_of):
    cells: dict[int, list[tuple[float, float]]] = {}
    for v, m in zip(values, marks, strict=True):
        cells.setdefault(bin_of(v), []).append((v, m))
    n = len(values)
    total = 0.0
    for members in cells.values():
        gap = np.mean([v - m for v, m in members])
        total += len(members) / n * abs(gap)
    return total


def _above_uniform(p, y, k):
    """The probabilities of a class that are above 1/K, and whether it was the class."""
    values, marks = [], []
    for value, label in zip(p[:, k], y, strict=True):
        if value > 1 / p.shape[1]:
            values.append(value)
            marks.append(float(label == k))
    return values, marks


def tcwece(p, y):
    inner = np.linspace(1 / 15, 14 / 15, 14)
    total = 0.0
    for k in range(p.shape[1]):
        values, marks = _above_uniform(p, y, k)
        total += _kept_error(values, marks, lambda v: sum(v >= e for e in inner))
    return total / p.shape[1]


def tcwece_k(p, y, seed=0):
    """scipy's k-means: Lloyd from random data values, 20 restarts, threshold 1e-5."""
    total = 0.0
    for k in range(p.shape[1]):
        options = {"iter": 20, "thresh": 1e-5, SEED: seed}
        centres = np.sort(kmeans(p[:, k], 15, **options)[0])
        values, marks = _above_uniform(p, y, k)
        total += _kept_error(values, marks, lambda v, c=centres: int(np.abs(c - v).argmin()))
    return total / p.shape[1]


def _h(p, y, i, j):
    residuals = []
    for r in (i, j):
        e = np.zeros(p.shape[1])
        e[y[r]] = 1
        residuals.append(e - p[r])
    kernel = math.exp(-np.linalg.norm(p[i] - p[j]))
    return kernel * float(residuals[0] @ residuals[1])


def skce(p, y):
    n = len(p)
    return float(np.mean([_h(p, y, i, j) for i, j in itertools.combinations(range(n), 2)]))


def dkde_ce(p, y):
    p = np.maximum(p, 1e-25)
    n, k = p.shape
    total = 0.0
    for i in range(n):
        logs = []
        for j in range(n):
            constant = sum(math.lgamma(a + 1) for a in p[j])
            constant -= math.lgamma(sum(a + 1 for a in p[j]))
            density = float(p[j] @ np.log(p[i])) - constant
            logs.append(-math.inf if i == j else density)
        weights = np.exp(np.array(logs) - max(logs))
        of_class = [weights[np.asarray(y) == c].sum() for c in range(k)]
        share = np.array(of_class) / weights.sum()
        total += float(((share - p[i]) ** 2).sum())
    return total / n


def hce(p, y, window=200, events="class-wise"):
    n, k = p.shape
    if events == "pooled":
        families = [[(p[i, c], float(y[i] == c), i) for i, c in np.ndindex(n, k)]]
    elif events == "class-wise":
        families = [[(p[i, c], float(y[i] == c), i) for i in range(n)] for c in range(k)]
    else:
        conf, hit = top(p, y)
        families = [[(conf[i], hit[i], i) for i in range(n)]]
    values = []
    for family in families:
        family = sorted(family, key=lambda e: e[0])
        m = min(window, len(family))
        total, pairs = 0.0, 0
        for start in range(len(family) - m + 1):
            part = family[start : start + m]
            for a in range(m):
                for b in range(m):
                    if part[a][2] != part[b][2]:
                        gap_a = part[a][0] - part[a][1]
                        gap_b = part[b][0] - part[b][1]
                        total += gap_a * gap_b
                        pairs += 1
        values.append(total / pairs)
    u = float(np.mean(values))
    return math.copysign(math.sqrt(abs(u)), u)


def hce_pooled(p, y, window=200):
    return hce(p, y, window, events="pooled")


def nll(p, y):
    losses = [-math.log(p[i, t]) for i, t in enumerate(y)]
    return float(np.mean(losses))


def brier(p, y):
    losses = []
    for i, t in enumerate(y):
        losses.append(sum((p[i, c] - (c == t)) ** 2 for c in range(p.shape[1])))
    return float(np.mean(losses))


def accuracy(p, y):
    return float(np.mean(top(p, y)[1]))
