"""The families of events that the loss can calibrate: h-𝒜 calibration (def:h-a-calib, eq:top-label-event).

A family gathers the probabilities q (F, n) and the marks of its events from the predictions, and scatters a gradient in
q back to the predictions; engines see only q and marks. Each row of q is sorted and windowed on its own, and the losses
of the rows are averaged. ``"pooled"`` is one row of all N·K events (the paper's choice), ``"class-wise"`` has one row
for each class. Every family works on numpy arrays and torch tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from hcal.xp import Array, namespace


class FamilyEvents(NamedTuple):
    """The events of a family: probabilities (F, n), marks (F, n), and an optional index for ``scatter``."""

    q: Array
    marks: Array
    index: Array = None


class Family(ABC):
    """A choice of events; subclass it and pass an instance as ``events=``."""

    @abstractmethod
    def gather(self, probs: Array, y: Array) -> FamilyEvents:
        """Return the events of probabilities (N, K) and labels (N,), arrays or tensors."""

    @abstractmethod
    def scatter(self, gradient: Array, probs: Array, events: FamilyEvents) -> Array:
        """Return the gradient (N, K) in the probabilities, given the one (F, n) in ``events.q``."""

    def __repr__(self) -> str:
        return type(self).__name__


#: A name, a class index, a list of subsets of classes, or a family itself.
EventsArgument: TypeAlias = str | int | Iterable[Iterable[int]] | Family


def family_of(events: EventsArgument) -> Family:
    """Return the family that an ``events`` argument asks for.

    Parameters
    ----------
    events : name, class index, list of subsets of classes, or Family

    Examples
    --------
    >>> family_of("pooled"), family_of([{1, 0}, [2]])
    (PooledEvents, Subsets(subsets=((0, 1), (2,))))
    """
    if isinstance(events, Family):
        return events
    if isinstance(events, str):
        if events not in _FAMILIES:
            names = ", ".join(map(repr, _FAMILIES))
            raise ValueError(
                f"events must be {names}, a class index or a list of subsets of classes, "
                f"got {events!r}"
            )
        return _FAMILIES[events]()
    if isinstance(events, int | np.integer):
        return Subsets(((int(events),),))
    try:
        subsets = [sorted({int(c) for c in subset}) for subset in events]
        return Subsets(tuple(map(tuple, subsets)))
    except TypeError:
        raise ValueError(f"events must be a list of subsets of classes, got {events!r}") from None


def _label_marks(y: Array, probs: Array) -> Array:
    """Return the marks (N, K), true in the column of each row's label."""
    return namespace(y).one_hot(y, probs.shape[1], like=y < 0)  # booleans


class PooledEvents(Family):
    """All N·K events "the label is k" in one list: the paper's choice."""

    def gather(self, probs: Array, y: Array) -> FamilyEvents:
        """Return one row of all entries."""
        return FamilyEvents(probs.reshape(1, -1), _label_marks(y, probs).reshape(1, -1))

    def scatter(self, gradient: Array, probs: Array, events: FamilyEvents) -> Array:
        """Return the gradient entry by entry."""
        return gradient.reshape(probs.shape)


class TopLabel(Family):
    """The event that the most probable class is the label."""

    def gather(self, probs: Array, y: Array) -> FamilyEvents:
        """Return one row of the largest entries."""
        xp = namespace(probs)
        top = xp.argmax(probs)
        is_label = top == y[:, None]
        return FamilyEvents(xp.take_along(probs, top).T, is_label.T, top)

    def scatter(self, gradient: Array, probs: Array, events: FamilyEvents) -> Array:
        """Return the gradient in the largest entries, 0 elsewhere."""
        return namespace(probs).put_along(0 * probs, events.index, gradient.T)


class ClassWise(Family):
    """One row for each class k, with the N events "the label is k"."""

    def gather(self, probs: Array, y: Array) -> FamilyEvents:
        """Return K rows, the columns of ``probs``."""
        return FamilyEvents(probs.T, _label_marks(y, probs).T)

    def scatter(self, gradient: Array, probs: Array, events: FamilyEvents) -> Array:
        """Return the gradient, row by column."""
        return gradient.T


@dataclass(frozen=True)
class Subsets(Family):
    """One row for each subset A of classes, with the N events "the label is in A"; a subset may be a single class.

    Parameters
    ----------
    subsets : tuple of tuples of class indices
    """

    subsets: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.subsets or not all(self.subsets):
            raise ValueError(
                "events: a list of subsets needs at least one subset, and no empty one"
            )

    def gather(self, probs: Array, y: Array) -> FamilyEvents:
        """Return the sum of the entries of each subset."""
        n_classes = probs.shape[1]
        unknown = set().union(*self.subsets) - set(range(n_classes))
        if unknown:
            raise ValueError(f"events name class {min(unknown)}, but there are {n_classes} classes")
        marks = _label_marks(y, probs)
        q = []
        happened = []
        for subset in self.subsets:
            columns = list(subset)
            # a sum instead of a matrix product, because equal rows must give bitwise equal results
            q.append(probs[:, subset[0]] if len(subset) == 1 else probs[:, columns].sum(1))
            happened.append(marks[:, columns].any(1))
        xp = namespace(probs)
        return FamilyEvents(xp.stack(q).T, xp.stack(happened).T)

    def scatter(self, gradient: Array, probs: Array, events: FamilyEvents) -> Array:
        """Return for each class the sum of the gradients of the subsets that hold it."""
        out = 0 * probs
        for of_subset, subset in zip(gradient, self.subsets, strict=True):
            out[:, list(subset)] += of_subset[:, None]
        return out


_FAMILIES: dict[str, type[Family]] = {
    "pooled": PooledEvents,
    "top-label": TopLabel,
    "class-wise": ClassWise,
}
