"""Groups of rows (sites, sexes, devices): each certified by itself, all at once, the worst first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hcal.certificates.event import EventCertificate, certify_event
from hcal.metrics.sample import Vector


@dataclass(frozen=True)
class GroupCertificate:
    """What is proven about one group of rows."""

    name: str
    certificate: EventCertificate

    @property
    def stated(self) -> float:
        """Mean claim."""
        return float(self.certificate.table.prefix[0][-1] / self.certificate.n)

    @property
    def observed(self) -> float:
        """Frequency of the event."""
        return float(self.certificate.table.prefix[1][-1] / self.certificate.n)

    @property
    def proven(self) -> str:
        """Over, under, or empty: the direction in which the group as a whole is proven to be off."""
        low, high = self.certificate.overall
        return "over" if low > 0 else ("under" if high < 0 else "")

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, ready for JSON."""
        low, high = self.certificate.overall
        return {"group": self.name, "rows": self.certificate.n, "stated": self.stated,
                "observed": self.observed, "gap_low": low, "gap_high": high, "proven": self.proven,
                "at_least": self.certificate.at_least, "smooth_at_most": self.certificate.smooth}  # fmt: skip


def group_names(groups: Any, n: int) -> tuple[list[str], Any]:
    """Return the names of the groups, of any kind that can be told apart, and the number of each row's (N,).

    >>> group_names(["b", "a", "b"], 3)
    (['a', 'b'], array([1, 0, 1]))
    """
    from hcal import inputs

    values, _ = inputs.to_numpy(groups, "groups")
    if values.shape != (n,):
        raise ValueError(f"groups must have shape ({n},), one group a row; got {values.shape}")
    missing = np.array([v is None or v != v for v in values.tolist()])
    if missing.any():
        raise ValueError(f"groups has a missing value at row {int(missing.argmax())}")
    names, which = np.unique(values.astype(str), return_inverse=True)
    return [str(name) for name in names], which.reshape(-1)


def certify_groups(
    p: Vector, c: Vector, groups: Any, failure: float, *, assume: str | None = None
) -> tuple[GroupCertificate, ...]:
    """Certify every group, worst first: proven gaps before possible ones.

    ``failure`` is for all groups together.

    >>> p = np.full(2000, 0.9)
    >>> c = np.arange(2000) % 10 > np.where(np.arange(2000) < 500, 4, 0)
    >>> found = certify_groups(p, c, np.where(np.arange(2000) < 500, "bad", "good"), 0.05)
    >>> [(g.name, g.proven) for g in found]
    [('bad', 'over'), ('good', '')]
    """
    names, which = group_names(groups, len(p))
    share = failure / len(names)
    found = []
    for g, name in enumerate(names):
        certificate = certify_event(name, p[which == g], c[which == g], failure=share, assume=assume)
        found.append(GroupCertificate(name, certificate))
    return worst_first(found)


def worst_first(found: list[GroupCertificate]) -> tuple[GroupCertificate, ...]:
    """Order groups by what is proven of their overall gap, then by windows, then by what is possible."""

    def badness(g: GroupCertificate) -> tuple[float, float, float]:
        low, high = g.certificate.overall
        return max(low, -high, 0.0), g.certificate.at_least, max(abs(low), abs(high))

    return tuple(sorted(found, key=badness, reverse=True))
