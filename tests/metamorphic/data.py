"""Rows as a user holds them: in a library, of a kind, with columns in an order, in a file."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import hcal
from helpers import synthetic

#: The names of two and of three classes.
NAMES: dict[int, tuple[str, ...]] = {2: ("no", "yes"), 3: ("ant", "bee", "cat")}
#: The numbers of rows to fit on and to measure; every group has five rows.
FIT_ROWS, TEST_ROWS = 200, 300
#: The ending of a file in which a library would store its frames.
ENDINGS = {"numpy": "csv", "torch": "npz", "lists": "jsonl", "polars": "parquet"}
ENDINGS |= {"pyarrow": "feather", "pandas": "csv", "Float64": "parquet", "double[pyarrow]": "csv"}


#: The beginning of the names of columns in a file.
PREFIXES = {"logits": "logit_", "probs": "p_", "log_probs": "logprob_"}


@dataclass(frozen=True)
class Data:
    """Rows in memory, and how a user passes them to hcal."""

    logits: np.ndarray  # (N, K), the classes in the order of `names`
    y: np.ndarray  # (N,), positions in `names`
    names: tuple[Any, ...]
    number: np.ndarray  # (N,), which row of the world each row is
    weight: np.ndarray | None = None
    kind: str = "logits"
    library: str = "numpy"
    width: str = "float64"
    order: tuple[int, ...] | None = None  # of the columns, where a frame has names
    one_column: bool = False
    cuts: tuple[int, ...] = ()  # where blocks begin
    start: int = 0  # the number of the first row in the whole
    aliases: tuple[str, ...] = ()  # what the world calls the classes, where `names` are others

    def __getitem__(self, index: Any) -> Data:
        weight = None if self.weight is None else self.weight[index]
        return replace(
            self,
            logits=self.logits[index],
            y=self.y[index],
            number=self.number[index],
            weight=weight,
            cuts=(),
        )

    def __len__(self) -> int:
        return len(self.y)

    # -- what is passed to hcal -------------------------------------------------------------------

    @property
    def framed(self) -> bool:
        """Whether the columns have names."""
        return self.library not in ("numpy", "lists", "torch") and not self.one_column

    @property
    def named(self) -> bool:
        """Whether the classes have names, and not only numbers."""
        return self.names != tuple(range(len(self.names)))

    @property
    def titles(self) -> dict[str, str]:
        """What the world calls each class."""
        names = [str(name) for name in self.names]
        return dict(zip(names, self.aliases or names, strict=True))

    @property
    def positive(self) -> Any:
        """The class "yes" as the user calls it; 1 of three classes, where no class is positive."""
        titles = list(self.titles.values())
        return self.names[titles.index("yes")] if "yes" in titles else 1

    @property
    def place(self) -> int:
        """The number of the class "yes" among the columns that are shown; 1 of three classes."""
        titles = [list(self.titles.values())[k] for k in self.ordered]
        return titles.index("yes") if "yes" in titles else 1

    @property
    def positive_code(self) -> Any:
        """The class "yes" for a function without ``classes``: its name if the columns have names, else its number."""
        return self.positive if self.framed and self.named else self.place

    @property
    def ordered(self) -> tuple[int, ...]:
        """The classes in the order of the columns that a function sees; numbers are put in their order."""
        by_name = self.framed and self.named and self.order is not None
        return self.order if by_name and self.order else tuple(range(len(self.names)))

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The argument ``classes``: columns that have names need none."""
        return None if self.framed or not self.named else self.names

    def scores(self) -> Any:
        """The scores of the stated kind, in the library."""
        return self._shown(self.numbers(self.kind), self.kind)

    def probs(self) -> Any:
        """The probabilities, in the library."""
        return self._shown(self.numbers("probs"), "probs")

    def numbers(self, kind: str) -> np.ndarray:
        """The scores as an array (N, K) of a kind."""
        if kind == "logits":
            return self.logits
        probs = hcal.softmax(self.logits)
        return probs if kind == "probs" else np.log(probs)

    def labels(self) -> Any:
        """The labels by name; tensors hold no text, so there they are positions."""
        if self.library == "torch":
            return self.column(self.y)
        return self.column(np.array(self.names)[self.y])

    def codes(self) -> Any:
        """The labels for a function without ``classes``: names where the columns have names, else positions."""
        return self.labels() if self.framed and self.named else self.column(self.y)

    def groups(self) -> Any:
        """The group of each row, of about five rows."""
        return self.column(self.number // 5)

    def by(self) -> Any:
        """The segment of each row, of two."""
        segment = np.array(["DE", "FR"])[self.number // 5 % 2]
        return segment if self.library == "torch" else self.column(segment)

    def weights(self) -> Any:
        """The weight of each row, or None."""
        return None if self.weight is None else self.column(self.weight)

    def table(self, values: np.ndarray) -> Any:
        """Return one value a row and class in the library, with the columns of the scores."""
        order = range(len(self.names)) if self.order is None else self.order
        columns = [self.names[k] for k in order] if self.framed else None
        shuffled = values[:, list(order)] if self.framed else values
        return as_table(shuffled, columns, self.library, self.number)

    def titled(self, names: Any) -> np.ndarray:
        """Return names of classes (N,) as the world calls them."""
        texts = [str(name) for name in np.asarray(names)]
        return np.array([self.titles.get(text, text) for text in texts])

    def costs(self) -> list[list[float]]:
        """What it costs to decide class j where class k is true; in the order of the shown columns."""
        price = {"ant": 1, "bee": 2, "cat": 4, "no": 1, "yes": 3}
        titles = [list(self.titles.values())[k] for k in self.ordered]
        return [[0.0 if a == b else price[b] for a in titles] for b in titles]

    def column(self, values: np.ndarray) -> Any:
        """Return one value a row in the library."""
        return as_column(values, self.library, self.number)

    def blocks(self) -> list[Data]:
        """The rows in consecutive blocks."""
        edges = [0, *self.cuts, len(self)]
        return [replace(self[low:high], start=low) for low, high in itertools.pairwise(edges)]

    def _shown(self, values: np.ndarray, kind: str) -> Any:
        values = values.astype(self.width)
        if self.one_column:
            return as_column(one_score(values, kind), self.library, self.number)
        return self.table(values)

    # -- files ------------------------------------------------------------------------------------

    def write(self, folder: Path, name: str) -> Path:
        """Write a file of the rows, of the type that goes with the library; return its path."""
        scores = self.numbers(self.kind).astype(self.width)
        path = folder / f"{name}.{ENDINGS[self.library]}"
        beside = {
            "label": np.array(self.names)[self.y],
            "key": self.number,
            "patient": self.number // 5,
            "country": np.array(["DE", "FR"])[self.number // 5 % 2],
        }
        if self.weight is not None:
            beside["weight"] = self.weight
        if path.suffix == ".npz":
            np.savez(path, **{self.kind: scores, "classes": np.array(self.names)}, **beside)
            return path
        if self.one_column:
            columns = {"score": one_score(scores, self.kind)}
        else:
            order = range(len(self.names)) if self.order is None else self.order
            columns = {f"{PREFIXES[self.kind]}{self.names[k]}": scores[:, k] for k in order}
        write_columns(path, columns | beside)
        return path

    def options(self, *roles: str) -> list[str]:
        """Return the options of a command that reads such a file; ``roles`` are those that the command knows."""
        options = ["--label", "label"]
        if self.library != "torch":
            scores = "score" if self.one_column else f"{PREFIXES[self.kind]}*"
            options += ["--scores", scores, "--input", self.kind]
        if self.one_column:
            options += ["--classes", ",".join(self.names)]
        if self.weight is not None and "weight" in roles:
            options += ["--weight", "weight"]
        if self.cuts and "blocks" in roles:
            options += ["--batch-rows", str(self.cuts[0])]
        return options


def one_score(scores: np.ndarray, kind: str) -> np.ndarray:
    """Return the score (N,) of class 1 of two."""
    return scores[:, 1] - scores[:, 0] if kind == "logits" else scores[:, 1]


def as_table(values: np.ndarray, columns: list[Any] | None, library: str, number: Any) -> Any:
    """Return an array (N, K) in a library, with names of columns where it has any."""
    if library == "numpy":
        return values
    if library == "lists":
        return values.tolist()
    if library == "torch":
        import torch

        return torch.from_numpy(np.ascontiguousarray(values))
    assert columns is not None
    if library == "polars":
        import polars as pl

        return pl.DataFrame({str(name): values[:, j] for j, name in enumerate(columns)})
    if library == "pyarrow":
        import pyarrow as pa

        return pa.table({str(name): values[:, j] for j, name in enumerate(columns)})
    import pandas as pd

    frame = pd.DataFrame(values, columns=columns, index=_index(number))
    if library == "pandas":
        return frame
    narrow = values.dtype == np.float32
    types = {"Float64": "Float32", "double[pyarrow]": "float[pyarrow]"}
    return frame.astype(types[library] if narrow else library)


def as_column(values: np.ndarray, library: str, number: Any) -> Any:
    """Return one value a row in a library."""
    if library == "numpy":
        return values
    if library == "lists":
        return values.tolist()
    if library == "torch":
        import torch

        return torch.from_numpy(np.ascontiguousarray(values))
    if library == "polars":
        import polars as pl

        return pl.Series(values)
    if library == "pyarrow":
        import pyarrow as pa

        return pa.chunked_array([values[:7], values[7:]])
    import pandas as pd

    series = pd.Series(values, index=_index(number))
    if library == "Float64":
        return series.convert_dtypes()
    return series.convert_dtypes(dtype_backend="pyarrow") if "arrow" in library else series


def _index(number: np.ndarray) -> Any:
    """An index that is no range; a row that stands twice has two labels."""
    return [f"r{place}-{row}" for place, row in enumerate(number.tolist())]


def write_columns(path: Path, columns: dict[str, Any]) -> None:
    """Write columns to a file whose ending says its type."""
    if path.suffix == ".npz":
        np.savez(path, **columns)
    elif path.suffix == ".jsonl":
        cells = {name: np.asarray(values).tolist() for name, values in columns.items()}
        cells_of_rows = zip(*cells.values(), strict=True)
        rows = [dict(zip(cells, row, strict=True)) for row in cells_of_rows]
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    elif path.suffix == ".csv":
        import pandas as pd

        pd.DataFrame(columns).to_csv(path, index=False)
    else:
        import pyarrow as pa
        from pyarrow import feather, parquet

        write = parquet.write_table if path.suffix == ".parquet" else feather.write_feather
        write(pa.table(columns), path)


@dataclass(frozen=True, eq=False)
class Pair:
    """Rows to fit on, and others to measure."""

    fit: Data
    test: Data
    saved: bool = False  # whether every object is saved and loaded before it is used
    dask: bool = False  # whether Dask runs the blocks

    @property
    def k(self) -> int:
        """The number of classes."""
        return len(self.fit.names)


@cache
def world(k: int) -> Pair:
    """Return over-confident rows of two or three classes."""
    sides = []
    for seed, size in ((21, FIT_ROWS), (22, TEST_ROWS)):
        logits, y = synthetic(size, k, seed=seed)
        # Probabilities above 1/(N·K): the floor that a fit learns leaves all rows as they are.
        logits = 3 * np.tanh(logits / 3)
        sides.append(Data(logits, y, NAMES[k], np.arange(size)))
    return Pair(*sides)
