"""Ablations as configurations: each is a name and the parameters of ``HCalibrator`` that it changes.

Placeholder until the calibrator lands; see :func:`ablation_methods`.
"""

from __future__ import annotations

from hcal.bench.methods import Method

ABLATIONS: dict[str, dict[str, dict[str, object]]] = {}


def ablation_methods(name: str) -> list[Method]:
    """Return the methods of one ablation."""
    if name not in ABLATIONS:
        raise ValueError(f"unknown ablation {name!r}; valid: {', '.join(ABLATIONS)}")
    return [Method(label, "h", params) for label, params in ABLATIONS[name].items()]
