"""
How fast should old rows be forgotten?
======================================

The world moves, and rows of last year mislead a calibrator. But the rows of one month are few. With a half-life, a row
counts half as much as one that is so much younger. Each month's fit is tested on the rows of the next month.
"""

# %%
# Two years in which the event becomes rare and frequent again
# -------------------------------------------------------------
# The scores keep their distribution, but what they mean changes.

import matplotlib.pyplot as plt
import numpy as np

import hcal

ROWS = 24 * 80  # 80 labels a month


def two_years(seed):
    """Return day, month, score, label and true probability of the rows of two years."""
    rng = np.random.default_rng(seed)
    day = np.sort(rng.uniform(0, 720, ROWS))
    score = rng.normal(loc=-0.5, scale=1.5, size=ROWS)
    log_odds = 0.5 * score + 0.8 * np.cos(2 * np.pi * day / 720)
    truth = 1 / (1 + np.exp(-log_odds))
    return day, (day // 30).astype(int), score, rng.random(ROWS) < truth, truth


# %%
# Fit every month, and predict the next one
# -----------------------------------------
# ``time`` may also be dates, and ``half_life`` a text such as ``"90d"``. The truth is known here, so the loss above
# the best possible can be shown. Ten draws of the two years are averaged.

months = np.arange(3, 23)
strategies = {
    "all rows count": {"half_life": None},
    "half-life of 30 days": {"half_life": 30.0},
    "last month alone": {"half_life": None},
}
excess = {name: np.zeros(len(months)) for name in strategies}
draws = 10
for draw in range(draws):
    day, month, score, y, truth = two_years(draw)
    for place, now in enumerate(months):
        upcoming = month == now + 1
        q = truth[upcoming]
        for name, options in strategies.items():
            labelled = month == now if name == "last month alone" else month <= now
            calibrator = hcal.PlattScaling()
            calibrator.fit(score[labelled], y[labelled], time=day[labelled], **options)
            p = calibrator.predict_proba(score[upcoming])[:, 1]
            loss = (q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))).mean()
            excess[name][place] += loss / draws

for name, losses in excess.items():
    print(f"{name:20} {np.mean(losses):.4f} above the best possible log loss")

# %%
# Look
# ----

figure, axes = plt.subplots()
for (name, losses), colour in zip(excess.items(), ("C1", "C0", "C3"), strict=True):
    axes.plot(months, losses, color=colour, label=name)
axes.set_ylim(bottom=0)
axes.set_xlabel("month of the fit")
axes.set_ylabel("log loss above the best possible")
axes.set_title("Old rows mislead, few rows are noisy")
axes.legend(loc="upper right", bbox_to_anchor=(0.93, 1))
plt.show()
