"""PyTorch: collect the outputs of a model, and put a fitted calibrator behind it.

>>> import hcal
>>> from hcal.integrations.torch import CalibratedModule
>>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
>>> CalibratedModule(torch.nn.Identity(), cal)(torch.tensor([[0.0, 2.0]]))
tensor([[0.2500, 0.7500]])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from hcal.calibrators.base import Calibrator
from hcal.calibrators.program import is_portable, program
from hcal.inputs import check_scores
from hcal.integrations._signature import AsModel
from hcal.integrations._stored import from_bytes, to_bytes
from hcal.runtime.halves import HALVES, narrow
from hcal.runtime.log_rows import LogRows
from hcal.numerics import FloatArray
from hcal.runtime.torch_ops import WIDTHS, TorchOps

Output = Literal["probs", "log_probs"]


class CalibrationHead(nn.Module):
    """A fitted calibrator as a module: scores (N, K) or (N, K, ...) in, probabilities of the same shape out.

    The graph is float64 inside, whatever ``.half()`` or ``.to(dtype)`` say to the rest of the model: the
    constants move to a device but are never rounded. Input and output have the dtype of the scores. Without
    gradients, the kernels of ``predict_proba`` do the same in that width.

    Parameters
    ----------
    calibrator : Calibrator
        Fitted. Methods with a graph (see :mod:`hcal.runtime.ops`) run in torch, carry gradients and can be
        exported with ``torch.export``; the others go through numpy.
    output : {"probs", "log_probs"}
        ``"log_probs"`` stands in for logits: a softmax of it gives the calibrated probabilities.

    Examples
    --------
    >>> import hcal
    >>> cal = hcal.make_calibrator("ts").fit([[0.0, 2.0]] * 4, [1, 1, 1, 0])
    >>> CalibrationHead(cal)(torch.zeros(1, 2, 4, 4)).shape
    torch.Size([1, 2, 4, 4])
    """

    def __init__(self, calibrator: Calibrator, output: Output = "probs") -> None:
        super().__init__()
        calibrator._check_fitted()
        if output not in ("probs", "log_probs"):
            raise ValueError(f'output must be "probs" or "log_probs", got {output!r}')
        self.output = output
        self._become(calibrator)

    def _become(self, calibrator: Calibrator) -> None:
        """Take over a calibrator: record the constants of its graph, on the device of those before."""
        where = next(self.buffers(), torch.empty(0)).device
        self._buffers.clear()
        self.calibrator = calibrator
        self.in_torch = is_portable(calibrator)
        constants: list[Tensor] = []
        if self.in_torch:
            zeros = torch.zeros(1, calibrator.n_classes_, dtype=torch.float64)
            self._run(TorchOps(constants, torch.float32, recording=True), zeros, torch.float32)
        self.n_constants = len(constants)
        for i, constant in enumerate(constants):
            self.register_buffer(f"c{i}", constant.to(where))

    def forward(self, scores: Tensor) -> Tensor:
        """Return calibrated probabilities (or their logarithms) of scores (N, K, ...), classes on axis 1."""
        rows = self._rows(scores)
        dtype = rows.dtype if rows.dtype.is_floating_point else torch.float64
        half = dtype in HALVES
        wide = torch.float32 if half else dtype  # halves are computed in float32, and narrowed at the end
        if (there := self._by_device_kernel(rows)) is not None:
            return there.movedim(-1, 1)
        plain = self._plain(rows, wide) if self.in_torch else None
        if plain is not None:
            probs = self._by_kernels(plain).reshape(rows.shape)
        elif self.in_torch:
            ops = TorchOps([getattr(self, f"c{i}") for i in range(self.n_constants)], wide)
            probs = self._run(ops, rows.to(torch.float64), wide)
        else:
            flat = rows.to(wide).reshape(-1, rows.shape[-1])
            probs = self.calibrator.predict_proba(flat).reshape(rows.shape)
        if self.output == "log_probs":
            probs = torch.log(probs.clamp_min(torch.finfo(dtype).tiny))
        if half:
            return narrow(probs, rows, dtype, self.calibrator.preserves).movedim(-1, 1)
        return probs.to(dtype).movedim(-1, 1)

    def _by_device_kernel(self, rows: Tensor) -> Tensor | None:
        """Return probabilities by the method's own CUDA kernel, where numbers are asked for and nothing else.

        Nothing is read back, so nothing waits for the device: a NaN makes its row NaN, as in the graph.
        """
        if rows.device.type == "cpu" or not rows.numel() or self.output != "probs":
            return None
        if self.calibrator.input != "logits" or self._is_watched(rows):
            return None
        flat = rows.detach().reshape(-1, rows.shape[-1])
        found = self.calibrator._predict_on_cuda(flat, check=False)
        return None if found is None else found.reshape(rows.shape)

    @staticmethod
    def _is_watched(rows: Tensor) -> bool:
        return (rows.requires_grad and torch.is_grad_enabled()) or is_recorded(rows)

    def _plain(self, rows: Tensor, wide: torch.dtype) -> FloatArray | LogRows | None:
        """Return logits (M, K) in memory where numbers are asked for and nothing else; None: run the graph.

        No gradient, nobody who records, and nothing in the scores that the door would speak of.
        """
        if self._is_watched(rows):
            return None
        if rows.device.type != "cpu" or not rows.numel():
            return None
        flat: FloatArray = rows.detach().to(wide).reshape(-1, rows.shape[-1]).contiguous().numpy()
        if self.calibrator.input == "logits":  # a sum that overflows only sends us on
            with np.errstate(over="ignore", invalid="ignore"):
                return flat if np.isfinite(np.add.reduce(flat, axis=None)) else None
        try:
            return check_scores(flat, input=self.calibrator.input)[0]
        except ValueError:
            return None

    def _by_kernels(self, logits: FloatArray | LogRows) -> Tensor:
        """Return what ``predict_proba`` does: the graph makes a pass over memory an operation."""
        return torch.from_numpy(self.calibrator._predict_blocks(logits))

    def _run(self, ops: TorchOps, rows: Tensor, dtype: torch.dtype) -> Tensor:
        eps, smallest = WIDTHS[dtype]
        probs: Tensor = program(self.calibrator, ops, rows, eps=eps, smallest=smallest)
        return probs

    def _rows(self, scores: Tensor) -> Tensor:
        """Return scores with the classes last; a binary score (N,) or (N, 1) becomes two columns."""
        k = self.calibrator.n_classes_
        if k == 2 and self.calibrator.input == "logits" and (scores.ndim == 1 or scores.shape[1] == 1):
            positive = scores.reshape(-1)
            return torch.stack([torch.zeros_like(positive), positive], dim=-1)
        if scores.ndim < 2 or scores.shape[1] != k:
            raise ValueError(f"scores must have shape (N, {k}) or (N, {k}, ...), got {tuple(scores.shape)}")
        return scores.movedim(1, -1)

    def get_extra_state(self) -> Tensor:
        """Return the calibrator as the bytes of its file: which operations meet the constants is in it."""
        return torch.frombuffer(bytearray(to_bytes(self.calibrator)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Become the calibrator that a state dict holds."""
        content = state.cpu().numpy().tobytes()
        if content != to_bytes(self.calibrator):
            self._become(from_bytes(content))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: list[str],
        unexpected: list[str], errors: list[str],
    ) -> None:  # fmt: skip
        # First the structure, then the constants: those of another fit need not fit into these. Constants
        # alone would be read by the operations of this fit, without a word.
        structure = state_dict.get(f"{prefix}_extra_state")
        if structure is None and any(f"{prefix}c{i}" in state_dict for i in range(self.n_constants)):
            errors.append(
                f"{prefix or 'head'}: the state dict holds a calibrator's constants but not its structure "
                "(an older hcal wrote it): make the module from the calibrator's own file and save it again"
            )
            return
        if structure is not None:
            try:
                self.set_extra_state(structure)
            except ValueError as error:
                errors.append(f"{prefix or 'head'}: {error}")
                return
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CalibrationHead:
        # .half() must not round the constants: only the device of what `fn` makes is taken over.
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = buffer.to(fn(buffer).device)
        return self


def is_recorded(x: Tensor) -> bool:
    """Whether operations on a tensor are being traced, compiled, exported, batched or watched.

    Examples
    --------
    >>> is_recorded(torch.zeros(1))
    False
    """
    if type(x) is not Tensor or torch._C._get_tracing_state() is not None:
        return True
    if torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export():
        return True
    # not public, and the only way to ask: vmap and grad of torch.func, and modes such as make_fx
    wrapped = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", None)
    modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return bool(wrapped is not None and wrapped(x)) or bool(modes is not None and modes() > 0)


class CalibratedModule(nn.Module):
    """A model and its fitted calibrator as one module.

    Parameters
    ----------
    model : nn.Module
        Gives scores (N, K) or (N, K, H, W): a tensor, or an object or dict with ``logits``.
    calibrator : Calibrator
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

    def __init__(self, model: nn.Module, calibrator: Calibrator, output: Output = "probs") -> None:
        super().__init__()
        self.model = model
        self.head = CalibrationHead(calibrator, output)

    @AsModel
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return calibrated probabilities of whatever the model takes."""
        calibrated: Tensor = self.head(scores_of(self.model(*args, **kwargs)))
        return calibrated


def scores_of(output: Any) -> Tensor:
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
    loader: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    ignore_index: int | None = None,
    pixels: int | None = None,
    random_state: int = 0,
    progress: bool = True,
) -> tuple[Tensor, Tensor]:
    """Run a model over held-out batches and return its scores and the labels, ready for ``fit``.

    Parameters
    ----------
    model : nn.Module
        Put into evaluation mode for the while; no gradients.
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
    progress : bool
        Show a bar, where there is a terminal.

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
    from hcal.integrations.dense import rows

    where = torch.device(device) if device is not None else _device_of(model)
    kept: list[tuple[Tensor, Tensor]] = []
    with _evaluating(model), torch.inference_mode():
        for step, batch in enumerate(_with_bar(loader, progress)):
            args, kwargs, y = _unpack(batch)
            out = scores_of(model(*_to(args, where), **_to(kwargs, where)))
            kept.append(
                rows(
                    out.cpu(),
                    y.cpu(),
                    ignore_index=ignore_index,
                    pixels=pixels,
                    random_state=random_state + step,
                )
            )
    if not kept:
        raise ValueError("the loader is empty: no batches to collect from")
    # clone() leaves inference mode, so that the result can be used anywhere
    return torch.cat([z for z, _ in kept]).clone(), torch.cat([y for _, y in kept]).clone()


def _unpack(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
    if isinstance(batch, dict) and "labels" in batch:
        return (), {k: v for k, v in batch.items() if k != "labels"}, torch.as_tensor(batch["labels"])
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return (batch[0],), {}, torch.as_tensor(batch[1])
    raise ValueError('a batch must be a pair (inputs, y) or a dict with "labels"')


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(_to(v, device) for v in value)
    if isinstance(value, dict):
        return {k: _to(v, device) for k, v in value.items()}
    return value


def _device_of(model: nn.Module) -> torch.device:
    tensor = next(model.parameters(), next(model.buffers(), None))
    return torch.device("cpu") if tensor is None else tensor.device


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {m: m.training for m in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _with_bar(loader: Iterable[Any], progress: bool) -> Iterable[Any]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if not (progress and console.is_terminal):
        return loader
    total = len(loader) if isinstance(loader, Sized) else None
    return track(loader, description="collecting logits", total=total, console=console, transient=True)
