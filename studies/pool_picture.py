"""Draw docs/assets/default.svg: one row of scores on its way through the parts of the default.

python -m studies.pool_picture
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import hcal
from hcal.io.files import atomic_path
from hcal.numerics import softmax
from hcal.pool import map as maps

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "assets" / "default.svg"
CLASSES = ("cat", "dog", "fox", "owl")
COLORS = ("#4477aa", "#ee6677", "#ccbb44", "#228833")


def steps() -> list[tuple[str, np.ndarray]]:
    """Return the probabilities of one row after every step, with a fit on drawn data."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 4, 4000)
    z = 2.5 * (rng.normal(size=(4000, 4)) + 1.8 * np.eye(4)[y] + np.array([0.5, 0.0, 0.0, 0.0]))
    learned = hcal.PooledCalibrator(preserve="accuracy").fit(z, y).map_
    assert isinstance(learned, maps.PoolMap)
    row = np.array([[4.0, 3.5, 1.0, -1.0]])
    margin = learned.margins(row)
    spread = learned.margins.spread_of(margin)
    shares = learned.margins.shares(margin)
    members = learned.members(margin, shares, spread)
    pooled = learned.pooled(members)
    correction = learned.last(maps.top_odds(pooled, shares), spread)
    return [
        ("the model", softmax(row)[0]),
        *zip(
            ("temperature", "top-versus-rest", "matrix"),
            (softmax(scores)[0] for scores in members),
            strict=True,
        ),
        ("product", softmax(pooled)[0]),
        ("one curve", softmax(pooled + shares * correction)[0]),
        ("class kept", np.exp(learned(row))[0]),
    ]


def svg() -> str:
    """Return the picture: a group of four bars for each step."""
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 250" '
        'font-family="sans-serif" font-size="12">'
    ]
    out.append("<title>Probabilities of four classes after each step of the default</title>")
    for i, (name, probs) in enumerate(steps()):
        left = 15 + 121 * i
        out.append(f'<text x="{left + 48}" y="232" text-anchor="middle" fill="#555">{name}</text>')
        for j, p in enumerate(probs):
            x = left + 24 * j
            high = 170 * float(p)
            out.append(
                f'<rect x="{x}" y="{200 - high:.1f}" width="21" height="{high:.1f}" '
                f'fill="{COLORS[j]}"/>'
            )
            out.append(
                f'<text x="{x + 10}" y="{195 - high:.1f}" text-anchor="middle" fill="#555">'
                f"{100 * p:.0f}</text>"
            )
            out.append(
                f'<text x="{x + 10}" y="214" text-anchor="middle" fill="#888" font-size="10">'
                f"{CLASSES[j]}</text>"
            )
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    with atomic_path(PICTURE) as new:
        new.write_text(svg())
