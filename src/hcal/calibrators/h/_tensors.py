"""The default's stages on tensors: what :mod:`hcal.calibrators.h` computes by numpy, where the scores lie.

Each function here is the twin of the numpy one of its name, in float64, and tests compare the two. Arrays of
one number a row or a class come back to the host, where the solvers are; what has a row and a class stays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcal.calibrators.h.blend import FLOOR
from hcal.calibrators.h.keep import JUST_BELOW
from hcal.calibrators.h.refine import Refined, group_edges
from hcal.calibrators.h.refine_problem import KNOTS, WIDEST, second_derivatives
from hcal.calibrators.h.rows import FAR, TINY, Float64
from hcal.runtime.device_rows import DeviceRows
from hcal.numerics import IntArray
from hcal.solvers.temperature import Temperature, search_temperature

if TYPE_CHECKING:
    from hcal.calibrators.h.events import Rest
    from hcal.calibrators.h.model import Model


def host(*columns: Tensor) -> list[NDArray[Any]]:
    """Return tensors of one shape and type as arrays, by one wait for the device."""
    return list(torch.stack(columns).cpu().numpy())


def beside(there: Tensor, array: Any) -> Tensor:
    """Return an array of the host on the device of a tensor."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(there.device)


# -- rows ---------------------------------------------------------------------------------------------------


def argmax(x: Tensor) -> Tensor:
    """Return the first largest entry of every row (N,); torch's own may be any of several equal ones."""
    places = torch.arange(x.shape[1], device=x.device)
    return torch.where(x == x.amax(dim=1, keepdim=True), places, x.shape[1]).amin(dim=1)


def top_class(logits: Tensor, prefer: Float64 | None) -> Tensor:
    """Return the top class of every row, of tied ones the preferred."""
    if prefer is None:
        return argmax(logits)
    tied = logits == logits.amax(dim=1, keepdim=True)
    return argmax(torch.where(tied, beside(logits, prefer), -torch.inf))


def soft_mass(logits: DeviceRows, weight: Float64) -> Float64:
    """Return Σ_n w_n softmax(z_n) of every class (K,)."""
    mass: Float64 = (logits.put(weight) @ torch.softmax(logits.tensor.double(), dim=1)).cpu().numpy()
    return mass


def look(logits: Tensor, beta: float, top: Tensor) -> tuple[Tensor, Tensor]:
    """Return margins (N, K) and features (N, 6) at inverse temperature β."""
    x = logits.double()
    margin = ((x.gather(1, top[:, None]) - x) * beta).clamp_(max=FAR)
    return margin, features(margin, top)


def features(margin: Tensor, top: Tensor) -> Tensor:
    """Return the six features of every row (N, 6)."""
    e = torch.exp(-margin)
    log_z = torch.log(e.sum(dim=1))
    weighted = (e * margin).sum(dim=1)
    half = e.sqrt_()
    by_half = half.sum(dim=1)
    by_quarter = half.sqrt_().sum(dim=1)
    runner_up = margin.scatter(1, top[:, None], torch.inf).amin(dim=1)
    columns = [
        torch.log1p(runner_up),
        torch.log(TINY + log_z),
        torch.log(TINY + log_z + weighted * torch.exp(-log_z)),
        torch.log1p(margin.mean(dim=1)),
        torch.log(by_half) - 0.5 * log_z,
        torch.log(by_quarter) - 0.25 * log_z,
    ]
    return torch.stack(columns, dim=1)


# -- stage 1 ------------------------------------------------------------------------------------------------


def solve_temperature(rows: DeviceRows, y: IntArray, weight: Float64) -> tuple[Temperature, float]:
    """Return temperature scaling, and the weight of the rows whose label is not on top."""
    sums = TemperatureSums(rows, y, weight)
    total = float(weight.sum())
    looked, errors = sums.first_look()
    solved = search_temperature(looked, sums.derivatives, lambda beta: sums.confidence(beta) / total, total)
    return solved, errors


class TemperatureSums:
    """What the search for a temperature asks of the rows."""

    def __init__(self, rows: DeviceRows, y: IntArray, weight: Float64) -> None:
        x = rows.tensor.double()
        self.below = x - x.amax(dim=1, keepdim=True)
        self.own = self.below.gather(1, rows.put(y)[:, None])[:, 0]
        self.weight, self.total = rows.put(weight), float(weight.sum())

    def first_look(self) -> tuple[tuple[float, int, int], float]:
        """Return what :func:`search_temperature` looks at, and the weight of the labels not on top."""
        missed = (self.own < 0) & (self.weight > 0)
        facts = -self.below.mean(dim=1).sum(), missed.sum().double(), self.weight @ missed.double()
        distances, count, errors = torch.stack(facts).tolist()
        return (distances, len(self.own), int(count)), errors

    def derivatives(self, unit: float) -> Callable[[float], tuple[float, float]]:
        """Return β ↦ both derivatives of the mean NLL, the logits in a unit."""
        below, own = self.below / unit, self.own / unit

        def both(beta: float) -> tuple[float, float]:
            e = torch.exp(below * beta)
            mass = e.sum(dim=1)
            e *= below
            mean = e.sum(dim=1) / mass
            variance = e.mul_(below).sum(dim=1) / mass - mean**2
            sums = torch.stack([mean - own, variance.clamp_(min=0)]) @ self.weight
            slope, curvature = (sums / self.total).tolist()
            return slope, curvature

        return both

    def confidence(self, beta: float) -> float:
        """Return the summed probability of the top class."""
        return float(self.weight @ (1.0 / torch.exp(self.below * beta).sum(dim=1)))


class RefinedSums:
    """(slopes of g, weights of the features) ↦ the summed NLL and its gradients, as stage 1 asks for them.

    g is linear in its slopes: Σ_j slope_j·(how much of segment j lies below the margin). That table is made
    once, and both directions are products with it: no atomic additions, so sums do not depend on their order.
    """

    def __init__(self, rows: DeviceRows, y: IntArray, weight: Float64, beta: float) -> None:
        x = rows.tensor
        margin, self.feature = look(x, beta, argmax(x))
        label = margin.gather(1, rows.put(y)[:, None])
        seen, counts = grouped(margin)
        both = torch.cat([seen, label], dim=1)
        width = np.diff(KNOTS)
        width[-1] = np.inf  # the last slope goes on for ever
        low, wide = beside(x, KNOTS[:-1]), beside(x, width)
        self.shares = torch.minimum((both[:, :, None] - low).clamp_(min=0), wide).flatten(0, 1)
        self.shape = both.shape
        self.log_counts = beside(x, np.log(counts))
        self.weight = rows.put(weight)
        self.errors = float(self.weight @ (label[:, 0] > 0).double())
        self.x = self.feature

    def standardise(self, x: Float64) -> None:
        """Take the standardised features (N, F) of the rows."""
        self.x = beside(self.feature, x)

    def __call__(self, slope: Float64, c: Float64) -> tuple[float, Float64, Float64]:
        """Return the summed NLL, and its gradients in the slopes and the weights of the features."""
        theta = beside(self.x, np.concatenate([slope, c]))
        slopes, weights = theta[: len(slope)], theta[len(slope) :]
        g = (self.shares @ slopes).view(self.shape)
        scale = torch.exp((self.x @ weights).clamp_(-WIDEST, WIDEST))
        lo = self.log_counts - g[:, :-1] * scale[:, None]
        total = torch.logsumexp(lo, dim=1)
        value = self.weight @ (total + scale * g[:, -1])
        # d value / d(scale·g): minus the probability for the seen margins, one for the label's.
        pull = torch.cat([-torch.exp(lo - total[:, None]), torch.ones_like(total)[:, None]], dim=1)
        pull *= self.weight[:, None]
        by_feature = self.x.T @ ((pull * g).sum(dim=1) * scale)
        by_slope = self.shares.T @ (pull * scale[:, None]).flatten()
        found: Float64 = torch.cat([value[None], by_slope, by_feature]).cpu().numpy()
        return float(found[0]), found[1 : 1 + len(slope)], found[1 + len(slope) :]

    def curvature(self, slope: Float64, c: Float64) -> Float64:
        """Return the second derivatives of the weighted NLL in the log-slopes and the features' weights."""
        theta = beside(self.x, np.concatenate([slope, c]))
        scale = torch.exp((self.x @ theta[len(slope) :]).clamp_(-WIDEST, WIDEST))
        by_slope = self.shares.view(*self.shape, -1) * theta[: len(slope)] * scale[:, None, None]
        seen, label = by_slope[:, :-1], by_slope[:, -1]
        p = torch.softmax(self.log_counts - seen.sum(dim=2), dim=1) * self.weight[:, None]
        return second_derivatives(seen, label, p, self.x, self.weight)


def grouped(margin: Tensor) -> tuple[Tensor, Float64]:
    """Return margins with the farther classes in groups (N, G), and the sizes of the groups (G,)."""
    edges = group_edges(margin.shape[1])
    counts = np.diff(edges)
    if len(counts) == margin.shape[1]:
        return margin, counts.astype(np.float64)
    member = beside(margin, np.repeat(np.arange(len(counts)), counts))
    ordered = margin.sort(dim=1).values
    first = ordered[:, beside(margin, edges[:-1])]
    near = torch.exp(first[:, member] - ordered)
    mass = near @ torch.nn.functional.one_hot(member, len(counts)).double()
    return first - torch.log(mass / beside(margin, counts)), counts.astype(np.float64)


def refine(stage: Refined, margin: Tensor, feature: Tensor) -> tuple[Tensor, Tensor]:
    """Return refined margins (N, K) and standardised features (N, F)."""
    mean, deviation, low, high = beside(margin, np.array(stage.scaler()))
    x = torch.minimum(torch.maximum((feature - mean) / deviation, low), high)
    scale = torch.exp((x @ beside(margin, stage.weights)).clamp_(-WIDEST, WIDEST))
    values, knots = beside(margin, stage.values), beside(margin, KNOTS)
    segment = torch.bucketize(margin, knots[1:-1], right=True)
    slopes = beside(margin, np.diff(stage.values) / np.diff(KNOTS))
    g = values[segment] + slopes[segment] * (margin - knots[segment])
    return g * scale[:, None], x


# -- stage 2 ------------------------------------------------------------------------------------------------


def top_odds(margin: Tensor, top: Tensor) -> Tensor:
    """Return the log-odds of the top class under softmax(−margin) (N,)."""
    below = torch.exp(-margin).scatter_(1, top[:, None], 0.0).sum(dim=1)
    return -torch.log(below.clamp_(min=float(np.finfo(np.float64).tiny)))


def see(
    refined: Refined, logits: DeviceRows, y: IntArray, prefer: Float64 | None
) -> tuple[IntArray, Float64, Float64, Tensor]:
    """Return top classes (N,), features (N, F), log-odds (N,), and margins of the rows that the top lost."""
    top = top_class(logits.tensor, prefer)
    margin, x = refine(refined, *look(logits.tensor, float(refined.beta), top))
    odds = top_odds(margin, top)
    tops: IntArray = top.cpu().numpy()
    *columns, odds_here = host(*x.T, odds)
    return tops, np.stack(columns, axis=1), odds_here, margin[beside(margin, np.flatnonzero(tops != y))]


class RestSums:
    """θ ↦ the summed NLL of the classes below the top, and its gradient (the twin of ``rest_sums``)."""

    def __init__(self, margin: Tensor, top: IntArray, y: IntArray, weight: Float64, *, classes: bool) -> None:
        self.margin, self.classes = margin, classes
        self.top, self.y, self.weight = (beside(margin, v) for v in (top, y, weight))

    def __call__(self, theta: Float64) -> tuple[float, Float64]:
        """Return the sum and its gradient."""
        t = beside(self.margin, theta)
        kappa = torch.exp(t[0])
        scores = -kappa * self.margin
        if self.classes:
            scores += t[1:]
        scores.scatter_(1, self.top[:, None], -torch.inf)
        total = torch.logsumexp(scores, dim=1)
        value = self.weight @ (total - scores.gather(1, self.y[:, None])[:, 0])
        pull = torch.exp(scores - total[:, None]) * self.weight[:, None]
        pull.scatter_add_(1, self.y[:, None], -self.weight[:, None])  # one a row: no two add to one place
        by_kappa = -kappa * (pull * self.margin).sum()
        by_class = pull.sum(dim=0) if self.classes else torch.zeros_like(t[1:])
        found: Float64 = torch.cat([torch.stack([value, by_kappa]), by_class]).cpu().numpy()
        return float(found[0]), found[1:]


def event_scores(q_odds: Tensor, rest: Rest, refined: Tensor, top: Tensor) -> Tensor:
    """Return ln P of the events model (N, K), not below −FLOOR."""
    scores = beside(refined, rest.bias) - refined * float(rest.kappa)
    scores.scatter_(1, top[:, None], -torch.inf)
    share = torch.nn.functional.logsigmoid(-q_odds) - torch.logsumexp(scores, dim=1)
    scores += share[:, None]
    scores.scatter_(1, top[:, None], torch.nn.functional.logsigmoid(q_odds)[:, None])
    return scores.clamp_(min=-FLOOR)


# -- the pool -----------------------------------------------------------------------------------------------


class PoolSums:
    """Weights (J,) ↦ the summed NLL of the log-linear pool, and its gradient (the twin of ``pool_sums``)."""

    def __init__(self, log_p: Tensor, y: IntArray, weight: Float64) -> None:
        self.log_p, self.flat = log_p, log_p.flatten(1)
        self.y, self.weight = beside(log_p, y)[:, None], beside(log_p, weight)

    def __call__(self, a: Float64) -> tuple[float, Float64]:
        """Return the sum and its gradient."""
        s = (beside(self.flat, a) @ self.flat).view(self.log_p.shape[1:])
        total = torch.logsumexp(s, dim=1)
        value = self.weight @ (total - s.gather(1, self.y)[:, 0])
        pull = torch.exp(s - total[:, None]) * self.weight[:, None]
        pull.scatter_add_(1, self.y, -self.weight[:, None])
        found: Float64 = torch.cat([value[None], self.flat @ pull.flatten()]).cpu().numpy()
        return float(found[0]), found[1:]


def scores(model: Model, cap: float, prefer: Float64, logits: DeviceRows) -> Tensor:
    """Return the scores of every candidate (4, N, K)."""
    top = top_class(logits.tensor, prefer)
    margin, feature = look(logits.tensor, float(model.refined.beta), top)
    x = -margin.clamp(max=cap)
    refined, feature = refine(model.refined, margin, feature)
    *columns, odds = host(*feature.T, top_odds(refined, top))
    here, tops = np.stack(columns, axis=1), top.cpu().numpy()
    odds = model.final(model.curve(odds, here, tops), here[:, :0], tops)
    events = event_scores(beside(x, odds), model.rest, refined, top)
    return torch.stack([events, -refined.clamp(max=FLOOR), x, x / float(model.refined.beta)])


def average(share: Float64, found: Tensor, logits: DeviceRows) -> tuple[Tensor, IntArray, Tensor]:
    """Return the pooled scores (N, K), the likeliest class by them (N,), and the softmax of the logits."""
    pooled = torch.tensordot(beside(found, share), found, dims=1)
    likeliest: IntArray = argmax(pooled).cpu().numpy()
    return pooled, likeliest, torch.softmax(logits.tensor.double(), dim=1)


def split_top(scores: Tensor, top: IntArray) -> tuple[Float64, Tensor]:
    """Return the log-odds of the top class (N,) and the shares of the others (N, K), 0 at the top."""
    place = beside(scores, top)[:, None]
    others = scores.scatter(1, place, -torch.inf)
    odds = scores.gather(1, place)[:, 0] - torch.logsumexp(others, dim=1)
    return odds.cpu().numpy(), torch.softmax(others, dim=1)


def join(q: Float64, rest: Tensor, top: IntArray, lift: float | None) -> Tensor:
    """Return probabilities (N, K) from P(top) and the shares of the rest, the argmax kept."""
    held, place = beside(rest, q), beside(rest, top)[:, None]
    if lift is not None:
        held, rest = _keep(held, rest, place, lift)
    return (rest * (1.0 - held)[:, None]).scatter_(1, place, held[:, None])


def _keep(q: Tensor, rest: Tensor, place: Tensor, lift: float) -> tuple[Tensor, Tensor]:
    k = rest.shape[1]
    largest = rest.amax(dim=1)
    lost = q < JUST_BELOW * largest * (1.0 - q)
    middle = 0.5 * (q + largest * (1.0 - q))
    lifted = q + lift * (middle - q)
    even, lowest = 1.0 / (k - 1), 1.0 / k / JUST_BELOW
    held = torch.where(lost, lifted.clamp(min=lowest), q)
    room = JUST_BELOW * held / (1.0 - held)
    w = ((largest - room) / (largest - even).clamp_(min=1e-12)).clamp_(0.0, 1.0)
    w = torch.where(lost, torch.where(lifted < lowest, 1.0, w), 0.0)[:, None]
    return held, ((1.0 - w) * rest + w * even).scatter_(1, place, 0.0)


def row_facts(probs: Tensor, y: IntArray) -> tuple[Float64, Float64, IntArray, Float64]:
    """Return P(label), Σ p², the top class and its probability of every row (N,)."""
    top = argmax(probs)
    own = probs.gather(1, beside(probs, y)[:, None])[:, 0]
    found = host(own, probs.square().sum(dim=1), probs.gather(1, top[:, None])[:, 0])
    return found[0], found[1], top.cpu().numpy(), found[2]


def class_errors(probs: Tensor, y: IntArray, weight: Float64, window: int) -> tuple[Float64, Float64]:
    """Return the windowed h-error of every class (K,) and the noise of each (K,)."""
    n, k = probs.shape
    m = min(window, n)
    q, order = probs.T.contiguous().sort(dim=1, stable=True)
    w = beside(probs, weight)[order]
    occurred = beside(probs, y)[order] == torch.arange(k, device=probs.device)[:, None]
    run = partial(_run_sums, m=m)
    gap, noise, mass = run(w * (q - occurred.double())), run(w * w * q * (1.0 - q)), run(w)
    square = ((gap**2 - noise) / mass**2).mean(dim=1)
    chance = torch.sqrt(2.0 * m / n * ((noise / mass**2) ** 2).mean(dim=1))
    error, off = host(square, chance)
    return error, off


def _run_sums(values: Tensor, m: int) -> Tensor:
    total = torch.nn.functional.pad(torch.cumsum(values, dim=1), (1, 0))
    return total[:, m:] - total[:, :-m]
