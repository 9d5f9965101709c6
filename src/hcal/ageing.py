"""Rows that age: a row counts half as much as one that is a half-life younger.

The age of a row becomes a weight, 0.5^(age / half-life), and the newest row counts as one row. Weights count rows, so
penalties and shrinkage see how many rows are left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from hcal import inputs
from hcal.class_names import is_number
from hcal.frames import AnyArray
from hcal.numerics import Float64, NumpyArray, RowIndex

#: A half-life as users pass it: a text such as "90d", a number, or a span of time.
HalfLifeLike = str | float | np.number | timedelta | np.timedelta64
_SECONDS: Final = {
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 7 * 86_400.0,
    "y": 365.25 * 86_400.0,
}
#: Numbers between these may be dates in digits: year, month and day.
_FIRST_DATE, _LAST_DATE = 19_000_101, 21_001_231
#: A row of less weight counts for nothing: it is 20 half-lives older than the newest.
_NOTHING: Final = 2.0**-20
#: If one of so many rows counts, its time is taken for wrong.
_SEVERAL: Final = 20
_SPAN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d|w|y)\s*")


@dataclass(frozen=True)
class Times:
    """When each row was made.

    Attributes
    ----------
    values : array of shape (N,)
        Seconds since 1970 for dates, else the numbers that were passed in.
    are_dates : bool
    """

    values: Float64
    are_dates: bool

    @classmethod
    def of(cls, time: AnyArray, n_rows: int) -> Times:
        """Return dates, texts of dates, or numbers as times; a row without one is refused.

        >>> Times.of(["2024-01-01", "2024-01-02 12:00"], 2)
        Times(values=array([1.7040672e+09, 1.7041968e+09]), are_dates=True)
        """
        if isinstance(time, Times):
            return time
        cells = inputs.check_names(time, n_rows, "time")
        if cells.dtype.kind in "iuf":
            return cls._of_numbers(cells.astype(np.float64))
        if cells.dtype.kind == "M":
            return cls(cells.astype("datetime64[us]").astype(np.int64) / 1e6, are_dates=True)
        numbers = _numbers(cells)
        if numbers is not None:
            return cls._of_numbers(numbers)
        return cls(np.array([_seconds(cell) for cell in cells.tolist()]), are_dates=True)

    @classmethod
    def _of_numbers(cls, numbers: Float64) -> Times:
        """Return numbers as times; numbers that are all dates, such as 20240531, are dates."""
        dates = _dates_in_digits(_finite(numbers))
        if dates is not None:
            return cls(dates, are_dates=True)
        return cls(numbers, are_dates=False)

    def __getitem__(self, index: RowIndex) -> Times:
        return replace(self, values=self.values[index])

    @classmethod
    def joined(cls, parts: list[Times]) -> Times:
        """Return the times of several blocks, one after the other."""
        if len({part.are_dates for part in parts}) > 1:
            raise ValueError("the times of some rows are dates, and those of others are numbers")
        return cls(np.concatenate([part.values for part in parts]), parts[0].are_dates)

    def words(self, value: float) -> str:
        """Return a time as a date, or as a number.

        >>> Times.of(["2024-01-01"], 1).words(1704067200.0)
        '2024-01-01'
        """
        if not self.are_dates:
            return f"{value:g}"
        moment = datetime.fromtimestamp(value, UTC)
        return moment.strftime("%Y-%m-%d" if value % 86_400 == 0 else "%Y-%m-%d %H:%M")


@dataclass(frozen=True)
class HalfLife:
    """After which age a row counts half."""

    span: float
    words: str
    are_dates: bool

    @classmethod
    def of(cls, value: HalfLifeLike) -> HalfLife:
        """Return a half-life: a text such as ``"90d"`` or a timedelta for dates, a number for numbers.

        What ``words`` say is a half-life again, so that a refit can read what a fit remembers.

        >>> HalfLife.of("90d").span / 86400, HalfLife.of(12), HalfLife.of("12") == HalfLife.of(12)
        (90.0, HalfLife(span=12.0, words='12', are_dates=False), True)
        """
        if isinstance(value, np.timedelta64):
            value = value.astype("timedelta64[us]").item()
        if isinstance(value, timedelta):
            days = value / timedelta(days=1)
            return cls._checked(value.total_seconds(), f"{_number(days)}d", are_dates=True)
        if isinstance(value, str):
            return cls._of_text(value.strip())
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise ValueError(f"half_life must be a text such as '90d', or a number; got {value!r}")
        return cls._checked(float(value), _number(float(value)), are_dates=False)

    @classmethod
    def _of_text(cls, text: str) -> HalfLife:
        if is_number(text):
            return cls._checked(float(text), text, are_dates=False)
        span = _SPAN.fullmatch(text)
        if span is None:
            raise ValueError(
                "half_life must be a number and a unit (s, min, h, d, w, y), such as '90d'; got "
                f"{text!r}"
            )
        return cls._checked(float(span[1]) * _SECONDS[span[2]], text, are_dates=True)

    @classmethod
    def _checked(cls, span: float, words: str, *, are_dates: bool) -> HalfLife:
        if not 0 < span < np.inf:
            raise ValueError(f"half_life must be greater than 0, got {words}")
        return cls(span, words, are_dates)

    def weights(self, times: Times) -> Float64:
        """Return 0.5^(age / half-life) of each row (N,).

        >>> HalfLife.of(10).weights(Times.of([0, 10, 20], 3))
        array([0.25, 0.5 , 1.  ])
        """
        if times.are_dates != self.are_dates:
            kinds = ("numbers", "dates") if self.are_dates else ("dates", "numbers")
            advice = "a number in the same unit" if self.are_dates else "a text such as '90d'"
            raise ValueError(
                f"the half-life {self.words} is for {kinds[1]}, and the times of the rows are "
                f"{kinds[0]}, such as {times.words(float(times.values[0]))}: pass {advice}"
            )
        age = times.values.max() - times.values
        return np.asarray(0.5 ** (age / self.span))


@dataclass(frozen=True)
class Aged:
    """How rows were weighed by their age: what a fit remembers of it."""

    half_life: str
    oldest: str
    newest: str
    rows: int
    count_as: float

    @property
    def sentence(self) -> str:
        """What was done, in words."""
        unit = "younger" if self.oldest != self.newest else "old"
        return (
            f"a row counts half as much as one that is {self.half_life} {unit}: the {self.rows:,} "
            f"rows from {self.oldest} to {self.newest} count as {self.count_as:,.0f}"
        )


def aged(times: Times, half_life: HalfLifeLike) -> tuple[Float64, Aged]:
    """Return the weights of rows by their age, and what to remember of it."""
    span = HalfLife.of(half_life)
    weight = span.weights(times)
    _refuse_runaway(times, weight)
    facts = Aged(
        half_life=span.words,
        oldest=times.words(float(times.values.min())),
        newest=times.words(float(times.values.max())),
        rows=len(weight),
        count_as=float(weight.sum()),
    )
    return weight, facts


def _refuse_runaway(times: Times, weight: Float64) -> None:
    """Refuse a newest time beside which all other rows count for nothing, as one wrong date makes them."""
    counts = weight > _NOTHING
    newest = times.values.max()
    tomorrow = datetime.now(UTC).timestamp() + _SECONDS["d"]
    is_alone = counts.sum() == 1 and len(weight) >= _SEVERAL
    has_come = times.values <= tomorrow
    is_future = times.are_dates and has_come.any() and not counts[has_come].any()
    if is_alone or is_future:
        row = int(times.values.argmax())
        raise ValueError(
            f"time: row {row} is of {times.words(float(newest))}, beside which "
            f"{len(weight) - counts.sum():,} of {len(weight):,} rows are too old to count: correct "
            "it, or pass a longer half_life"
        )


def _number(value: float) -> str:
    """Return a number as the shortest text that says it exactly.

    >>> _number(90.0), _number(0.1)
    ('90', '0.1')
    """
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _numbers(cells: NumpyArray) -> Float64 | None:
    """Return texts as numbers if all of them are numbers."""
    try:
        return cells.astype(np.float64)
    except (TypeError, ValueError):
        return None


def _dates_in_digits(numbers: Float64) -> Float64 | None:
    """Return numbers such as 20240531 as seconds since 1970; None unless all of them are such dates.

    >>> _dates_in_digits(np.array([20240531.0])), _dates_in_digits(np.array([20240531.0, 20240532.0]))
    (array([1.7171136e+09]), None)
    """
    if numbers.min() < _FIRST_DATE or numbers.max() > _LAST_DATE or (numbers % 1).any():
        return None
    distinct, place = np.unique(numbers.astype(np.int64), return_inverse=True)
    try:
        seconds = [_seconds(str(date)) for date in distinct.tolist()]
    except ValueError:
        return None
    return np.array(seconds)[place]


def _finite(numbers: Float64) -> Float64:
    """Return numbers as they are; one that is NaN or infinite is refused."""
    bad = ~np.isfinite(numbers)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"time must be dates or finite numbers; row {row} is {numbers[row]}")
    return numbers


def _seconds(cell: object) -> float:
    """Return a date as seconds since 1970; one without a time zone counts as UTC."""
    try:
        moment = datetime.fromisoformat(str(cell).strip())
    except ValueError:
        raise ValueError(
            f"time: {str(cell)[:40]!r} is no date: write 2024-05-31, 2024-05-31 12:00, or numbers"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()
