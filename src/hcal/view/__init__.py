"""``hcal view``: a page on this machine where a person chooses a file and sees what calibration does to it."""

from __future__ import annotations

from hcal.view.server import serve

__all__ = ["serve"]
