"""PyTorch: put a fitted calibrator behind a model, and collect the outputs of one.

>>> import hcal
>>> from hcal.integrations.torch import CalibratedModule
>>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
>>> CalibratedModule(torch.nn.Identity(), cal)(torch.tensor([[0.0, 2.0]]))
tensor([[0.2500, 0.7500]])
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from hcal.fit_record import refuse_segments
from hcal.inputs import check_array, two_columns, whole_rows
from hcal.integrations import dense
from hcal.maps.base import LEAST_PROBABILITY, Map
from hcal.methods.base import Calibrator
from hcal.methods.files import load, save
from hcal.numerics import FloatArray, NumpyArray
from hcal.progress import progress
from hcal.rows import refuse_other_kind
from hcal.text import one_line

Output = Literal["probs", "log_probs"]
#: A batch of a loader: inputs and labels, or all by name.
Batch = tuple[object, object] | list[object] | dict[str, object]
#: Scores of a block on an accelerator: each operation of the formula needs a copy of this size (64 MB of float32).
_BLOCK_SCORES = 1 << 24
#: So many rows of a batch show whether scores are logits.
_SHOWN_ROWS = 64
#: How far the probabilities of a row may be from a sum of 1, as for arrays of these widths and for half floats.
_SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3}
_HALF_TOLERANCE = 1e-2


class MapModule(nn.Module):
    """A map as a module: its own formula, with buffers in place of arrays and modules in place of parts.

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> MapModule(cal.prediction_)(torch.tensor([[0.0, 2.0]]))
    tensor([[0.2500, 0.7500]])
    """

    def __init__(self, map: Map, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.formula = type(map)
        # Further methods of the map run on the buffers of this module.
        for name, method in inspect.getmembers(self.formula, inspect.isfunction):
            if not name.startswith("__"):
                setattr(self, name, partial(method, self))
        for each in dataclasses.fields(map):  # type: ignore[arg-type]
            value = getattr(map, each.name)
            if isinstance(value, Map):
                self.add_module(each.name, MapModule(value, dtype))
            elif "array" in each.metadata:
                self.register_buffer(
                    each.name, None if value is None else _tensor(value, dtype), persistent=False
                )
            else:
                setattr(self, each.name, value)

    def forward(self, *x: Tensor) -> Tensor:
        """Return what the map computes of scores (N, K); a part of a map may take more."""
        out: Tensor = self.formula.__call__(self, *x)  # type: ignore[arg-type]
        return out


def _tensor(value: NumpyArray, dtype: torch.dtype) -> Tensor:
    array = np.asarray(value)
    # An empty numpy array may have strides of 0, and torch.export.save refuses a tensor with such strides.
    tensor = torch.as_tensor(array) if array.size else torch.empty(array.shape, dtype=dtype)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def predict_on_device(calibrator: Calibrator, scores: Tensor) -> Tensor:
    """Return the probabilities (N, K) of a tensor, computed where it lies; a row with NaN comes out NaN."""
    head = _head_on(calibrator, scores.device)
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()  # in half precision the top two would tie
    with torch.no_grad():
        blocks = torch.split(scores.detach(), max(1, _BLOCK_SCORES // calibrator.n_classes_))
        return torch.cat([head(block) for block in blocks]) if len(blocks) > 1 else head(blocks[0])


def _head_on(calibrator: Calibrator, device: torch.device) -> CalibrationHead:
    """Return the module of a calibrator on a device; the last one stays with the calibrator, so it is built once."""
    kept = calibrator.device_head
    if isinstance(kept, CalibrationHead) and kept.serves(calibrator, device):
        return kept
    head = CalibrationHead(calibrator).to(device)
    calibrator.device_head = head
    return head


def _kernel_of(calibrator: Calibrator) -> nn.Module | None:
    """Return the prediction as one launch on a GPU, where the map has a kernel and is all of the prediction."""
    prediction = calibrator.prediction_
    plain = prediction.kind == "logits" and prediction.prior is None and prediction.floor is None
    if not plain or not prediction.map.fits_float32:
        return None
    keeps_argmax = prediction.preserves is not None
    least = 0.0 if prediction.states_zero else LEAST_PROBABILITY
    return prediction.map.device_kernel(keeps_argmax=keeps_argmax, least=least)


class CalibrationHead(nn.Module):
    """A fitted calibrator as a module: scores (N, K) or (N, K, ...) in, probabilities of the same shape out.

    Input and output have the float width of the scores. Methods that look up steps or multiply large numbers are
    computed in float64, the others in float32; half floats are computed in float32 and narrowed at the end.

    Parameters
    ----------
    calibrator : Calibrator, optional
        Fitted. Without one, the head waits for :meth:`load_state_dict`.
    output : {"probs", "log_probs"}
        ``"log_probs"`` can replace logits: their softmax is the calibrated probabilities.

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> CalibrationHead(cal)(torch.zeros(1, 2, 4, 4)).shape
    torch.Size([1, 2, 4, 4])
    """

    float64: MapModule
    float32: MapModule | None
    #: Whether some batch has shown that the scores are logits; no later batch is read for it.
    kind_is_clear: bool = True
    _unclear_rows: list[FloatArray]
    #: In a tuple, because a traced graph must not take it for a part of the formula.
    kernel: tuple[nn.Module, ...] = ()

    def __init__(self, calibrator: Calibrator | None = None, output: Output = "probs") -> None:
        super().__init__()
        if output not in ("probs", "log_probs"):
            raise ValueError(f'output must be "probs" or "log_probs", got {output!r}')
        self.output = output
        self.calibrator: Calibrator | None = None
        if calibrator is not None:
            self._become(calibrator)

    def _become(self, calibrator: Calibrator) -> None:
        refuse_segments(calibrator, "a module")
        where = next(self.buffers(), torch.empty(0)).device
        # A copy, because a later fit of the calibrator does not change what this module computes.
        self.calibrator = copy.copy(calibrator)
        self.n_classes, self.one_column = calibrator.n_classes_, calibrator.n_classes_ == 2
        self.float64 = MapModule(calibrator.prediction_, torch.float64).to(where)
        narrow = calibrator.map_.fits_float32
        self.float32 = (
            MapModule(calibrator.prediction_, torch.float32).to(where) if narrow else None
        )
        kernel = _kernel_of(calibrator)
        self.kernel = () if kernel is None else (kernel.to(where),)
        self.kind_is_clear = calibrator.prediction_.kind != "logits"
        self._unclear_rows = []

    def serves(self, calibrator: Calibrator, device: torch.device) -> bool:
        """Return whether this module computes, on this device, what a calibrator learned in its last fit."""
        is_same = (
            self.calibrator is not None and self.calibrator.prediction_ is calibrator.prediction_
        )
        return is_same and self.device == device

    @property
    def device(self) -> torch.device:
        """Where the constants lie."""
        return next(self.buffers(), torch.empty(0)).device

    def forward(self, scores: Tensor) -> Tensor:
        """Return calibrated probabilities (or their logarithms) of scores (N, K, ...), classes on axis 1."""
        if self.calibrator is None:
            raise ValueError(
                "this head has no calibrator yet: give it one, or load a state dict that holds one"
            )
        if not self.kind_is_clear:
            self._refuse_probs(scores)
        if self._takes_kernel(scores):
            launched: Tensor = self.kernel[0].forward(self._rows(scores))
            return launched.movedim(-1, 1) if launched.ndim > 2 else launched
        dtype = scores.dtype if scores.is_floating_point() else torch.float64
        module, wide = self.float64, torch.float64
        if self.float32 is not None and dtype != torch.float64:
            module, wide = self.float32, torch.float32
        with torch.autocast(scores.device.type, enabled=False):
            tolerance = _SUM_TOLERANCE.get(dtype, _HALF_TOLERANCE)
            rows = whole_rows(self._rows(scores.to(wide)), str(self.float64.kind), tolerance)
            probs = module(rows)
            if self.output == "log_probs":
                probs = torch.log(probs.clamp_min(torch.finfo(wide).tiny))
            # Rounding, also that of a logarithm, may tie the top class with an earlier one.
            plain = dtype == wide and self.output == "probs"
            out: Tensor = probs
            if not plain:
                out = module.narrowed(probs, rows.to(dtype))  # type: ignore[operator]
        return out.movedim(-1, 1)

    def _refuse_probs(self, scores: Tensor) -> None:
        """Refuse probabilities where the calibrator takes logits; a graph that is traced holds no values to look at."""
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore
        # While a CUDA graph is captured, a copy to the host would break the capture.
        is_captured = scores.is_cuda and torch.cuda.is_current_stream_capturing()
        if type(scores) is not Tensor or scores.device.type == "meta" or is_traced or is_captured:
            return
        try:
            shown = scores.detach()[:_SHOWN_ROWS].double().cpu().numpy()
        except RuntimeError:  # within vmap
            return
        rows = np.moveaxis(shown, 1, -1).reshape(-1, shown.shape[1]) if shown.ndim > 1 else shown
        sums = rows.sum(axis=1) if rows.ndim > 1 and rows.shape[1] > 1 else np.ones(len(rows))
        if not (
            rows.size and rows.min() >= 0 and rows.max() <= 1 and np.allclose(sums, 1, atol=1e-3)
        ):
            self.kind_is_clear = True
            return
        self._unclear_rows = [*self._unclear_rows, rows][-_SHOWN_ROWS:]
        unclear = np.concatenate(self._unclear_rows)
        assert self.calibrator is not None
        if rows.ndim == 1 or rows.shape[1] == 1:
            refuse_other_kind(unclear.ravel(), "logits", self.calibrator.fit_.score_range)
        else:
            check_array(unclear, "logits", n_classes=unclear.shape[1])

    def _takes_kernel(self, scores: Tensor) -> bool:
        """Return whether one launch does all: float32 logits on a GPU, nothing traced, no gradient asked for."""
        if not self.kernel or not scores.is_cuda or scores.dtype != torch.float32:
            return False
        if self.output != "probs" or _is_transformed(scores):
            return False
        if scores.get_device() != torch.cuda.current_device():
            return False  # Triton launches on the current device
        if torch.compiler.is_compiling():
            return False
        if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            return False
        return not (scores.requires_grad and torch.is_grad_enabled())

    def _rows(self, scores: Tensor) -> Tensor:
        """Return scores with the classes last; a binary score (N,) or (N, 1) becomes two columns."""
        k = self.n_classes
        kind = str(self.float64.kind)
        if self.one_column and (scores.ndim == 1 or scores.shape[1] == 1):
            columns: Tensor = two_columns(scores.reshape(-1, 1), kind)
            return columns
        if scores.ndim < 2 or scores.shape[1] != k:
            raise ValueError(
                f"scores must have shape (N, {k}) or (N, {k}, ...), got {tuple(scores.shape)}"
            )
        return scores.movedim(1, -1) if scores.ndim > 2 else scores

    def get_extra_state(self) -> Tensor:
        """Return the calibrator as the bytes of its file."""
        if self.calibrator is None:
            return torch.zeros(0, dtype=torch.uint8)
        with tempfile.TemporaryDirectory(prefix="hcal-") as folder:
            save(self.calibrator, path := Path(folder) / "model.hcal")
            return torch.from_numpy(np.fromfile(path, np.uint8))

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the calibrator from a state dict."""
        if not len(state):
            return
        with tempfile.TemporaryDirectory(prefix="hcal-") as folder:
            state.cpu().numpy().tofile(path := Path(folder) / "model.hcal")
            try:
                stored = load(path)
            except ValueError as error:
                raise ValueError("the stored calibrator is not a whole hcal model") from error
        if self.calibrator is not None:
            _refuse_other_classes(self.calibrator, stored)
        self._become(stored)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CalibrationHead:
        # .half() must not round the constants: only the device of what `fn` makes is taken over.
        for module in chain(self.modules(), *(kernel.modules() for kernel in self.kernel)):
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.to(fn(buffer).device)
        return self


def _is_transformed(scores: Tensor) -> bool:
    """Return whether a tensor stands for others, as within ``torch.vmap`` or ``torch.func.grad``."""
    try:
        scores.data_ptr()
    except RuntimeError:
        return True
    return False


def _refuse_other_classes(present: Calibrator, stored: Calibrator) -> None:
    """Raise a ValueError if the columns of two calibrators are not the same classes in the same order."""
    same = present.n_classes_ == stored.n_classes_
    for titles in ("names", "columns"):
        ours = getattr(present.fit_, titles)
        theirs = getattr(stored.fit_, titles)
        if None not in (ours, theirs) and ours != theirs:
            same = False
    kinds = present.prediction_.kind, stored.prediction_.kind
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"the stored calibrator takes {kinds[1]}, and this module's takes {kinds[0]}: build "
            "the module without a calibrator, and load into that"
        )
    if not same:
        raise ValueError(
            f"the stored calibrator has the classes {_listed(stored)}, and this module's has "
            f"{_listed(present)}: build the module without a calibrator, and load into that"
        )


def _listed(calibrator: Calibrator) -> str:
    titles = calibrator.fit_.names or calibrator.fit_.columns or calibrator.classes_.tolist()
    names = [str(name) for name in titles[:20]]
    more = ", …" if calibrator.n_classes_ > len(names) else ""
    return one_line(", ".join(names) + more)


class CalibratedModule(nn.Module):
    """A model and its fitted calibrator as one module.

    Parameters
    ----------
    model : nn.Module
        Gives scores (N, K) or (N, K, H, W): a tensor, or an object or dict with ``logits``.
    calibrator : Calibrator, optional
        Fitted on scores of the same kind.
    output : {"probs", "log_probs"}

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> model = CalibratedModule(nn.Linear(3, 2), cal).eval()
    >>> model(torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self, model: nn.Module, calibrator: Calibrator | None = None, output: Output = "probs"
    ) -> None:
        super().__init__()
        self.model = model
        self.head = CalibrationHead(calibrator, output)

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        """Return calibrated probabilities of whatever the model takes."""
        calibrated: Tensor = self.head(scores_of(self.model(*args, **kwargs)))
        return calibrated


def scores_of(output: object) -> Tensor:
    """Return the scores of an output: a tensor, ``logits`` of an object or mapping, or the first of a tuple.

    Examples
    --------
    >>> scores_of({"logits": torch.zeros(1, 2)}).shape
    torch.Size([1, 2])
    """
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    if not isinstance(found, Tensor):
        raise ValueError(
            f"the model must return a tensor or something with .logits, got {type(output).__name__}"
        )
    return found


def collect_logits(
    model: nn.Module,
    loader: Iterable[Batch],
    *,
    device: torch.device | str | None = None,
    ignore_index: int | None = None,
    pixels: int | None = None,
    random_state: int = 0,
) -> tuple[Tensor, Tensor]:
    """Run a model over held-out batches and return its scores and the labels, ready for ``fit``.

    A bar shows on a terminal after two seconds.

    Parameters
    ----------
    model : nn.Module
        Run in evaluation mode and without gradients; its own mode is restored afterwards.
    loader : iterable of (inputs, y), or of dicts with ``labels``
        With ``y`` of shape (N,), or (N, H, W) for dense outputs.
    device : optional
        Where to run; by default where the model's parameters are.
    ignore_index : int, optional
        Rows (pixels) with this label are left out.
    pixels : int, optional
        Keep at most so many random labelled pixels of each batch item: dense outputs are large.
    random_state : int
        For ``pixels``.

    Returns
    -------
    logits : Tensor of shape (M, K), on the CPU
    y : Tensor of shape (M,), on the CPU

    Examples
    --------
    >>> batches = [(torch.zeros(4, 3), torch.tensor([0, 1, 1, 0]))] * 2
    >>> logits, y = collect_logits(nn.Linear(3, 2), batches)
    >>> logits.shape, y.shape
    (torch.Size([8, 2]), torch.Size([8]))
    """
    where = device or next(chain(model.parameters(), model.buffers()), torch.empty(0)).device
    total = len(loader) if isinstance(loader, Sized) else 0
    kept: list[tuple[Tensor, Tensor]] = []
    with (
        _evaluating(model),
        torch.inference_mode(),
        progress("collecting logits", total) as advance,
    ):
        for step, batch in enumerate(loader):
            args, kwargs, y = _unpack(batch)
            args, kwargs = tree_map_only(Tensor, lambda t: t.to(where), (args, kwargs))
            scores = scores_of(model(*args, **kwargs)).cpu()
            seed = random_state + step
            rows = dense.rows(
                scores, y.cpu(), ignore_index=ignore_index, pixels=pixels, random_state=seed
            )
            kept.append(rows)
            advance(1)
    if not kept:
        raise ValueError("the loader is empty: no batches to collect from")
    # clone() leaves inference mode, so that the result can be used anywhere
    return torch.cat([z for z, _ in kept]).clone(), torch.cat([y for _, y in kept]).clone()


def _unpack(batch: Batch) -> tuple[tuple[object, ...], dict[str, object], Tensor]:
    if isinstance(batch, dict) and "labels" in batch:
        return (
            (),
            {k: v for k, v in batch.items() if k != "labels"},
            torch.as_tensor(batch["labels"]),
        )
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return (batch[0],), {}, torch.as_tensor(batch[1])
    raise ValueError('a batch must be a pair (inputs, y) or a dict with "labels"')


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {m: m.training for m in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
