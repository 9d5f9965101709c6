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
# Rank the methods over the tasks
# -------------------------------
# A task is one observation, however many rows it has. Wilcoxon's signed-rank test over tasks compares each pair.

ranking = table.ranking("nll")
print(ranking)

# %%
# Look
# ----
# A bar joins methods of which no two can be told apart.

figure, axes = plt.subplots(figsize=(5.6, 2.9))
ranking.plot(axes)
plt.show()
