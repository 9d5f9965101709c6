"""
Segments: each country as far as its rows allow
===============================================

Is the model too sure in Denmark and not sure enough in France? A calibrator for each country needs many rows of each.
A correction that is shrunk by empirical Bayes takes from each country what its rows can prove.
"""

# %%
# Sixty countries, from 20 rows to 5,000
# --------------------------------------
# In each country the true log-odds differ from the score by an amount of its own.

import warnings

import matplotlib.pyplot as plt
import numpy as np

import hcal

rng = np.random.default_rng(0)
true_offset = rng.normal(scale=0.8, size=60)
sizes = np.geomspace(20, 5000, 60).astype(int)


def rows_of(count, seed):
    """Return country, score and label of rows, and the true probability."""
    rng = np.random.default_rng(seed)
    country = np.repeat(np.arange(60), count)
    score = rng.normal(loc=-1.5, scale=1.5, size=len(country))
    chance = 1 / (1 + np.exp(-score - true_offset[country]))
    y = (rng.random(len(country)) < chance).astype(int)
    return country, score, y, chance


country, score, y, _ = rows_of(sizes, seed=1)
test_country, test_score, _, truth = rows_of(np.full(60, 1000), seed=2)

# %%
# One calibrator, one for each country, or something between
# ----------------------------------------------------------

common = hcal.PlattScaling().fit(score, y)
shrunk = hcal.SegmentedCalibrator("platt").fit(score, y, by=country)
print(shrunk.fit_.notes[-1])

separate_probs = np.empty(len(truth))
with warnings.catch_warnings():
    warnings.simplefilter("ignore", hcal.CalibrationWarning)  # 20 rows are few, and hcal says so
    for number in range(60):
        separate = hcal.PlattScaling().fit(score[country == number], y[country == number])
        in_country = test_country == number
        separate_probs[in_country] = separate.predict_proba(test_score[in_country])[:, 1]

probs = {
    "one for all": common.predict_proba(test_score)[:, 1],
    "one for each": separate_probs,
    "shrunk": shrunk.predict_proba(test_score, by=test_country)[:, 1],
}


def excess_loss(p):
    """Return the expected log loss of each row above that of the true probability."""
    return truth * np.log(truth / p) + (1 - truth) * np.log((1 - truth) / (1 - p))


excess = {name: excess_loss(p) for name, p in probs.items()}
for name, loss in excess.items():
    print(f"{name:13} log loss {loss.mean():.4f} above the best possible")

# %%
# Look
# ----
# Small countries: a separate calibrator is worse than none. Large countries: one calibrator for all misses them. The
# shrunk one is best or as good as the best everywhere.

COLOURS = {"one for all": "C1", "one for each": "C3", "shrunk": "C0"}
figure, axes = plt.subplots()
bands = np.array_split(np.arange(60), 6)
middle = [np.sqrt(sizes[band].min() * sizes[band].max()) for band in bands]
for name, loss in excess.items():
    means = [loss[np.isin(test_country, band)].mean() for band in bands]
    axes.loglog(middle, means, marker="o", color=COLOURS[name], label=name)
axes.set_xlabel("labelled rows of the country")
axes.set_ylabel("log loss above the best possible")
axes.set_title("Segments: borrow what a country lacks")
axes.legend()
plt.show()
