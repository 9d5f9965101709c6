"""
From scores to a decision: whom to call
=======================================

Whom should a bank call, if a missed buyer costs twenty times as much as a call? This hour with a real table goes from
scores to a decision: segments, a threshold, an estimate for the next list before anybody has called, and a refit.
"""

# %%
# The table
# ---------
# :download:`bank.csv.gz <../../examples/gallery/bank.csv.gz>` holds the log-odds of a booster for 19,680 calls of a
# Portuguese bank, and who bought: 6 %. The booster did not see the month of the call. (Data: `Bank Marketing
# <https://archive.ics.uci.edu/dataset/222/bank+marketing>`_, Moro, Rita and Cortez 2014, CC BY 4.0.)

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import hcal

calls = pd.read_csv("bank.csv.gz")
first = calls[:9840]
second = calls[9840:14_760]
upcoming = calls[14_760:]
labels = second["bought"].to_numpy()

# %%
# Calibrate, with a correction for each month
# -------------------------------------------
# ``by`` names the segment of each row. A month with few calls is corrected a little, one with many fully.

calibrator = hcal.SegmentedCalibrator("pool").fit(
    first["score"], first["bought"], by=first["month"]
)
common = hcal.PooledCalibrator().fit(first["score"], first["bought"])


def chances(rows):
    """Return the probability that each customer buys."""
    return calibrator.predict_proba(rows["score"].to_numpy(), by=rows["month"])[:, 1]


one_for_all = common.predict_proba(second["score"].to_numpy())[:, 1]
chance = chances(second)
for name, probs in (("one calibrator", one_for_all), ("with segments", chance)):
    loss = hcal.metrics.nll(probs, labels)
    auc = hcal.metrics.auc(probs, labels)
    print(f"{name:15} log loss {loss:.4f}, AUC {auc:.3f}")

# %%
# Report month by month
# ---------------------
# The page lists the months, worst first, and says for each whether it is proven to be off.

page = Path(tempfile.mkdtemp()) / "report.html"
hcal.report(calibrator, second["score"], second["bought"], page, by=second["month"])
print(hcal.evaluate(chance, labels, metrics=["nll"], by=second["month"]))

# %%
# Choose the threshold on calls that the calibrator has not seen
# --------------------------------------------------------------

rule = hcal.thresholds(chance, labels, cost={"fn": 20, "fp": 1}, classes=["no", "buys"])
print("\n".join(rule.sentences))

# %%
# Look
# ----
# One calibrator for all states March at 13 %, and 40 % of those who are called in March buy.

months = second["month"].value_counts().loc[lambda rows: rows >= 30].index
observed = [100 * labels[second["month"] == month].mean() for month in months]
axes = plt.subplots()[1]
for probs, colour, name in ((one_for_all, "C1", "one calibrator"), (chance, "C0", "with segments")):
    stated = [100 * probs[second["month"] == month].mean() for month in months]
    axes.scatter(stated, observed, color=colour, label=name, zorder=3)
axes.plot([2, 60], [2, 60], color="0.6", linewidth=1, linestyle="--")
axes.set_xscale("log")
axes.set_yscale("log")
for axis in (axes.xaxis, axes.yaxis):
    axis.set_major_locator(plt.FixedLocator([2, 5, 10, 20, 50]))
    axis.set_major_formatter("{x:g} %")
    axis.set_minor_locator(plt.NullLocator())
axes.set_xlabel("stated: will buy")
axes.set_ylabel("observed: bought")
axes.set_title("Each dot is a month")
axes.legend()
plt.show()

# %%
# The least cost is where theory expects it for calibrated probabilities: at 1/21.

# sphinx_gallery_thumbnail_number = 2
axes = plt.subplots()[1]
rule.plot(axes)
axes.axhline(1000 * rule.points[0].cost, color="0.6", linewidth=1)
axes.text(0.295, 1000 * rule.points[0].cost + 8, "call all", color="0.45", ha="right")
axes.axhline(1000 * rule.points[-1].cost, color="0.6", linewidth=1)
axes.text(0.295, 1000 * rule.points[-1].cost + 8, "call nobody", color="0.45", ha="right")
axes.set_xlim(0, 0.3)
axes.set_title("The threshold that costs least")
plt.show()

# %%
# What to expect of the next list
# -------------------------------
# Nobody on this list has been called. Calibrated probabilities alone say how many buyers the rule will catch.

METRICS = ["recall", "precision", "cost"]
expected = hcal.estimate(chances(upcoming), METRICS, rule=rule, by=upcoming["month"])
print(*expected.metrics, sep="\n")

# %%
# Weeks later the labels are known: the estimates were right.

to_call = hcal.decide(chances(upcoming), rule) == "buys"
bought = upcoming["bought"].to_numpy()
caught = (to_call * bought).sum()
recall = caught / bought.sum()
precision = caught / to_call.sum()
cost = (20 * (bought.sum() - caught) + to_call.sum() - caught) / len(bought)
print(f"recall {recall:.4f}, precision {precision:.4f}, cost {cost:.4f}")

figure, axes = plt.subplots(figsize=(6.4, 2.6))
for place, (metric, truth) in enumerate(
    zip(expected.metrics, (recall, precision, cost), strict=True)
):
    axes.plot([metric.low, metric.high], [place, place], color="C0", linewidth=7, alpha=0.35)
    axes.plot(
        metric.value,
        place,
        "o",
        color="C0",
        label="expected, without labels" if not place else None,
    )
    axes.plot(
        truth, place, "D", color="C1", label="weeks later, with labels" if not place else None
    )
axes.set_yticks(range(3), ["recall", "precision", "cost of a row"])
axes.set_ylim(2.5, -0.5)
axes.set_xlim(0, 1)
axes.set_title("The next list, before and after the calls")
axes.legend(loc="center", bbox_to_anchor=(0.42, 0.5))
plt.show()

# %%
# Learn from the new labels
# -------------------------
# ``refit`` repeats the fit with all it remembers, and compares old and new on rows that neither has seen.

newer = pd.concat([second, upcoming])
again = hcal.refit(calibrator, newer["score"], newer["bought"], by=newer["month"])
print(again.fit_.notes[-1])
