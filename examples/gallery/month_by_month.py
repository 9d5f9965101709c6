"""
A million rows with Dask, month by month
========================================

What if the scores do not fit into memory? Every result of hcal is a sum over blocks of rows, so Dask computes it
block by block, on one machine or on a cluster. Here a year of predictions is checked, and one certificate covers
every month.
"""

# %%
# A lazy array of 1.2 million rows
# --------------------------------
# No block exists before it is needed. From September on the event becomes rarer, month after month.

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from dask import delayed

import hcal
from hcal.integrations import dask as hcal_dask

ROWS = 100_000  # in each month
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@delayed
def month_of_rows(number):
    """Return log-odds, label and month of the rows of one month."""
    rng = np.random.default_rng(number)
    log_odds = rng.normal(size=ROWS) * 1.5
    rarer = 0.12 * max(0, number - 7)
    y = rng.random(ROWS) < 1 / (1 + np.exp(rarer - log_odds))
    return np.column_stack([2 * log_odds, y, np.full(ROWS, number)])


blocks = [
    da.from_delayed(month_of_rows(number), shape=(ROWS, 3), dtype=float) for number in range(12)
]
rows = da.concatenate(blocks)
scores = rows[:, 0]
y = rows[:, 1].astype(int)
month = rows[:, 2].astype(int)

# %%
# Fit on a sample of January and February, predict the year
# ---------------------------------------------------------
# ``predict_proba`` adds a step to the graph and computes nothing yet.

labelled_rows = slice(0, 2 * ROWS)
months = hcal_dask.rows(scores[labelled_rows], y[labelled_rows], input="logits")
calibrator = hcal.PooledCalibrator().fit(months)
probs = hcal_dask.predict_proba(calibrator, scores)

result = hcal_dask.evaluate(probs, y, ["ece_ew", "nll"]).result()
print({name: round(value, 4) for name, value in result.items()})

# %%
# Certify the ten months that the fit has not seen
# ------------------------------------------------

new = slice(2 * ROWS, None)
certificate = hcal_dask.certify(probs[new], y[new], by=month[new])
parts = {int(part.name.split()[-1]): part for part in certificate.subgroups}
months = sorted(parts)
estimate = [100 * parts[number].estimate for number in months]
bound = [100 * parts[number].bound for number in months]

# %%
# Look
# ----
# All ten bounds hold at once with a probability of 95 %.

figure, axes = plt.subplots()
axes.bar(range(len(months)), bound, color="C4", alpha=0.45, label="proven: at most")
axes.plot(estimate, marker="o", linestyle="none", color="C0", label="estimated")
axes.set_xticks(range(len(months)), [MONTHS[number] for number in months])
axes.set_ylabel("calibration error, percentage points")
axes.set_title("The same model, month by month")
axes.legend()
plt.show()
