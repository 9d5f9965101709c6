"""``hcal report``: one self-contained HTML page that shows whether a model's probabilities can be trusted.

>>> import numpy as np, hcal
>>> rng = np.random.default_rng(0)
>>> logits = rng.normal(size=(200, 3)) * 4
>>> y = np.array([rng.choice(3, p=p) for p in hcal.softmax(logits / 3)])
>>> page = hcal.reporting.build_report(logits, y, hcal.make_calibrator("ts").fit(logits, y))
>>> page.startswith("<!doctype html>")
True
"""

from __future__ import annotations

from hcal.reporting.content import Source, measure_report
from hcal.reporting.page import ReportVerdict, build_report, report, write_page

__all__ = ["ReportVerdict", "Source", "build_report", "measure_report", "report", "write_page"]
