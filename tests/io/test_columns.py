"""Tables as people have them: columns chosen by the caller, names of classes, ids, in every format."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hcal.io import OtherColumnError, UnknownKindError, UnnamedClassesError, write_probs
from shim import Columns, read_data

LOGITS = np.array([[0.5, 1.5, -0.25], [2.5, 0.5, 0.125], [-1.5, 0.25, 3.5]])
NAMES = ("cat", "dog", "eel")
TARGET = np.array(["dog", "cat", "eel"])
IDS = ["0017", "0002", "b"]
COLUMNS = Columns(scores="logit_*", label="target", id="id", group="site", weight="w")
TABLE = {
    "id": IDS,
    **{f"logit_{name}": LOGITS[:, k].tolist() for k, name in enumerate(NAMES)},
    "target": TARGET.tolist(),
    "site": ["north", "south", "north"],
    "w": [1.0, 2.0, 0.5],
}


def _rows() -> list[dict[str, object]]:
    return [dict(zip(TABLE, row, strict=True)) for row in zip(*TABLE.values(), strict=True)]


def _write(path: Path) -> Path:
    kind = path.suffix
    if kind == ".csv":
        lines = [",".join(TABLE), *(",".join(map(str, row.values())) for row in _rows())]
        path.write_text("\n".join(lines) + "\n")
    elif kind == ".jsonl":
        path.write_text("\n".join(map(json.dumps, _rows())))
    elif kind in (".parquet", ".feather"):
        pa = pytest.importorskip("pyarrow")
        from pyarrow import feather, parquet

        (parquet.write_table if kind == ".parquet" else feather.write_feather)(pa.table(TABLE), str(path))
    elif kind == ".xlsx":
        book = pytest.importorskip("openpyxl").Workbook()
        for row in [list(TABLE), *(list(r.values()) for r in _rows())]:
            book.active.append(row)
        book.save(path)
    return path


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet", ".feather", ".xlsx"])
def test_a_table_with_an_id_and_string_labels(tmp_path: Path, kind: str) -> None:
    """The whole layout in every format; the id was a class before, and the labels an error."""
    data = read_data(_write(tmp_path / f"t{kind}"), columns=COLUMNS)
    np.testing.assert_array_equal(data.values, LOGITS)
    assert data.kind == "logits"
    assert data.classes == NAMES
    np.testing.assert_array_equal(data.labels(), [1, 0, 2])
    assert data.ids is not None
    assert data.ids.tolist() == IDS
    assert data.groups is not None
    assert data.groups.tolist() == ["north", "south", "north"]
    np.testing.assert_array_equal(data.weight, [1.0, 2.0, 0.5])


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet", ".feather", ".xlsx"])
def test_without_the_word_of_the_caller_the_id_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(OtherColumnError, match="the column 'id' does not look like scores"):
        read_data(_write(tmp_path / f"t{kind}"), kind="logits")
    with pytest.raises(ValueError, match=r"it has no column 'targt'; it holds: .*target"):
        read_data(tmp_path / f"t{kind}", columns=Columns(scores="logit_*", label="targt"))
    with pytest.raises(ValueError, match=r"no column matches 'score_\*'; it holds: id, logit_cat"):
        read_data(tmp_path / f"t{kind}", columns=Columns(scores="score_*"))


def test_numbered_columns_come_by_number_and_names_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("s10,s2,s1,s3,s4,s5,s6,s7,s8,s9,y\n" + ",".join(map(str, range(10))) + ",3\n")
    data = read_data(path, kind="logits", columns=Columns(scores="s*"))
    np.testing.assert_array_equal(data.values, [[2, 1, 3, 4, 5, 6, 7, 8, 9, 0]])
    assert data.classes is None
    path.write_text("b,a,c\n1.5,2.5,7\n0.5,1.0,8\n")
    chosen = read_data(path, kind="logits", columns=Columns(scores="a,b"))
    np.testing.assert_array_equal(chosen.values, [[2.5, 1.5], [1.0, 0.5]])
    assert chosen.classes == ("a", "b")


def test_the_kind_is_said_by_the_names_or_by_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for prefix, kind in (("logit_", "logits"), ("prob_", "probs"), ("log_prob_", "log_probs")):
        path.write_text(f"{prefix}a,{prefix}b\n0.25,0.75\n")
        assert read_data(path, columns=Columns(scores=f"{prefix}*")).kind == kind
    path.write_text("m_a,m_b\n0.25,0.75\n")
    with pytest.raises(UnknownKindError, match="does not say what its numbers are"):
        read_data(path, columns=Columns(scores="m_*"))


def test_text_labels_need_names_of_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("logits_0,logits_1,y\n0.5,1.5,no\n2.5,0.5,yes\n")
    with pytest.raises(UnnamedClassesError, match="say which column is which class"):
        read_data(path).labels()
    np.testing.assert_array_equal(read_data(path, classes=["no", "yes"]).labels(), [0, 1])
    with pytest.raises(ValueError, match=r"row 1 is 'yes', no class of no, nein"):
        read_data(path, classes=["no", "nein"]).labels()


def test_one_score_of_two_classes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,score,churn\na,0.5,no\nb,2.5,yes\n")
    data = read_data(path, kind="logits", columns=Columns("score", "churn", "id"), classes=["no", "yes"])
    assert data.values.shape == (2,)
    np.testing.assert_array_equal(data.labels(), [0, 1])


def test_columns_are_put_in_the_order_of_the_model(tmp_path: Path) -> None:
    data = read_data(_write(tmp_path / "t.csv"), columns=COLUMNS)
    turned = data.in_order_of(["eel", "cat", "dog"])
    np.testing.assert_array_equal(turned.values, LOGITS[:, [2, 0, 1]])
    np.testing.assert_array_equal(turned.labels(), [2, 1, 0])
    with pytest.raises(ValueError, match="not those of the model"):
        data.in_order_of(["eel", "cat", "bee"])


def test_missing_and_ragged_cells_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("logit_a,logit_b,target\n0.5,1.5,a\n0.5,1.5,\n")
    with pytest.raises(ValueError, match="label: 1 missing values, first in row 1"):
        read_data(path, columns=Columns(scores="logit_*", label="target"))
    path.write_text("logit_a,logit_b,target\n0.5,1.5,a\n0.5,1.5,a,b\n")
    with pytest.raises(ValueError, match="line 3 has 4 cells, the first line 3"):
        read_data(path, columns=Columns(scores="logit_*", label="target"))
    path = tmp_path / "t.jsonl"
    path.write_text('{"logits": [0.5, 1.5], "y": 0}\n{"logits": [0.5], "y": 1}\n')
    with pytest.raises(ValueError, match="row 1 has 1 numbers, the first row 2"):
        read_data(path)
    path.write_text('{"logits": [0.5, 1.5], "y": 0}\n{"logits": [0.5, null], "y": 1}\n')
    with pytest.raises(ValueError, match="row 1 holds a missing value"):
        read_data(path)
    path.write_text('{"logits": [0.5, 1.5], "y": 0}\n{"logits": [0.5, 1.5]}\n')
    with pytest.raises(ValueError, match="line 2 has other keys than the first, such as 'y'"):
        read_data(path)


def test_what_apply_writes_is_read_again_with_names_and_ids(tmp_path: Path) -> None:
    probs = np.array([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.125, 0.125, 0.75]])
    for kind in (".csv", ".parquet", ".npz"):
        path = tmp_path / f"p{kind}"
        write_probs(path, probs, TARGET, classes=NAMES, ids=np.array(IDS))
        data = read_data(path, columns=Columns(id="id"))
        np.testing.assert_array_equal(data.values, probs)
        assert data.classes == NAMES
        np.testing.assert_array_equal(data.labels(), [1, 0, 2])
        assert data.ids is not None
        assert data.ids.tolist() == IDS
    with pytest.raises(ValueError, match=r"\.safetensors holds numbers, and 'id' is text"):
        write_probs(tmp_path / "p.safetensors", probs, ids=np.array(IDS))
    assert not (tmp_path / "p.safetensors").exists()


# -- torch ----------------------------------------------------------------------------------------


def test_tensors_of_torch(tmp_path: Path) -> None:
    import torch

    path, logits = tmp_path / "t.pt", torch.tensor(LOGITS)
    torch.save({"logits": logits, "y": torch.tensor([1, 0, 2])}, path)
    np.testing.assert_array_equal(read_data(path).values, LOGITS)
    torch.save((logits.bfloat16(), torch.tensor([1, 0, 2])), path)
    assert read_data(path).values.dtype == np.float32
    torch.save({"logits": logits, "y": TARGET.tolist()}, path)
    np.testing.assert_array_equal(read_data(path, classes=NAMES).labels(), [1, 0, 2])
    torch.save(logits, path)
    np.testing.assert_array_equal(read_data(path, kind="logits").values, LOGITS)


class Loud:
    """A pickle of this would run code."""

    def __reduce__(self) -> tuple[object, ...]:
        return print, ("run",)


def test_a_torch_file_runs_nothing_and_stays_within_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    path = tmp_path / "t.pt"
    torch.save({"logits": Loud()}, path)
    with pytest.raises(ValueError, match=r"^cannot read t.pt: it holds more than tensors.*$"):
        read_data(path)
    assert capsys.readouterr().out == ""
    torch.save({"logits": torch.zeros(1, 1).expand(10**6, 10**4)}, path)  # 80 GB of one stored number
    monkeypatch.setenv("HCAL_MAX_BYTES", str(10**9))
    with pytest.raises(ValueError, match=r"t.pt would take 40.0 GB in memory"):
        read_data(path)
    path.write_bytes(b"no torch file")
    with pytest.raises(ValueError, match="it is no file of torch"):
        read_data(path)
    squeezed = io.BytesIO()
    with zipfile.ZipFile(squeezed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t/data.pkl", b"\0" * 10**6)
    path.write_bytes(squeezed.getvalue())
    with pytest.raises(ValueError, match="it is compressed"):
        read_data(path)


def test_sheets_stay_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path / "t.xlsx")
    monkeypatch.setenv("HCAL_MAX_BYTES", "1000")
    with pytest.raises(ValueError, match=r"t.xlsx would take .* over the limit"):
        read_data(path, columns=COLUMNS)
    path = _write(tmp_path / "t.feather")
    monkeypatch.setenv("HCAL_MAX_BYTES", "20")
    with pytest.raises(ValueError, match=r"t.feather would take .* over the limit"):
        read_data(path, columns=COLUMNS)
