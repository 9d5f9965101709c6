"""Scores and labels from files, in the formats that people have.

A file *says* what it holds (the key ``logits``, ``probs`` or ``log_probs``); where it cannot (a bare
``.npy`` matrix, a table with free column names) the caller must. Nothing is guessed from the numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hcal.data.arrays import BARE, Arrays, Wish, read_npy, read_npz
from hcal.data.jsonl import read_jsonl
from hcal.data.limits import BROKEN, check_bytes, one_line, open_regular, size_of
from hcal.data.lm_eval import OptionScore
from hcal.data.pickles import read_pickle
from hcal.data.tables import read_csv, read_parquet
from hcal.data.tensors import read_safetensors
from hcal.inputs import INPUT_KINDS, InputKind

Part = Literal["cal", "test"]


class UnknownKindError(ValueError):
    """A file does not say whether it holds logits, probs or log_probs, or holds several of them."""


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
    part : str
        ``"cal"``, ``"test"``, or ``""`` for a file without parts.
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
        """Return ``y``, or say that this file has none."""
        if self.y is None:
            raise MissingLabelsError(f"{self.path.name} has no labels: add an array 'y' beside {self.kind!r}")
        return self.y


def read_data(
    path: str | Path | Sequence[str | Path],
    *,
    part: Part = "test",
    kind: str | None = None,
    labels: str | Path | None = None,
    score: OptionScore = "sum",
) -> DataFile:
    """Read scores and labels from ``.npz .npy .csv .parquet .safetensors .jsonl`` or a numpy pickle ``.p``.

    Parameters
    ----------
    path : path-like, or sequence of them
        Several only where all are ``.jsonl``.
    part : {"cal", "test"}
        Which part of a task file (``logits_cal``, ``y_cal``, ``logits_test``, ``y_test``); a file without
        parts is read whole.
    kind : {"logits", "probs", "log_probs"}, optional
        Needed only where the file holds several of them or does not say.
    labels : path-like, optional
        A second file with the labels, for formats that hold one array.
    score : {"sum", "length", "mutual-information"}
        What the score of an option is, in samples of lm-evaluation-harness (``.jsonl``).

    Returns
    -------
    DataFile

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.npz"
    >>> np.savez(path, probs=[[0.25, 0.75]], y=[1])
    >>> read_data(path).kind
    'probs'
    """
    path, *more = [Path(p) for p in ([path] if isinstance(path, str | Path) else path)]
    if kind is not None and kind not in INPUT_KINDS:
        raise ValueError(f"the kind of scores must be one of {', '.join(INPUT_KINDS)}, got {kind!r}")
    if all(p.suffix.lower() == ".jsonl" for p in (path, *more)) and labels is None:
        holds, values, y, questions = read_jsonl([path, *more], score=score)
        return DataFile(path, holds, values, y, "", tuple(more), questions)
    if more:
        raise ValueError(f"{1 + len(more)} files: several are read together only where all are .jsonl")
    found = ("", "")

    def choose(names: Sequence[str]) -> list[str]:
        nonlocal found
        found = _find(names, path, part, kind)
        y = f"y{found[0]}"
        return [found[1], y] if y in names and labels is None else [found[1]]

    arrays = read_arrays(path, Wish(choose))
    suffix, name = found
    y = arrays.get(f"y{suffix}") if labels is None else _read_labels(Path(labels))
    if y is not None and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    said = name.removesuffix(suffix) if name != BARE else kind
    return DataFile(path, said, arrays[name], y, suffix.lstrip("_"))  # type: ignore[arg-type]


def _find(names: Sequence[str], path: Path, part: Part, kind: str | None) -> tuple[str, str]:
    """Return the suffix of the part and the name of the array to use."""
    wanted = (kind,) if kind else INPUT_KINDS
    for suffix in (f"_{part}", ""):
        found = [k + suffix for k in wanted if k + suffix in names]
        if len(found) > 1:
            raise UnknownKindError(f"{path.name} holds {' and '.join(found)}: choose one")
        if found:
            return suffix, found[0]
    if BARE in names:
        if kind is None:
            raise UnknownKindError(f"{path.name} does not say what its numbers are")
        return "", BARE
    held = one_line(", ".join(sorted(names)), 120) or "nothing"
    what = kind or "logits, probs or log_probs"
    role = "calibration" if part == "cal" else "test"
    raise ValueError(
        f"{path.name} has no {what} (nor a {role} part of that name with _{part}); it holds: {held}"
    )


def _read_labels(path: Path) -> NDArray[Any]:
    def choose(names: Sequence[str]) -> list[str]:
        for name in ("y", BARE):
            if name in names:
                return [name]
        raise ValueError(f"{path.name} has no 'y'; it holds: {one_line(', '.join(sorted(names)), 120)}")

    (y,) = read_arrays(path, Wish(choose, labels=True)).values()
    return y.reshape(-1) if y.ndim == 2 and 1 in y.shape else y


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
    >>> read_arrays(Path("a.xlsx"))
    Traceback (most recent call last):
    ...
    ValueError: cannot read a.xlsx: the types are .csv, .npy, .npz, .p, .parquet, .pkl, .safetensors
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"cannot read {path.name}: the types are {', '.join(sorted(_READERS))}")
    with open_regular(path) as file:
        try:
            return reader(file, path.name, wish or Wish(list))
        except UnknownKindError:
            raise
        except BROKEN as error:
            raise ValueError(_sentence(path.name, error)) from None


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

    def choose(names: Sequence[str]) -> list[str]:
        held.extend(names)
        return []

    read_arrays(path, Wish(choose))
    return held


def _read_benchmark(file: BinaryIO, name: str, wish: Wish) -> Arrays:
    """Read the benchmark's ``((logits_cal, y_cal), (logits_test, y_test))``, or a dict of arrays."""
    check_bytes(name, size_of(file), size_of(file))
    held = _named(read_pickle(file.read(), name))
    if held is None:
        raise ValueError(
            "expected ((logits_cal, y_cal), (logits_test, y_test)), (logits, y) or a dict of arrays"
        )
    arrays = {key: np.asarray(held[key]) for key in wish.choose(list(held))}
    for key, array in arrays.items():
        if array.dtype.kind not in "biuf":
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
    ".safetensors": read_safetensors,
    ".p": _read_benchmark,
    ".pkl": _read_benchmark,
}


def checksum(path: str | Path) -> str:
    """Return the SHA-256 of a file, to name the data behind a result.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"")
    >>> checksum(path)[:12]
    'e3b0c44298fc'
    """
    with open_regular(Path(path)) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
