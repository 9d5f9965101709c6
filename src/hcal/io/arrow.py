"""Arrow's files, ``.parquet`` and ``.feather``: only the wanted columns, sizes checked as declared."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hcal.io.arrays import Arrays, Wish
from hcal.io.columns import may_be_text
from hcal.io.limits import check_bytes, one_line, size_of
from hcal.io.rows import Span, gathered_spans
from hcal.io.tables import choose_columns, judged_columns, typed
from hcal.extras import load_extra


def read_parquet(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read the wanted columns of a parquet file; a column of lists is a matrix."""
    with _one_line():
        rows = ParquetRows(file, name, wish)
        check_bytes(name, rows.n_bytes, size_of(file))
        table = rows.source.read(columns=_all(rows.chosen), use_pandas_metadata=False)
        return _arrays(table, rows.chosen, wish)


class ParquetRows:
    """Rows of the wanted columns of a parquet file; a span is some row groups."""

    random = False

    def __init__(self, file: BinaryIO, name: str, wish: Wish) -> None:
        parquet = load_extra("reading .parquet", "pyarrow.parquet", "frames")
        self._file, self._name, self._wish = file, name, wish
        with _one_line():
            # Pages are read as they are needed: a row group may be the whole file.
            self.source = parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**16)
            schema = self.source.schema_arrow
            self.chosen = choose_columns(schema.names, wish, _index_of(schema))
            texts = _check_types(schema, self.chosen, wish)
            self.n_rows: int = self.source.metadata.num_rows
            self.n_bytes = _bytes_of(self.source, schema, _all(self.chosen), texts)

    def _groups(self) -> list[int]:
        metadata = self.source.metadata
        return [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]

    def spans(self, step: int) -> list[Span]:
        """Cut between row groups."""
        return gathered_spans(self._groups(), step)

    def blocks(
        self, span: Span, size: int, *, judged: bool = False, known: Collection[str] = ()
    ) -> Iterator[Arrays]:
        check_bytes(self._name, self.n_bytes * min(size, self.n_rows) // self.n_rows, size_of(self._file))
        ends = np.cumsum(self._groups())
        groups = list(range(span.place, int(np.searchsorted(ends, span.stop)) + 1))
        with _one_line():
            found = self.source.iter_batches(size, row_groups=groups, columns=_all(self.chosen))
            for batch in found:
                yield _arrays(_table([batch]), self.chosen, self._wish, judged=judged, known=known)

    def close(self) -> None:
        self.source.close()
        self._file.close()


class IpcRows:
    """Rows of the wanted columns of a feather or Arrow IPC file; a span is some record batches."""

    random = False

    def __init__(self, file: BinaryIO, name: str, wish: Wish) -> None:
        ipc = load_extra("reading .feather", "pyarrow.ipc", "frames")
        self._file, self._name, self._wish = file, name, wish
        with _one_line():
            with ipc.open_file(file) as source:
                self._schema = source.schema
            self.chosen = choose_columns(self._schema.names, wish, _index_of(self._schema))
            _check_types(self._schema, self.chosen, wish)
            self.source = self._only(_all(self.chosen))

    def _only(self, columns: list[str]) -> Any:
        from pyarrow import ipc

        self._file.seek(0)
        fields = [self._schema.names.index(c) for c in columns]
        return ipc.open_file(self._file, options=ipc.IpcReadOptions(included_fields=fields))

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        """Rows and bytes of each record batch: what is compressed says them only when it is read."""
        with _one_line():
            count = self.source.num_record_batches
            return [(b.num_rows, b.nbytes) for b in map(self.source.get_batch, range(count))]

    @property
    def n_rows(self) -> int:
        return sum(rows for rows, _ in self._sizes)

    @property
    def n_bytes(self) -> int:
        """What the wanted columns take."""
        return sum(held for _, held in self._sizes)

    def spans(self, step: int) -> list[Span]:
        """Cut between record batches."""
        return gathered_spans([rows for rows, _ in self._sizes], step)

    def blocks(
        self, span: Span, size: int, *, judged: bool = False, known: Collection[str] = ()
    ) -> Iterator[Arrays]:
        left, number = span.stop - span.start, span.place
        with _one_line():
            while left > 0:
                batch = self.source.get_batch(number)
                check_bytes(self._name, batch.nbytes, size_of(self._file))
                for a in range(0, batch.num_rows, size):
                    table = _table([batch.slice(a, size)])
                    yield _arrays(table, self.chosen, self._wish, judged=judged, known=known)
                left, number = left - batch.num_rows, number + 1

    def close(self) -> None:
        self._file.close()


def read_feather(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read the wanted columns of a feather file (version 2, which is Arrow's own file), batch by batch."""
    with _one_line():
        rows = IpcRows(file, name, wish)
        batches, total = [], 0
        for number in range(rows.source.num_record_batches):
            batches.append(rows.source.get_batch(number))
            total += batches[-1].nbytes
            check_bytes(name, total, size_of(file))  # what is compressed says its size only here
        table = _table(batches, None if batches else rows.source.schema)
        return _arrays(table, rows.chosen, wish)


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn what Arrow raises into one line."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        if type(error).__module__.startswith("pyarrow") or isinstance(error, OSError):
            raise ValueError(one_line(error)) from None
        raise


def _table(batches: list[Any], schema: Any = None) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches(batches, schema=schema)


def _all(chosen: dict[str, list[str]]) -> list[str]:
    return list(dict.fromkeys(c for cs in chosen.values() for c in cs))


def _arrays(
    table: Any, chosen: dict[str, list[str]], wish: Wish, *, judged: bool = False, known: Collection[str] = ()
) -> Arrays:
    """Return the chosen columns of a table, of all rows or of some; the rest as for ``parse_csv``."""
    arrays = {key: _stack(key, table, cs, text=key in known) for key, cs in chosen.items()}
    return judged_columns(arrays, chosen, wish, judged=judged)


def _index_of(schema: Any) -> list[str]:
    """Return the columns that pandas wrote down as the index."""
    try:
        told = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [c for c in told if isinstance(c, str)] if isinstance(told, list) else []


def _check_types(schema: Any, chosen: dict[str, list[str]], wish: Wish) -> list[str]:
    """Return the columns that hold text; refuse what is neither numbers nor text in its place."""
    from pyarrow import types

    texts = []
    for key, columns in chosen.items():
        for column in columns:
            kind = schema.field(column).type
            plain = kind.value_type if types.is_dictionary(kind) else kind
            if may_be_text(key, labels=wish.labels) and _is_string(plain):
                texts.append(column)
            elif not _is_number(_item(kind)):
                shown = one_line(repr(column), 60)
                raise ValueError(f"the column {shown} holds {one_line(kind, 40)}, not numbers")
    return texts


def _is_string(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _item(kind: Any) -> Any:
    """Return the type of the numbers of a column, plain or of lists."""
    from pyarrow import types

    nested = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return kind.value_type if nested else kind


def _bytes_of(source: Any, schema: Any, wanted: list[str], texts: list[str]) -> int:
    """Return the bytes that columns will take, by what the file declares."""
    rows, total = source.metadata.num_rows, 0
    for column in wanted:
        kind = schema.field(column).type
        item = _item(kind)
        if column in texts:
            total += 64 * rows  # a Python text for each; few are longer
        else:
            width = max(item.bit_width // 8, 1)
            total += width * (rows if item is kind else _values_of(source, column))
    return int(total)


def _values_of(source: Any, column: str) -> int:
    """Return how many numbers all lists of a column hold together."""
    metadata = source.metadata
    counts = [
        metadata.row_group(g).column(c).num_values
        for g in range(metadata.num_row_groups)
        for c in range(metadata.num_columns)
        if metadata.schema.column(c).path.split(".")[0] == column
    ]
    return int(max(sum(counts), metadata.num_rows))


def _stack(key: str, table: Any, columns: list[str], *, text: bool) -> NDArray[Any]:
    """Return columns side by side, (N, K); one column of lists, or named as the array, as it is."""
    arrays = [_column(table[c], c, text=text) for c in columns]
    if len(arrays) == 1 and (arrays[0].ndim == 2 or columns == [key]):
        return arrays[0]
    if any(a.ndim == 2 for a in arrays):
        raise ValueError(f"columns of lists beside others: {one_line(', '.join(columns), 80)}")
    return np.stack(arrays, axis=1)


def _column(column: Any, name: str, *, text: bool) -> NDArray[Any]:
    if column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} missing values")
    if _is_string(getattr(column.type, "value_type", column.type)):
        return typed(name, column.to_pylist(), text=text)
    flat = column.combine_chunks()
    if not hasattr(flat, "flatten") or not hasattr(flat.type, "value_type"):
        return np.asarray(column.to_numpy())
    values, rows = flat.flatten(), len(flat)
    if values.null_count:
        raise ValueError(f"column {name!r} has {values.null_count} missing values")
    sizes = np.asarray(flat.value_lengths()) if rows else np.zeros(1)
    if (sizes != sizes[0]).any():
        raise ValueError(f"the lists of column {name!r} differ in length")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(rows, int(sizes[0]))
