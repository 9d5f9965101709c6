"""Data files: logits, probabilities and labels in and out, within stated limits of memory."""

from __future__ import annotations

from hcal.io.arrays import Arrays, Wish
from hcal.io.batching import Batch, Batches, batches, read_piece
from hcal.io.class_names import UnnamedClassesError
from hcal.io.columns import Columns
from hcal.io.limits import max_bytes
from hcal.io.pieces import Piece
from hcal.io.plan import Part, UnknownKindError
from hcal.io.reading import (
    DataFile,
    MissingLabelsError,
    checksum,
    read_arrays,
    read_data,
    read_names,
)
from hcal.io.tables import OtherColumnError
from hcal.io.writing import can_write, write_probs

__all__ = [
    "Arrays",
    "Batch",
    "Batches",
    "Columns",
    "DataFile",
    "MissingLabelsError",
    "OtherColumnError",
    "Part",
    "Piece",
    "UnknownKindError",
    "UnnamedClassesError",
    "Wish",
    "batches",
    "can_write",
    "checksum",
    "max_bytes",
    "read_arrays",
    "read_data",
    "read_names",
    "read_piece",
    "write_probs",
]
