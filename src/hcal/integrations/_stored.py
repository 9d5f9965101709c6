"""A fitted calibrator as the bytes of its model file, for containers that hold more than a calibrator.

Through the file and back, so that what is stored passes the checks of :func:`hcal.load`, and there is one
format.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hcal.calibrators.base import Calibrator
from hcal.calibrators.files import load, save


def to_bytes(calibrator: Calibrator) -> bytes:
    """Return what :func:`hcal.save` would write.

    >>> import hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> to_bytes(from_bytes(to_bytes(cal))) == to_bytes(cal)
    True
    """
    with tempfile.TemporaryDirectory(prefix="hcal-") as folder:
        path = Path(folder) / "model.hcal"
        save(calibrator, path)
        return path.read_bytes()


def from_bytes(content: bytes) -> Calibrator:
    """Return the calibrator that :func:`to_bytes` wrote, checked as :func:`hcal.load` checks.

    >>> from_bytes(b"nonsense")
    Traceback (most recent call last):
    ...
    ValueError: the stored calibrator is not a whole hcal model
    """
    with tempfile.TemporaryDirectory(prefix="hcal-") as folder:
        path = Path(folder) / "model.hcal"
        path.write_bytes(content)
        try:
            return load(path)
        except ValueError as error:
            raise ValueError("the stored calibrator is not a whole hcal model") from error
