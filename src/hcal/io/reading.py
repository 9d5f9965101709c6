"""Scores and labels from files, in the formats that people have.

A file *says* what it holds (the key ``logits``, ``probs`` or ``log_probs``); where it cannot (a bare
``.npy`` matrix, a table with free column names) the caller must. Nothing is guessed from the numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hcal.io.arrays import Arrays, Wish, read_npy, read_npz
from hcal.io.arrow import read_feather, read_parquet
from hcal.io.class_names import check_classes, encode, reorder
from hcal.io.columns import ANY, BARE, CLASSES, Columns, may_be_text
from hcal.io.jsonl import is_questions, read_questions
from hcal.io.limits import BROKEN, check_bytes, one_line, open_regular, size_of
from hcal.io.lm_eval import OptionScore
from hcal.io.pickles import read_pickle
from hcal.io.plan import Part, ReadingPlan, UnknownKindError
from hcal.io.records import read_jsonl, read_xlsx
from hcal.io.tables import OtherColumnError, read_csv
from hcal.io.tensors import read_safetensors
from hcal.io.torch_files import load_tensors
from hcal.io.zarr_rows import is_zarr
from hcal.inputs import INPUT_KINDS, InputKind


class MissingLabelsError(ValueError):
    """A file has no labels."""


@dataclass(frozen=True)
class DataFile:
    """One part of a data file.

    Attributes
    ----------
    path : Path
    kind : {"logits", "probs", "log_probs"}
        What ``values`` holds, as the file or the caller said.
    values : array of shape (N, K), or (N,) for a binary score
    y : array of shape (N,), or None
        As the file has them: integers 0..K−1 or names.
    part : str
        ``"cal"``, ``"test"``, or ``""`` for a file without parts.
    classes : tuple of str, or None
        Names of the classes in the order of the columns, where the file or the caller gives them.
    ids, groups, weight : array of shape (N,), or None
        What :class:`Columns` asked for.
    more : tuple of Path
        The files that were read together with ``path``.
    questions : bool
        Whether rows are questions with their options, −inf where one does not exist.
    """

    path: Path
    kind: InputKind
    values: NDArray[Any]
    y: NDArray[Any] | None
    part: str
    classes: tuple[str, ...] | None = None
    ids: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    weight: NDArray[Any] | None = None
    more: tuple[Path, ...] = ()
    questions: bool = False

    @property
    def name(self) -> str:
        """The name of the file, and how many came with it."""
        return f"{self.path.name} and {len(self.more)} more" if self.more else self.path.name

    def checksum(self) -> str:
        """Return the SHA-256 of the file; of the checksums where there are several."""
        if not self.more:
            return checksum(self.path)
        each = [checksum(path) for path in (self.path, *self.more)]
        return hashlib.sha256("".join(each).encode()).hexdigest()

    def labels(self) -> NDArray[Any]:
        """Return the labels, names as the numbers of their classes, or say that this file has none."""
        if self.y is None:
            raise MissingLabelsError(f"{self.path.name} has no labels: add an array 'y' beside {self.kind!r}")
        return np.asarray(encode(self.y, self.classes))

    def in_order_of(self, classes: Sequence[Any] | None) -> DataFile:
        """Return the same rows with the columns in the order of a model's classes, found by their names.

        Parameters
        ----------
        classes : sequence of K str or int, or None
            Of the model; None where it has no names, and then nothing is changed.
        """
        if classes is None:
            return self
        if self.classes is None:
            return replace(self, classes=tuple(classes))
        order = reorder(self.classes, classes)
        if order is None:
            return self
        # Numbers count the columns of the file; names do not care.
        y = None if self.y is None else np.array(self.classes)[self.labels()]
        return replace(self, values=self.values[:, order], classes=tuple(map(str, classes)), y=y)


def read_data(
    path: str | Path | Sequence[str | Path],
    *,
    part: Part = "test",
    kind: str | None = None,
    labels: str | Path | None = None,
    columns: Columns | None = None,
    classes: Sequence[str] | None = None,
    score: OptionScore = "sum",
) -> DataFile:
    """Read scores and labels from a file, by its extension.

    Parameters
    ----------
    path : path-like, or sequence of them
        Several only where all are ``.jsonl``;
        ``.npz .npy .csv .parquet .feather .jsonl .xlsx .safetensors .pt`` or a numpy pickle ``.p``.
    part : {"cal", "test"}
        Which part of a task file (``logits_cal``, ``y_cal``, ``logits_test``, ``y_test``); a file without
        parts is read whole.
    kind : {"logits", "probs", "log_probs"}, optional
        Needed only where the file holds several of them or does not say.
    labels : path-like, optional
        A second file with the labels, for formats that hold one array.
    columns : Columns, optional
        What the file calls its scores, labels, ids, groups and weights.
    classes : sequence of K str, optional
        Names of the classes in the order of the columns, where the columns do not say.
    score : {"sum", "length", "mutual-information"}
        What the score of an option is, in samples of lm-evaluation-harness (``.jsonl``).

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("id,logit_cat,logit_dog,target\\n7,0.5,1.5,dog\\n8,2.5,0.5,cat\\n")
    >>> data = read_data(path, columns=Columns(scores="logit_*", label="target", id="id"))
    >>> data.kind, data.classes, data.ids, data.labels()
    ('logits', ('cat', 'dog'), array([7, 8]), array([1, 0]))
    """
    path, *more = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
    if kind is not None and kind not in INPUT_KINDS:
        raise ValueError(f"the kind of scores must be one of {', '.join(INPUT_KINDS)}, got {kind!r}")
    if labels is None and columns in (None, ANY) and is_questions([path, *more]):
        holds, values, found_y, questions = read_questions([path, *more], score=score)
        return DataFile(path, holds, values, found_y, "", more=tuple(more), questions=questions)
    if more:
        raise ValueError(f"{1 + len(more)} files: several are read together only where all are .jsonl")
    plan = ReadingPlan(path, part, kind, columns or Columns(), own_labels=labels is None)
    arrays = read_arrays(path, Wish(plan.choose, columns=plan.columns))
    y = None if labels is None else read_labels(Path(labels))
    return data_of_arrays(plan, arrays, y, classes)


def data_of_arrays(
    plan: ReadingPlan, arrays: Arrays, y: NDArray[Any] | None, classes: Sequence[str] | None
) -> DataFile:
    """Return arrays that a plan chose, of all rows or of some, by the parts they play.

    ``y`` are labels of another file; None where those of this file count.
    """
    path = plan.path
    found: dict[str, Any] = {role: arrays[name] for role, name in plan.names.items()}
    y = found.get("label") if y is None else y
    if y is not None and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    values = found["scores"]
    n_classes = 2 if values.ndim == 1 else values.shape[-1]
    names = None if classes is None else check_classes(classes, n_classes)
    if classes is None and (said := plan.classes(found.get(CLASSES))) is not None:
        with explained(path.name):
            names = check_classes(said, n_classes)
    data = DataFile(path, plan.kind, values, y, plan.suffix.lstrip("_"), names)  # type: ignore[arg-type]
    rest: dict[str, Any] = {
        key: found.get(role) for key, role in (("ids", "id"), ("groups", "group"), ("weight", "weight"))
    }
    for key, array in rest.items():
        if array is not None and array.shape != (len(values),):
            raise ValueError(f"{path.name}: {key} must have one value a row, got shape {array.shape}")
    return replace(data, **rest)


def read_labels(path: Path) -> NDArray[Any]:
    """Return the labels of a file that holds nothing else, or calls them ``y``."""
    return only_array(read_arrays(path, wish_for_labels(path)))


def only_array(arrays: Arrays) -> NDArray[Any]:
    """Return the one array of labels, a row or column of them as (N,)."""
    (y,) = arrays.values()
    return y.reshape(-1) if y.ndim == 2 and 1 in y.shape else y


def wish_for_labels(path: Path) -> Wish:
    """Return what is wanted of a file of labels: its ``y``, or the one array that it holds."""

    def choose(names: Collection[str]) -> list[str]:
        for name in ("y", BARE):
            if name in names:
                return [name]
        raise ValueError(f"{path.name} has no 'y'; it holds: {one_line(', '.join(sorted(names)), 120)}")

    return Wish(choose, labels=True)


def read_arrays(path: Path, wish: Wish | None = None) -> Arrays:
    """Read arrays of a file by name, by the file's extension.

    Parameters
    ----------
    path : Path
    wish : Wish, optional
        Which of its arrays; all by default.

    Returns
    -------
    dict of arrays

    Examples
    --------
    >>> read_arrays(Path("a.doc"))
    Traceback (most recent call last):
    ...
    ValueError: cannot read a.doc: the types are .arrow, .csv, .feather, .ipc, .jsonl, .npy, .npz, .p, ...
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"cannot read {path.name}: the types are {', '.join(TYPES)}")
    with open_regular(path) as file, explained(path.name):
        return reader(file, path.name, wish or Wish(list))


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn what a parser of a foreign format raises into one sentence that names the file.

    >>> with explained("a.npz"):
    ...     raise EOFError
    Traceback (most recent call last):
    ...
    ValueError: cannot read a.npz: EOFError
    """
    try:
        yield
    except UnknownKindError:
        raise
    except OtherColumnError as error:
        raise OtherColumnError(_sentence(name, error)) from None
    except BROKEN as error:
        raise ValueError(_sentence(name, error)) from None


def _sentence(name: str, error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"cannot read {name}: not enough memory"
    text = one_line(error) or type(error).__name__
    return text if text.startswith(name) else f"cannot read {name}: {text}"


def read_names(path: Path) -> list[str]:
    """Return the names of the arrays of a file, without reading them.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.npz"
    >>> np.savez(path, probs=[[0.25, 0.75]], y=[1])
    >>> read_names(path)
    ['probs', 'y']
    """
    held: list[str] = []

    def choose(names: Collection[str]) -> list[str]:
        held.extend(names)
        return []

    read_arrays(path, Wish(choose))
    return held


def _read_benchmark(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read the benchmark's ``((logits_cal, y_cal), (logits_test, y_test))``, or a dict of arrays."""
    check_bytes(name, size_of(file), size_of(file))
    return _pick(read_pickle(file.read(), name), wish)


def _read_torch(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read a tensor, a tuple or a dict of them that ``torch.save`` wrote."""
    return _pick(load_tensors(file, name), wish)


def _pick(content: Any, wish: Wish) -> Arrays:
    """Return the wanted arrays of what a pickle held; numbers, and text where it is meant."""
    held = _named(content)
    if held is None:
        raise ValueError(
            "expected ((logits_cal, y_cal), (logits_test, y_test)), (logits, y) or a dict of arrays"
        )
    arrays = {key: np.asarray(held[key]) for key in wish.choose(list(held))}
    for key, array in arrays.items():
        if array.dtype.kind not in ("biufU" if may_be_text(key, labels=wish.labels) else "biuf"):
            raise ValueError(f"{one_line(repr(key), 60)} holds {array.dtype}, not numbers")
    return arrays


def _named(held: Any) -> dict[str, Any] | None:
    if isinstance(held, dict):
        return {str(k): v for k, v in held.items()}
    if isinstance(held, np.ndarray):
        return {BARE: held}
    if _is_pair(held):
        return {"logits": held[0], "y": held[1]}
    if isinstance(held, tuple | list) and len(held) == 2 and all(map(_is_pair, held)):
        (logits_cal, y_cal), (logits_test, y_test) = held
        return {"logits_cal": logits_cal, "y_cal": y_cal, "logits_test": logits_test, "y_test": y_test}
    return None


def _is_pair(held: Any) -> bool:
    return isinstance(held, tuple | list) and len(held) == 2 and all(isinstance(a, np.ndarray) for a in held)


_READERS: Final[dict[str, Callable[[BinaryIO, str, Wish], Arrays]]] = {
    ".npz": read_npz,
    ".npy": read_npy,
    ".csv": read_csv,
    ".parquet": read_parquet,
    ".feather": read_feather,
    ".arrow": read_feather,
    ".ipc": read_feather,
    ".jsonl": read_jsonl,
    ".xlsx": read_xlsx,
    ".safetensors": read_safetensors,
    ".pt": _read_torch,
    ".p": _read_benchmark,
    ".pkl": _read_benchmark,
}
#: The types that can be read.
TYPES: Final = tuple(sorted(_READERS))


def checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file, to name the data behind a result; of a Zarr store, that of all its files.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"")
    >>> checksum(path)[:12]
    'e3b0c44298fc'
    """
    path = Path(path)
    if is_zarr(path):
        files = sorted(file for file in path.rglob("*") if file.is_file())
        each = (f"{file.relative_to(path).as_posix()} {checksum(file)}\n" for file in files)
        return hashlib.sha256("".join(each).encode()).hexdigest()
    with open_regular(path) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
