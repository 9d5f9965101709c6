"""Tables: never a row or a class more or less than the file has; what is unclear is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shim import read_data

SCORES = np.array([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.125, 0.125, 0.75]])


def _write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def _rows() -> list[str]:
    return [",".join(map(str, row)) for row in SCORES.tolist()]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    return tmp_path / "t.csv"


def _refused(path: Path, message: str, kind: str = "probs") -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_data(path, kind=kind)
    assert str(caught.value).startswith("cannot read t.")
    assert "\n" not in str(caught.value)


# -- the first line -------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["0,1,2", "1,2,3"])
def test_names_that_count_the_columns_may_be_a_row(csv: Path, head: str) -> None:
    """A DataFrame without names of its own is written so; it was one row too many."""
    _refused(_write(csv, head, *_rows()), f"first line {head} may be column names or scores")


def test_a_table_that_pandas_wrote_without_names(csv: Path) -> None:
    pd = pytest.importorskip("pandas")
    pd.DataFrame(SCORES).to_csv(csv, index=False)
    _refused(csv, "may be column names or scores")
    pd.DataFrame(SCORES).to_csv(csv)
    _refused(csv, "a column without a name does not look like scores")
    pd.DataFrame(SCORES).to_csv(csv, header=False)
    _refused(csv, "'column 0' holds whole numbers, others do not")
    pd.DataFrame(SCORES).to_csv(csv, header=False, index=False)
    np.testing.assert_array_equal(read_data(csv, kind="probs").values, SCORES)


def test_one_column_of_scores_under_a_counting_name(csv: Path) -> None:
    _refused(_write(csv, "0", "0.5", "0.25"), "may be column names or scores")
    np.testing.assert_array_equal(
        read_data(_write(csv, "0.5", "0.25"), kind="probs").values.ravel(), [0.5, 0.25]
    )


def test_labels_in_one_column_may_begin_with_any_class(csv: Path, tmp_path: Path) -> None:
    scores = tmp_path / "p.npy"
    np.save(scores, SCORES)
    for first in (0, 1, 2):
        _write(csv, str(first), "1", "2")
        np.testing.assert_array_equal(read_data(scores, kind="probs", labels=csv).y, [first, 1, 2])
    _write(csv, "label", "0", "1", "2")
    np.testing.assert_array_equal(read_data(scores, kind="probs", labels=csv).y, [0, 1, 2])


def test_integer_names_beside_a_label_are_names(csv: Path) -> None:
    _write(csv, "0,1,2,y", *(f"{row},{k}" for k, row in enumerate(_rows())))
    data = read_data(csv, kind="probs")
    np.testing.assert_array_equal(data.values, SCORES)
    np.testing.assert_array_equal(data.labels(), [0, 1, 2])


# -- columns that are no scores ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["id", "ID", "row_id", "index", "Unnamed: 0", "label", "Labels", "target", "y_true", "pred", "fold",
     "split", "group", "weight", "sample_weight", "class", "__index_level_0__", "timestamp"],
)  # fmt: skip
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_other_columns_are_refused_by_name(tmp_path: Path, suffix: str, name: str) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({name: [3, 1, 2], "cat": SCORES[:, 0], "dog": SCORES[:, 1], "eel": SCORES[:, 2]})
    path = tmp_path / f"t{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    _refused(path, f"the column {name!r} does not look like scores: leave it out")


def test_beside_named_scores_other_columns_are_no_matter(csv: Path) -> None:
    _write(csv, "id,probs_0,probs_1,probs_2,fold", *(f"{k},{row},{k}" for k, row in enumerate(_rows())))
    np.testing.assert_array_equal(read_data(csv).values, SCORES)


def test_a_free_column_of_whole_numbers_is_refused(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"customer": [17, 4, 99], "cat": SCORES[:, 0], "dog": SCORES[:, 1]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    _refused(tmp_path / "t.csv", "'customer' holds whole numbers, others do not", "logits")
    frame.to_parquet(tmp_path / "t.parquet")
    _refused(tmp_path / "t.parquet", "'customer' holds whole numbers, others do not", "logits")


def test_whole_numbers_everywhere_and_a_class_that_is_never_predicted_are_scores(csv: Path) -> None:
    _write(csv, "a,b", "3,4", "5,6", "7,8")
    np.testing.assert_array_equal(read_data(csv, kind="logits").values, [[3, 4], [5, 6], [7, 8]])
    _write(csv, "a,b,c", "0.5,0.5,0", "0.25,0.75,0")
    assert read_data(csv, kind="probs").values.shape == (2, 3)


def test_the_index_that_pandas_wrote_down_is_refused(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(SCORES, columns=["cat", "dog", "eel"], index=pd.Index([0.5, 1.5, 2.5], name="depth"))
    frame.to_parquet(tmp_path / "t.parquet")
    _refused(tmp_path / "t.parquet", "the column 'depth' does not look like scores")


def test_text_in_a_free_column_is_refused_by_name(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"cat": ["0.5", "0.25"], "dog": [0.5, 0.75]}), path)
    _refused(path, "the column 'cat' holds string, not numbers")


@pytest.mark.parametrize("head", ["a,b,a", "probs_0,probs_1,probs_1", "y,probs_0,y"])
def test_columns_of_one_name_are_refused(csv: Path, head: str) -> None:
    _refused(_write(csv, head, *_rows()), "two columns are named")


def test_columns_of_one_number_are_refused(csv: Path) -> None:
    _refused(
        _write(csv, "probs_0,probs_1,probs_01", *_rows()), "'probs_1' and 'probs_01' have the same number"
    )


def test_parquet_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    columns = [pa.array(c) for c in SCORES.T]
    parquet.write_table(pa.Table.from_arrays(columns, names=["a", "b", "a"]), path)
    _refused(path, "two columns are named 'a'")


# -- rows -----------------------------------------------------------------------------------------


def test_a_hash_is_no_comment(csv: Path) -> None:
    _refused(
        _write(csv, "a,b,c", _rows()[0], "#" + _rows()[1], _rows()[2]), "could not convert string '#0.5'"
    )
    _refused(_write(csv, "a,b,c", _rows()[0] + " # doubtful"), "could not convert")


def test_an_empty_line_among_the_rows_is_an_error(csv: Path) -> None:
    _refused(_write(csv, "a,b,c", _rows()[0], "", _rows()[1]), "an empty line among the rows")
    csv.write_bytes(b"a,b,c\r\n" + _rows()[0].encode() + b"\r\n\r\n" + _rows()[1].encode() + b"\r\n\r\n")
    _refused(csv, "an empty line among the rows")
    _write(csv, "a,b,c", *_rows(), "", "")
    assert len(read_data(csv, kind="probs").values) == 3  # at the end it is no row


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_line_endings_change_nothing(csv: Path, ending: str) -> None:
    csv.write_bytes(("\ufeff" + ending.join(["cat,dog,eel", *_rows()])).encode())
    np.testing.assert_array_equal(read_data(csv, kind="probs").values, SCORES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n", "column names and no rows"),
        (b"a,b\n1,2\n3\n", "number of columns changed from 2 to 1"),
        (b"a,b,c\n0.5,0.5\n", "3 column names for 2 columns"),
        (b"\xff\xfea\0,\0b\0", "not UTF-8"),
        (b"a,b\n0.5,\x00\n", "bytes of zero"),
        (b'"a\nb",c\n0.5,0.5\n', "line break"),
        (b"\n\n", "is empty"),
        (b"0,25;0,75\n0,5;0,5\n", "could not convert"),
    ],
)
def test_broken_tables_are_one_sentence(csv: Path, content: bytes, message: str) -> None:
    csv.write_bytes(content)
    _refused(csv, message)


@pytest.mark.parametrize("limit", [131_072, 10**9])
def test_a_name_too_long_is_said_of_the_file_whatever_the_process_allows(csv: Path, limit: int) -> None:
    import csv as module

    csv.write_bytes(b'a,"' + b"x" * 200_000 + b'"\n1,2\n')
    before = module.field_size_limit(limit)
    try:
        _refused(csv, "field larger than field limit" if limit < 200_000 else "a class name must have")
    finally:
        module.field_size_limit(before)


def test_lists_of_different_lengths(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"probs": [[0.5, 0.5], [1.0]]}), path)
    _refused(path, "the lists of column 'probs' differ in length")
    parquet.write_table(pa.table({"probs": [[0.5, None], [0.5, 0.5]]}), path)
    _refused(path, "'probs' has 1 missing")
