"""Training a map on an objective: Adam, a plateau schedule, early stopping, the best epoch kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hcal.maps.base import CalibrationMap
from hcal.runtime.threads import one_openmp_thread
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
    full = s.batch_size is None or s.batch_size >= len(y)
    run: CapturedEpoch | _Epoch
    if full and can_capture(x, objective):
        run = CapturedEpoch(new, x, y, objective, s.learning_rate, scores)
    else:
        run = _Epoch(new, x, y, objective, s, seed, scores)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(run.optimiser, factor=0.5, patience=s.plateau)
    result = Trained()
    least, since = float("inf"), 0
    for _ in range(s.epochs):
        loss, watched, *measured = run()
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
    small = x.device.type == "cpu" and x.numel() < _PARALLEL_EVENTS
    with one_openmp_thread() if small else nullcontext():
        yield


class _Epoch:
    """One epoch of Adam, launch by launch; :class:`CapturedEpoch` is the same in one launch."""

    def __init__(
        self,
        new: CalibrationMap,
        x: Tensor,
        y: Tensor,
        objective: Objective,
        s: AdamSettings,
        seed: int,
        scores: Sequence[Monitor],
    ) -> None:
        self._new, self._x, self._y, self._objective, self._scores = new, x, y, objective, scores
        # on a GPU one launch updates all parameters; the CPU has few enough of them
        self.optimiser = torch.optim.Adam(new.parameters(), lr=s.learning_rate, fused=x.is_cuda or None)
        self._draw = torch.Generator().manual_seed(seed)
        self._size = min(s.batch_size or len(y), len(y))
        self._probs = new(x) if self._size == len(y) else None

    def __call__(self) -> list[float]:
        """Run the epoch; return its mean loss and the scores of the whole training set after it."""
        total = self._step(self._probs, self._y) if self._probs is not None else self._steps()
        self._probs = self._new(self._x)
        seen = self._probs.detach()
        values = (total, *(score(seen, self._y) for score in self._scores))
        if self._size < len(self._y):
            self._probs = None  # a batch makes its own
        return [float(v) for v in torch.stack([v.double() for v in values]).tolist()]

    def _steps(self) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self._x.device)
        for rows in _batches(len(self._y), self._size, self._draw):
            total = total + self._step(self._new(self._x[rows]), self._y[rows]) * (len(rows) / len(self._y))
        return total

    def _step(self, probs: Tensor, y: Tensor) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._objective(probs, y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.detach()


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
