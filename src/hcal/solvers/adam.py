"""Training a map on an objective: Adam, a plateau schedule, early stopping, the best epoch kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hcal.maps.base import CalibrationMap
from hcal.solvers.captured import CapturedEpoch, can_capture
from hcal.solvers.monitors import Monitor

#: (probabilities (N, K), labels (N,)) to a differentiable scalar.
Objective = Callable[[Tensor, Tensor], Tensor]

_PARALLEL_EVENTS = 2_000_000


@dataclass(frozen=True)
class AdamSettings:
    """How to train; the defaults are the paper's.

    Parameters
    ----------
    learning_rate : float
    epochs : int
        At most so many.
    batch_size : int, optional
        None is the full batch.
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
class Best:
    """The best epoch by one selector: its score, its number (from 1) and the parameters then."""

    score: float
    epoch: int
    parameters: dict[str, Tensor]


@dataclass
class Trained:
    """What training found.

    Attributes
    ----------
    best : dict
        :class:`Best` by the name of its selector.
    epochs : int
        How many were run.
    stopped : bool
        Whether training ended by itself, before the limit of epochs.
    losses, monitored : list of float
        One value an epoch.
    """

    best: dict[str, Best] = field(default_factory=dict)
    epochs: int = 0
    stopped: bool = False
    losses: list[float] = field(default_factory=list)
    monitored: list[float] = field(default_factory=list)


def train(
    new: CalibrationMap,
    x: Tensor,
    y: Tensor,
    objective: Objective,
    *,
    monitor: Monitor,
    select: Mapping[str, Monitor],
    settings: AdamSettings | None = None,
    seed: int = 0,
    tick: Callable[[], None] | None = None,
) -> Trained:
    """Train ``new`` in place and remember the best epoch on the training set by each selector.

    With full batches an epoch costs ONE forward pass: the probabilities after a step are scored and then
    serve the next step. The untrained map is no candidate, as in the published code.

    Parameters
    ----------
    new : CalibrationMap
    x, y : tensors of shape (N, K) and (N,)
    objective : callable
    monitor : Monitor
        Drives the schedule and the early stop.
    select : mapping of str to Monitor
        Each chooses an epoch; the parameters of ``new`` are left at the first one's.
    settings : AdamSettings, optional
    seed : int
        Order of mini-batches.
    tick : callable, optional
        Called once an epoch.

    Returns
    -------
    Trained

    Examples
    --------
    >>> from hcal.maps import Temperature
    >>> from hcal.solvers.monitors import nll
    >>> x = torch.log_softmax(torch.tensor([[0.0, 4.0]] * 4), 1)
    >>> new = Temperature()
    >>> done = train(new, x, torch.tensor([1, 1, 1, 0]), nll_objective, monitor=nll, select={"nll": nll},
    ...              settings=AdamSettings(learning_rate=0.1, epochs=100))
    >>> round(new(x)[0, 1].item(), 2)
    0.75
    """
    with threads_for(x):
        return _train(new, x, y, objective, monitor, select, settings or AdamSettings(), seed, tick)


def _train(
    new: CalibrationMap,
    x: Tensor,
    y: Tensor,
    objective: Objective,
    monitor: Monitor,
    select: Mapping[str, Monitor],
    s: AdamSettings,
    seed: int,
    tick: Callable[[], None] | None,
) -> Trained:
    scores = [monitor, *select.values()]
    captured = can_capture(x, objective) and (s.batch_size is None or s.batch_size >= len(y))
    epochs = (_captured if captured else _eager)(new, x, y, objective, s, seed, scores)
    result = Trained()
    least, since = float("inf"), 0
    schedule: torch.optim.lr_scheduler.ReduceLROnPlateau | None = None
    for optimiser, (loss, watched, *measured) in epochs:
        schedule = schedule or torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimiser, factor=0.5, patience=s.plateau
        )
        result.epochs += 1
        result.losses.append(loss)
        result.monitored.append(watched)
        for name, score in zip(select, measured, strict=True):
            if name not in result.best or score < result.best[name].score:
                result.best[name] = Best(score, result.epochs, _snapshot(new))
        least, since = (watched, 0) if watched < least else (least, since + 1)
        schedule.step(watched)
        if tick is not None:
            tick()
        if since >= s.patience:
            result.stopped = True
            break
    if select and result.best:
        new.load_state_dict(result.best[next(iter(select))].parameters)
    return result


@contextmanager
def threads_for(x: Tensor) -> Iterator[None]:
    """Keep torch to one thread while a small problem is trained.

    Its operations there are short, and a team of threads that wait for one another loses more than it
    gains, above all on a busy machine.
    """
    before = torch.get_num_threads()
    if x.device.type == "cpu" and x.numel() < _PARALLEL_EVENTS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


#: After each epoch: the optimiser, and the mean loss with the scores of the whole training set.
_Epochs = Iterator[tuple[torch.optim.Optimizer, list[float]]]


def _captured(
    new: CalibrationMap,
    x: Tensor,
    y: Tensor,
    objective: Objective,
    s: AdamSettings,
    seed: int,
    scores: Sequence[Monitor],
) -> _Epochs:
    epoch = CapturedEpoch(new, x, y, objective, s.learning_rate, scores)
    for _ in range(s.epochs):
        yield epoch.optimiser, epoch()


def _eager(
    new: CalibrationMap,
    x: Tensor,
    y: Tensor,
    objective: Objective,
    s: AdamSettings,
    seed: int,
    scores: Sequence[Monitor],
) -> _Epochs:
    # on a GPU one launch updates all parameters; the CPU has few enough of them
    optimiser = torch.optim.Adam(new.parameters(), lr=s.learning_rate, fused=x.is_cuda or None)
    draw = torch.Generator().manual_seed(seed)
    full = s.batch_size is None or s.batch_size >= len(y)
    probs = new(x) if full else None
    for _ in range(s.epochs):
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for rows in [None] if full else _batches(len(y), s.batch_size or len(y), draw):
            optimiser.zero_grad(set_to_none=True)
            if rows is None:
                loss = objective(probs if probs is not None else new(x), y)
            else:
                loss = objective(new(x[rows]), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total = total + loss.detach() * (1.0 if rows is None else len(rows) / len(y))
        probs = new(x)
        seen = probs.detach()
        yield optimiser, torch.stack([v.double() for v in (total, *(m(seen, y) for m in scores))]).tolist()


def _batches(n: int, size: int, draw: torch.Generator) -> Iterator[Tensor]:
    order = torch.randperm(n, generator=draw)
    for start in range(0, n, size):
        yield order[start : start + size]


def _snapshot(new: CalibrationMap) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in new.state_dict().items()}


def nll_objective(probs: Tensor, y: Tensor) -> Tensor:
    """Return the mean NLL, differentiable.

    Examples
    --------
    >>> nll_objective(torch.tensor([[0.5, 0.5]]), torch.tensor([1])).item()
    0.6931471824645996
    """
    own = probs.gather(1, y[:, None])
    return -own.clamp_min(torch.finfo(probs.dtype).tiny).log().mean()
