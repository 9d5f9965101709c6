"""Training a map on an objective: Adam, a plateau schedule, early stopping, the best epoch kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from hcal.maps.torch_engine import as_module, flat_parameters
from hcal.objective.torch_loss import NumpyLoss, TorchLoss, as_loss, numpy_value
from hcal.runtime.buffers import reused_buffers
from hcal.runtime.threads import one_openmp_thread
from hcal.solvers.captured import CapturedEpoch, can_capture
from hcal.solvers.fit_map import Problem
from hcal.solvers.lbfgs import Solution
from hcal.solvers.monitors import EpochScore

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

    def full_batch(self, n_rows: int) -> bool:
        """Return whether a step sees all rows."""
        return self.batch_size is None or self.batch_size >= n_rows


@dataclass(frozen=True)
class Best:
    """The best epoch by one selector: its score, its number (from 1) and the parameters then."""

    score: float
    epoch: int
    parameters: dict[str, Tensor]


@dataclass
class Trained:
    """What training found."""

    best: dict[str, Best] = field(default_factory=dict)  # :class:`Best` by the name of its selector
    epochs: int = 0  # how many were run
    stopped: bool = False  # whether training ended by itself, before the limit of epochs
    losses: list[float] = field(default_factory=list)  # one value an epoch
    monitored: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Adam:
    """Adam as a solver of any map and objective: full or mini-batches, on any device.

    Parameters
    ----------
    settings : AdamSettings
    monitor : EpochScore, optional
        Drives the schedule, the early stop and the choice of the epoch; by default the objective itself.
    random_state : int
        Order of mini-batches.
    device : str
        Of torch.
    dtype : {"float64", "float32"}
        Of scores and probabilities; float32 has the compiled, the fused and the recorded engines.

    Examples
    --------
    >>> import numpy as np
    >>> from hcal.maps import scaling
    >>> from hcal.objective import proper
    >>> from hcal.solvers.fit_map import fit_map
    >>> x, y = np.array([[0.0, 2.0]] * 4), np.array([1, 1, 1, 0])
    >>> adam = Adam(AdamSettings(learning_rate=0.05, epochs=300))
    >>> solved = fit_map(scaling.temperature(), proper.log_loss(), adam, x, y)
    >>> round(2 * float(np.exp(solved.theta[0])), 3)  # log 3
    1.099
    """

    settings: AdamSettings = field(default_factory=AdamSettings)
    monitor: EpochScore | None = None
    random_state: int = 0
    device: str = "cpu"
    dtype: Literal["float64", "float32"] = "float64"

    def __call__(self, problem: Problem) -> Solution:
        """Solve it; the record of the training is the ``record`` of the solution."""
        where = torch.device(self.device)
        x = torch.as_tensor(problem.x, dtype=getattr(torch, self.dtype), device=where)
        y = torch.as_tensor(problem.y, dtype=torch.int64, device=where)
        weight = None if problem.weight is None else torch.as_tensor(problem.weight, device=where)
        module = as_module(problem.map, problem.start).to(where)
        objective = _loss_of(problem, module)
        monitor = self.monitor or _monitor_of(objective, weight)
        trained = train(
            module,
            x,
            y,
            objective,
            monitor=monitor,
            select={"monitor": monitor},
            settings=self.settings,
            weight=weight,
            random_state=self.random_state,
        )
        message = "" if trained.stopped else f"Adam was still improving after {trained.epochs} epochs"
        value = trained.best["monitor"].score
        theta = flat_parameters(module)
        return Solution(theta, value, trained.stopped, message, trained.epochs, trained)


def _loss_of(problem: Problem, module: torch.nn.Module) -> TorchLoss:
    """Return the torch loss of a problem: native where nothing is weighted or penalised."""
    loss = as_loss(problem.objective) if problem.weight is None else NumpyLoss(problem.objective)
    penalty = problem.penalty
    if penalty is None:
        return loss

    def penalised(probs: Tensor, y: Tensor, *weight: Tensor) -> Tensor:
        theta = parameters_to_vector(module.parameters())
        return loss(probs, y, *weight) + numpy_value(theta, penalty.value_and_grad)

    return penalised


def _monitor_of(objective: TorchLoss, weight: Tensor | None) -> EpochScore:
    """Return the objective of the whole training set, without a gradient."""

    def monitor(probs: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            return _value(objective, probs, y, weight)

    return monitor


def _value(objective: TorchLoss, probs: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
    return objective(probs, y) if weight is None else objective(probs, y, weight)


def train(
    module: torch.nn.Module,
    x: Tensor,
    y: Tensor,
    objective: TorchLoss,
    *,
    monitor: EpochScore,
    select: Mapping[str, EpochScore],
    settings: AdamSettings | None = None,
    weight: Tensor | None = None,
    random_state: int = 0,
    tick: Callable[[], None] | None = None,
) -> Trained:
    """Train ``module`` in place and remember the best epoch on the training set by each selector.

    With full batches an epoch costs ONE forward pass: the probabilities after a step are scored and then
    serve the next step. The untrained map is no candidate, as in the published code.

    ``module`` goes from scores (N, K) to probabilities; ``objective`` takes probabilities, labels and, where
    there is a ``weight`` (N,), weights. ``monitor`` drives the schedule and the early stop; each of
    ``select`` chooses an epoch, and the parameters are left at the first one's. ``tick`` is called once an
    epoch.

    >>> from hcal.maps import TemperatureMap
    >>> from hcal.objective.torch_loss import torch_nll
    >>> x, y = torch.log_softmax(torch.tensor([[0.0, 4.0]] * 4), 1), torch.tensor([1, 1, 1, 0])
    >>> module, settings = TemperatureMap(), AdamSettings(learning_rate=0.1, epochs=100)
    >>> done = train(module, x, y, torch_nll, monitor=torch_nll, select={"nll": torch_nll}, settings=settings)
    >>> round(module(x)[0, 1].item(), 2)
    0.75
    """
    s = settings or AdamSettings()
    scores = [monitor, *select.values()]
    run: CapturedEpoch | _Epoch
    with threads_for(x), reused_buffers():
        if weight is None and s.full_batch(len(y)) and can_capture(x, objective):
            run = CapturedEpoch(module, x, y, objective, s.learning_rate, scores)
        else:
            run = _Epoch(module, x, y, weight, objective, s, random_state, scores)
        return _train(run, module, list(select), s, tick)


def _train(
    run: CapturedEpoch | _Epoch,
    module: torch.nn.Module,
    select: Sequence[str],
    s: AdamSettings,
    tick: Callable[[], None] | None,
) -> Trained:
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
                result.best[name] = Best(score, result.epochs, _snapshot(module))
        least, since = (watched, 0) if watched < least else (least, since + 1)
        schedule.step(watched)
        if tick is not None:
            tick()
        if since >= s.patience:
            result.stopped = True
            break
    if select and result.best:
        module.load_state_dict(result.best[select[0]].parameters)
    return result


def threads_for(x: Tensor) -> AbstractContextManager[None]:
    """Keep torch to one thread while a small problem is trained.

    Its operations there are short, and a team of threads that wait for one another loses more than it
    gains, above all on a busy machine.
    """
    small = x.device.type == "cpu" and x.numel() < _PARALLEL_EVENTS
    return one_openmp_thread() if small else nullcontext()


class _Epoch:
    """One epoch of Adam, launch by launch; :class:`CapturedEpoch` is the same in one launch."""

    def __init__(
        self,
        module: torch.nn.Module,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        objective: TorchLoss,
        s: AdamSettings,
        random_state: int,
        scores: Sequence[EpochScore],
    ) -> None:
        self._module, self._x, self._y, self._weight = module, x, y, weight
        self._objective, self._scores = objective, scores
        # on a GPU one launch updates all parameters; the CPU has few enough of them
        self.optimiser = torch.optim.Adam(module.parameters(), lr=s.learning_rate, fused=x.is_cuda or None)
        self._draw = torch.Generator().manual_seed(random_state)
        self._size = len(y) if s.full_batch(len(y)) else s.batch_size or len(y)
        self._probs = module(x) if self._size == len(y) else None

    def __call__(self) -> list[float]:
        """Run the epoch; return its mean loss and the scores of the whole training set after it."""
        whole = self._probs
        total = self._steps() if whole is None else self._step(whole, self._y, self._weight)
        self._probs = self._module(self._x)
        probs = self._probs.detach()
        values = (total, *(score(probs, self._y) for score in self._scores))
        if self._size < len(self._y):
            self._probs = None  # a batch makes its own
        return [float(v) for v in torch.stack([v.double() for v in values]).tolist()]

    def _steps(self) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self._x.device)
        for rows in _batches(len(self._y), self._size, self._draw):
            weight = None if self._weight is None else self._weight[rows]
            loss = self._step(self._module(self._x[rows]), self._y[rows], weight)
            total = total + loss * (len(rows) / len(self._y))
        return total

    def _step(self, probs: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        loss = _value(self._objective, probs, y, weight)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.detach()


def _batches(n: int, size: int, draw: torch.Generator) -> Iterator[Tensor]:
    order = torch.randperm(n, generator=draw)
    for start in range(0, n, size):
        yield order[start : start + size]


def _snapshot(module: torch.nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in module.state_dict().items()}
