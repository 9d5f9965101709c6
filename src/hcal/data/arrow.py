"""Arrow's files, ``.parquet`` and ``.feather``: only the wanted columns, sizes checked as declared."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hcal.data.arrays import Arrays, Wish
from hcal.data.columns import BARE, may_be_text
from hcal.data.limits import check_bytes, one_line, size_of
from hcal.data.tables import columns_by_name, one_axis, refuse_identifiers, refuse_other_columns, typed
from hcal.runtime.extras import missing


def read_parquet(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read the wanted columns of a parquet file.

    Parameters
    ----------
    file, name, wish
        As for :func:`hcal.data.tables.read_csv`.

    Returns
    -------
    dict of arrays
        A column of lists is a matrix.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow import parquet as pq
    except ImportError:
        raise missing("reading .parquet", "pyarrow", "frames") from None
    try:
        with pq.ParquetFile(file, pre_buffer=False) as source:
            schema = source.schema_arrow
            chosen = _choose(schema, wish)
            wanted = _all(chosen)
            texts = _check_types(schema, chosen, wish)
            check_bytes(name, _bytes_of(source, schema, wanted, texts), size_of(file))
            table = source.read(columns=wanted, use_pandas_metadata=False)
            arrays = {key: _stack(key, table, cs) for key, cs in chosen.items()}
    except (ArrowException, OSError) as error:
        raise ValueError(one_line(error)) from None
    return _checked(arrays, chosen, wish)


def read_feather(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read the wanted columns of a feather file (version 2, which is Arrow's own file), batch by batch.

    Parameters
    ----------
    file, name, wish
        As for :func:`hcal.data.tables.read_csv`.

    Returns
    -------
    dict of arrays
    """
    try:
        import pyarrow as pa
        from pyarrow import ipc
    except ImportError:
        raise missing("reading .feather", "pyarrow", "frames") from None
    try:
        with ipc.open_file(file) as source:
            schema = source.schema
        chosen = _choose(schema, wish)
        _check_types(schema, chosen, wish)
        wanted = _all(chosen)
        options = ipc.IpcReadOptions(included_fields=[schema.names.index(c) for c in wanted])
        file.seek(0)
        batches, total = [], 0
        with ipc.open_file(file, options=options) as source:
            for number in range(source.num_record_batches):
                batches.append(source.get_batch(number))
                total += batches[-1].nbytes
                check_bytes(name, total, size_of(file))  # what is compressed says its size only here
            table = pa.Table.from_batches(batches, schema=source.schema if not batches else None)
        arrays = {key: _stack(key, table, cs) for key, cs in chosen.items()}
    except (pa.ArrowException, OSError) as error:
        raise ValueError(one_line(error)) from None
    return _checked(arrays, chosen, wish)


def _choose(schema: Any, wish: Wish) -> dict[str, list[str]]:
    columns = columns_by_name(schema.names, wish.columns)
    chosen = {key: columns[key] for key in wish.choose(columns)}
    if not wish.labels:
        refuse_other_columns(chosen.get(BARE, ()), _index_of(schema))
    return chosen


def _all(chosen: dict[str, list[str]]) -> list[str]:
    return list(dict.fromkeys(c for cs in chosen.values() for c in cs))


def _checked(arrays: Arrays, chosen: dict[str, list[str]], wish: Wish) -> Arrays:
    if BARE in arrays and not wish.labels:
        refuse_identifiers(arrays[BARE], chosen[BARE])
    return {key: one_axis(key, array, chosen[key]) for key, array in arrays.items()}


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


def _stack(key: str, table: Any, columns: list[str]) -> NDArray[Any]:
    """Return columns side by side, (N, K); one column of lists, or named as the array, as it is."""
    arrays = [_column(table[c], c) for c in columns]
    if len(arrays) == 1 and (arrays[0].ndim == 2 or columns == [key]):
        return arrays[0]
    if any(a.ndim == 2 for a in arrays):
        raise ValueError(f"columns of lists beside others: {one_line(', '.join(columns), 80)}")
    return np.stack(arrays, axis=1)


def _column(column: Any, name: str) -> NDArray[Any]:
    if column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} missing values")
    if _is_string(getattr(column.type, "value_type", column.type)):
        return typed(name, column.to_pylist())
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
