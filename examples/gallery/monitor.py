"""
A monitor finds a drift
=======================

When does a model in use stop telling the truth? A monitor reads predictions and outcomes as they arrive. However
often you look, the probability that it ever raises a false alarm is at most 5 %.
"""

# %%
# The world changes after 6,000 rows
# ----------------------------------
# Until then the stated probabilities are right. Afterwards the event becomes rarer, by degrees, and nobody tells the
# model.

import matplotlib.pyplot as plt
import numpy as np

import hcal

rng = np.random.default_rng(1)
rows = 12_000
change = 6_000
stated = rng.beta(2, 3, rows)
drop = 0.12 * np.clip((np.arange(rows) - change) / 3000, 0, 1)
y = (rng.random(rows) < np.clip(stated - drop, 0, 1)).astype(int)

# %%
# Read the rows in the order in which they come
# ---------------------------------------------

monitor = hcal.Monitor()
rows_seen = []
evidence = []
for start in range(0, rows, 100):
    block = slice(start, start + 100)
    monitor.update(stated[block], y[block])
    rows_seen.append(monitor.n)
    evidence.append(monitor.log_evidence / np.log(10))
    if monitor.alarm:
        break

alarm = monitor.alarm
print(f"alarm at row {alarm.row:,}: {alarm}")

# %%
# Look
# ----
# The evidence is the capital of a bet against the model. If the model is right, the capital can hardly grow, and the
# line is crossed with a probability of at most 5 %.

monthly = np.arange(0, monitor.n, 500)
stated_mean = [stated[start : start + 500].mean() for start in monthly]
observed_mean = [y[start : start + 500].mean() for start in monthly]

figure, (top, bottom) = plt.subplots(2, 1, figsize=(6.4, 4.2), sharex=True)
top.plot(monthly + 250, stated_mean, label="stated")
top.plot(monthly + 250, observed_mean, label="observed")
top.set_ylabel("mean of 500 rows")
top.set_title("A monitor finds a drift")
top.legend()

bottom.plot(rows_seen, evidence, color="C0")
bottom.axhline(monitor.threshold / np.log(10), color="C1", linestyle="--")
bottom.text(0, monitor.threshold / np.log(10) + 0.15, "alarm", color="C1")
bottom.axvline(alarm.row, color="C1", linewidth=1)
for axes in (top, bottom):
    axes.axvline(change, color="0.6", linewidth=1, linestyle=":")
bottom.set_xlabel("row")
bottom.set_ylabel("evidence, log10")
plt.show()
