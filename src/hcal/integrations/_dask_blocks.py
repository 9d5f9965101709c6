"""Blocks of Dask's collections: rows that stay whole, columns beside them, and one object of each block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from hcal.extras import missing

try:
    import dask.array
    import dask.dataframe
except ImportError as error:
    package = (error.name or "dask").partition(".")[0]
    raise missing("hcal.integrations.dask", package, "dask") from None

T = TypeVar("T")


def rows_in_chunks(x: Any, what: str) -> Any:
    """Return a dask array of whole rows."""
    if isinstance(x, dask.dataframe.DataFrame | dask.dataframe.Series):
        x = x.to_dask_array()
    if not isinstance(x, dask.array.Array):
        raise TypeError(f"{what} must be a dask Array, DataFrame or Series, got {type(x).__name__}")
    if x.ndim not in (1, 2):
        raise ValueError(f"{what} must have one or two axes, got shape {x.shape}")
    return x if x.ndim == 1 or x.numblocks[1] == 1 else x.rechunk({1: -1})


def classes_of(probs: Any) -> int:
    if probs.ndim == 1:
        return 2
    if probs.shape[1] != probs.shape[1]:
        raise ValueError("the number of columns is not known: call compute_chunk_sizes() first")
    return int(probs.shape[1])


def aligned(scores: Any, **columns: Any) -> tuple[Any, dict[str, Any]]:
    """Return the scores as a dask array of whole rows, and the columns that were given in its blocks."""
    whole = rows_in_chunks(scores, "scores")
    given = {n: rows_in_chunks(c, n) for n, c in columns.items() if c is not None}
    for name, column in given.items():
        if column.chunks[0] == whole.chunks[0]:
            continue
        if np.isnan(whole.shape[0]) or np.isnan(column.shape[0]):
            if column.numblocks[0] != whole.numblocks[0]:
                raise ValueError(
                    f"{name} has {column.numblocks[0]} blocks of unknown sizes, scores has "
                    f"{whole.numblocks[0]}: call compute_chunk_sizes() on both first"
                )
            continue
        if column.shape[0] != whole.shape[0]:
            raise ValueError(f"{name} has {column.shape[0]} rows, scores has {whole.shape[0]}")
        given[name] = column.rechunk((whole.chunks[0],))
    return whole, given


def per_block(function: Callable[..., Any], scores: Any, columns: dict[str, Any]) -> list[Any]:
    """Return, delayed, what ``function(scores, **columns, number=)`` makes of every block, each in a box.

    A dask array of objects: one layer, fused with what the blocks are made by.
    """
    given = [c if c.ndim == scores.ndim else c[:, None] for c in columns.values()]
    made = dask.array.map_blocks(
        partial(_in_box, function, tuple(columns)),
        scores,
        *given,
        drop_axis=1 if scores.ndim == 2 else None,
        chunks=((1,) * scores.numblocks[0],),
        dtype=object,
        meta=np.empty(0, object),
    )
    return list(made.to_delayed().ravel())


def _in_box(
    function: Callable[..., Any],
    names: Sequence[str],
    scores: Any,
    *columns: Any,
    block_id: tuple[int, ...] = (0,),
) -> Any:
    rows = {name: column.ravel() for name, column in zip(names, columns, strict=True)}
    return boxed(function(scores, number=block_id[0], **rows))


def boxed(part: Any) -> Any:
    box = np.empty(1, object)
    box[0] = part
    return box


def said_where(function: Callable[..., T], kind: str, number: int | None, *block: Any) -> T:
    """Call the function; rows that its complaint names are those of a block, so the block is named too."""
    try:
        return function(*block)
    except ValueError as error:
        raise ValueError(f"{kind} {number}: {error}" if number is not None else str(error)) from None
