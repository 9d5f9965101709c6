"""Maps: frozen objects of arrays that turn scores into log-probabilities, by one formula each.

``base`` says what a map is, ``prediction`` what surrounds it in ``predict_proba``. ``paper`` holds the fitted maps of
h-calibration and ``trainable`` the torch modules that learn them; ``PAPER_MAPS`` names the paper's twelve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcal.maps.trainable import PAPER_MAPS, build_trainable

__all__ = ["PAPER_MAPS", "build_trainable"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hcal.maps import trainable

    return getattr(trainable, name)
