"""Open what a public function was given as a source of rows: files by their names, or blocks of rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hcal.fit_record import fitted_kind, fitted_names
from hcal.inputs import InputKind
from hcal.io.blocks import batches, rows_of
from hcal.io.reading import by_blocks, read
from hcal.io.request import Part, Request
from hcal.io.sources import RowSource, is_source, source_of_blocks, source_of_rows
from hcal.rows import Rows


def open_source(
    data: Any, calibrator: Any = None, request: Request | None = None, part: Part = "test"
) -> RowSource:
    """Return rows with their labels as a source.

    Parameters
    ----------
    data : RowSource, Rows, path-like, sequence of them, or iterable of Rows
        What :func:`hcal.io.sources.is_source` recognises. One file is read as a whole, a folder, a pattern or several
        files by blocks.
    calibrator : Calibrator, optional
        Whose columns, kind of scores and classes a file has.
    request : Request, optional
        The columns of files; the calibrator's own request fills in what it leaves open.
    part : {"cal", "test"}
        Of a task file.

    Examples
    --------
    >>> open_source(Rows.of([[0.2, 0.8]], [1], input="probs").blocks(1)).n_classes
    2
    """
    asked = request or Request()
    if not is_files(data):
        if isinstance(data, RowSource):
            return data
        if isinstance(data, Rows):
            return source_of_rows(data)
        if hasattr(data, "as_source"):
            source: RowSource = data.as_source()
            return source
        return source_of_blocks(data)
    if calibrator is not None:
        record = getattr(calibrator, "fit_", None)
        remembered = {} if record is None else record.request
        asked = asked.for_model({"input": fitted_kind(calibrator), **remembered})
    order = fitted_names(calibrator)
    if by_blocks(data):
        return batches(data, asked, part=part, order=order).as_source()
    return source_of_rows(rows_of(read(data, asked, part=part, order=order)))


def rows_to_fit(data: Any, input: InputKind, **columns: Any) -> Rows:
    """Return the rows of a source to fit on: all of them, or a random sample.

    ``columns`` are names of columns of files, as for :func:`columns_request`.
    """
    if not is_source(data):
        raise ValueError("y is missing: pass one label a row")
    request = Request()
    if is_files(data):
        request = columns_request(input=input, **columns)
    elif any(value is not None for value in columns.values()):
        raise ValueError(
            "rows that come in blocks bring their weights, groups, segments and names of classes: pass them to Rows.of"
        )
    rows = open_source(data, request=request, part="cal").sample()
    if rows.y is None:
        raise ValueError("the rows have no labels")
    return rows


def is_files(data: Any) -> bool:
    """Whether data are names of files, folders or patterns."""
    if isinstance(data, list | tuple):
        return all(isinstance(entry, str | os.PathLike) for entry in data)
    return isinstance(data, str | os.PathLike)


def columns_request(
    *,
    input: Any = None,
    groups: Any = None,
    by: Any = None,
    weight: Any = None,
    classes: Any = None,
) -> Request:
    """Return how the columns of a file are called; with files, ``groups``, ``by`` and weights are names of columns.

    >>> columns_request(groups="patient", by=["country", "site"]).by
    'country,site'
    """
    return Request(
        input=input,
        groups=_column(groups, "groups"),
        by=None if by is None else ",".join(_columns(by)),
        weight=_column(weight, "sample_weight"),
        classes=None if classes is None else tuple(str(name) for name in classes),
    )


def _column(name: Any, what: str) -> str | None:
    if name is None or isinstance(name, str):
        return name
    raise TypeError(f"{what} must be the name of a column of the files, got {type(name).__name__}")


def _columns(names: Any) -> Sequence[str]:
    columns = [names] if isinstance(names, str) else list(names)
    for name in columns:
        _column(name, "by")
    return columns
