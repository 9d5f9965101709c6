"""The two adapters between numpy maps and torch modules: either kind is fitted by every solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.utils import parameters_to_vector

from hcal.maps.module import CalibrationMap
from hcal.maps.protocol import Map, Pullback
from hcal.runtime.gradients import Gradient, dense_gradient
from hcal.numerics import Float64

_TINY = float(np.finfo(np.float64).tiny)


def as_map(module: CalibrationMap, name: str | None = None) -> Map:
    """Return a torch module as a map: θ are its parameters, flattened; the pullback is autograd, in float64.

    ``module`` goes from x = log-softmax(logits) (N, K) to probabilities. It is not changed: it gives the
    start and, unless there is one, the name.

    >>> from hcal.maps import TemperatureMap
    >>> map = as_map(TemperatureMap())
    >>> np.exp(map.log_probs(map.start, np.log([[0.2, 0.8]]))).round(6)
    array([[0.2, 0.8]])
    """

    def vjp(theta: Float64, x: Float64) -> tuple[Float64, Pullback]:
        vector = torch.as_tensor(np.array(theta, dtype=np.float64), device=_device(module))
        vector.requires_grad_()
        scores = torch.as_tensor(np.asarray(x, dtype=np.float64), device=vector.device)
        probs = torch.func.functional_call(module, _named(module, vector), (scores,)).clamp_min(_TINY)
        kept: Float64 = probs.detach().cpu().numpy()

        def pullback(gradient: Gradient) -> Float64:
            slope = torch.as_tensor(dense_gradient(gradient, kept.shape[1]) / kept, device=vector.device)
            (own,) = torch.autograd.grad(probs, vector, slope)
            return np.asarray(own.cpu().numpy(), dtype=np.float64)

        return np.log(kept), pullback

    return Map(name or type(module).__name__, flat_parameters(module), vjp, module=module)


def flat_parameters(module: torch.nn.Module) -> Float64:
    """Return the parameters of a module as one vector (P,).

    >>> from hcal.maps import PiecewiseLinear
    >>> flat_parameters(PiecewiseLinear(2)).round(3)
    array([1., 1.])
    """
    vector = parameters_to_vector([p.detach() for p in module.parameters()])
    return np.asarray(vector.cpu().numpy(), dtype=np.float64).copy()


def _device(module: torch.nn.Module) -> torch.device:
    return next(module.parameters()).device


def _named(module: torch.nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """Return the parameters by name as views of a vector."""
    named = dict(module.named_parameters())
    parts = vector.split([p.numel() for p in named.values()])  # type: ignore[no-untyped-call]
    return {name: part.view_as(p) for (name, p), part in zip(named.items(), parts, strict=True)}


class MapModule(torch.nn.Module):
    """A numpy map as a torch module with one parameter θ (P,), trained by anything that trains modules.

    >>> from hcal.maps import scaling
    >>> MapModule(scaling.vector(2))(torch.zeros(1, 2)).detach()
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, map: Map, start: Float64 | None = None) -> None:
        super().__init__()
        self.map = map
        first = map.start if start is None else start
        self.theta = torch.nn.Parameter(torch.as_tensor(np.array(first, dtype=np.float64)))

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities (N, K) from scores x (N, ·)."""
        probs: Tensor = _Pulled.apply(self.theta, x, self.map)  # type: ignore[no-untyped-call]
        return probs


class _Pulled(torch.autograd.Function):
    """Probabilities by numpy on the CPU, and their gradient by the map's pullback."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, x: Tensor, map: Map) -> Tensor:
        scores = x.detach().cpu().numpy().astype(np.float64, copy=False)
        log_probs, ctx.pullback = map.vjp(theta.detach().cpu().numpy(), scores)
        ctx.probs = np.exp(log_probs)
        return torch.from_numpy(ctx.probs).to(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        through = ctx.pullback(grad.detach().cpu().numpy() * ctx.probs)
        return torch.as_tensor(through, device=grad.device), None, None


def as_module(map: Map, start: Float64 | None = None) -> torch.nn.Module:
    """Return a map as a torch module of its own at ``start`` (P,), by default the map's.

    It is a copy of the map's engine, else a :class:`MapModule`.

    >>> from hcal.maps import TemperatureMap, scaling
    >>> type(as_module(as_map(TemperatureMap()))).__name__, type(as_module(scaling.temperature())).__name__
    ('TemperatureMap', 'MapModule')
    """
    if map.module is None:
        return MapModule(map, start)
    import copy

    module: torch.nn.Module = copy.deepcopy(map.module)
    vector = torch.as_tensor(np.array(map.start if start is None else start), device=_device(module))
    for (_, parameter), value in zip(module.named_parameters(), _named(module, vector).values(), strict=True):
        parameter.data = value.to(parameter).clone()
    return module
