"""Write docs/file-format.md from what every method declares: ``python benchmarks/file_format_page.py``."""

from __future__ import annotations

from pathlib import Path

from hcal import list_calibrators
from hcal.calibrators import get_calibrator
from hcal.calibrators.files import MOST_CLASSES
from hcal.calibrators.state import Field, StateSpec, shape_words
from hcal.io.model_file import MOST_HEADER, SCHEMA

PAGE = Path(__file__).resolve().parent.parent / "docs" / "file-format.md"
_HEAD = f"""# The model file

<!-- Written by benchmarks/file_format_page.py from the declarations in src/hcal/calibrators; do not edit. -->

`hcal.save` writes one [safetensors](https://github.com/huggingface/safetensors) file: named arrays and text,
nothing that can be executed. This is schema {SCHEMA}; every earlier one stays readable.

- The metadata entry `hcal` is the header, a JSON object: `schema`, `hcal` (the version that wrote it), `name`
  of the method, `params` of its constructor, `n_classes` (2 to {MOST_CLASSES:,}), `converged`, `info` and
  `scores` (`before` and `after`); where the fit was given names, `classes`, K different texts or K different
  integers (not in files from before 0.2). The container's whole header has at most {MOST_HEADER:,} bytes.
- The metadata entry `sha256` is the checksum of the header's text and of the names, types, shapes and bytes
  of all arrays. Schema 1 has none. It tells damage, not malice: who changes a file can make it anew.
- The arrays are the state of the method, below. A method without any has one named `_empty`.

`hcal.load` reads regular files only, as a whole, and believes nothing: the checksum, the type and range of
every header field and parameter, the name, type, shape and range of every array, and the rules under each
table are checked before anything is computed. What does not fit is refused in one line with its name. What
passes predicts probabilities: finite, in [0, 1], each row with sum 1. Memory is in proportion to the file.

K is the number of classes, E that of one-vs-rest events: K, but 1 of two classes. Shapes in other letters
must agree within a file.

Several tables under one condition are alternatives: the names of the arrays tell which of them a file has
(two classes have a table of their own, earlier releases wrote fewer arrays, the paper's maps differ in kind).
"""


def page(names: list[str] | None = None) -> str:
    """Return the page, of all methods or of some."""
    return "\n".join(
        [_HEAD, *(_method(name) for name in list_calibrators() if names is None or name in names)]
    )


def _method(name: str) -> str:
    method = get_calibrator(name)
    lines = [f"## `{name}`: {method.title}", ""]
    for parameter, (low, high) in method.limits.items():
        lines += [f"Parameter `{parameter}`: {low:,} to {high:,}.", ""]
    for spec in method.state_specs:
        lines += _spec(spec)
    return "\n".join(lines)


def _spec(spec: StateSpec) -> list[str]:
    lines = []
    if spec.where:
        words = [f"`{key}` {' or '.join(repr(v) for v in values)}" for key, values in spec.where.items()]
        lines += [f"With {', '.join(words)}:", ""]
    if not spec.fields:
        return [*lines, "No arrays.", ""]
    lines += ["| array | type | shape | values | meaning |", "|---|---|---|---|---|"]
    lines += [
        f"| `{f.name}` | {f.dtype} | {shape_words(f).replace('*', '·')} | {_values(f)} | {f.what} |"
        for f in spec.fields
    ]
    lines.append("")
    notes = [f"{s}: {what}, at least {least}" for s, (what, least) in spec.sizes.items()]
    notes += [f"`{rule.name}` must {rule.words}" for rule in spec.rules]
    return [*lines, *(f"- {note}." for note in notes), *([""] if notes else [])]


def _values(field: Field) -> str:
    low, high = (b if isinstance(b, str) else f"{b:.10g}" for b in (field.low, field.high))
    words = [f"{low} to {high}"]
    if field.order:
        words.append(field.order)
    if field.total is not None:
        words.append(f"sum {field.total:g}")
    if field.nan:
        words.append("or NaN")
    return ", ".join(words)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print("wrote", PAGE.name)
