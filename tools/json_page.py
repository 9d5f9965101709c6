"""Write docs/json.md: the fields of what every command prints with --json.

    python tools/json_page.py

Each command runs on made-up rows, and its fields are those that it prints. A test compares the page with them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from hcal.cli.app import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "json.md"
HEAD = """# What commands print as JSON

This page is for people who write programs around the commands. You will find the fields of
everything that `--json` prints.

Each command prints one object. Its `schema` names the layout: the number at its end rises when a
field is removed or changes its meaning, and new fields may come at any time. A number that does
not exist (NaN) is null. The [API reference](api.md) explains the fields of a result; the commands
add what they know about files. *Optional* fields are null where they do not apply. `--require`
adds `requirements`.

```python
import numpy as np

np.savez("test.npz", probs=[[0.2, 0.8], [0.6, 0.4]], y=[1, 0])
```

```bash
hcal evaluate test.npz --json > test.json
python -c "import json; r = json.load(open('test.json')); \\
print(r['schema'], r['metrics']['accuracy']['value'])"
```

```text
hcal/evaluate/1 1.0
```
"""
#: What Python has for the same.
RESULTS = {
    "hcal/apply/1": "hcal.apply",
    "hcal/certify/1": "hcal.certify",
    "hcal/certify_out_of_fold/1": "hcal.certify",
    "hcal/compare/1": "hcal.compare",
    "hcal/estimate/1": "hcal.estimate",
    "hcal/evaluate/1": "hcal.evaluate",
    "hcal/report/1": "hcal.report",
}
COMMANDS = (
    ("fit", "cal.npz", "--method", "ts", "-o", "model.hcal"),
    ("refit", "model.hcal", "test.npz", "-o", "next.hcal"),
    ("apply", "model.hcal", "test.npz", "-o", "probs.npz"),
    ("info", "model.hcal"),
    ("export", "model.hcal", "-o", "model.json"),
    ("evaluate", "test.npz", "--model", "model.hcal", "--confidence", "0.9", "--metrics", "nll"),
    ("evaluate", "labels.npz", "--model", "labels.hcal"),
    ("report", "test.npz", "--model", "model.hcal", "-o", "report.html"),
    ("certify", "test.npz", "--model", "model.hcal"),
    ("certify", "cal.npz", "--out-of-fold", "ts"),
    ("decide", "test.npz", "--model", "model.hcal", "--error", "0.5"),
    ("estimate", "test.npz", "--model", "model.hcal"),
    ("compare", "cal.npz", "--methods", "ts", "--metrics", "nll"),
    ("watch", "test.npz", "--model", "model.hcal"),
    ("demo", "--method", "ts"),
)


def page() -> str:
    """Return the page as the commands of today make it."""
    with tempfile.TemporaryDirectory() as folder, working_in(folder):
        write_rows()
        printed = [json_of(command) for command in COMMANDS]
    return "\n".join([HEAD, *map(section, COMMANDS, printed)])


@contextmanager
def working_in(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write_rows() -> None:
    """Write rows of three classes to fit on and to test on, and rows with several labels and their model."""
    rng = np.random.default_rng(0)
    for name in ("cal", "test"):
        evidence = rng.normal(size=(300, 3))
        probs = np.exp(evidence) / np.exp(evidence).sum(axis=1, keepdims=True)
        cumulated = probs.cumsum(axis=1)
        y = (cumulated > rng.random((300, 1))).argmax(axis=1)
        np.savez(f"{name}.npz", logits=2 * evidence, y=y)
    scores = rng.normal(size=(300, 2))
    several_labels = (scores > rng.normal(size=(300, 2))).astype(int)
    np.savez("labels.npz", logits=scores, y=several_labels)
    json_of(("fit", "labels.npz", "--multilabel", "--method", "ts", "-o", "labels.hcal"))


def json_of(command: tuple[str, ...]) -> dict[str, Any]:
    """Return what a command prints with --json; watch may end with an alarm."""
    result = CliRunner().invoke(app, [*command, "--json"])
    if result.exit_code not in (0, 3):
        raise RuntimeError(f"{command}: {result.output}")
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def section(command: tuple[str, ...], content: dict[str, Any]) -> str:
    """Return the section of one layout."""
    schema = content["schema"]
    names: dict[str, list[str]] = {}
    for name in sorted(set(content) - {"schema"}):
        names.setdefault(kind_of(content[name]), []).append(f"`{name}`")
    fields = [f"*{kind}* {', '.join(names[kind])}" for kind in sorted(names)]
    python = f", as `{RESULTS[schema]}(…).to_dict()`" if schema in RESULTS else ""
    return f"## `{schema}`\n\nBy `hcal {command[0]}`{python}. {'; '.join(fields)}.\n"


def kind_of(value: Any) -> str:
    """Return the kind of a value in JSON.

    >>> kind_of(True), kind_of(0.5), kind_of(None)
    ('boolean', 'number', 'optional')
    """
    if value is None:
        return "optional"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "text", list: "list"}
    return kinds.get(type(value), "object")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
