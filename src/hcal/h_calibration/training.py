"""Train a map on an objective by Adam, with a plateau schedule and early stopping; the best epoch is kept.

The scores of an epoch are the metrics of the same names in :mod:`hcal.metrics`, written in torch so that they
run on the device of the probabilities; with two classes too, they measure the predicted class, as the paper does.
Tests check that both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from hcal.h_calibration.trainable_maps import CellOrder, TrainableMap, range_sums
from hcal.solvers.optimise import Best

#: A function of probabilities (N, K) and labels (N,) that returns a scalar tensor; as a score, lower is better.
TorchLoss = Callable[[Tensor, Tensor], Tensor]

#: The names in the history of a training beside those of the selectors: the loss, and what the schedule follows.
LOSS = "loss"
MONITOR = "ece_ew"

_BINS = 15
#: With fewer events than this, a second thread slows the short operations of an epoch down.
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
    ties : {"first", "last"}
        Which of two epochs with equal scores is kept; the published code keeps the last.

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
    ties: Literal["first", "last"] = "first"


@dataclass(frozen=True)
class BestEpoch:
    """The best epoch by one selector: its score, its number (from 1) and the parameters then."""

    score: float
    epoch: int
    parameters: dict[str, Tensor]


@dataclass
class Trained:
    """The result of a training.

    ``best`` is by the name of the selector, ``epochs`` says how many were run, and ``stopped`` whether training
    ended by itself, before the limit of epochs. ``history`` has one value an epoch of the loss, of the monitor,
    and of each selector.
    """

    best: dict[str, BestEpoch] = field(default_factory=dict)
    epochs: int = 0
    stopped: bool = False
    history: dict[str, list[float]] = field(default_factory=dict)


def train(  # noqa: PLR0913 - a public door
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

    With full batches an epoch costs ONE forward pass: the probabilities after a step are scored and then used
    for the next step. The untrained map is no candidate, as in the published code. The schedule and early
    stopping follow the equal-width top-label error.

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
        Called once an epoch, when the module has the parameters of that epoch.

    Examples
    --------
    >>> from hcal.h_calibration.trainable_maps import PiecewiseLinear
    >>> x, y = torch.log_softmax(torch.tensor([[0.0, 4.0]] * 4), 1), torch.tensor([1, 1, 1, 0])
    >>> module, settings = PiecewiseLinear(1), AdamSettings(learning_rate=0.1, epochs=100)
    >>> done = train(module, x, y, torch_nll, select={"nll": torch_nll}, settings=settings)
    >>> round(module(x)[0, 1].item(), 2)
    0.75
    """
    settings = settings or AdamSettings()
    stop = Best[int](settings.patience)
    result = Trained(history={name: [] for name in (LOSS, MONITOR, *select)})
    scores = {MONITOR: epoch_ece_ew, **select}
    with _threads_for(x):
        loop = _loop_of(module, x, y, objective, scores, settings)
        loop.seed(random_state)
        for epoch in range(1, settings.epochs + 1):
            values = loop.step()
            monitor = values[MONITOR]

            result.epochs = epoch
            _keep(result, values, module, settings.ties)
            loop.schedule.step(monitor)
            tick()

            result.stopped = stop.over(monitor, epoch)
            if result.stopped:
                break

    if result.best:
        first = next(iter(result.best.values()))
        module.load_state_dict(first.parameters)
    return result


def _loop_of(
    module: TrainableMap,
    x: Tensor,
    y: Tensor,
    objective: TorchLoss,
    scores: Mapping[str, TorchLoss],
    settings: AdamSettings,
) -> Loop:
    """Return the loop that trains: replayed CUDA graphs where every part of an epoch can be captured."""
    if settings.batch_size is None or settings.batch_size >= len(y):
        from hcal.h_calibration.captured import CapturedLoop, can_be_captured

        if can_be_captured(module, x, objective, scores):
            return CapturedLoop(module, x, y, objective, scores, settings)
        return Loop(module, x, y, objective, scores, settings)
    return BatchLoop(module, x, y, objective, scores, settings)


class Loop:
    """The state of a training with full batches: the optimiser, its schedule, and the present probabilities.

    ``scores`` are functions of probabilities and labels by name; each is computed once an epoch.
    """

    def __init__(
        self,
        module: TrainableMap,
        x: Tensor,
        y: Tensor,
        objective: TorchLoss,
        scores: Mapping[str, TorchLoss],
        settings: AdamSettings,
    ) -> None:
        self.module = module
        self.x = x
        self.y = y
        self.objective = objective
        self.scores = scores
        self.optimiser = self._optimiser(settings.learning_rate)
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimiser, factor=0.5, patience=settings.plateau
        )
        self.order: CellOrder | None = module.cell_order(x) if x.is_cuda else None
        self.probs: Tensor = module(x, self.order)

    def seed(self, random_state: int) -> None:
        """Do nothing: full batches have no order."""

    def step(self) -> dict[str, float]:
        """Train one epoch; return its loss, and the scores of the probabilities after it."""
        loss = self._descend(self.probs, self.y)
        self.probs = self.module(self.x, self.order)
        return self._values(loss)

    def _optimiser(self, learning_rate: float) -> torch.optim.Adam:
        # On a GPU, one kernel launch updates all parameters.
        fused = self.x.is_cuda or None
        return torch.optim.Adam(self.module.parameters(), lr=learning_rate, fused=fused)

    def _descend(self, probs: Tensor, y: Tensor) -> Tensor:
        """Take one step of the optimiser and return the loss before it."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.objective(probs, y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.detach()

    def _values(self, loss: Tensor) -> dict[str, float]:
        return self._named(torch.cat([loss.double().reshape(1), self._scores()]))

    def _named(self, values: Tensor) -> dict[str, float]:
        # One transfer from the device for all values.
        return dict(zip((LOSS, *self.scores), values.tolist(), strict=True))

    def _scores(self) -> Tensor:
        """Return the scores of the present probabilities, as one tensor in float64."""
        probs = self.probs.detach()
        return torch.stack([score(probs, self.y).double() for score in self.scores.values()])


class BatchLoop(Loop):
    """A training with mini-batches, in an order that is drawn anew in every epoch."""

    def __init__(
        self,
        module: TrainableMap,
        x: Tensor,
        y: Tensor,
        objective: TorchLoss,
        scores: Mapping[str, TorchLoss],
        settings: AdamSettings,
    ) -> None:
        super().__init__(module, x, y, objective, scores, settings)
        self.batch_size = settings.batch_size or len(y)
        self.generator = torch.Generator()

    def seed(self, random_state: int) -> None:
        """Let the order of mini-batches begin at a seed."""
        self.generator.manual_seed(random_state)

    def step(self) -> dict[str, float]:
        """Take a step for every mini-batch; return the mean loss, and the scores after the last one."""
        n_rows = len(self.y)
        shuffled = torch.randperm(n_rows, generator=self.generator)
        mean_loss = torch.zeros((), device=self.x.device)
        for rows in torch.split(shuffled, self.batch_size):
            x = self.x[rows]
            order = self.module.cell_order(x) if x.is_cuda else None
            loss = self._descend(self.module(x, order), self.y[rows])
            mean_loss += loss * (len(rows) / n_rows)
        self.probs = self.module(self.x, self.order)
        return self._values(mean_loss)


def _threads_for(x: Tensor) -> AbstractContextManager[object]:
    small = x.device.type == "cpu" and x.numel() < _PARALLEL_EVENTS
    return _one_openmp_thread() if small else nullcontext()


@contextmanager
def _one_openmp_thread() -> Iterator[None]:
    """Hold the OpenMP loops that THIS thread starts, those of torch among them, to one thread.

    The limit is a variable of the thread (``omp_set_num_threads``), so nobody else notices or can undo it;
    ``torch.set_num_threads`` would set the whole process.
    """
    from threadpoolctl import threadpool_limits

    torch.get_num_threads()  # sets this thread up where it is new: later, that would undo the limit
    with threadpool_limits(1, user_api="openmp"):
        yield


def _keep(result: Trained, values: Mapping[str, float], module: TrainableMap, ties: str) -> None:
    """Add the values of an epoch to the history, and keep its parameters where it is the best."""
    for name, value in values.items():
        result.history[name].append(value)
    for name in values:
        if name in (LOSS, MONITOR):
            continue
        score = values[name]
        best = result.best.get(name)
        better = best is None or score < best.score
        if better or (ties == "last" and best is not None and score == best.score):
            parameters = {
                key: tensor.detach().clone() for key, tensor in module.state_dict().items()
            }
            result.best[name] = BestEpoch(score, result.epochs, parameters)


def epoch_ece_ew(probs: Tensor, y: Tensor) -> Tensor:
    """Return the equal-width top-label error.

    >>> epoch_ece_ew(torch.tensor([[0.25, 0.75]]), torch.tensor([1])).item()
    0.25
    """
    confidence, predicted = probs.max(dim=1)
    gap = confidence.double() - (predicted == y).double()
    sums = torch.zeros(_BINS, dtype=torch.float64, device=probs.device)
    return sums.index_add_(0, _bin_of(confidence), gap).abs().sum() / len(y)


def epoch_dece(probs: Tensor, y: Tensor) -> Tensor:
    """Return the debiased equal-mass top-label error as :func:`hcal.metrics.dece` does; it can be below 0.

    >>> epoch_dece(torch.tensor([[0.0, 1.0]] * 30), torch.tensor([1] * 30)).item()
    0.0
    """
    n_rows = len(y)
    confidence, predicted = probs.max(dim=1)
    confidence, order = confidence.double().sort(stable=True)
    hits = (predicted == y)[order].double()

    bins = torch.arange(_BINS + 1, device=probs.device, dtype=torch.float64)
    ranks = (bins * n_rows / _BINS).round().long()
    # A boundary in a run of equal confidences moves up to its end: the order of rows decides nothing.
    below = confidence[(ranks - 1).clamp_min(0)]
    edges = torch.where(ranks > 0, torch.searchsorted(confidence, below, right=True), 0)
    rows_of_bin = edges.diff().double()
    size = rows_of_bin.clamp_min(1)
    accuracy = range_sums(hits, edges) / size
    mean_confidence = range_sums(confidence, edges) / size

    # The expected absolute error of a bin whose accuracy is normal around the one that was observed.
    gap = accuracy - mean_confidence
    deviation = (accuracy * (1 - accuracy) / size).clamp_min(0).sqrt()
    z = gap / deviation.clamp_min(1e-300)
    density = torch.exp(-0.5 * z**2) * (2 / torch.pi) ** 0.5
    folded = deviation * density + gap * torch.erf(z / 2**0.5)
    expected = torch.where(deviation > 0, folded, gap.abs())

    plug_in = (rows_of_bin * gap.abs()).sum() / n_rows
    are_equal = (edges == ranks).all()
    weight = torch.where(are_equal, (rows_of_bin > 0).double(), rows_of_bin)
    return 2 * plug_in - (expected * weight).sum() / weight.sum()


def epoch_cwece_a(probs: Tensor, y: Tensor) -> Tensor:
    """Return the equal-width class-wise error, averaged over classes.

    Only entries above 1/15 (at most 14 a row) are put into bins; the first bin is the rest of the column.
    Nothing here waits for the device, so that a CUDA graph can hold it.

    >>> epoch_cwece_a(torch.tensor([[0.0, 1.0]]), torch.tensor([1])).item()
    0.0
    """
    n_rows, n_classes = probs.shape
    row, column = _large_entries(probs)
    value = probs[row, column]
    gap = value.double() - (y[row] == column).double()
    sums = torch.zeros(n_classes * _BINS, dtype=torch.float64, device=probs.device)
    sums = sums.index_add_(0, column * _BINS + _bin_of(value), gap).reshape(n_classes, _BINS)

    # The first bin holds what the others leave of each column.
    marks = torch.zeros(n_classes, dtype=torch.float64, device=probs.device)
    marks = marks.index_add_(0, y, torch.ones_like(y, dtype=torch.float64))
    sums[:, 0] += probs.sum(dim=0, dtype=torch.float64) - marks - sums.sum(dim=1)
    return sums.abs().sum() / (n_rows * n_classes)


def _large_entries(probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and columns of all entries above 1/15; on a GPU, of the 14 largest entries of each row."""
    if not probs.is_cuda:
        return torch.nonzero(probs > 1 / _BINS, as_tuple=True)  # type: ignore[return-value]
    n_rows, n_classes = probs.shape
    column = probs.topk(min(_BINS - 1, n_classes), dim=1, sorted=False).indices
    row = torch.arange(n_rows, device=probs.device)[:, None].expand_as(column)
    return row.reshape(-1), column.reshape(-1)


def torch_nll(probs: Tensor, y: Tensor) -> Tensor:
    """Return the mean negative log-likelihood, differentiable.

    Probabilities count as at least the smallest normal number of their type.

    >>> torch_nll(torch.tensor([[0.5, 0.5]], dtype=torch.float64), torch.tensor([0])).item()
    0.6931471805599453
    """
    label_probability = probs.gather(1, y[:, None])
    smallest = torch.finfo(probs.dtype).tiny
    return -label_probability.clamp_min(smallest).double().log().mean()


#: The paper's selectors, by name.
SELECTORS: dict[str, TorchLoss] = {
    "top_label": epoch_dece,
    "class_wise": epoch_cwece_a,
    "score": torch_nll,
}


def _bin_of(values: Tensor) -> Tensor:
    """Return the equal-width bin of each value; values slightly above 1, from rounding, are in the last."""
    edges = torch.linspace(0, 1, _BINS + 1, dtype=torch.float64, device=values.device)
    return (torch.bucketize(values.double(), edges) - 1).clamp(0, _BINS - 1)
