"""What was passed to a public function becomes a source of rows: arrays, files by their names, or blocks of rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from hcal.class_names import ClassName
from hcal.fit_record import FittedModel, fitted_kind, fitted_names, fitted_request
from hcal.frames import AnyArray, refuse_lazy, refuse_other_index
from hcal.inputs import InputKind
from hcal.io.blocks import batches, rows_of
from hcal.io.reading import by_blocks, read
from hcal.io.request import Part, Request
from hcal.io.sources import RowSource, is_source, source_of_blocks, source_of_rows
from hcal.row_segments import Segments
from hcal.rows import Rows


@dataclass(frozen=True, eq=False)
class RowInfo:
    """What belongs to rows beside scores and labels, as the caller gave it; with files, the names of columns."""

    weight: AnyArray = None
    groups: AnyArray = None
    by: AnyArray = None
    classes: Iterable[ClassName] | None = None
    time: AnyArray = None

    @property
    def empty(self) -> bool:
        """Whether nothing was given."""
        return all(getattr(self, entry.name) is None for entry in fields(self))

    def rows(
        self, scores: AnyArray, y: AnyArray, input: InputKind, like: Rows | None = None
    ) -> Rows:
        """Return checked rows; columns that have names are put in the order of ``like`` by name."""
        return Rows.of_predictions(
            scores,
            y,
            input=input,
            weight=self.weight,
            groups=self.groups,
            by=self.by,
            time=self.time,
            classes=self.classes,
            like=like,
        )

    def request(self, input: InputKind | None = None) -> Request:
        """Return how the columns of a file are called.

        >>> RowInfo(groups="patient", by=["country", "site"]).request().by
        'country,site'
        """
        return Request(
            input=input,
            groups=_column(self.groups, "groups"),
            by=None if self.by is None else ",".join(_columns(self.by)),
            weight=_column(self.weight, "sample_weight"),
            time=_column(self.time, "time"),
            classes=None if self.classes is None else tuple(map(str, self.classes)),
        )


NOTHING: Final = RowInfo()


def source_of(
    scores: AnyArray,
    y: AnyArray,
    info: RowInfo = NOTHING,
    *,
    input: InputKind,
    calibrator: FittedModel | None = None,
    part: Part = "test",
) -> RowSource:
    """Return rows with their labels as a source; with a calibrator, as it was fitted.

    Parameters
    ----------
    scores, y : as a public function takes them
        Arrays; or, with ``y=None``, what :func:`hcal.io.sources.is_source` recognises. One file is read as a whole; a
        folder, a pattern or several files are read by blocks.
    info : RowInfo
    input : {"logits", "probs", "log_probs"}
        What arrays hold; a file says itself what it holds, or as which kind it was fitted.
    part : {"cal", "test"}
        Of a task file.

    Examples
    --------
    >>> source_of([[0.2, 0.8]], [1], input="probs").n_classes
    2
    """
    if hasattr(scores, "__dask_graph__"):
        return _dask_source(scores, y, info, input, calibrator)
    if y is None and is_source(scores):
        return _like_fit(_opened(scores, info, calibrator, part), calibrator)
    if y is None:
        refuse_lazy(scores, input)
        raise ValueError("y is missing: pass one label a row")
    if calibrator is None:
        return source_of_rows(info.rows(scores, y, input))
    rows = calibrator.rows_like(
        scores, y, weight=info.weight, groups=info.groups, classes=info.classes
    )
    if info.by is not None:
        refuse_other_index(scores, {"y": y, "by": info.by})
        # More columns than those of the calibrator's segments may be listed.
        rows = replace(rows, by=Segments.of(info.by, len(rows)))
    return source_of_rows(rows)


def rows_to_fit(scores: AnyArray, y: AnyArray, info: RowInfo, input: InputKind) -> Rows:
    """Return the rows of files, blocks or Dask collections to fit on: all of them, or a random sample."""
    source = source_of(scores, y, info, input=input, part="cal")
    if source.kind != input:
        raise ValueError(f"the rows hold {source.kind}, but the calibrator takes input={input!r}")
    rows = source.sample()
    if rows.y is None:
        raise ValueError("the rows have no labels")
    return rows


def _opened(data: AnyArray, info: RowInfo, calibrator: FittedModel | None, part: Part) -> RowSource:
    """Return files, or blocks of rows, as a source."""
    if not _is_files(data) and not info.empty:
        raise ValueError(
            "rows that come in blocks bring their weights, groups, segments and names of "
            "classes: pass them to Rows.of, or to batches as the names of columns"
        )
    if isinstance(data, RowSource):
        return data
    if isinstance(data, Rows):
        return source_of_rows(data)
    if hasattr(data, "as_source"):
        source: RowSource = data.as_source()
        return source
    if not _is_files(data):
        return source_of_blocks(data)
    request = info.request()
    if calibrator is not None:
        request = request.for_model(fitted_request(calibrator))
    order = fitted_names(calibrator)
    if by_blocks(data):
        return batches(data, request, part=part, order=order).as_source()
    return source_of_rows(rows_of(read(data, request, part=part, order=order)))


def _like_fit(source: RowSource, calibrator: FittedModel | None) -> RowSource:
    """Return a source with the classes in the order of a calibrator's fit, where these have names."""
    names = fitted_names(calibrator)
    if calibrator is None or names is None or names == source.names:
        return source
    if source.whole is None:
        return replace(source, names=names)  # each block is put in this order where it is predicted
    whole = calibrator.rows_like(source.whole)
    return replace(source, names=names, whole=whole, pieces=[whole])


def _dask_source(
    scores: AnyArray, y: AnyArray, info: RowInfo, input: InputKind, calibrator: FittedModel | None
) -> RowSource:
    """Return Dask collections as a source."""
    # Only who passes Dask collections has Dask.
    from hcal.integrations.dask import rows

    source: RowSource = rows(
        scores,
        y,
        input=fitted_kind(calibrator) if calibrator else input,
        sample_weight=info.weight,
        groups=info.groups,
        by=info.by,
        classes=info.classes,
        like=getattr(calibrator, "fit_", None),
    )
    return source


def _is_files(data: object) -> bool:
    """Whether data are names of files, folders or patterns."""
    if isinstance(data, list | tuple):
        return all(isinstance(entry, str | os.PathLike) for entry in data)
    return isinstance(data, str | os.PathLike)


def _column(name: object, what: str) -> str | None:
    if name is None or isinstance(name, str):
        return name
    raise TypeError(f"{what} must be the name of a column of the files, got {type(name).__name__}")


def _columns(names: str | Iterable[str]) -> Sequence[str]:
    columns = [names] if isinstance(names, str) else list(names)
    for name in columns:
        _column(name, "by")
    return columns
