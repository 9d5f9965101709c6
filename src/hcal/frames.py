"""Arrays and data frames of any library become numpy arrays, and results go back in the form of what was given.

Frames go through narwhals, which knows pandas (with numpy, nullable and Arrow types), polars, pyarrow and others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from hcal.numerics import FloatArray, NumpyArray

if TYPE_CHECKING:
    import narwhals as nw
    import pandas as pd
    import torch
    from narwhals.typing import IntoDataFrame, IntoLazyFrame, IntoSeries
ColumnName = str | int
#: What public functions take as scores, labels, weights or groups: an array or tensor of any library, a frame or column
#: of any that narwhals knows, or a list. These types cannot be named without importing their libraries.
AnyArray: TypeAlias = Any


@dataclass(frozen=True)
class Origin:
    """What was given: its library, type, device, row labels and column names.

    Attributes
    ----------
    library : str
        ``"numpy"``, ``"torch"``, or the library of a frame: ``"pandas"``, ``"polars"``, ``"pyarrow"``, ….
    dtype : object
        Of an array or tensor.
    device : object
        Of a tensor.
    index : object
        The index of a pandas object.
    columns : tuple of str or int, or None
        The names of a frame's columns; None where they have no names (an array, or a frame made from one).
    """

    library: str
    dtype: np.dtype | torch.dtype | None
    device: torch.device | None = None
    index: pd.Index | None = None
    columns: tuple[ColumnName, ...] | None = None


def is_on_accelerator(x: AnyArray) -> bool:
    """Return whether scores are a tensor on a GPU or another accelerator; predictions are then computed there.

    >>> is_on_accelerator([[0.0, 1.0]])
    False
    """
    return getattr(getattr(x, "device", None), "type", "cpu") not in ("cpu", "meta")


def to_numpy(x: AnyArray, what: str = "array") -> tuple[NumpyArray, Origin]:
    """Convert an array, tensor, frame or nested list to numpy; also return its origin.

    ``what`` is the name of the argument in error messages. A missing number of a frame becomes NaN.

    Examples
    --------
    >>> to_numpy([[1, 2]])[0]
    array([[1, 2]])
    """
    if type(x) is np.ndarray:
        return x, Origin("numpy", x.dtype)
    library = type(x).__module__.partition(".")[0]
    if library == "torch":
        return _from_torch(x)
    if library not in ("builtins", "numpy"):
        import narwhals as nw  # only where a frame may come: its import takes 40 ms

        if library == "scipy":
            raise ValueError(f"{what} is a sparse array of scipy: pass its .toarray()")
        _refuse_equal_names(x, what)
        frame = nw.from_native(x, pass_through=True, allow_series=True)
        if isinstance(frame, nw.LazyFrame):
            _refuse_lazy(frame, what)
        if isinstance(frame, nw.DataFrame | nw.Series):
            return _from_frame(frame, x)
    if np.ma.is_masked(x):  # numpy drops the mask on conversion, and the hidden values would count
        place = np.argwhere(x.mask)[0]
        first = ", ".join(f"{axis} {i}" for axis, i in zip(("row", "column"), place, strict=False))
        raise ValueError(
            f"{what} has masked entries, first at {first}: leave these out or fill them"
        )
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ValueError(f"{what} is not a rectangular array: {error}") from None
    return array, Origin("numpy", array.dtype)


def columns_by_name(x: AnyArray, what: str) -> dict[str, AnyArray] | None:
    """Return the columns of a frame, each in its own type; None for what is no frame with named columns.

    A matrix has one type, so values of other types would change in it.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"site": [1, 2], "new": [True, False]})
    >>> [column.tolist() for column in columns_by_name(frame, "by").values()]
    [[1, 2], [True, False]]
    """
    if type(x).__module__.partition(".")[0] in ("builtins", "numpy", "torch"):
        return None
    import narwhals as nw

    frame = nw.from_native(x, pass_through=True, allow_series=True)
    if isinstance(frame, nw.LazyFrame):
        _refuse_lazy(frame, what)
    if not isinstance(frame, nw.DataFrame) or _is_unnamed(frame.columns):
        return None
    return {str(name): frame.get_column(name).to_native() for name in frame.columns}


def restore(
    array: FloatArray, origin: Origin, columns: Sequence[ColumnName] | None = None
) -> AnyArray:
    """Return a float result (N, K) in the library, device and float width of the input.

    ``columns`` names the columns of a frame; without names they are 0..K−1.

    Examples
    --------
    >>> restore(np.zeros((1, 2)), Origin("numpy", np.dtype("float32"))).dtype
    dtype('float32')
    """
    if origin.library == "numpy":
        assert isinstance(origin.dtype, np.dtype)
        floating = np.issubdtype(origin.dtype, np.floating)
        return array.astype(_returned_dtype(origin.dtype) if floating else np.float64, copy=False)
    if origin.library == "torch":
        return _to_torch(array, origin)
    names = range(array.shape[1]) if columns is None else columns
    if origin.library == "pandas":
        import pandas as pd

        return pd.DataFrame(array, index=origin.index, columns=list(names))
    import narwhals as nw

    texts = [str(name) for name in names]
    columns_by_name = {name: array[:, k] for k, name in enumerate(texts)}
    library: Any = origin.library
    return nw.from_dict(columns_by_name, backend=library).to_native()


def index_of(x: AnyArray) -> pd.Index | None:
    """Return the index of a pandas object, else None.

    >>> index_of([1, 2]) is None
    True
    """
    if type(x).__module__.partition(".")[0] != "pandas":
        return None
    return getattr(x, "index", None)


def refuse_other_index(scores: AnyArray, others: Mapping[str, object]) -> None:
    """Refuse pandas objects whose index says that their rows are not those of the scores.

    Where the scores have no index, the others are compared with the first of them that has one. An index that only
    counts the rows says nothing about which rows they are, unless both indexes hold the same labels in another order.
    """
    indexes = {"the scores": index_of(scores)}
    indexes |= {what: index_of(values) for what, values in _by_name(others)}
    for what, index in indexes.items():
        if index is not None:
            refuse_index_of_others(index, others, what)
            return


def refuse_index_of_others(
    index: pd.Index | None, others: Mapping[str, object], reference: str = "the scores"
) -> None:
    """Refuse pandas objects whose index says that their rows are not those of ``reference`` with this index."""
    if index is None:
        return
    for what, values in _by_name(others):
        other = index_of(values)
        if other is None or len(other) != len(index) or other.equals(index):
            continue
        advice = f"pass {what}.to_numpy() if its rows are those of {reference} as they stand"
        if index.is_unique and set(other) == set(index):
            raise ValueError(
                f"{what} has the index of {reference} in another order: {advice}, and "
                f"{what}.loc[{reference.removeprefix('the ')}.index] if the index names the rows"
            )
        if not _counts_rows(index) and not _counts_rows(other):
            row = int(np.argmax(np.asarray(other != index)))
            raise ValueError(
                f"{what} has another index than {reference}, {other[row]} and {index[row]} in row "
                f"{row}: {advice}"
            )


def _by_name(others: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield values with their names; those of a dictionary each by itself."""
    for what, values in others.items():
        if isinstance(values, dict):
            yield from ((f"{what}[{name!r}]", column) for name, column in values.items())
        else:
            yield what, values


def _counts_rows(index: pd.Index) -> bool:
    """Return whether an index is pandas' default, 0, 1, 2, …."""
    return index.dtype.kind in "iu" and bool((index == np.arange(len(index))).all())


def _returned_dtype(dtype: np.dtype) -> np.dtype:
    """Return the float type of a result: float16 comes back as float32, because the top two would tie in it."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def _from_torch(x: torch.Tensor) -> tuple[NumpyArray, Origin]:
    values = x.detach().cpu()
    if str(x.dtype) in ("torch.float16", "torch.bfloat16"):
        values = values.float()
    return values.numpy(), Origin("torch", x.dtype, device=x.device)


def _to_torch(array: FloatArray, origin: Origin) -> torch.Tensor:
    import torch

    assert isinstance(origin.dtype, torch.dtype)
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if origin.dtype in (torch.float16, torch.bfloat16):
        return tensor.to(device=origin.device, dtype=torch.float32)
    dtype = origin.dtype if origin.dtype.is_floating_point else torch.float64
    return tensor.to(device=origin.device, dtype=dtype)


def _from_frame(
    frame: nw.DataFrame[IntoDataFrame] | nw.Series[IntoSeries], given: AnyArray
) -> tuple[NumpyArray, Origin]:
    import narwhals as nw

    library = frame.implementation.value
    index = index_of(given)
    if isinstance(frame, nw.Series):
        return np.asarray(frame.to_numpy()), Origin(library, None, index=index)
    names = tuple(_plain_name(name) for name in frame.columns)
    columns = None if _is_unnamed(names) else names
    return _values(frame), Origin(library, None, index=index, columns=columns)


def _values(frame: nw.DataFrame[IntoDataFrame]) -> NumpyArray:
    """Return the values of a frame; pandas gives numbers of Arrow types as objects, so they go column by column."""
    values = np.asarray(frame.to_numpy())
    if values.dtype != object or not all(kind.is_numeric() for kind in frame.schema.values()):
        return values
    return np.stack([np.asarray(frame[name].to_numpy()) for name in frame.columns], axis=1)


def _plain_name(name: object) -> ColumnName:
    """Return the name of a column as text or a Python integer; True is 1, and 2.0 is 2."""
    if isinstance(name, bool | np.bool_ | np.integer):
        return int(name)
    if isinstance(name, float) and name.is_integer():
        return int(name)
    return name if isinstance(name, str | int) else str(name)


def _is_unnamed(names: Sequence[ColumnName]) -> bool:
    """Return whether the names are those that libraries give to the columns of an array: 0, 1, … or column_0, …."""
    numbers = tuple(range(len(names)))
    return tuple(names) == numbers or tuple(names) == tuple(f"column_{k}" for k in numbers)


def _refuse_equal_names(x: AnyArray, what: str) -> None:
    """Raise a ValueError for a frame in which two columns have one name."""
    if not hasattr(x, "iloc"):  # only frames of pandas can have such columns
        return
    columns = getattr(x, "columns", None)
    if columns is None or getattr(columns, "is_unique", True):
        return
    twice = columns[columns.duplicated()][0]
    raise ValueError(f"{what} has two columns that are called {twice!r}: rename one of them")


def refuse_lazy(x: AnyArray, what: str) -> None:
    """Raise a ValueError for a frame or relation whose rows are not in memory; ``what`` is the argument's name."""
    if type(x).__module__.partition(".")[0] in ("builtins", "numpy", "torch", "scipy"):
        return
    import narwhals as nw

    frame = nw.from_native(x, pass_through=True, allow_series=True)
    if isinstance(frame, nw.LazyFrame):
        _refuse_lazy(frame, what)


def _refuse_lazy(frame: nw.LazyFrame[IntoLazyFrame], what: str) -> NoReturn:
    """Raise a ValueError for a frame or relation whose rows are not in memory."""
    library = frame.implementation.value
    calls = {"polars": ".collect()", "duckdb": ".df()", "dask": ".compute()"}
    advice = f"call {calls.get(library, 'its method that computes the rows')} first"
    if library == "pyspark":
        advice = "call .toPandas() first, or use hcal.integrations.spark"
    raise ValueError(f"{what} is a lazy frame of {library}, whose rows are not in memory: {advice}")
