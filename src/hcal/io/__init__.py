"""Data files: scores and labels in, probabilities out, models in inert files.

Reading. A :class:`Request` says what a file calls its columns and what its numbers are; a model remembers it.

    request = Request(scores="logit_*", label="target", id="id")
    data = read("rows.csv", request)             # DataFile: values, kind, y, ids, classes, notes, …
    data = read("task.npz", part="cal")          # a file that says what it holds needs no request
    data = read("new.csv", Request().for_model(header["request"]), keep=True)   # as the model was fitted

``read`` takes one file, several, a folder or a pattern: ``.npz .npy .csv .jsonl .parquet .feather`` and
numpy pickles ``.p``. ``data.labels()`` are integers, ``data.in_order_of(names)`` puts the
columns into a model's order, ``data.beside`` are the other columns (``keep=True``).
``Request(unlabelled="drop")`` leaves out rows without a label;
``data.dropped`` and ``data.notes`` say how many.

By blocks. The same rows some at a time, for files that memory does not hold:

    source = batches("folder/", request, rows=65536)   # Batches: n_rows, n_classes, classes, kind, first
    for batch in source: ...                            # Batch: scores, y (integers), start, weight, …
    source.pieces()                                     # parts for joblib or Dask: read_piece(piece)
    read_blocks(piece)                                  # (number of the first row, DataFile) as it was read

Writing, block by block: ``with write_blocks(path, n_rows, classes=, names=) as write: write(probs, y, ids=, kept=)``.
``can_write`` raises early.
``atomic_path`` makes any output appear whole or not at all.

Models. ``write_model(path, header, arrays)`` and ``read_model(path)`` (:mod:`hcal.io.model_file`) know a JSON
header and arrays and nothing of methods; ``check_info`` checks what a header tells of the fit and
``Request.from_json`` how the rows were asked for.

Language models. ``.jsonl`` files of lm-evaluation-harness, responses with ``top_logprobs`` and stated
confidences are read by ``read`` too; :mod:`hcal.io.language_models` has their parts.

Errors are ValueError or OSError with one line that names the file and what to do, in Python and as an option.
"""

from __future__ import annotations

from hcal.io.blocks import Batch, Batches, batches, read_piece, rows_from
from hcal.io.files import atomic_path, checksum
from hcal.io.reading import DataFile, Piece, read, read_blocks
from hcal.io.request import Part, Request
from hcal.io.writing import can_write, write_blocks

__all__ = [
    "Batch",
    "Batches",
    "DataFile",
    "Part",
    "Piece",
    "Request",
    "atomic_path",
    "batches",
    "can_write",
    "checksum",
    "read",
    "read_blocks",
    "read_piece",
    "rows_from",
    "write_blocks",
]
