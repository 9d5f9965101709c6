"""Data files: logits, probabilities and labels in and out, within stated limits of memory."""

from __future__ import annotations

from hcal.data.arrays import Arrays, Wish
from hcal.data.batching import Batch, Batches, batches, read_piece
from hcal.data.class_names import UnnamedClassesError
from hcal.data.columns import Columns
from hcal.data.limits import max_bytes
from hcal.data.pieces import Piece
from hcal.data.plan import Part, UnknownKindError
from hcal.data.reading import (
    DataFile,
    MissingLabelsError,
    checksum,
    read_arrays,
    read_data,
    read_names,
)
from hcal.data.tables import OtherColumnError
from hcal.data.writing import can_write, write_probs

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
