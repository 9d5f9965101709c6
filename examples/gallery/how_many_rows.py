"""
How many rows does calibration need?
====================================

How many labelled rows must you keep aside? A single temperature learns from fifty rows, but can only do one thing. A
flexible method can do more and needs thousands. The default weighs several methods by what they predict out of sample.
"""

# %%
# A made-up model with six classes
# --------------------------------
# The model is too sure, and it favours some classes: a temperature alone cannot repair both.

import matplotlib.pyplot as plt
import numpy as np

import hcal

rng = np.random.default_rng(0)
evidence = rng.normal(size=(14_000, 6)) * 2
y = (hcal.softmax(evidence).cumsum(axis=1) > rng.random((14_000, 1))).argmax(axis=1)
logits = 2 * evidence + np.linspace(-1.5, 1.5, 6)

test = slice(4_000, None)
truth = hcal.metrics.nll(hcal.softmax(evidence[test]), y[test])

# %%
# Fit three methods on more and more rows
# ---------------------------------------
# Several draws are averaged. The truth is known here, so the excess over the best possible log loss can be shown.

METHODS = {"ts": "temperature scaling", "ms": "matrix scaling", "pool": "the default"}
sizes = np.array([100, 200, 400, 800, 1600, 3200])
excess = {name: np.zeros(len(sizes)) for name in METHODS}
draws = 2
for draw in range(draws):
    rows = np.random.default_rng(draw).permutation(4_000)
    for place, size in enumerate(sizes):
        some_rows = rows[:size]
        for name in METHODS:
            fitted = hcal.make_calibrator(name).fit(logits[some_rows], y[some_rows])
            loss = hcal.metrics.nll(fitted.predict_proba(logits[test]), y[test])
            excess[name][place] += (loss - truth) / draws

# %%
# Look
# ----

uncalibrated = hcal.metrics.nll(hcal.softmax(logits[test]), y[test]) - truth
figure, axes = plt.subplots()
axes.axhline(uncalibrated, color="0.5", linestyle="--")
axes.text(sizes[0], uncalibrated * 1.08, "not calibrated", color="0.4")
for name, title in METHODS.items():
    axes.loglog(sizes, excess[name], marker="o", label=title)
axes.set_xlabel("rows for calibration")
axes.set_ylabel("log loss above the best possible")
axes.set_title("More rows, and which method uses them")
axes.legend()
plt.show()
