"""Name the results files that are older than the code they speak of.

    python tools/results.py            # `make results`

Every row of a results file says which commit wrote it. A file is up to date if none of the code that it speaks of has
changed since the oldest of these commits. A comment that changed counts as well: the table says where to look, not
what is wrong.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "results"
_PAPER: Final = ("src/hcal/h_calibration", "src/hcal/metrics")
_METHODS: Final = (*_PAPER, "src/hcal/methods", "src/hcal/pool", "studies/paper.py")
_DEFAULT: Final = ("src/hcal/pool", "src/hcal/solvers", "studies/pool.py")
#: The command that writes each file, and the code that its numbers speak of.
SPEAKS_OF: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "central.csv": (
        "python -m studies.central train, then measure",
        (*_PAPER, "studies/central.py"),
    ),
    "coverage.csv": (
        "python -m studies.coverage",
        ("src/hcal/certificates", "src/hcal/metrics", "studies/coverage.py"),
    ),
    "differences.csv": ("python -m studies.differences run", (*_PAPER, "studies/differences.py")),
    "growth.csv": ("python benchmarks/growth.py", ("src/hcal", "benchmarks/growth.py")),
    "intervals.csv": (
        "python benchmarks/intervals.py --write",
        (
            "src/hcal/metrics",
            "src/hcal/evaluation",
            "src/hcal/decisions",
            "benchmarks/intervals.py",
        ),
    ),
    "learning_curve.csv": (
        "python -m studies.learning_curve",
        (*_DEFAULT, "src/hcal/methods", "studies/learning_curve.py"),
    ),
    "leakage.csv": ("python -m studies.leakage", ("src/hcal/leakage.py", "studies/leakage.py")),
    "limit.csv": ("python -m studies.limit", (*_DEFAULT, "src/hcal/metrics", "studies/limit.py")),
    "paper.csv": ("python -m studies.paper run", _METHODS),
    "paper_bins.csv": ("python -m studies.paper run", _METHODS),
    "paper_curves.csv": ("python -m studies.paper run", _METHODS),
    "paper_pairs.csv": ("python -m studies.paper run", (*_METHODS, "src/hcal/evaluation")),
    "peers.csv": ("python benchmarks/peers.py", ("src/hcal", "benchmarks/peers.py")),
    "pool_ablation.csv": ("python -m studies.pool ablation", _DEFAULT),
    "pool_boards.csv": ("python -m studies.pool boards", _DEFAULT),
    "pool_few_rows.csv": ("python -m studies.pool few", _DEFAULT),
    "pool_selection.csv": ("python -m studies.pool selection", _DEFAULT),
    "pool_stability.csv": ("python -m studies.pool stability", _DEFAULT),
    "published.csv": ("python -m studies.published run", (*_PAPER, "studies/published.py")),
    "runtimes.csv": (
        "python -m studies.runtimes",
        ("src/hcal/integrations", "src/hcal/maps", "studies/runtimes.py"),
    ),
    "scale.jsonl": ("python benchmarks/scale.py", ("src/hcal", "benchmarks/scale.py")),
    "small_sets.csv": (
        "python -m studies.small_sets",
        (*_DEFAULT, "src/hcal/methods", "studies/small_sets.py"),
    ),
    "segments.csv": ("python -m studies.segments", ("src/hcal/segments", "studies/segments.py")),
    "selector_trap.csv": (
        "python -m studies.selector_trap",
        ("src/hcal/metrics", "src/hcal/pool", "studies/selector_trap.py"),
    ),
    "sensitivity.csv": ("python -m studies.sensitivity run", (*_PAPER, "studies/sensitivity.py")),
    "speed.csv": ("python benchmarks/speed.py --write", ("src/hcal", "benchmarks/speed.py")),
    "whose_lead.csv": ("python -m studies.whose_lead", ("studies/whose_lead.py",)),
}
#: Files of older versions, kept to compare with.
KEPT: Final = ("central-0.2.csv",)


def main() -> None:
    """Print a line for each file."""
    for name, (command, code) in SPEAKS_OF.items():
        print(f"{name:20} {_state(RESULTS / name, code):44} {command}")


def _state(file: Path, code: tuple[str, ...]) -> str:
    """Return what is known of the age of a file, in words."""
    if not file.exists():
        return "not there"
    commits = _commits(file)
    if not commits or "unknown" in commits:
        return "does not say which commit wrote all of it"
    changed = sorted({path for commit in commits for path in _changed_since(commit, code)})
    if not changed:
        return "up to date"
    others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"older than {Path(changed[0]).name}{others}"


def _commits(file: Path) -> set[str]:
    """Return the commits that wrote a file; "unknown" among them where a row does not say."""
    return {(row.get("commit") or "unknown").rstrip("+") for row in rows_of(file)}


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a results file: a table, or a JSON object a line."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(io.StringIO(text)))


def _changed_since(commit: str, code: tuple[str, ...]) -> list[str]:
    """Return the files of the code that changed since a commit; the code itself if the commit is not in the clone."""
    command = ["git", "-C", str(ROOT), "diff", "--name-only", commit, "--", *code]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return list(code) if answer.returncode else answer.stdout.split()


if __name__ == "__main__":
    main()
