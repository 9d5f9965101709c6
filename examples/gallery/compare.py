"""
Compare methods on several tasks
================================

Which method is best on your data? One data set cannot tell: differences between methods are often smaller than chance.
A critical-difference diagram shows the mean rank over several tasks, and joins methods that cannot be told apart.
"""

# %%
# Twelve made-up tasks of different kinds
# ---------------------------------------

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import studentized_range

import hcal


def make_task(seed):
    """Return calibration and test rows of a model that errs in its own way."""
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(3, 7))
    evidence = rng.normal(size=(3000, classes)) * 1.5
    y = (hcal.softmax(evidence).cumsum(axis=1) > rng.random((3000, 1))).argmax(axis=1)
    bias = rng.normal(scale=rng.choice([0.0, 0.6]), size=classes)
    scores = rng.uniform(1.5, 3) * evidence + bias
    rows = int(rng.choice([200, 500, 1000]))
    return scores[:rows], y[:rows], scores[1000:], y[1000:]


tasks = {f"task {seed}": make_task(seed) for seed in range(12)}
methods = ["pool", "ts", "vs", "ms", "hb", "iso"]
table = hcal.compare(tasks=tasks, methods=methods, metrics=["nll"], resamples=0, progress=False)

# %%
# Rank the methods on every task
# ------------------------------

losses = np.array([[table.task(name)[method]["nll"] for method in methods] for name in tasks])
ranks = losses.argsort(axis=1).argsort(axis=1) + 1
mean_rank = ranks.mean(axis=0)

# Nemenyi's test: mean ranks closer than this cannot be told apart at 95 %.
count = len(methods)
critical = studentized_range.ppf(0.95, count, np.inf) / np.sqrt(2)
critical *= np.sqrt(count * (count + 1) / (6 * len(tasks)))
for method, rank in zip(methods, mean_rank, strict=True):
    print(f"{method:5} mean rank {rank:.2f}")

# %%
# Look
# ----

order = np.argsort(mean_rank)
figure, axes = plt.subplots(figsize=(6.4, 3.4))
for place, method in enumerate(order):
    axes.plot([mean_rank[method]] * 2, [0, -place - 1], color="0.6", linewidth=1)
    axes.plot(mean_rank[method], 0, marker="o", markersize=9, color="C0")
    axes.text(mean_rank[method] + 0.06, -place - 1, methods[method], va="center", weight="bold")

level = 0.35
joined_to = 0.0
for method in order:
    alike = mean_rank[
        (mean_rank >= mean_rank[method]) & (mean_rank <= mean_rank[method] + critical)
    ]
    if len(alike) > 1 and alike.max() > joined_to:
        axes.plot([alike.min(), alike.max()], [level, level], color="C1", linewidth=5)
        joined_to = alike.max()
        level += 0.35

axes.set_xlim(0.7, count + 0.6)
axes.set_yticks([])
axes.spines[["left", "bottom"]].set_visible(False)
axes.spines["top"].set_visible(True)
axes.xaxis.tick_top()
axes.set_title("Mean rank of the log loss (1 is best); joined: no difference proven", pad=12)
plt.show()
