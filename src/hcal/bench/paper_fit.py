"""The paper protocol trained once for its three selectors.

Which epoch and map are kept does not change the training, so the benchmark trains the twelve maps once and
hands out three ``HCalibrator`` objects, each equal to what ``HCalibrator(protocol="paper", select=…)`` would
have fitted by itself (a test holds them together).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from hcal.bench.catalog import PAPER_PROTOCOL
from hcal.numerics import FloatArray, IntArray

if TYPE_CHECKING:
    from hcal.calibrators.base import Fitted
    from hcal.calibrators.h import HCalibrator


class SharedPaperFit:
    """Stands in for ``HCalibrator(protocol="paper")`` in a benchmark job.

    ``select`` is the selector of :meth:`predict_proba`; :meth:`selected` gives the others.
    """

    def __init__(self, select: str, random_state: int = 0, device: str | None = None) -> None:
        self.select = select
        self.random_state = random_state
        self.device = device
        self._fitted: dict[str, HCalibrator] = {}

    def fit(self, logits: FloatArray, y: IntArray) -> Self:
        """Train the twelve maps once and keep each selector's choice."""
        from hcal.calibrators.h.paper import PaperSettings, fit_paper

        settings = PaperSettings(tuple(PAPER_PROTOCOL.values()))
        fitted = fit_paper(logits, y, settings, device=self.device, random_state=self.random_state)
        self._fitted = {s: self._calibrator(s, f, logits.shape[1]) for s, f in fitted.items()}
        return self

    def _calibrator(self, select: str, fitted: Fitted, n_classes: int) -> HCalibrator:
        from hcal.calibrators.h import HCalibrator

        out = HCalibrator(protocol="paper", select=select, random_state=self.random_state)  # type: ignore[arg-type]
        out._remember(fitted, n_classes)
        return out

    def selected(self, select: str) -> HCalibrator:
        """Return the calibrator that one selector chose."""
        return self._fitted[select]

    def predict_proba(self, logits: FloatArray) -> Any:
        """Return the probabilities of this object's own selector."""
        return self._fitted[self.select].predict_proba(logits)

    @property
    def info_(self) -> dict[str, Any]:
        """What the own selector chose."""
        return self._fitted[self.select].info_
