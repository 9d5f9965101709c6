"""Train a map on an objective by Adam, with a plateau schedule and early stopping; the best epoch is kept.

The scores of an epoch are the metrics of the same names in :mod:`hcal.metrics`, written in torch so that they run on
the device of the probabilities. Tests check that both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hcal.compiled import one_openmp_thread
from hcal.h_calibration.trainable_maps import TrainableMap, range_sums
from hcal.solvers.optimise import Best

#: A function of probabilities (N, K) and labels (N,) that returns a scalar tensor; as a score, lower is better.
TorchLoss = Callable[[Tensor, Tensor], Tensor]

_BINS = 15
_PARALLEL_EVENTS = 2_000_000


@dataclass(frozen=True)
class AdamSettings:
    """How to train; the defaults are the paper's.

    Parameters
    ----------
    learning_rate : float
    epochs : int
        The most epochs.
    batch_size : int, optional
        Rows of a batch; None means all rows.
    plateau : int
        Epochs without a better monitor until the learning rate is halved.
    patience : int
        Epochs without a better monitor until training stops.

    Examples
    --------
    >>> AdamSettings().learning_rate
    0.005
    """

    learning_rate: float = 0.005
    epochs: int = 2000
    batch_size: int | None = None
    plateau: int = 20
    patience: int = 160


@dataclass(frozen=True)
class BestEpoch:
    """The best epoch by one selector: its score, its number (from 1) and the parameters then."""

    score: float
    epoch: int
    parameters: dict[str, Tensor]


@dataclass
class Trained:
    """The result of a training."""

    best: dict[str, BestEpoch] = field(default_factory=dict)  # by the name of the selector
    epochs: int = 0  # how many were run
    stopped: bool = False  # whether training ended by itself, before the limit of epochs
    losses: list[float] = field(default_factory=list)  # one value an epoch


def train(
    module: TrainableMap,
    x: Tensor,
    y: Tensor,
    objective: TorchLoss,
    *,
    select: Mapping[str, TorchLoss],
    settings: AdamSettings | None = None,
    random_state: int = 0,
    tick: Callable[[], object] = lambda: None,
) -> Trained:
    """Train ``module`` in place and keep, for each selector, the epoch with the best score on the training set.

    With full batches an epoch costs ONE forward pass: the probabilities after a step are scored and then used for the
    next step. The untrained map is no candidate, as in the published code. The schedule and early stopping follow the
    equal-width top-label error.

    Parameters
    ----------
    module : TrainableMap
    x : tensor of shape (N, K)
    y : tensor of shape (N,)
    objective : callable
    select : mapping
        Scores by name; each chooses an epoch. The module is left with the parameters that the first one chose.
    settings : AdamSettings, optional
    random_state : int
        Seed of the order of mini-batches.
    tick : callable, optional
        Called once an epoch.

    Examples
    --------
    >>> from hcal.h_calibration.trainable_maps import PiecewiseLinear
    >>> x, y = torch.log_softmax(torch.tensor([[0.0, 4.0]] * 4), 1), torch.tensor([1, 1, 1, 0])
    >>> module, settings = PiecewiseLinear(1), AdamSettings(learning_rate=0.1, epochs=100)
    >>> done = train(module, x, y, torch_nll, select={"nll": torch_nll}, settings=settings)
    >>> round(module(x)[0, 1].item(), 2)
    0.75
    """
    s = settings or AdamSettings()
    scores = [epoch_ece_ew, *select.values()]
    # On a GPU, one kernel launch updates all parameters.
    optimiser = torch.optim.Adam(module.parameters(), lr=s.learning_rate, fused=x.is_cuda or None)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, factor=0.5, patience=s.plateau)
    draw = torch.Generator().manual_seed(random_state)
    small = x.device.type == "cpu" and x.numel() < _PARALLEL_EVENTS
    result, stop = Trained(), Best(s.patience)

    def step(probs: Tensor, labels: Tensor) -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        loss = objective(probs, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss.detach() * (len(labels) / len(y))

    def forward(rows: Tensor) -> Tensor:
        probs: Tensor = module(rows, module.cell_order(rows) if rows.is_cuda else None)
        return probs

    with (
        one_openmp_thread() if small else nullcontext()
    ):  # more threads would slow short operations down
        order = module.cell_order(x) if x.is_cuda else None
        probs = module(x, order)
        for _ in range(s.epochs):
            if s.batch_size is None or s.batch_size >= len(y):
                total = step(probs, y)
            else:
                batches = torch.split(torch.randperm(len(y), generator=draw), s.batch_size)
                total = torch.stack([step(forward(x[rows]), y[rows]) for rows in batches]).sum()
            probs = module(x, order)
            values = torch.stack(
                [v.double() for v in (total, *(f(probs.detach(), y) for f in scores))]
            )
            loss, watched, *measured = (float(v) for v in values.tolist())
            result.epochs += 1
            result.losses.append(loss)
            for name, score in zip(select, measured, strict=True):
                if name not in result.best or score < result.best[name].score:
                    state = {k: v.detach().clone() for k, v in module.state_dict().items()}
                    result.best[name] = BestEpoch(score, result.epochs, state)
            schedule.step(watched)
            tick()
            result.stopped = stop.over(watched, result.epochs)
            if result.stopped:
                break
    if result.best:
        module.load_state_dict(next(iter(result.best.values())).parameters)
    return result


def epoch_ece_ew(probs: Tensor, y: Tensor) -> Tensor:
    """Return the equal-width top-label error.

    >>> epoch_ece_ew(torch.tensor([[0.25, 0.75]]), torch.tensor([1])).item()
    0.25
    """
    conf, label = probs.max(dim=1)
    gap = conf.double() - (label == y).double()
    sums = torch.zeros(_BINS, dtype=torch.float64, device=probs.device)
    return sums.index_add_(0, _bin_of(conf), gap).abs().sum() / len(y)


def epoch_dece(probs: Tensor, y: Tensor) -> Tensor:
    """Return the debiased equal-mass top-label error (signed).

    >>> epoch_dece(torch.tensor([[0.0, 1.0]] * 30), torch.tensor([1] * 30)).item()
    0.0
    """
    n = len(y)
    conf, label = probs.max(dim=1)
    conf, order = conf.double().sort(stable=True)
    hit = (label == y)[order].double()
    cuts = (
        (torch.arange(_BINS + 1, device=probs.device, dtype=torch.float64) * n / _BINS)
        .round()
        .long()
    )
    size = cuts.diff().double()
    full = size > 0
    size = size.clamp_min(1)
    acc, mean = (range_sums(v, cuts) / size for v in (hit, conf))
    mu, sigma = acc - mean, (acc * (1 - acc) / size).clamp_min(0).sqrt()
    plug_in = (size * full * mu.abs()).sum() / n
    z = mu / sigma.clamp_min(1e-300)
    density = torch.exp(-0.5 * z**2) * (2 / torch.pi) ** 0.5
    folded = sigma * density + mu * torch.erf(z / 2**0.5)
    expected = torch.where(sigma > 0, folded, mu.abs())
    return 2 * plug_in - (expected * full).sum() / full.sum()


def epoch_cwece_a(probs: Tensor, y: Tensor) -> Tensor:
    """Return the equal-width class-wise error, averaged over classes.

    Only entries above 1/15 (at most 14 a row) are put into bins; the first bin is the rest of the column.

    >>> epoch_cwece_a(torch.tensor([[0.0, 1.0]]), torch.tensor([1])).item()
    0.0
    """
    n, k = probs.shape
    row, column = torch.nonzero(probs > 1 / _BINS, as_tuple=True)
    value = probs[row, column]
    gap = value.double() - (y[row] == column).double()
    cells = torch.zeros(k * _BINS, dtype=torch.float64, device=probs.device)
    cells = cells.index_add_(0, column * _BINS + _bin_of(value), gap).reshape(k, _BINS)
    own = probs.gather(1, y[:, None])[:, 0]
    marks = torch.zeros(k, dtype=torch.float64, device=probs.device).index_add_(
        0, y, (own > 0).double()
    )
    cells[:, 0] += probs.sum(dim=0, dtype=torch.float64) - marks - cells.sum(dim=1)
    return cells.abs().sum() / (n * k)


def torch_nll(probs: Tensor, y: Tensor) -> Tensor:
    """Return the mean negative log-likelihood, differentiable; probabilities are at least the smallest normal number.

    >>> torch_nll(torch.tensor([[0.5, 0.5]], dtype=torch.float64), torch.tensor([0])).item()
    0.6931471805599453
    """
    own = probs.gather(1, y[:, None])
    return -own.clamp_min(torch.finfo(probs.dtype).tiny).double().log().mean()


#: The paper's selectors, by name.
SELECTORS: dict[str, TorchLoss] = {
    "top_label": epoch_dece,
    "class_wise": epoch_cwece_a,
    "score": torch_nll,
}


def _bin_of(values: Tensor) -> Tensor:
    """Return the equal-width bin of each value; values slightly above 1, from rounding, belong to the last bin."""
    edges = torch.linspace(0, 1, _BINS + 1, dtype=torch.float64, device=values.device)
    return (torch.bucketize(values.double(), edges) - 1).clamp(0, _BINS - 1)
