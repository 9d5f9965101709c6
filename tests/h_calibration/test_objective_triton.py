"""The kernels of the objective and of the mixture for GPUs equal the formulas in torch.

Without a GPU, Triton's interpreter runs them.
"""

from __future__ import annotations

import os

import pytest
import torch

from hcal.h_calibration.definition import ObjectiveSettings
from hcal.h_calibration.loss import families_loss
from hcal.h_calibration.paper_maps import mixture

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    # Read when Triton is first imported, which nothing else does without a GPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        ObjectiveSettings(),
        ObjectiveSettings(window=20, weighting="uniform", epsilon=1e-3),
        ObjectiveSettings(window=1100, norm=2, epsilon=0.01),
        ObjectiveSettings(window=10_000),
    ],
)
def test_the_objective_equals_its_formula(settings: ObjectiveSettings, ties: bool) -> None:
    from hcal.h_calibration import _triton

    generator = torch.Generator().manual_seed(0)
    probs = torch.rand((1, 2500), generator=generator)
    if ties:
        probs = (probs * 50).round() / 50
    marks = torch.rand(probs.shape, generator=generator) < probs
    probs = probs.to(DEVICE)
    marks = marks.to(DEVICE)

    loss, gradient = _triton.families_loss(probs, marks, settings, True)
    alone, none = _triton.families_loss(probs, marks, settings, False)

    expected, expected_gradient = families_loss(probs, marks, settings, True)
    assert none is None
    assert float(loss) == pytest.approx(float(expected), rel=1e-9)
    assert float(alone) == float(loss)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-5)


def test_the_mixture_equals_its_formula() -> None:
    from hcal.h_calibration import _mixture_triton

    generator = torch.Generator().manual_seed(1)
    x = torch.log_softmax(torch.randn((300, 10), generator=generator), dim=1)
    slopes = torch.rand(16, generator=generator) + 0.5
    shares = torch.softmax(torch.rand(16, generator=generator), dim=0)
    upstream = torch.randn(x.shape, generator=generator)
    x, slopes, shares, upstream = (t.to(DEVICE) for t in (x, slopes, shares, upstream))
    slopes.requires_grad_()
    shares.requires_grad_()
    expected = mixture(x, slopes, shares)
    (expected * upstream).sum().backward()

    probs = _mixture_triton.mixture_forward(x, slopes.detach(), shares.detach())
    by_share, by_slope = _mixture_triton.mixture_backward(x, slopes.detach(), upstream)

    torch.testing.assert_close(probs, expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(by_share, shares.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(shares.detach() * by_slope, slopes.grad, rtol=1e-4, atol=1e-4)
