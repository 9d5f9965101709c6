"""``.pt``: tensors that ``torch.save`` wrote. The one place that calls ``torch.load``."""

from __future__ import annotations

import zipfile
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hcal.io.limits import check_bytes, one_line, size_of

#: The program that puts tensors together is some hundred bytes a tensor; labels as text stand in it too.
_MOST_PROGRAM: Final = 64 * 2**20


def load_tensors(file: BinaryIO, name: str) -> Any:
    """Return what ``torch.save`` wrote, tensors as numpy arrays: one, a dict or a tuple of them."""
    import torch

    if not zipfile.is_zipfile(file):
        raise ValueError("it is no file of torch.save (or one from before PyTorch 1.6: save it again)")
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        _check_archive(archive, name, size_of(file))
    file.seek(0)
    try:
        held = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # its unpickler raises errors of its own, with a page of advice
        reason = one_line(str(error).partition("WeightsUnpickler error:")[2] or error, 120)
        raise ValueError(f"it holds more than tensors, numbers and text ({reason})") from None
    return _arrays(held, name, size_of(file))


def _check_archive(archive: zipfile.ZipFile, name: str, held: int) -> None:
    entries = archive.infolist()
    if any(e.compress_type != zipfile.ZIP_STORED for e in entries):
        raise ValueError("it is compressed, which torch.save does not do")
    check_bytes(name, sum(e.file_size for e in entries), held)
    if any(e.file_size > _MOST_PROGRAM for e in entries if e.filename.endswith(".pkl")):
        raise ValueError("its program is huge")


def _arrays(held: Any, name: str, size: int) -> Any:
    import torch

    if isinstance(held, torch.Tensor):
        return _array(held, name, size)
    if isinstance(held, dict):
        return {str(key): _arrays(value, name, size) for key, value in held.items()}
    if isinstance(held, tuple | list) and any(isinstance(v, torch.Tensor | tuple | list) for v in held):
        return tuple(_arrays(value, name, size) for value in held)
    return held


def _array(tensor: Any, name: str, size: int) -> NDArray[Any]:
    import torch

    # A view may be larger than what is stored: one number can stand for a billion.
    check_bytes(name, tensor.numel() * tensor.element_size(), size)
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
        raise ValueError(f"a tensor of {tensor.dtype} ({tensor.layout}), not of plain numbers")
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.array(tensor.numpy())
