"""What a method learned, and what it has to say of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from hcal.io.class_names import ClassName, with_names

State = dict[str, NDArray[Any]]
#: Lists of sentences in ``info``.
_TOLD = {"notes", "warnings"}


@dataclass(frozen=True)
class Fitted:
    """What ``_fit`` returns.

    Attributes
    ----------
    state : dict of arrays
        All that ``_predict`` needs; it goes into the saved file as it is.
    converged : bool
    message : str
        What happened, in words; shown when ``converged`` is false.
    info : dict
        JSON-able facts for the user: chosen hyperparameters, iterations, loss curve.
    """

    state: State
    converged: bool = True
    message: str = ""
    info: dict[str, Any] = field(default_factory=dict)

    def named(self, names: tuple[ClassName, ...] | None) -> Fitted:
        """Return the same, with the user's names of the classes in every sentence."""
        told = {key: [with_names(words, names) for words in self.info[key]] for key in _TOLD & set(self.info)}
        return replace(self, message=with_names(self.message, names), info=self.info | told)
