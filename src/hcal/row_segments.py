"""The segment of each row, such as its country: where a calibrator is corrected, or what an evaluation lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcal import inputs
from hcal.frames import to_numpy
from hcal.numerics import IntArray

#: The title of segments whose column has no name.
UNNAMED = "segment"


@dataclass(frozen=True)
class Segments:
    """The segment of each row: a country, a tenant, a task.

    Attributes
    ----------
    codes : array of int of shape (N,)
        Positions in ``names``.
    names : tuple of S str
        In ascending order; the values of several columns are joined with " · ".
    title : str
        The names of the columns, or "segment".
    """

    codes: IntArray
    names: tuple[str, ...]
    title: str = UNNAMED

    @classmethod
    def of(cls, by: Any, n_rows: int) -> Segments:
        """Return the segments of one or several columns; a row without a value is refused.

        >>> Segments.of(["DE", "FR", "DE"], 3)
        Segments(codes=array([0, 1, 0]), names=('DE', 'FR'), title='segment')
        """
        if isinstance(by, Segments):
            return by
        if isinstance(by, dict):
            columns = {str(title): values for title, values in by.items()}
        else:
            columns = _columns_of(by)
        codes = np.zeros(n_rows, dtype=np.int64)
        texts = [""]
        for values in columns.values():
            column = coded_texts(inputs.check_names(values, n_rows, "by"))
            pairs, codes = np.unique(codes * len(column.texts) + column.codes, return_inverse=True)
            heads, tails = np.divmod(pairs, len(column.texts))
            texts = [
                _joined(texts[head], column.texts[tail])
                for head, tail in zip(heads.tolist(), tails.tolist(), strict=True)
            ]
        # Different values may have one text, such as 1 and "1".
        names, places = np.unique(np.array(texts, dtype=np.str_), return_inverse=True)
        return cls(places[codes].astype(np.int64), tuple(names.tolist()), " · ".join(columns))

    def __getitem__(self, index: Any) -> Segments:
        return replace(self, codes=self.codes[index])

    @classmethod
    def joined(cls, blocks: Sequence[Segments]) -> Segments:
        """Return the segments of several blocks of rows, one after the other; a name is one segment in all of them.

        >>> Segments.joined([Segments.of(["b"], 1), Segments.of(["a", "b"], 2)])
        Segments(codes=array([1, 0, 1]), names=('a', 'b'), title='segment')
        """
        names = sorted({name for block in blocks for name in block.names})
        place = {name: number for number, name in enumerate(names)}
        codes = [np.array([place[name] for name in block.names])[block.codes] for block in blocks]
        return cls(np.concatenate(codes).astype(np.int64), tuple(names), blocks[0].title)

    def rows_of(self, code: int) -> IntArray:
        """Return the numbers of the rows of one segment."""
        return np.flatnonzero(self.codes == code)


def _columns_of(by: Any) -> dict[str, Any]:
    """Return the columns of a frame or of an array by their titles."""
    array, origin = to_numpy(by, "by")
    if array.ndim != 2:
        title = getattr(by, "name", None)
        return {title if isinstance(title, str) and title else UNNAMED: by}
    titles = origin.columns or [f"segment {k}" for k in range(array.shape[1])]
    return {str(title): array[:, k] for k, title in enumerate(titles)}


@dataclass(frozen=True)
class CodedTexts:
    """The values of a column: their number (N,) in a list of texts."""

    codes: IntArray
    texts: list[str]


def coded_texts(values: NDArray[Any]) -> CodedTexts:
    """Return names of segments as numbers and texts; whole numbers are written without a point."""
    numbers: dict[Any, int] = {}
    codes = [numbers.setdefault(value, len(numbers)) for value in values.tolist()]
    texts = [
        str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        for value in numbers
    ]
    return CodedTexts(np.array(codes, dtype=np.int64), texts)


def _joined(head: str, tail: str) -> str:
    return f"{head} · {tail}" if head else tail
