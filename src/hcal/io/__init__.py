"""Data files: read scores and labels, write probabilities, store models.

Reading. A :class:`Request` names the columns of a file and says what its scores are; a model file stores it.

    request = Request(scores="logit_*", label="target", id="id")
    data = read("rows.csv", request)             # DataFile: values, kind, y, ids, classes, notes, …
    data = read("task.npz", part="cal")          # a file that says what it holds needs no request
    data = read("new.csv", Request().for_model(header["request"]), keep=True)   # as the model was fitted

``read`` takes one file, several, a folder or a pattern: ``.npz .npy .csv .jsonl .parquet .feather``.
``data.labels()`` are integers, ``data.in_order_of(names)`` puts the columns into the order of a model's
classes, ``data.beside`` holds the other columns (``keep=True``). ``Request(unlabelled="drop")`` leaves out rows
without a label; ``data.dropped`` and ``data.notes`` say how many.

By blocks. The same rows, some at a time, for files that do not fit into memory:

    source = batches("folder/", request, rows=65536)   # Batches: n_rows, n_classes, classes, kind, first
    for rows in source: ...                             # hcal.rows.Rows: scores, y (integers), start, weight, …
    source.as_source(runner)                            # what evaluate, certify, report and fit take
    source.pieces()                                     # parts for joblib or Dask: read_piece(piece)
    read_blocks(piece)                                  # (number of the first row, DataFile) for each block

Writing, block by block: ``with write_blocks(path, n_rows, classes=, names=) as write: write(probs, y, ids=, kept=)``.
``can_write`` raises an error before any work if the type cannot be written. ``atomic_path`` makes any output appear
complete or not at all.

Models. ``write_model(path, header, arrays)`` and ``read_model(path)`` (:mod:`hcal.io.model_file`) store a JSON header
and arrays, and know nothing about methods. ``check_info`` checks what a header says about the fit, and
``Request.from_json`` how its rows were read.

Language models. ``read`` also takes ``.jsonl`` files of lm-evaluation-harness, responses with ``top_logprobs``, token
log-probabilities of generated answers and stated confidences; :mod:`hcal.language_models` says what they mean.

Errors are ValueError or OSError with one line that names the file and what to do, in Python and as an option.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hcal.io.blocks import Batches, batches, read_piece
    from hcal.io.files import atomic_path, checksum
    from hcal.io.reading import DataFile, Piece, read, read_blocks
    from hcal.io.request import Part, Request
    from hcal.io.sources import RowSource
    from hcal.io.writing import can_write, write_blocks

__all__ = [
    "Batches", "DataFile", "Part", "Piece", "Request", "RowSource", "atomic_path", "batches",
    "can_write", "checksum", "read", "read_blocks", "read_piece", "write_blocks",
]  # fmt: skip

#: The module of each name, imported when the name is first used: the commands need hcal.io.files without numpy.
_HOMES = {
    "blocks": ("Batches", "batches", "read_piece"),
    "files": ("atomic_path", "checksum"),
    "reading": ("DataFile", "Piece", "read", "read_blocks"),
    "request": ("Part", "Request"),
    "sources": ("RowSource",),
    "writing": ("can_write", "write_blocks"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'hcal.io' has no attribute {name!r}")
    value = getattr(import_module(f"hcal.io.{_HOME[name]}"), name)
    globals()[name] = value  # so that the next use of the name does not come here
    return value
