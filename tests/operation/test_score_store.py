"""Scores wait for their labels: joined by id, once, by several threads and processes, for a stated number of days."""

from __future__ import annotations

import datetime
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import hcal

PROBS = np.array([[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])


@pytest.fixture
def store(tmp_path: Path) -> hcal.ScoreStore:
    return hcal.ScoreStore(tmp_path / "scores.sqlite", keep_days=30)


def test_labels_meet_their_scores_in_any_order(store: hcal.ScoreStore) -> None:
    assert store.add(["a", "b", "c"], PROBS) == 3
    joined = store.join(["c", "x", "a"], [1, 0, 0])
    assert joined.ids == ["c", "a"]
    np.testing.assert_array_equal(joined.probs, PROBS[[2, 0]])
    np.testing.assert_array_equal(joined.y, [1, 0])
    assert joined.unknown == 1
    assert joined.twice == 0
    assert joined.waiting == 1


def test_a_label_counts_once(store: hcal.ScoreStore) -> None:
    store.add(["a", "b"], PROBS[:2])
    assert store.join(["a", "a"], [1, 0]).twice == 1
    again = store.join(["a", "b"], [1, 1])
    assert again.ids == ["b"]
    assert again.twice == 1


def test_a_job_that_is_repeated_adds_nothing(store: hcal.ScoreStore) -> None:
    assert store.add([1, 2], PROBS[:2]) == 2
    assert store.add([1, 2, 3], PROBS) == 1
    with pytest.raises(ValueError, match="the id 1 is stored with other probabilities"):
        store.add([1], PROBS[1:2])
    assert len(store) == 3


def test_rows_are_deleted_after_the_stated_days(store: hcal.ScoreStore) -> None:
    store.add(["old"], PROBS[:1], day="2026-01-01")
    store.add(["new"], PROBS[1:2], day="2026-01-31")
    assert len(store) == 2
    assert store.delete_old(day="2026-02-01") == 1
    assert store.join(["old", "new"], [1, 1], day="2026-02-02").unknown == 1


def test_one_wrong_day_deletes_nothing(store: hcal.ScoreStore, tmp_path: Path) -> None:
    store.add(["a", "b"], PROBS[:2], day="2026-01-05")
    for use in (
        lambda day: store.add(["c"], PROBS[2:], day=day),
        lambda day: store.join(["a"], [1], day=day),
        lambda day: store.update_monitor(tmp_path / "watch.json", ["a"], [1], day=day),
        lambda day: store.delete_old(day=day),
    ):
        for day in ("2999-01-05", datetime.date(9999, 12, 31)):
            with pytest.raises(ValueError, match="has not come yet"):
                use(day)
    with pytest.raises(ValueError, match="rows of 2016-01-05 would be deleted at once"):
        store.add(["c"], PROBS[2:], day="2016-01-05")
    assert store.join(["a"], [1], day="0001-01-05").ids == ["a"]  # labels delete nothing then
    assert store.counts["deleted"] == 0
    assert len(store) == 2


def test_days_of_all_kinds_are_days_of_utc(tmp_path: Path) -> None:
    store = hcal.ScoreStore(tmp_path / "scores.sqlite", keep_days=1)
    tokyo = datetime.timezone(datetime.timedelta(hours=9))
    store.add(["a"], PROBS[:1], day=datetime.datetime(2026, 1, 6, 1, tzinfo=tokyo))  # the 5th
    assert store.delete_old(day="2026-01-06") == 0
    assert store.delete_old(day=datetime.date(2026, 1, 7)) == 1
    # East of Greenwich it is tomorrow already.
    tomorrow = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1)
    assert store.add(["b"], PROBS[:1], day=tomorrow) == 1
    for day in (np.datetime64("2026-01-05"), 20260105, "5 May"):
        with pytest.raises(ValueError, match="a day is written as 2026-05-01"):
            store.add(["c"], PROBS[:1], day=day)
    for_ever = hcal.ScoreStore(tmp_path / "ever.sqlite", keep_days=9_999_999)
    for_ever.add(["a"], PROBS[:1], day="1969-12-31")
    assert for_ever.add(["b"], PROBS[:1]) == 1
    assert len(for_ever) == 2


def test_a_full_store_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    store = hcal.ScoreStore(tmp_path / "scores.sqlite", most_rows=2)
    store.add(["a", "b"], PROBS[:2])
    with pytest.raises(ValueError, match=r"would hold 3 rows, and most_rows is 2"):
        store.add(["c"], PROBS[2:])
    assert len(store) == 2


def test_threads_lose_no_rows(store: hcal.ScoreStore) -> None:
    def add(number: int) -> int:
        return store.add([f"{number}-{row}" for row in range(3)], PROBS)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(add, range(24))) == 72
    assert len(store) == 72


def test_labels_by_name(tmp_path: Path) -> None:
    store = hcal.ScoreStore(tmp_path / "scores.sqlite", classes=["stay", "churn"])
    store.add(["a", "b"], [0.9, 0.1])
    joined = store.join(["a", "b"], ["churn", "stay"])
    np.testing.assert_array_equal(joined.y, [1, 0])


def test_bad_rows_are_refused_and_nothing_is_kept(store: hcal.ScoreStore) -> None:
    with pytest.raises(ValueError, match="the store holds no scores yet"):
        store.join(["a"], [1])
    with pytest.raises(ValueError, match="an id stands twice"):
        store.add(["a", "a"], PROBS[:2])
    with pytest.raises(ValueError, match=r"sum to 1|from 0 to 1"):
        store.add(["a"], [[0.9, 0.9]])
    store.add(["a"], PROBS[:1])
    with pytest.raises(ValueError, match="probs has 3 classes, and the rows before have 2"):
        store.add(["b"], [[0.2, 0.3, 0.5]])
    with pytest.raises(ValueError, match="a day is written as 2026-05-01"):
        store.add(["b"], PROBS[:1], day="yesterday")
    assert len(store) == 1


def test_nothing_in_the_file_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    path.write_text("not a database, but long enough to look like one: " + "x" * 4096)
    with pytest.raises(ValueError, match=r"scores.sqlite: file is not a database"):
        hcal.ScoreStore(path)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    with pytest.raises(ValueError, match="not a store of scores"):
        hcal.ScoreStore(other)
    store = hcal.ScoreStore(tmp_path / "third.sqlite")
    store.add(["a", "b"], PROBS[:2])
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE scores SET probs = ? WHERE id = 'a'", (b"\0" * 8,))
        connection.execute(
            "UPDATE scores SET probs = ? WHERE id = 'b'", (np.array([5.0, -4.0]).tobytes(),)
        )
    with pytest.raises(ValueError, match="does not hold 2 probabilities"):
        store.join(["a"], [1])
    with pytest.raises(ValueError, match="row 0"):
        store.join(["b"], [1])


def test_columns_that_have_names_are_stored_in_one_order(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    first = pd.DataFrame({"cat": [0.2], "dog": [0.8]})
    second = pd.DataFrame({"dog": [0.3], "cat": [0.7]})
    for classes in (None, ["cat", "dog"]):
        store = hcal.ScoreStore(tmp_path / f"{classes}.sqlite", classes=classes)
        store.add(["a"], first)
        store.add(["b"], second)
        joined = store.join(["a", "b"], [0, 1])
        np.testing.assert_array_equal(joined.probs, [[0.2, 0.8], [0.7, 0.3]])


def test_a_crash_between_the_two_files_loses_no_row_and_counts_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever labels come next: the same, more with them, or others."""
    for number, later in enumerate([["a"], ["a", "b"], ["b"]]):
        folder = tmp_path / str(number)
        folder.mkdir()
        state = folder / "watch.json"
        store = hcal.ScoreStore(folder / "scores.sqlite")
        store.add(["a", "b"], PROBS[:2])
        with monkeypatch.context() as patch:
            patch.setattr(hcal.Monitor, "save", _killed)
            with pytest.raises(KeyboardInterrupt):
                store.update_monitor(state, ["a"], [1])
        assert not state.exists()
        again = hcal.ScoreStore(folder / "scores.sqlite")
        _, monitor = again.update_monitor(state, later, [1] * len(later), day="2026-05-02")
        expected = len({"a", *later})
        assert monitor.n == hcal.Monitor.load(state).n == expected
        _, monitor = again.update_monitor(state, ["a"], [1])
        assert monitor.n == expected


def test_a_crash_after_the_state_was_written_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "watch.json"
    store = hcal.ScoreStore(tmp_path / "scores.sqlite")
    store.add(["a", "b"], PROBS[:2])
    with monkeypatch.context() as patch:
        patch.setattr(hcal.ScoreStore, "_forget_pending", _killed)
        with pytest.raises(KeyboardInterrupt):
            store.update_monitor(state, ["a"], [1])
    assert hcal.Monitor.load(state).n == 1
    _, monitor = store.update_monitor(state, ["a", "b"], [1, 0])
    assert monitor.n == 2


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_labels_that_come_again_after_more_scores_join_what_is_new(tmp_path: Path) -> None:
    """The same labels as before, and the scores of the second row came in the meantime."""
    state = tmp_path / "watch.json"
    store = hcal.ScoreStore(tmp_path / "scores.sqlite")
    store.add(["a"], PROBS[:1])
    for n_rows in (1, 1, 2):
        store.add(["a", "b"][:n_rows], PROBS[:n_rows])
        joined, monitor = store.update_monitor(state, ["a", "b"], [1, 0], day="2026-05-01")
        assert monitor.n == n_rows
    assert (joined.ids, joined.twice) == (["b"], 1)


def test_ids_are_the_same_as_numbers_and_as_text(store: hcal.ScoreStore) -> None:
    store.add(np.array([7, 8]), PROBS[:2])
    assert store.add([7.0, 8.0], PROBS[:2]) == 0
    assert store.join(["8", "7"], [1, 0]).ids == ["8", "7"]
    exact = 2**53 + 1
    store.add([exact], PROBS[:1])
    assert store.join([str(exact)], [1]).ids == [str(exact)]
    with pytest.raises(ValueError, match="an id has 1,001 characters"):
        store.add(["x" * 1001], PROBS[:1])
    with pytest.raises(ValueError, match="the id 9007199254740992 is a float"):
        store.join([float(exact)], [1])


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE scores SET probs = 'text, not bytes.'", "does not hold 2 probabilities"),
        ("UPDATE settings SET value = 'two' WHERE name = 'classes'", "classes in the store is no"),
        ("UPDATE settings SET value = '9e9' WHERE name = 'keep_days'", "keep_days in the store"),
        (
            "CREATE TRIGGER forget AFTER UPDATE ON scores BEGIN DELETE FROM scores; END",
            "not a store of scores",
        ),
        ("CREATE VIEW other AS SELECT 1", "not a store of scores"),
    ],
)
def test_a_store_that_somebody_changed(
    store: hcal.ScoreStore, statement: str, message: str
) -> None:
    store.add(["a"], PROBS[:1])
    with sqlite3.connect(store.path) as connection:
        connection.execute("INSERT OR IGNORE INTO settings VALUES ('keep_days', '90')")
        connection.execute(statement)
    with pytest.raises(ValueError, match=message):
        hcal.ScoreStore(store.path).join(["a"], [1])


def test_a_device_is_no_store() -> None:
    with pytest.raises(ValueError, match="/dev/null is not a regular file"):
        hcal.ScoreStore("/dev/null")
