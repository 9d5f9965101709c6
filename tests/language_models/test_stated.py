"""Confidences in numbers and words: what is certain is read, all else is counted and quoted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import run
from hcal.io import Request, read
from hcal.language_models import WORDS, read_stated


def confidence_of(statement: Any, **options: Any) -> float | None:
    """Return what a statement is read as; None if it is unreadable."""
    sure = {"confidence": "100 %", "correct": True}
    stated = read_stated([{"confidence": statement, "correct": True}, sure], **options)
    return None if stated.unread == [0] else float(stated.confidence[0])


READABLE = {
    "85%": 0.85,
    "1.0": 1.0,
    "0": 0.0,
    "95,5 %": 0.955,
    "0,7": 0.7,
    "0,125": 0.125,
    ".8": 0.8,
    "1e-1": 0.1,
    "1/2": 0.5,
    "9/10": 0.9,
    "10/10": 1.0,
    "8 out of 10": 0.8,
    "about 80 %": 0.8,
    "~80%": 0.8,
    "**85%**": 0.85,
    "Confidence: 0.9.": 0.9,
    "Confidence - 80 %": 0.8,
    "I am 80 percent sure": 0.8,
    "Of 3 sources: 85 percent.": 0.85,
    "\uff18\uff15\uff05": 0.85,
    "\u0668\u0665\u066a": 0.85,
    "very likely": WORDS["very likely"],
    "I think it is unlikely.": WORDS["unlikely"],
}

UNREADABLE = [
    "50/50", "60/40", "1/1", "24/7", "9/10/2024", "9:1", "90 to 1", "1 in 10", "0/0",
    "between 70 and 80 %", "70-80 %", "70%\u201380%", "90-95%", "80% or 90%",
    "80 maybe 90 %", "70, 80 %",
    "7 or 8 out of 10", "2 of 3 sources, 80%", "2 out of 3 sources", "50-50",
    "95 percent confident, 5 % doubt", "20% chance that I am wrong", "5 % doubt", "unlikely (80%)",
    "not 80%", "at least 90%", "more than 80%", "> 90%", "no more than 80%", "80\u00b15 %",
    "85% (level 4)",
    "1,000", "1'000", "1 000", "1.2.3", "-0.5", "\u22125 %", "- 80%", "150%", "about 80",
    "85", "1e999",
    "5\u00b2", "\u00bd", "85\u2030", "$5", "80 percentage points", "80 %%",
    "not likely", "far from certain", "less likely", "certain or likely", "likely wrong",
    "nan", "inf", "I do not know", "", True, None, [0.5], {"a": 1}, float("nan"), 10**400, -0.1,
]  # fmt: skip


@pytest.mark.parametrize(("statement", "expected"), READABLE.items())
def test_what_is_certain_is_read(statement: str, expected: float) -> None:
    assert confidence_of(statement) == pytest.approx(expected)


@pytest.mark.parametrize("statement", UNREADABLE, ids=repr)
def test_what_is_not_certain_is_unreadable(statement: Any) -> None:
    assert confidence_of(statement) is None


@pytest.mark.parametrize(
    ("statement", "unit", "expected"),
    [
        ("0.9", "percent", None),
        (0.9, "percent", None),
        (1, "percent", None),
        ("0.9 %", "percent", 0.009),
        (0, "percent", 0.0),
        (85, "percent", 0.85),
        ("85", "percent", 0.85),
        (7, "0-10", 0.7),
        ("7/10", "0-10", 0.7),
        ("80 %", "0-10", 0.8),
        (3, "1-5", 0.5),
        ("11", "0-10", None),
    ],
)
def test_plain_numbers_are_read_on_the_scale(
    statement: Any, unit: str, expected: float | None
) -> None:
    confidence = confidence_of(statement, unit=unit)
    assert confidence == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("70-80 %", 0.75),
        ("between 70 and 80 %", 0.75),
        ("70%-80%", 0.75),
        ("0.7 to 0.8", 0.75),
        ("90-95%", 0.925),
        ("80-70 %", None),
        ("0.9-95 %", None),
        ("50/50", None),
        ("about 70-80 % or more", None),
    ],
)
def test_ranges_are_read_where_the_caller_wants_their_middle(
    statement: str, expected: float | None
) -> None:
    confidence = confidence_of(statement, ranges="middle")
    assert confidence == (None if expected is None else pytest.approx(expected))


def test_a_scale_that_cannot_be_right_is_refused_with_true_advice() -> None:
    judge = [{"confidence": mark, "correct": True} for mark in (7, 9, 10)]
    with pytest.raises(ValueError, match=r"3 of 3 .*from 7 to 10.*scale from 0 to 1; .*'0-10'"):
        read_stated(judge)
    assert read_stated(judge, unit="0-10").confidence.tolist() == [0.7, 0.9, 1.0]
    for unit in ("10-0", "ten", "5-5", ""):
        with pytest.raises(ValueError, match="unit must be"):
            read_stated(judge, unit=unit)
        with pytest.raises(ValueError, match="unit must be"):
            Request(unit=unit)


def test_targets_may_be_lists_of_aliases() -> None:
    rows = [
        {"answer": "The Hague.", "target": ["Den Haag", "the hague"], "confidence": 1},
        {"answer": 4.0, "target": ["four", 4], "confidence": 1},
        {"answer": "Rome", "target": ["Paris", "Lyon"], "confidence": 0},
        {"answer": "x", "target": "y", "confidence": 0},
    ]
    assert read_stated(rows).correct.tolist() == [1, 1, 0, 0]
    aliases = {"answer": "x", "target": {"aliases": ["x"]}, "confidence": 1}
    with pytest.raises(ValueError, match=r"record 0: 'target' must be a text or a number"):
        read_stated([aliases])


def test_new_answers_need_no_truth_and_a_mixture_is_refused() -> None:
    assert read_stated([{"confidence": 0.5}, {"confidence": 0.7}]).correct is None
    with pytest.raises(ValueError, match="1 of 2 answers have neither 'correct' nor"):
        read_stated([{"confidence": 0.5}, {"confidence": 0.7, "correct": True}])
    with pytest.raises(ValueError, match="record 0: 'correct' must be true or false"):
        read_stated([{"confidence": 0.5, "correct": "maybe"}])
    words = read_stated([{"confidence": "surely", "correct": 1}], words={"surely": 0.8})
    assert words.confidence.tolist() == [0.8]


def test_files_count_and_quote_what_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "judge.jsonl"
    statements = ("80%", "not likely", "70-80%", "90%")
    rows = [{"confidence": text, "correct": True, "id": text} for text in statements]
    path.write_text("\n".join(map(json.dumps, rows)))

    with pytest.raises(ValueError, match=r"2 of 4 .*'not likely' \(judge.jsonl, line 2\).*drop"):
        read(path)
    data = read(path, Request(unreadable="drop"))
    middle = read(path, Request(unreadable="drop", ranges="middle"))

    assert data.values.tolist() == [0.8, 0.9]
    assert data.dropped == 2
    assert data.ids.tolist() == ["80%", "90%"]
    assert "2 answers" in data.notes[0]
    assert "'not likely' (judge.jsonl, line 2)" in data.notes[0]
    assert middle.values.tolist() == [0.8, 0.75, 0.9]


def test_marks_of_a_judge_are_calibrated_from_file_to_file(tmp_path: Path) -> None:
    marks = [mark for mark in range(11) for _ in range(20)]
    rows = []
    for number, mark in enumerate(marks):
        confidence = f"{mark}/10" if number % 2 else mark
        rows.append({"confidence": confidence, "correct": number % 20 < mark})
    (tmp_path / "judged.jsonl").write_text("\n".join(map(json.dumps, rows)))
    new = [{"confidence": mark, "id": f"q{mark}"} for mark in range(11)]
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, new)))

    run("fit", tmp_path / "judged.jsonl", "--unit", "0-10", "-o", tmp_path / "m.hcal", "-q")
    run("apply", tmp_path / "m.hcal", tmp_path / "new.jsonl", "-o", tmp_path / "p.csv", "-q")
    wrong_unit = run(
        "evaluate", tmp_path / "judged.jsonl", "--model", tmp_path / "m.hcal", "--unit", "percent",
        code=1,
    )  # fmt: skip

    lines = (tmp_path / "p.csv").read_text().splitlines()
    columns = lines[0].split(",")
    column = columns.index("probs_1")
    probs = [float(line.split(",")[column]) for line in lines[1:]]
    assert [line.split(",")[0] for line in lines[1:3]] == ["q0", "q1"]
    assert probs == sorted(probs)
    assert "fitted with unit 0-10" in wrong_unit.stderr


def test_a_mark_of_a_scale_is_the_same_with_and_without_its_end() -> None:
    texts = ["4", "4/5", "4 out of 5", "1/5", "5/5"]
    stated = read_stated([{"confidence": text, "correct": True} for text in texts], unit="1-5")
    np.testing.assert_allclose(stated.confidence, [0.75, 0.75, 0.75, 0.0, 1.0])
    from_zero = read_stated([{"confidence": "4/5", "correct": True}], unit="0-5")
    np.testing.assert_allclose(from_zero.confidence, [0.8])
