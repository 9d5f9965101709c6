"""The segment of each row, such as its country: where a calibrator is corrected, or what an evaluation lists."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hcal import inputs
from hcal.frames import AnyArray, columns_by_name, to_numpy
from hcal.numerics import IntArray, NumpyArray, RowIndex

#: The title of segments whose column has no name.
UNNAMED = "segment"
#: A number without a fraction, and a date with the time 00:00, as texts.
_WHOLE_NUMBER = re.compile(r"(-?\d+)\.0+")
_MIDNIGHT = re.compile(r"(\d{4}-\d\d-\d\d)[ T]00:00(?::00(?:\.0+)?)?")


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
    columns : tuple of Segments
        Each column by itself, where there are several.
    """

    codes: IntArray
    names: tuple[str, ...]
    title: str = UNNAMED
    columns: tuple[Segments, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, by: AnyArray, n_rows: int) -> Segments:
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
        if not columns:
            raise ValueError("by has no columns: pass the segment of each row")
        codes = np.zeros(n_rows, dtype=np.int64)
        texts = [""]
        for values in columns.values():
            column = coded_texts(inputs.check_names(values, n_rows, "by"))
            if len(columns) > 1:
                column = replace(column, texts=[_without_separator(text) for text in column.texts])
            pairs, codes = np.unique(codes * len(column.texts) + column.codes, return_inverse=True)
            heads, tails = np.divmod(pairs, len(column.texts))
            places = zip(heads.tolist(), tails.tolist(), strict=True)
            texts = [_joined(texts[head], column.texts[tail]) for head, tail in places]
        # Different values may have one text, such as 1 and "1".
        names, place_of_text = np.unique(np.array(texts, dtype=np.str_), return_inverse=True)
        singles: tuple[Segments, ...] = ()
        if len(columns) > 1:
            singles = tuple(cls.of({title: values}, n_rows) for title, values in columns.items())
        title = " · ".join(columns)
        numbers = place_of_text[codes].astype(np.int64)
        return cls(numbers, tuple(names.tolist()), title, singles)

    def __getitem__(self, index: RowIndex) -> Segments:
        columns = tuple(column[index] for column in self.columns)
        return replace(self, codes=self.codes[index], columns=columns)

    def of_columns(self, titles: Sequence[str]) -> Segments:
        """Return the segments of some of the columns; all of them where these are not among the columns.

        >>> by = Segments.of({"country": ["DE", "FR"], "site": ["a", "b"]}, 2)
        >>> by.of_columns(["country"]).names
        ('DE', 'FR')
        """
        by_title = {column.title: column for column in self.columns}
        if not set(titles) <= by_title.keys():
            return self
        chosen = [by_title[title] for title in titles]
        if len(chosen) == 1:
            return chosen[0]
        texts = {column.title: np.array(column.names)[column.codes] for column in chosen}
        return Segments.of(texts, len(self.codes))

    @classmethod
    def joined(cls, blocks: Sequence[Segments]) -> Segments:
        """Return the segments of several blocks of rows, one after the other; a name is one segment in all of them.

        >>> Segments.joined([Segments.of(["b"], 1), Segments.of(["a", "b"], 2)])
        Segments(codes=array([1, 0, 1]), names=('a', 'b'), title='segment')
        """
        names = sorted({name for block in blocks for name in block.names})
        place = {name: number for number, name in enumerate(names)}
        codes = []
        for block in blocks:
            places = np.array([place[name] for name in block.names])
            codes.append(places[block.codes])
        columns = zip(*(block.columns for block in blocks), strict=True)
        singles = tuple(cls.joined(column) for column in columns)
        return cls(np.concatenate(codes).astype(np.int64), tuple(names), blocks[0].title, singles)

    def without_empty(self) -> Segments:
        """Return the same segments, where some of a source's rows were left out, without those that have no row.

        >>> Segments.of(["a", "b", "b"], 3)[1:].without_empty()
        Segments(codes=array([0, 0]), names=('b',), title='segment')
        """
        used, codes = np.unique(self.codes, return_inverse=True)
        names = tuple(self.names[code] for code in used)
        columns = tuple(column.without_empty() for column in self.columns)
        return replace(self, codes=codes.astype(np.int64), names=names, columns=columns)

    def rows_of(self, code: int) -> IntArray:
        """Return the numbers of the rows of one segment."""
        return np.flatnonzero(self.codes == code)


def _columns_of(by: AnyArray) -> dict[str, AnyArray]:
    """Return the columns of a frame or of an array by their titles."""
    named = columns_by_name(by, "by")
    if named is not None:
        return named
    array, _ = to_numpy(by, "by")
    if array.ndim != 2:
        title = getattr(by, "name", None)
        return {title if isinstance(title, str) and title else UNNAMED: by}
    return {f"{UNNAMED} {k}": array[:, k] for k in range(array.shape[1])}


@dataclass(frozen=True)
class CodedTexts:
    """The values of a column: their number (N,) in a list of texts."""

    codes: IntArray
    texts: list[str]


def coded_texts(values: NumpyArray) -> CodedTexts:
    """Return the segments of one column as numbers and texts."""
    if values.dtype.kind in "mM":
        # From nanoseconds numpy makes integers, and from microseconds dates.
        values = values.astype(f"{values.dtype.kind}8[us]")
    if values.dtype.kind in "biuf":
        distinct, codes = np.unique(values, return_inverse=True)
        return CodedTexts(codes.astype(np.int64), [segment_text(value) for value in distinct])
    numbers: dict[object, int] = {}
    codes = np.array([numbers.setdefault(value, len(numbers)) for value in values.tolist()])
    return CodedTexts(codes.astype(np.int64), [segment_text(value) for value in numbers])


def segment_text(value: object) -> str:
    """Return the name of a segment, which is the same whatever library or file the value comes from.

    Whole numbers have no point, midnight is a date, and spaces around a text do not count.

    >>> [segment_text(value) for value in (2.0, "2.0", np.float32(0.1), True, " DE ")]
    ['2', '2', '0.1', 'True', 'DE']
    >>> segment_text(np.datetime64("2024-05-01").item()), segment_text("2024-05-01 00:00:00")
    ('2024-05-01', '2024-05-01')
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    text = unicodedata.normalize("NFC", str(value)).strip()
    if isinstance(value, bool | np.bool_):
        return text
    if text.casefold() in ("true", "false"):
        return text.capitalize()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    match = _WHOLE_NUMBER.fullmatch(text) or _MIDNIGHT.fullmatch(text)
    return match[1] if match else text


def _without_separator(text: str) -> str:
    """Return a part of a joined name, in which a dot is never alone: two parts are joined by a single one.

    >>> _joined(_without_separator("x · y"), "z"), _joined("x", _without_separator("y · z"))
    ('x ·· y · z', 'x · y ·· z')
    """
    return text.replace("·", "··")


def _joined(head: str, tail: str) -> str:
    return f"{head} · {tail}" if head else tail
