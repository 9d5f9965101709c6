"""Data files as people have them: what they hold, what they call it, and what is said where it cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hcal
from hcal.io import DataFile, Request, checksum, read

PROBS = np.array([[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]])
Y = np.array([1, 0, 1])
LOGITS = np.array([[0.5, 1.5, -0.25], [2.5, 0.5, 0.125], [-1.5, 0.25, 3.5]])
NAMES = ("cat", "dog", "eel")
IDS = ["0017", "0002", "b"]
TABLE: dict[str, list[Any]] = {
    "id": IDS,
    **{f"logit_{name}": LOGITS[:, k].tolist() for k, name in enumerate(NAMES)},
    "target": ["dog", "cat", "eel"],
    "site": ["north", "south", "north"],
    "w": [1.0, 2.0, 0.5],
}
REQUEST = Request(scores="logit_*", label="target", id="id", groups="site", weight="w")
TABLES = (".csv", ".jsonl", ".parquet", ".feather")


def write_table(path: Path, table: dict[str, list[Any]]) -> Path:
    frame = pytest.importorskip("pandas").DataFrame(table)
    kind = path.suffix.removeprefix(".").removesuffix("l")
    options: dict[str, Any] = {}
    if kind == "csv":
        options = {"index": False}
    elif kind == "json":
        options = {"orient": "records", "lines": True}
    getattr(frame, f"to_{kind}")(path, **options)
    return path


def refused(path: Path, message: str, request: Request | None = None, **options: Any) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read(path, request or Request(input="probs"), **options)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text, text


# -- what a file holds ------------------------------------------------------------------------------


def test_npy_holds_one_array_and_must_be_told_what(tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", PROBS)
    np.save(tmp_path / "y.npy", Y)
    with pytest.raises(ValueError, match=r"p.npy does not say what its numbers are"):
        read(tmp_path / "p.npy")
    data = read(tmp_path / "p.npy", Request(input="probs", labels=tmp_path / "y.npy"))
    np.testing.assert_array_equal(data.values, PROBS)
    np.testing.assert_array_equal(data.labels(), Y)
    with pytest.raises(ValueError, match="has no labels"):
        read(tmp_path / "p.npy", Request(input="probs")).labels()
    for rows in (2, 4):
        np.save(tmp_path / "y.npy", np.zeros(rows, int))
        with pytest.raises(ValueError, match=rf"y.npy has {rows} labels"):
            read(tmp_path / "p.npy", Request(input="probs", labels=tmp_path / "y.npy"))
    (tmp_path / "y.csv").write_text("label\n1\n0\n1\n")
    request = Request(input="probs", labels=tmp_path / "y.csv")
    assert read(tmp_path / "p.npy", request).y.tolist() == [1, 0, 1]


def test_task_files_have_two_parts_and_kinds_are_said(tmp_path: Path) -> None:
    path = tmp_path / "task.npz"
    test_part = {"logits_test": PROBS[:2], "y_test": Y[:2, None]}
    np.savez(path, logits_cal=PROBS, y_cal=Y, **test_part)
    cal, test = (read(path, part=part) for part in ("cal", "test"))
    assert cal.part == "cal"
    assert len(cal.values) == 3
    assert test.part == "test"
    assert len(test.values) == 2
    assert test.labels().shape == (2,)
    np.savez(path, logits_test=PROBS, y_test=Y)
    refused(
        path,
        "task.npz has no logits, probs or log_probs, nor a part .* with _cal",
        Request(),
        part="cal",
    )
    np.savez(path, logits=np.log(PROBS), probs=PROBS, y=Y)
    refused(path, "holds logits and probs: choose one", Request())
    assert read(path, Request(input="probs")).kind == "probs"
    np.savez(path, probs=PROBS, y=Y)
    refused(path, r"has no logits.* it holds: probs, y", Request(input="logits"))
    with pytest.raises(ValueError, match="kind of scores must be one of"):
        Request(input="scores")


def test_missing_files_and_checksums(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        read(tmp_path / "a.npz")
    (tmp_path / "a").write_bytes(b"abc")
    assert checksum(tmp_path / "a").startswith("ba7816bf")
    with pytest.raises(ValueError, match=r"cannot read a: the types are"):
        read(tmp_path / "a")
    (tmp_path / "t.npz").write_text("id,a\n1,2\n")
    refused(tmp_path / "t.npz", "is not a zip file")


# -- tables ---------------------------------------------------------------------------------------------


def test_a_table_with_an_id_and_string_labels_in_every_format(tmp_path: Path) -> None:
    for suffix in TABLES:
        path = write_table(tmp_path / f"t{suffix}", TABLE)
        data = read(path, REQUEST)
        np.testing.assert_array_equal(data.values, LOGITS)
        assert data.kind == "logits"
        assert data.classes == NAMES
        assert data.ids.tolist() == IDS
        np.testing.assert_array_equal(data.labels(), [1, 0, 2])
        assert data.groups.tolist() == ["north", "south", "north"]
        np.testing.assert_array_equal(data.weight, [1.0, 2.0, 0.5])
        # Without the caller's word no column is a score, and unknown columns are named.
        with pytest.raises(ValueError, match="has no logits; it holds: id, logit_cat"):
            read(path, Request(input="logits"))
        refused(
            path, r"has no 'targt'; it holds: .*target", Request(scores="logit_*", label="targt")
        )
        refused(
            path,
            r"no column matches 'score_\*'; it holds: id, logit_cat",
            Request(scores="score_*"),
        )


def test_columns_by_number_by_name_and_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("s10,s2,s1,s3,s4,s5,s6,s7,s8,s9,y\n" + ",".join(map(str, range(10))) + ",3\n")
    data = read(path, Request(scores="s*", input="logits"))
    np.testing.assert_array_equal(data.values, [[2, 1, 3, 4, 5, 6, 7, 8, 9, 0]])
    assert data.classes is None
    path.write_text("b,a,c\n1.5,2.5,7\n0.5,1.0,8\n")
    chosen = read(path, Request(scores="a,b", input="logits"))
    np.testing.assert_array_equal(chosen.values, [[2.5, 1.5], [1.0, 0.5]])
    assert chosen.classes == ("a", "b")
    for prefix, kind in (("logit_", "logits"), ("prob_", "probs"), ("log_prob_", "log_probs")):
        path.write_text(f"{prefix}a,{prefix}b\n0.25,0.75\n")
        assert read(path, Request(scores=f"{prefix}*")).kind == kind
    path.write_text("m_a,m_b\n0.25,0.75\n")
    with pytest.raises(ValueError, match="does not say"):
        read(path, Request(scores="m_*"))
    path.write_text('"cat","dog",y\n0.25,0.75,1\n0.5,0.5,0\n')
    np.testing.assert_array_equal(read(path, Request("cat,dog", input="probs")).values, PROBS[:2])
    path.write_bytes("\ufeffprobs_0,probs_1\r\n0.25,0.75\r\n\r\n".encode())
    np.testing.assert_array_equal(read(path).values, PROBS[:1])


def test_broken_tables_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for content, message in (
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"probs_0,probs_1\n", "has no rows"),
        (b"probs_a,probs_b\n1,2\n3\n", "line 3 has 1 cells, the first line 2"),
        (b"probs_a,probs_b\n0.5,0.5\n\n0.5,0.5\n", "line 3 has 0 cells, the first line 2"),
        (b"probs_a,probs_b\n0.5,two\n", "'probs_b' holds 'two' in row 0, not a number"),
        (b"probs_a,probs_b\n0.5,\n", "'probs_b' holds '' in row 0"),
        (b"probs_a,probs_b\n0.5,0.5 # doubtful\n", "not a number"),
        (b"\xff\xfea\0,\0b\0", "not UTF-8"),
        (b"probs_a,probs_b\n0.5,\x00\n", "not a number"),
        (b'probs_a,probs_b\n0.5,"0.\n5"\n', "line break inside a cell|cannot read"),
        (b"0,25;0,75\n0,5;0,5\n", "separated by semicolons"),
        (b"a,b,a\n1,2,3\n", "two columns are named 'a'"),
        (b"0,1\n0.5,0.5\n", "first line has numbers: write the names"),
        (b"probs_0,probs_1,probs_01\n1,0,0\n", "have gaps or the same number"),
        (b"probs_0,probs_2\n1,0\n", "have gaps"),
        (b"probs_0,probs_1\n60,40\n", "go up to 60: if they are per cent, say unit='percent'"),
    ):
        path.write_bytes(content)
        refused(path, message)
    path = tmp_path / "t.jsonl"
    for text, message in (
        ('{"probs": [0.5, 0.5]}\n{"probs": [1]}', r"'probs' holds \[1\] in row 1, not 2 numbers"),
        ('{"probs": [0.5, 0.5]}\n{"probs": [0.5, null]}', "holds .* in row 1, not 2 numbers"),
        (
            '{"probs": [0.5, 0.5], "y": 0}\n{"probs": [0.5, 0.5]}',
            "line 2 has other keys than the first",
        ),
        ('{"probs": 1, "probs": 2}', "names a key twice"),
        ("[1]", "line 1 is no JSON object"),
    ):
        path.write_text(text)
        refused(path, message)
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    for table, message in (
        ({"probs_0": [0.5, None], "probs_1": [0.5, 0.5]}, "'probs_0' has 1 missing"),
        ({"probs": [[0.5, 0.5], [1.0]]}, "lists of column 'probs' differ in length"),
        (
            {"probs_0": ["0.5", "0.25"], "probs_1": [0.5, 0.75]},
            "column 'probs_0' holds string, not numbers",
        ),
    ):
        parquet.write_table(pa.table(table), path)
        refused(path, message)
    table = pa.table({"probs": PROBS.tolist(), "y": Y, "id": IDS})
    parquet.write_table(table, path)
    np.testing.assert_array_equal(read(path).values, PROBS)


# -- rows without a label (issue 27, item 1) --------------------------------------------------------------


def test_rows_without_a_label_are_an_error_that_names_the_option_or_are_dropped(
    tmp_path: Path,
) -> None:
    table = TABLE | {"target": ["dog", None, "eel"]}
    for suffix in TABLES:
        path = write_table(tmp_path / f"t{suffix}", table)
        rows = "in 1 of the rows 0 to 2, first in row 1"
        with pytest.raises(ValueError, match=rf"no label in 'target' {rows}: .*--unlabelled drop"):
            read(path, REQUEST)
        data = read(path, Request(**{**vars(REQUEST), "unlabelled": "drop"}))
        np.testing.assert_array_equal(data.values, LOGITS[[0, 2]])
        assert data.dropped == 1
        assert data.ids.tolist() == ["0017", "b"]
        assert data.labels().tolist() == [1, 2]
        assert data.notes == ("1 row without a label was dropped",)
    path = tmp_path / "t.npz"
    np.savez(path, logits=LOGITS, y=[0.0, np.nan, 2.0])
    assert read(path, Request(unlabelled="drop")).labels().tolist() == [0, 2]
    with pytest.raises(ValueError, match="no label"):
        read(path)
    (tmp_path / "n.csv").write_text("logits_0,logits_1,y\n0,1,1\n1,0,\n1,0,0\n")
    assert read(tmp_path / "n.csv", Request(unlabelled="drop")).labels().tolist() == [1, 0]


def test_unlabelled_rows_in_python() -> None:
    pd = pytest.importorskip("pandas")
    labels = np.array([0.0, np.nan, 2.0])
    scores, y, weight = hcal.drop_unlabelled(LOGITS, labels, [1, 2, 3])
    np.testing.assert_array_equal(scores, LOGITS[[0, 2]])
    assert y.tolist() == [0, 2]
    assert weight == [1, 3]
    frame, labels = hcal.drop_unlabelled(pd.DataFrame(LOGITS), pd.Series(["cat", None, "dog"]))
    assert frame.index.tolist() == [0, 2]
    assert labels.tolist() == ["cat", "dog"]
    with pytest.raises(
        ValueError, match=r"y has no label in 1 of 3 rows, first row 1: hcal\.drop_unlabelled"
    ):
        hcal.make_calibrator("ts").fit(LOGITS, ["cat", None, "dog"], classes=NAMES)
    with pytest.raises(
        ValueError, match=r"row 2 is 3.7, which is no class; hcal does no regression"
    ):
        hcal.make_calibrator("ts").fit(LOGITS, [0.0, 1.0, 3.7])
    with pytest.raises(ValueError, match="2 rows beside 3 labels"):
        hcal.drop_unlabelled(LOGITS[:2], [0, None, 1])


# -- labels, classes, units -------------------------------------------------------------------------------


def test_labels_that_are_names_or_matrices(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("logits_0,logits_1,y\n0.5,1.5,no\n2.5,0.5,yes\n")
    with pytest.raises(ValueError, match="say which column is which class"):
        read(path).labels()
    labels = read(path, Request(classes=("no", "yes"))).labels()
    np.testing.assert_array_equal(labels, [0, 1])
    with pytest.raises(ValueError, match=r"row 1 is 'yes', no class of no, nein"):
        read(path, Request(classes=("no", "nein"))).labels()
    marks = np.eye(3, dtype=int)
    several = marks[[0, 1, 1]] | marks
    np.savez(tmp_path / "m.npz", logits=LOGITS, y=several)
    with pytest.raises(
        ValueError, match=r"several labels a row .*: use hcal\.MultilabelCalibrator"
    ):
        hcal.make_calibrator("ts").fit(LOGITS, read(tmp_path / "m.npz").labels())


def test_one_score_of_two_classes_and_swapped_names(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,score,churn\na,0.5,no\nb,2.5,yes\n")
    data = read(path, Request("score", "churn", "id", input="logits", classes=("no", "yes")))
    assert data.values.shape == (2,)
    np.testing.assert_array_equal(data.labels(), [0, 1])
    with pytest.raises(
        ValueError,
        match="one score a row is that of class 'yes' here and of class 'no' in the model",
    ):
        data.in_order_of(["yes", "no"])
    data = read(write_table(tmp_path / "t.jsonl", TABLE), REQUEST)
    turned = data.in_order_of(["eel", "cat", "dog"])
    np.testing.assert_array_equal(turned.values, LOGITS[:, [2, 0, 1]])
    np.testing.assert_array_equal(turned.labels(), [2, 1, 0])
    with pytest.raises(ValueError, match="not those of the model"):
        data.in_order_of(["eel", "cat", "bee"])
    path.write_text("probs_a,probs_b\n25,75\n")
    np.testing.assert_allclose(read(path, Request(unit="percent")).values, [[0.25, 0.75]])


# -- how a model was asked (issue 26, item 6) -------------------------------------------------------------


def test_a_request_is_remembered_as_plain_values_and_checked() -> None:
    plain = json.loads(json.dumps(REQUEST.to_json()))
    assert Request.from_json(plain) == REQUEST
    for bad in (
        [],
        {"scores": 1},
        {"labels": "y.npy"},
        {"input": "maybe"},
        {"unit": "percents"},
        {"classes": "ab"},
        {"classes": [1]},
        {"id": "x" * 10**5},
        {"evil": 1},
    ):
        with pytest.raises(ValueError, match="must be"):
            Request.from_json(bad)


def test_a_file_is_read_as_the_model_was_fitted(tmp_path: Path) -> None:
    remembered = REQUEST.to_json() | {"input": "logits"}
    request = Request().for_model(remembered)
    new = {k: v for k, v in TABLE.items() if k not in ("target", "w")}
    data = read(write_table(tmp_path / "new.csv", new), request, keep=True)
    assert data.y is None
    assert data.weight is None
    assert data.ids.tolist() == IDS
    with pytest.raises(ValueError, match=r"no column matches 'logit_\*'"):
        read(write_table(tmp_path / "other.csv", {"a": [0.5], "b": [0.5]}), request)
    for ours, words in (
        (Request(input="probs"), "input logits, so probs cannot be right"),
        (Request(option_score="length"), "option score sum, so length cannot be right"),
        (Request(unit="percent"), "unit fraction, so percent cannot be right"),
    ):
        with pytest.raises(ValueError, match=words):
            ours.for_model(remembered)
    # Labels that are only carried along may be missing.
    data = read(
        write_table(tmp_path / "half.csv", TABLE | {"target": ["dog", None, None]}), request
    )
    assert data.y.tolist() == ["dog", "", ""]


def test_other_columns_are_kept(tmp_path: Path) -> None:
    table = TABLE | {"note": ["a b", "", "ü"], "age": [3, 4, 5]}
    for suffix in TABLES:
        data = read(write_table(tmp_path / f"t{suffix}", table), REQUEST, keep=True)
        assert list(data.beside) == ["note", "age", "site", "w"]
        assert [str(v) for v in data.beside["age"]] == ["3", "4", "5"]
    table = {"probs": PROBS.tolist(), "parts": [[1, 2], [3, 4], [5, 6]]}
    path = write_table(tmp_path / "t.parquet", table)
    assert read(path, keep=True).beside["parts"][2] == [5, 6]
    np.savez(tmp_path / "t.npz", logits=LOGITS, y=[0, 1, 2], age=[3, 4, 5], other=[1])
    assert list(read(tmp_path / "t.npz", keep=True).beside) == ["age"]


def test_csv_and_jsonl_need_no_extra(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", TABLE)
    write_table(tmp_path / "t.jsonl", TABLE)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    code = (
        "import sys; sys.modules['pyarrow'] = sys.modules['pandas'] = sys.modules['torch'] = "
        "None\nfrom hcal.io import *\nr = Request('logit_*', 'target')\nprint(*[read('t' + s, "
        "r).labels().tolist() for s in ('.csv', '.jsonl')])\ntry: read('t.parquet')\nexcept "
        "ImportError as e: print(e)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "[1, 0, 2] [1, 0, 2]"
    assert "reading .parquet needs pyarrow: pip install" in second


def test_a_name_with_terminal_escapes_is_shown_escaped(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("logits_\x1b[31m,logits_b\n1,2\n")
    with pytest.raises(ValueError, match="matches") as caught:
        read(tmp_path / "t.csv", Request(scores="score_*"))
    assert "\x1b" not in str(caught.value)
    assert isinstance(read(tmp_path / "t.csv", Request(input="logits")), DataFile)
