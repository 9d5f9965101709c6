"""Many small trainings at once: on a GPU one CUDA graph holds an epoch of all of them.

An epoch of one map on 5000×10 events is a hundred kernels of a few microseconds, which leave a large GPU
idle. Here the maps of a group are trained in step, on several streams of one recorded graph, and everything
that a schedule decides (learning rate, early stop, best epoch of each selector) is decided on the device, so
that nothing is read back but a stop flag now and then. On the CPU the same code runs launch by launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hcal.maps.module import CalibrationMap, Init
from hcal.maps.presets import build_map
from hcal.maps.table import orders
from hcal.objective.torch_loss import TorchLoss
from hcal.solvers.monitors import SELECTORS, epoch_ece_ew

_STREAMS = 8
_LOOK = 25  # epochs between two looks at the stop flags


@dataclass(frozen=True)
class Start:
    """One map to be trained: its name, its start and the seed of the start."""

    map: str
    init: Init
    seed: int


@dataclass(frozen=True)
class Schedule:
    """How to train; the defaults are the paper's.

    Attributes
    ----------
    epochs : int
        At most so many.
    plateau, patience : int
        Epochs without a better ECE_ew until the learning rate is halved, and until training stops;
        0 is never.
    learning_rate : float
    """

    epochs: int = 2000
    plateau: int = 20
    patience: int = 160
    learning_rate: float = 0.005


@dataclass(frozen=True)
class Choice:
    """The best epoch of one training by one selector."""

    score: float
    epoch: int


class Member:
    """One map in training, with all its state on the device.

    Parameters
    ----------
    start : Start
    new : CalibrationMap
    x, y : tensors of shape (N, K) and (N,)
    objective : callable
    schedule : Schedule
    """

    def __init__(
        self,
        start: Start,
        new: CalibrationMap,
        x: Tensor,
        y: Tensor,
        objective: TorchLoss,
        schedule: Schedule,
    ) -> None:
        self.start, self.map, self.schedule = start, new, schedule
        self._x, self._y, self._objective = x, y, objective
        self._parameters = list(new.parameters())
        cuda = x.is_cuda
        self._rate = torch.tensor(schedule.learning_rate, device=x.device)
        self._optimiser = torch.optim.Adam(
            self._parameters,
            lr=self._rate,
            fused=cuda or None,
            capturable=cuda,
            foreach=None if cuda else False,
        )
        self._initial = {k: v.detach().clone() for k, v in new.state_dict().items()}
        size = sum(p.numel() for p in self._parameters)
        self._best = torch.zeros(len(SELECTORS), dtype=torch.float64, device=x.device)
        self._best_epoch = torch.zeros(len(SELECTORS), dtype=torch.float64, device=x.device)
        self._best_parameters = torch.zeros(len(SELECTORS), size, dtype=x.dtype, device=x.device)
        # epoch, least monitor and epochs since, plateau's least and epochs since, 1 while not stopped
        self._state = torch.zeros(6, dtype=torch.float64, device=x.device)
        self._ahead: Tensor | None = None
        self.reset()

    def reset(self) -> None:
        """Put everything back to the start."""
        self.map.load_state_dict(self._initial)
        for state in self._optimiser.state.values():
            for value in state.values():
                value.zero_()
        self._rate.fill_(self.schedule.learning_rate)
        self._best.fill_(float("inf"))
        self._best_epoch.zero_()
        self._ahead = None
        infinite = float("inf")
        self._state.copy_(torch.tensor([0.0, infinite, 0.0, infinite, 0.0, 1.0], dtype=torch.float64))

    def epoch(self) -> None:
        """Run one epoch: a step on the full batch, the scores after it, and what follows from them."""
        before = self.map(self._x) if self._ahead is None else self._ahead
        loss = self._objective(before, self._y)
        gradients = torch.autograd.grad(loss, self._parameters)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimiser.step()
        # What is scored here is what the next epoch begins with; a recording cannot hand a tape on.
        with torch.set_grad_enabled(not self._x.is_cuda):
            after = self.map(self._x)
        self._ahead = None if self._x.is_cuda else after
        with torch.no_grad():
            probs = after.detach()
            scores = torch.stack([s(probs, self._y).double() for s in SELECTORS.values()])
            self._follow(scores, epoch_ece_ew(probs, self._y).double())

    def _follow(self, scores: Tensor, watched: Tensor) -> None:
        """Keep the best epochs, halve the learning rate, stop: all without a word to the host."""
        s = self.schedule
        number, least, since, flat_least, flat, active = self._state.unbind()
        now = number + 1
        better = (scores < self._best) & (active > 0)
        flattened = torch.cat([p.reshape(-1) for p in self._parameters])
        self._best_parameters.copy_(torch.where(better[:, None], flattened, self._best_parameters))
        self._best_epoch.copy_(torch.where(better, now, self._best_epoch))
        self._best.copy_(torch.where(better, scores, self._best))
        lower = watched < least
        since = torch.where(lower, 0.0, since + 1)
        # as torch's ReduceLROnPlateau: better means by a share of 1e-4
        clearly = watched < flat_least * (1 - 1e-4)
        flat = torch.where(clearly, 0.0, flat + 1)
        halve = flat > (s.plateau or float("inf"))
        self._rate.copy_(torch.where(halve, 0.5 * self._rate, self._rate))
        stop = since >= (s.patience or float("inf"))
        kept = torch.where(clearly, watched, flat_least)
        flat = torch.where(halve, 0.0, flat)
        active = torch.where(stop, 0.0, active)
        self._state.copy_(torch.stack([now, torch.where(lower, watched, least), since, kept, flat, active]))

    @property
    def active(self) -> Tensor:
        """1 while the early stop has not come, as a tensor."""
        return self._state[5]

    def choices(self) -> dict[str, Choice]:
        """Return the best epoch by each selector."""
        scores, epochs = self._best.tolist(), self._best_epoch.tolist()
        return {
            name: Choice(score, int(epoch))
            for name, score, epoch in zip(SELECTORS, scores, epochs, strict=True)
        }

    def predict(self, selector: str, x: Tensor) -> Tensor:
        """Return the probabilities (N, K) of the epoch that a selector chose."""
        flat = self._best_parameters[list(SELECTORS).index(selector)]
        with torch.no_grad():
            at = 0
            for parameter in self._parameters:
                parameter.copy_(flat[at : at + parameter.numel()].reshape(parameter.shape))
                at += parameter.numel()
            probs: Tensor = self.map(x)
            return probs


def build_members(
    starts: Sequence[Start], x: Tensor, y: Tensor, objective: TorchLoss, schedule: Schedule
) -> list[Member]:
    """Return the maps of a group, ready to be trained.

    Maps that look up the same table share one view of x: the order of its events by cell is kept for a
    tensor, and maps with other cells must not make it forget (see :mod:`hcal.maps.table`).
    """
    views: dict[tuple[float, str], Tensor] = {}
    members = []
    for start in starts:
        new = build_map(start.map, x, init=start.init, random_state=start.seed).to(x.device, x.dtype)
        step = float(getattr(new, "step", 0.0))
        view = views.setdefault((step, start.map.partition("-")[0]), x.view(x.shape))
        members.append(Member(start, new, view, y, objective, schedule))
    return members


def train_together(members: Sequence[Member]) -> int:
    """Train all members in step until the last has stopped; return the epochs that were run.

    Examples
    --------
    >>> from hcal.objective.torch_loss import torch_nll
    >>> x = torch.log_softmax(torch.tensor([[0.0, 4.0]] * 4), 1)
    >>> y = torch.tensor([1, 1, 1, 0])
    >>> s = Schedule(epochs=60, plateau=0, patience=0, learning_rate=0.05)
    >>> one = build_members([Start("piecewise-1", "identity", 0)], x, y, torch_nll, s)
    >>> train_together(one)
    60
    >>> round(one[0].predict("nll", x)[0, 1].item(), 1)
    0.8
    """
    run = _engine(members)
    epochs = members[0].schedule.epochs
    for number in range(1, epochs + 1):
        run()
        if number % _LOOK == 0 and not bool(torch.stack([m.active for m in members]).any()):
            return number
    return epochs


def _engine(members: Sequence[Member]) -> _Plain | _Recorded:
    """Record an epoch where there is a GPU; where that fails, say so and launch kernel by kernel."""
    if not members[0]._x.is_cuda:
        return _Plain(members)
    try:
        return _Recorded(members)
    except RuntimeError as error:
        print(f"not recorded ({str(error).splitlines()[0]}): kernel by kernel", flush=True)
        torch.cuda.synchronize()
        for member in members:
            member.reset()
        return _Plain(members)


class _Plain:
    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members

    def __call__(self) -> None:
        for member in self._members:
            # what a stopped member would do is forgotten; on a GPU to ask it would be to wait
            if member.active.is_cuda or bool(member.active):
                member.epoch()


class _Recorded:
    """One epoch of all members as a CUDA graph that forks to several streams and joins them."""

    def __init__(self, members: Sequence[Member]) -> None:
        device = members[0]._x.device
        self._members = members
        self._streams = [torch.cuda.Stream(device) for _ in range(_STREAMS)]  # type: ignore[no-untyped-call]
        # The first epoch is not forked: it makes the orders of events, which all streams read afterwards.
        for member in members:
            member.epoch()
        torch.cuda.synchronize()
        self._forked()
        torch.cuda.synchronize()
        for member in members:
            member.reset()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._forked()
        # the recording reads the kept orders of events: they must live as long
        self._kept = [orders.of(m._x) for m in members]

    def _forked(self) -> None:
        here = torch.cuda.current_stream()
        for stream in self._streams:
            stream.wait_stream(here)
        for number, member in enumerate(self._members):
            with torch.cuda.stream(self._streams[number % _STREAMS]):
                member.epoch()
        for stream in self._streams:
            here.wait_stream(stream)

    def __call__(self) -> None:
        self._graph.replay()


def scores_of(probs: Tensor, y: Tensor, scores: Mapping[str, TorchLoss]) -> dict[str, float]:
    """Return the scores of probabilities (N, K) as numbers, with one wait for the device.

    Examples
    --------
    >>> from hcal.solvers.monitors import epoch_nll
    >>> scores_of(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), {"nll": epoch_nll})
    {'nll': -0.0}
    """
    values = torch.stack([s(probs, y).double() for s in scores.values()]).tolist()
    return dict(zip(scores, values, strict=True))
