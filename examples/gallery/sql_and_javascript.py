"""
The same probabilities in SQL and JavaScript
============================================

How does a calibrated model reach a database or a web page? hcal writes the fitted formula as one SQL query or one
JavaScript module. Neither needs Python, and both give what Python gives.
"""

# %%
# Fit a calibrator
# ----------------
# The model is over-confident, and more so for high scores than for low ones.

import json
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import hcal

rng = np.random.default_rng(0)
evidence = rng.normal(size=6000) * 2
y = (rng.random(6000) < 1 / (1 + np.exp(-evidence))).astype(int)
score = 1.2 * evidence + 0.6 * np.maximum(evidence, 0) ** 2

calibrator = hcal.PooledCalibrator().fit(score, y)
grid = np.linspace(-6, 14, 60)
in_python = calibrator.predict_proba(grid)[:, 1]

# %%
# Export it
# ---------

folder = Path(tempfile.mkdtemp())
hcal.export(
    calibrator, folder / "model.sql", dialect="sqlite", table="customers", columns=["score"]
)
hcal.export(calibrator, folder / "model.mjs")

# %%
# Run the query
# -------------
# The query keeps the columns of the table and adds the probabilities. It also runs in DuckDB and PostgreSQL.

database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE customers (score REAL)")
database.executemany("INSERT INTO customers VALUES (?)", [(float(value),) for value in grid])
result = database.execute((folder / "model.sql").read_text(encoding="utf-8"))
column = [name for name, *_ in result.description].index("probs_1")
in_sql = np.array([row[column] for row in result])
print(f"largest difference to Python: {np.abs(in_sql - in_python).max():.0e}")

# %%
# Run the module
# --------------
# A browser imports the same file. Here node does, where it is installed.

PROGRAM = """
import {{ predict }} from {module};
console.log(JSON.stringify(predict({scores})));
"""
in_javascript = None
if shutil.which("node"):
    module = json.dumps((folder / "model.mjs").as_uri())
    program = PROGRAM.format(module=module, scores=grid.tolist())
    command = ["node", "--input-type=module", "--eval", program]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    in_javascript = np.array(json.loads(answer.stdout))[:, 1]
    print(f"largest difference to Python: {np.abs(in_javascript - in_python).max():.0e}")

# %%
# Look
# ----

figure, axes = plt.subplots()
axes.plot(grid, 1 / (1 + np.exp(-grid)), color="0.6", linestyle="--", label="the model as it is")
axes.plot(grid, in_python, color="C0", label="calibrated, in Python")
axes.plot(grid[::2], in_sql[::2], "o", color="C1", label="in SQL")
if in_javascript is not None:
    axes.plot(grid[1::2], in_javascript[1::2], "D", color="C2", label="in JavaScript")
axes.set_xlabel("score of the model")
axes.set_ylabel("probability")
axes.set_title("One formula, three languages")
axes.legend()
plt.show()
