"""Files of answers in the commands: many files into one, columns by name, the same calibrator everywhere."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from command_line import run
from hcal.io import Request, read
from hcal.language_models import read_lm_eval
from lm_eval_files import write_samples

TASKS = ("arc_easy", "boolq", "piqa_2")


@pytest.fixture
def harness(tmp_path: Path) -> Path:
    """Return a folder as the harness leaves it: two models, three tasks each."""
    for seed, model in enumerate(("mini__small", "mini__large")):
        folder = tmp_path / "runs" / model
        folder.mkdir(parents=True)
        for number, task in enumerate(TASKS):
            write_samples(folder, task, n=40, counts=(2 + number,), seed=10 * seed + number)
    return tmp_path / "runs"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_rows_of_many_files_in_one_output_can_be_joined_back(harness: Path) -> None:
    model = harness.parent / "m.hcal"
    output = harness.parent / "all.csv"
    run("fit", harness, "-o", model, "-q")
    run("apply", model, harness, "-o", output, "-q")

    rows = rows_of(output)
    keys = {(row["model"], row["task"], row["doc_id"]) for row in rows}
    files = {(row["file"], row["doc_id"]) for row in rows}

    assert len(rows) == len(keys) == len(files) == 240
    assert {row["model"] for row in rows} == {"mini/small", "mini/large"}
    assert {row["task"] for row in rows} == set(TASKS)
    assert {row["file"].split("/")[0] for row in rows} == {"mini__small", "mini__large"}
    # Each row stands under the name of its own file.
    one = harness / "mini__large"
    path = next(one.glob("samples_boolq_*.jsonl"))
    run("apply", model, path, "-o", harness.parent / "one.csv", "-q")
    alone = {row["doc_id"]: row["probs_0"] for row in rows_of(harness.parent / "one.csv")}
    joined = {
        row["doc_id"]: row["probs_0"] for row in rows if row["file"] == f"mini__large/{path.name}"
    }
    assert joined == alone


def test_the_model_is_named_by_the_results_of_its_run(tmp_path: Path) -> None:
    written = write_samples(tmp_path, n=3)
    assert "model" not in read(written.path).beside
    results = tmp_path / "results_2026-11-01T10-00-00.123456.json"
    results.write_text(json.dumps({"model_name": "gpt-x"}))
    assert read(written.path).beside["model"].tolist() == ["gpt-x"] * 3


def test_answers_are_evaluated_by_task_and_by_entries_of_documents(harness: Path) -> None:
    report = json.loads(run("evaluate", harness, "--by", "task", "--json").stdout)
    groups = {row["group"]: row["rows"] for row in report["groups"]}
    assert groups == dict.fromkeys(TASKS, 80)

    data = read(harness, Request(by="model,doc.label", groups="doc_id", id="file"))
    assert list(data.by) == ["model", "doc.label"]
    assert set(data.by["doc.label"].tolist()) <= {0, 1, 2, 3}
    assert data.groups.max() == 39
    assert data.ids[0].startswith("mini__large/samples_arc_easy")
    with pytest.raises(ValueError, match=r"line 1: it has no 'country'; it holds: task, model"):
        read(harness, Request(by="country"))


def test_columns_of_python_are_those_of_files(harness: Path) -> None:
    paths = sorted(harness.rglob("*.jsonl"))
    quiz = read_lm_eval(paths)
    assert list(quiz.columns) == ["task", "model", "file"]
    expected = read(harness).beside["task"].tolist()
    assert quiz.columns["task"].tolist() == expected


def test_a_task_whose_name_is_a_formula_is_text_in_a_spreadsheet(tmp_path: Path) -> None:
    for task in ("=cmd|' /C calc'!A0", "plain"):
        write_samples(tmp_path, task.replace("/", "_"), n=20)
    run("fit", tmp_path, "-o", tmp_path.parent / "m.hcal", "-q")
    run("apply", tmp_path.parent / "m.hcal", tmp_path, "-o", tmp_path.parent / "p.csv", "-q")
    tasks = {row["task"] for row in rows_of(tmp_path.parent / "p.csv")}
    assert tasks == {"'=cmd|' _C calc'!A0", "plain"}


def test_a_table_with_a_confidence_column_stays_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"probs": [0.25, 0.75], "y": 1, "confidence": "high"}\n' * 3)
    assert read(path).values.tolist() == [[0.25, 0.75]] * 3
    path.write_text('{"p": 0.75, "y": 1, "confidence": "high"}\n' * 3)
    assert read(path, Request(scores="p", input="probs")).values.tolist() == [0.75] * 3


@pytest.mark.parametrize("method", ["pool", "ts", "vs", "iso", "platt"])
@pytest.mark.parametrize("counts", [(4,), (2, 3, 5)])
def test_compare_measures_the_calibrator_that_fit_writes(
    tmp_path: Path, method: str, counts: tuple[int, ...]
) -> None:
    cal = write_samples(tmp_path, "cal", n=900, counts=counts, seed=1).path
    test = write_samples(tmp_path, "test", n=200, counts=counts, seed=2).path
    model = tmp_path / "m.hcal"
    run("fit", cal, "--method", method, "-o", model, "-q")
    fitted = json.loads(run("evaluate", test, "--model", model, "--json").stdout)
    command = run("compare", cal, "--test", test, "--methods", method, "--json").stdout
    compared = json.loads(command)["methods"][method]["nll"]
    assert compared == pytest.approx(fitted["metrics"]["nll"]["value"], abs=1e-9)


def test_a_target_that_can_be_read_in_two_ways_is_refused(tmp_path: Path) -> None:
    """The target 2 of the options 1 to 4 was taken for the third of them."""
    path = tmp_path / "responses.jsonl"
    top = [{"token": token, "logprob": -1.0 - int(token)} for token in "1234"]
    response = {"choices": [{"logprobs": {"content": [{"token": "1", "top_logprobs": top}]}}]}
    for target, answer in (("2", 1), (2, None)):
        record = {"response": response, "options": ["1", "2", "3", "4"], "target": target}
        path.write_text(json.dumps(record), encoding="utf-8")
        if answer is None:
            with pytest.raises(ValueError, match="the target 2 may be the option '2', or the ind"):
                read(path)
        else:
            assert read(path).labels().tolist() == [answer]


@pytest.mark.parametrize(("accuracy", "answers"), [(None, None), (1.0, [0, 1]), (0.0, [1, 2])])
def test_an_index_that_is_an_option_too_needs_the_accuracy(
    accuracy: float | None, answers: list[int] | None, tmp_path: Path
) -> None:
    lines = []
    for best, target, options in ((0, "1", ["1", "2", "0"]), (1, "2", ["0", "2", "1"])):
        record = {
            "doc_id": best,
            "filtered_resps": [[-1.0 - abs(best - place), True] for place in range(3)],
            "arguments": [["question", f" {option}"] for option in options],
            "target": target,
        }
        lines.append(json.dumps(record if accuracy is None else {**record, "acc": accuracy}))
    path = tmp_path / "samples_numbers.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    if answers is None:
        with pytest.raises(ValueError, match="may be an option or its index, and no accuracy"):
            read_lm_eval(path)
    else:
        assert read_lm_eval(path).y.tolist() == answers
