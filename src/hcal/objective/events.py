"""Which events are constrained: the families of h-𝒜 calibration (def:h-a-calib, eq:top-label-event).

A family is ONE class: it gathers the probabilities q and the marks of its events, and scatters a gradient in
q back to the probabilities. Engines see nothing else. Each row of q is sorted and windowed on its own, and
the losses are averaged: ``"pooled"`` is one row of all N·K events (the paper's choice), ``"class-wise"`` has
a row a class. Families are written once for numpy arrays and torch tensors; :func:`row_index`,
:func:`label_marks` and :func:`stack` are what the two do not spell alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import numpy as np

#: A registered name, a class index, a list of subsets of classes, or a family itself.
EventsArgument = Any


class Events(NamedTuple):
    """What a family gathers: probabilities (F, n), marks (F, n), and what it wants back in ``scatter``."""

    q: Any
    marks: Any
    index: Any = None


class Family(ABC):
    """A choice of events. Subclass it, give it a ``name`` and :func:`register_family` it.

    Attributes
    ----------
    name : str
        What ``events=`` calls it.
    capturable : bool
        ``gather`` and ``scatter`` make nothing on the host, so a CUDA graph can record them; and F = 1.
    """

    name: ClassVar[str] = ""
    capturable: ClassVar[bool] = False

    @abstractmethod
    def gather(self, probs: Any, y: Any) -> Events:
        """Return the events of probabilities (N, K) and labels (N,), arrays or tensors."""

    @abstractmethod
    def scatter(self, gradient: Any, probs: Any, events: Events) -> Any:
        """Return the gradient (N, K) in the probabilities, given the one (F, n) in ``events.q``."""

    def __repr__(self) -> str:
        return repr(self.name)


#: The families by name; their only list.
FAMILIES: dict[str, type[Family]] = {}
#: Old names that stay readable.
ALIASES = {"atomic": "pooled"}


def register_family(family: type[Family]) -> type[Family]:
    """Make a family known by its name; a decorator.

    Parameters
    ----------
    family : subclass of Family
        Made without arguments when its name is asked for.

    Returns
    -------
    the same

    Examples
    --------
    >>> register_family(PooledEvents).name
    'pooled'
    """
    known = FAMILIES.get(family.name)
    if not family.name or family.name in ALIASES or (known and known is not family):
        raise ValueError(f"an event family needs a name of its own, got {family.name!r}")
    FAMILIES[family.name] = family
    return family


def family_of(events: EventsArgument) -> Family:
    """Return the family that an ``events`` argument asks for.

    Parameters
    ----------
    events : name, class index, list of subsets of classes, or Family

    Examples
    --------
    >>> family_of("atomic"), family_of([{1, 0}, [2]])
    ('pooled', Subsets(subsets=((0, 1), (2,))))
    """
    if isinstance(events, Family):
        return events
    if isinstance(events, str):
        name = ALIASES.get(events, events)
        if name not in FAMILIES:
            names = ", ".join(map(repr, FAMILIES))
            raise ValueError(
                f"events must be {names}, a class index or a list of subsets of classes, got {events!r}"
            )
        return FAMILIES[name]()
    if isinstance(events, Integral):
        return Subsets(((int(events),),))
    try:
        return Subsets(tuple(tuple(sorted({int(c) for c in subset})) for subset in events))
    except TypeError:
        raise ValueError(f"events must be a list of subsets of classes, got {events!r}") from None


def row_index(probs: Any) -> Any:
    """Return 0..N−1 where ``probs`` (N, K) lives.

    Examples
    --------
    >>> row_index(np.zeros((2, 3)))
    array([0, 1])
    """
    return _indices(probs, len(probs))


def label_marks(y: Any, probs: Any) -> Any:
    """Return the marks (N, K), true in the column of each row's label.

    Examples
    --------
    >>> label_marks(np.array([1]), np.zeros((1, 2)))
    array([[False,  True]])
    """
    if isinstance(probs, np.ndarray):
        marks = np.zeros(probs.shape, dtype=np.bool_)
        marks[row_index(probs), y] = True
        return marks
    import torch

    return torch.zeros(probs.shape, dtype=torch.bool, device=probs.device).scatter_(1, y[:, None], True)


def stack(parts: Sequence[Any]) -> Any:
    """Return vectors (n,) as the rows of one array or tensor (F, n).

    Examples
    --------
    >>> stack([np.zeros(2), np.ones(2)])
    array([[0., 0.],
           [1., 1.]])
    """
    if isinstance(parts[0], np.ndarray):
        return np.stack(parts)
    import torch

    return torch.stack(list(parts))


def _indices(like: Any, count: int) -> Any:
    if isinstance(like, np.ndarray):
        return np.arange(count)
    import torch

    return torch.arange(count, device=like.device)


@register_family
class PooledEvents(Family):
    """All N·K events "the label is k" in one list: the paper's choice."""

    name = "pooled"
    capturable = True

    def gather(self, probs: Any, y: Any) -> Events:
        """Return one row of all entries."""
        return Events(probs.reshape(1, -1), label_marks(y, probs).reshape(1, -1))

    def scatter(self, gradient: Any, probs: Any, events: Events) -> Any:
        """Return the gradient entry by entry."""
        return gradient.reshape(probs.shape)


@register_family
class TopLabel(Family):
    """The event that the most probable class is the label."""

    name = "top-label"

    def gather(self, probs: Any, y: Any) -> Events:
        """Return one row of the largest entries."""
        top = probs.argmax(1)
        return Events(probs[row_index(probs), top][None], (top == y)[None], top)

    def scatter(self, gradient: Any, probs: Any, events: Events) -> Any:
        """Return the gradient in the largest entries, 0 elsewhere."""
        out = _zeros_like(probs)
        out[row_index(probs), events.index] = gradient[0]
        return out


@register_family
class ClassWise(Family):
    """A row a class: N events "the label is k" each."""

    name = "class-wise"

    def gather(self, probs: Any, y: Any) -> Events:
        """Return K rows, the columns of ``probs``."""
        return Events(probs.T, _indices(probs, probs.shape[1])[:, None] == y[None])

    def scatter(self, gradient: Any, probs: Any, events: Events) -> Any:
        """Return the gradient, row by column."""
        return gradient.T


@dataclass(frozen=True, repr=True)
class Subsets(Family):
    """A row a subset A of classes: N events "the label is in A" each. A class index is one subset of one.

    Parameters
    ----------
    subsets : tuple of tuples of class indices
    """

    subsets: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.subsets or not all(self.subsets):
            raise ValueError("events: a list of subsets needs at least one subset, and no empty one")

    def gather(self, probs: Any, y: Any) -> Events:
        """Return the sum of the entries of each subset."""
        self._check(probs.shape[1])
        # a sum and no matrix product: equal rows must stay equal to the last bit
        q = [probs[:, s[0]] if len(s) == 1 else probs[:, list(s)].sum(1) for s in self.subsets]
        return Events(stack(q), stack([_any_of(y, s) for s in self.subsets]))

    def scatter(self, gradient: Any, probs: Any, events: Events) -> Any:
        """Return for each class the sum of the gradients of the subsets that hold it."""
        out = _zeros_like(probs)
        for own, subset in zip(gradient, self.subsets, strict=True):
            out[:, list(subset)] += own[:, None]
        return out

    def _check(self, n_classes: int) -> None:
        for c in (c for subset in self.subsets for c in subset):
            if not 0 <= c < n_classes:
                raise ValueError(f"events name class {c}, but there are {n_classes} classes")


def _any_of(y: Any, classes: Iterable[int]) -> Any:
    found = y < 0
    for c in classes:
        found = found | (y == c)
    return found


def _zeros_like(probs: Any) -> Any:
    if isinstance(probs, np.ndarray):
        return np.zeros(probs.shape, dtype=probs.dtype)
    return probs.new_zeros(probs.shape)
