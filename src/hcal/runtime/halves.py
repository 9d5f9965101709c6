"""Answers in float16 and bfloat16 that keep what was promised: ties are resolved in the float returned.

A half has eleven or eight bits: classes apart in float32 become one number, and ``argmax`` then takes the
first. In the integers that order like the floats, one step up is the next float; so a promise is kept by the
smallest lift there is.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def narrow(
    values: Tensor, scores: Tensor, dtype: torch.dtype, keep: Literal["order", "accuracy"] | None
) -> Tensor:
    """Round values to a half, and keep the order of the scores, or their first largest, where that tied it.

    ``values`` (..., K) are probabilities or their logarithms, in the order that is promised, and ``scores``
    (..., K) what was calibrated; the gradient passes through. ``keep=None`` only rounds.

    >>> probs, scores = torch.tensor([[0.3333, 0.3333, 0.3334]]), torch.tensor([[1.0, 1.0, 1.1]])
    >>> narrow(probs, scores, torch.bfloat16, "accuracy").argmax().item()
    2
    >>> narrow(probs, scores, torch.bfloat16, "order").diff()
    tensor([[0.0000, 0.0020]], dtype=torch.bfloat16)
    """
    rounded = values.to(dtype)
    if keep is None:
        return rounded
    rank = _to_rank(rounded.detach())
    rank = _rising(rank, scores.detach()) if keep == "order" else _first_on_top(rank, scores.detach())
    kept = _from_rank(rank, dtype)
    # a difference of 0 that carries the gradient
    return kept + (rounded - rounded.detach()) if rounded.requires_grad else kept


def _to_rank(x: Tensor) -> Tensor:
    """The place of each float among all floats of its width: neighbours are one apart, both zeros are 0."""
    bits = x.contiguous().view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def _from_rank(rank: Tensor, dtype: torch.dtype) -> Tensor:
    bits = torch.where(rank < 0, -rank - 0x8000, rank)
    return bits.to(torch.int16).view(dtype)


def _rising(rank: Tensor, scores: Tensor) -> Tensor:
    """Lift ranks until they rise wherever the scores do; equal scores may keep ranks apart.

    Along ascending scores (of equals, ascending ranks), r_i = max(rank_i, r_{i−1} + 1 if the score rises).
    With d_i the number of rises so far, r − d is a running maximum.
    """
    by_rank = rank.argsort(dim=-1, stable=True)
    ordered, order = scores.gather(-1, by_rank).sort(dim=-1, stable=True)
    order = by_rank.gather(-1, order)
    rises = torch.nn.functional.pad((ordered[..., 1:] > ordered[..., :-1]).to(torch.int32), (1, 0))
    count = rises.cumsum(dim=-1).to(torch.int32)
    lifted = (rank.gather(-1, order) - count).cummax(dim=-1).values + count
    return torch.empty_like(rank).scatter(-1, order, lifted)


def _first_on_top(rank: Tensor, scores: Tensor) -> Tensor:
    """Lift the first class of the highest score just above all others, unless it comes first as it is."""
    highest = rank.amax(dim=-1, keepdim=True)
    top = _first(scores == scores.amax(dim=-1, keepdim=True))
    agrees = (top & _first(rank == highest)).any(dim=-1, keepdim=True)
    return torch.where(top & ~agrees, highest + 1, rank)


def _first(mask: Tensor) -> Tensor:
    """Keep the first true value of each row: torch.argmax may name any of several equal ones."""
    return mask & (mask.cumsum(dim=-1) == 1)
