"""The monitor: no alarm on calibrated data, an alarm after a drift, and no influence of the batch size."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

import hcal
from hcal.certificates.bets import FAMILIES, log_payoffs
from hcal.certificates.drift import drift
from hcal.certificates.monitor import BLOCK, RECENT
from hcal.certificates.monitor_file import shared_state, update_state
from studies.worlds import WORLDS, draw_labels


def _stream(n: int, k: int, world: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    f, q = WORLDS[world](n, k, rng)
    return f, draw_labels(q, rng)


@pytest.mark.parametrize("tolerance", [0.0, 0.05])
@pytest.mark.parametrize("family", ["top-label", "class-wise"])
def test_every_bet_is_fair_or_worse_within_the_tolerance(family: str, tolerance: float) -> None:
    p = np.concatenate([np.linspace(0, 1, 101), [1e-9, 1 - 1e-9]])
    payoffs = []
    for occurred in (True, False):
        events = np.full(len(p), occurred)
        payoffs.append(np.exp(log_payoffs(p, events, FAMILIES[family], tolerance)))
    won, lost = payoffs
    for off in (-tolerance, 0.0, tolerance):
        q = np.clip(p + off, 0, 1)[:, None]
        assert (q * won + (1 - q) * lost <= 1 + 1e-9).all()
    assert won.min() > 0
    assert lost.min() > 0


def test_false_alarms_are_rare() -> None:
    alarms = 0
    for seed in range(40):
        monitor = hcal.Monitor(confidence=0.8).update(*_stream(3000, 3, "T=1", seed))
        alarms += monitor.alarm is not None
    assert alarms <= 14  # at most 8 expected; 14 has probability 0.02 in a binomial of 40 and 0.2


@pytest.mark.parametrize("k", [2, 4])
def test_a_drift_at_a_known_row_is_found_after_it(k: int) -> None:
    before = _stream(6000, k, "T=1", 3)
    after = _stream(4000, k, "T=2", 4)
    monitor = hcal.Monitor().update(*before)
    assert monitor.alarm is None
    monitor.update(*after)
    assert monitor.alarm is not None
    assert 6000 < monitor.alarm.row < 7000
    assert monitor.alarm.direction.startswith(("over-confident", "too extreme"))
    assert f"ALARM at row {monitor.alarm.row:,}" in str(monitor)


def test_the_class_that_drifts_is_named_with_its_direction() -> None:
    rng = np.random.default_rng(0)
    f = rng.dirichlet([2, 2, 2, 2], size=8000)
    q = f.copy()
    q[:, 2] *= 0.4
    y = draw_labels(q / q.sum(1, keepdims=True), rng)
    monitor = hcal.Monitor(tolerance=0.01).update(f, y)
    assert monitor.alarm is not None
    assert monitor.alarm.family == "class-wise"
    assert monitor.alarm.event == "class 2"
    assert monitor.alarm.direction.startswith("stated too high")
    names = ["ant", "bee", "cat", "dog"]
    named = hcal.Monitor(tolerance=0.01, classes=names)
    stored = json.loads(json.dumps(named.state))
    named = hcal.Monitor.from_state(stored).update(f, np.array(names)[y])
    assert named.alarm is not None
    assert named.alarm.event == "class cat"
    assert named.evidence == monitor.evidence
    with pytest.raises(ValueError, match="classes has 4 names for 3"):
        hcal.Monitor(classes=names).update([[0.2, 0.3, 0.5]], [0])


def test_a_tolerance_is_tolerated() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.6, 0.95, 30_000)
    y = (rng.random(30_000) < p - 0.03).astype(int)
    assert hcal.Monitor().update(p, y).alarm is not None
    tolerant = hcal.Monitor(tolerance=0.05).update(p, y)
    assert tolerant.alarm is None
    worse = (rng.random(30_000) < p - 0.12).astype(int)
    assert tolerant.update(p, worse).alarm is not None


@pytest.mark.parametrize(("k", "world"), [(2, "T=2"), (3, "T=1.2"), (3, "T=2")])
def test_the_state_does_not_depend_on_how_rows_were_split(
    k: int, world: str, tmp_path: Path
) -> None:
    f, y = _stream(3000, k, world)
    at_once = hcal.Monitor().update(f, y)
    rng = np.random.default_rng(0)
    for cuts in (
        np.arange(77, 3000, 77),
        np.arange(BLOCK, 3000, BLOCK),
        np.sort(rng.choice(2999, 40, replace=False)) + 1,
        np.arange(1, 300),
    ):
        parts = hcal.Monitor()
        for rows in np.split(np.arange(3000), cuts):
            parts.update(f[rows], y[rows])
        assert_same(parts.state, at_once.state)
    parts.save(tmp_path / "watch.json")
    assert_same(hcal.Monitor.load(tmp_path / "watch.json").state, at_once.state)
    assert at_once.alarm is not None


def assert_same(state: Any, expected: Any) -> None:
    """Compare two states: text and counts exactly, numbers to rounding."""
    if isinstance(expected, dict):
        assert state.keys() == expected.keys()
        for name in expected:
            assert_same(state[name], expected[name])
    elif isinstance(expected, list):
        assert len(state) == len(expected)
        for entry, expected_entry in zip(state, expected, strict=True):
            assert_same(entry, expected_entry)
    elif isinstance(expected, float):
        assert state == pytest.approx(expected, rel=1e-9, abs=1e-9)
    else:
        assert state == expected


def test_a_state_that_is_saved_after_every_update_continues(tmp_path: Path) -> None:
    f, y = _stream(1000, 3, "T=1.2")
    parts = hcal.Monitor()
    for start in range(0, 1000, 77):
        parts.update(f[start : start + 77], y[start : start + 77])
        parts.save(tmp_path / "watch.json")
        parts = hcal.Monitor.load(tmp_path / "watch.json")
    assert_same(parts.state, hcal.Monitor().update(f, y).state)


def test_no_row_of_sixteen_threads_is_lost() -> None:
    f, y = _stream(2400, 4, "T=1")
    monitor = hcal.Monitor()
    with ThreadPoolExecutor(16) as pool:

        def add(start: int) -> None:
            monitor.update(f[start : start + 10], y[start : start + 10])

        list(pool.map(add, range(0, 2400, 10)))
    assert monitor.n == 2400
    assert monitor._total[0].tolist() == [2400.0] * 5
    total = np.append(f.max(axis=1).sum(), f.sum(axis=0))
    assert monitor._total[1] == pytest.approx(total)
    rows_of_blocks = [block[0, 0] for block in monitor._recent]
    assert rows_of_blocks == [BLOCK] * 18 + [2400 - 18 * BLOCK]
    copied = pickle.loads(pickle.dumps(monitor))
    assert copied.update(f[:1], y[:1]).n == 2401


def test_no_row_of_six_processes_is_lost(tmp_path: Path) -> None:
    code = """
import sys
import numpy as np
from hcal.certificates.monitor_file import update_state
rng = np.random.default_rng(int(sys.argv[2]))
for _ in range(5):
    p = rng.uniform(0.1, 0.9, 100)
    update_state(sys.argv[1], p, rng.random(100) < p)
"""
    path = tmp_path / "watch.json"
    processes = []
    for number in range(6):
        command = [sys.executable, "-c", code, str(path), str(number)]
        processes.append(subprocess.Popen(command))
    assert [process.wait(120) for process in processes] == [0] * 6
    assert hcal.Monitor.load(path).n == 3000


def test_a_state_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "watch.json"
    with (
        FileLock(f"{path}.lock"),
        pytest.raises(TimeoutError, match=r"has held .*watch\.json\.lock"),
        shared_state(path, hcal.Monitor, patience=0.05),
    ):
        raise AssertionError("the lock is held")
    with pytest.raises(ValueError, match="y must lie in"):
        update_state(path, [0.5], [3])
    assert not path.exists()  # an error in the block writes nothing, and lets go of the lock
    assert update_state(path, [0.5], [1]).n == 1


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="confidence must lie"):
        hcal.Monitor(confidence=0)
    with pytest.raises(TypeError, match=r"since 0\.4 it is called 'confidence'"):
        hcal.Monitor(level=0.95)
    with pytest.raises(ValueError, match="sequence of names, got one text"):
        hcal.Monitor(classes="ab")
    with pytest.raises(TypeError, match="positional"):
        hcal.Monitor(0.05)
    with pytest.raises(ValueError, match="tolerance must lie"):
        hcal.Monitor(tolerance="some")
    with pytest.raises(ValueError, match="2 classes, this monitor checks 3"):
        hcal.Monitor().update([[0.2, 0.3, 0.5]], [0]).update([[0.5, 0.5]], [0])
    with pytest.raises(ValueError, match="schema 9"):
        hcal.Monitor.from_state({"schema": 9})


def _binary(rng: np.random.Generator, n: int, off: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    p = rng.uniform(0.3, 0.9, n)
    return p, (rng.random(n) < p - off).astype(int)


def test_an_alarm_names_rows_and_size_and_ends() -> None:
    rng = np.random.default_rng(0)
    monitor = hcal.Monitor(confidence=0.99, classes=["well", "sick"])
    monitor.update(*_binary(rng, 3000))
    monitor.update(*_binary(rng, 2000, off=0.2))
    alarm = monitor.alarm
    assert alarm is not None
    assert 3000 < alarm.row < alarm.last <= 5000
    assert alarm.stated - alarm.observed == pytest.approx(
        0.15, abs=0.1
    )  # most of the recent rows are off
    assert f"in rows {alarm.last - alarm.rows + 1:,} to {alarm.last:,}" in str(monitor)
    monitor.update(*_binary(rng, 6000))
    assert monitor.alarm is None
    assert [a.row for a in monitor.alarms] == [alarm.row]
    assert monitor.alarms[0].until is not None
    assert monitor.alarms[0].until <= alarm.last + 2 * BLOCK * RECENT
    assert BLOCK * RECENT == 2560  # as the documentation says
    assert "1 earlier" in str(monitor)
    views = monitor.windows()
    assert views["before"]["gap"] > 3 * views["before"]["standard_error"]
    assert abs(views["recent"]["gap"]) < 3 * views["recent"]["standard_error"]
    assert views["recent"]["rows"] + views["before"]["rows"] == 11_000
    assert monitor.reset().n == 0
    assert monitor.log_evidence == 0.0
    assert monitor.evidence == 1.0
    assert monitor.windows()["recent"]["rows"] == 0
    assert monitor.alarms == []


def test_files_are_remembered_and_refused_a_second_time() -> None:
    rng = np.random.default_rng(0)
    monitor = hcal.Monitor()
    batches = [_binary(rng, 500, off) for off in (0.0, 0.0, 0.1)]
    for day, batch in enumerate(batches, 1):
        monitor.update(*batch, name=f"{day}.csv", digest=str(day), date=f"2026-01-0{day}")
    back = hcal.Monitor.from_state(json.loads(json.dumps(monitor.state)))
    assert [f["name"] for f in back.files] == ["1.csv", "2.csv", "3.csv"]
    with pytest.raises(
        ValueError, match=r"again\\x1b.csv was added before, as 2.csv \(2026-01-02\)"
    ):
        back.update(*_binary(rng, 500), name="again\x1b.csv", digest="2")
    assert back.n == 1500
    since = back.windows(since="2026-01-03")
    assert since["before"]["rows"] == 1000
    assert since["recent"]["rows"] == 500
    expected = batches[2][0].mean()
    assert since["recent"]["stated"] == pytest.approx(expected)  # of P(class 1), as in "before"
    observed = np.mean([y for _, y in batches[:2]])
    assert since["before"]["observed"] == pytest.approx(observed)
    assert since["recent"]["gap"] > since["before"]["gap"]


def _rare(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.beta(1, 24, n)  # 4 % positives
    return p, (rng.random(n) < p).astype(int)


def test_the_automatic_tolerance_is_that_of_the_calibrators_fit() -> None:
    cal = hcal.make_calibrator("uncal", input="probs").fit(*_rare(20_000, seed=1))
    rng = np.random.default_rng(0)
    p = _rare(20_000)[0]
    for off, raised in ((1.3, False), (2.5, True)):
        monitor = hcal.Monitor(tolerance="auto", calibrator=cal)
        monitor.update(p, (rng.random(20_000) < off * p).astype(int))
        assert monitor._allowed[1] == pytest.approx(0.0196, abs=0.001)
        assert (monitor.alarm is not None) == raised
        restored = hcal.Monitor.from_state(json.loads(json.dumps(monitor.state)))
        assert restored.log_evidence == monitor.log_evidence
        one_row = restored.reset().update(p[:1], [0])
        assert one_row._allowed[1] == monitor._allowed[1]


def test_the_automatic_tolerance_does_not_depend_on_the_first_rows() -> None:
    cal = hcal.make_calibrator("uncal", input="probs").fit(*_rare(20_000, seed=1))
    first_rows = []
    for n in (1, 500):
        monitor = hcal.Monitor(tolerance="auto", calibrator=cal)
        first_rows.append(monitor.update(*_rare(n)))
    assert first_rows[0]._allowed.tolist() == first_rows[1]._allowed.tolist()
    for nothing in (None, hcal.make_calibrator("ts")):
        with pytest.raises(ValueError, match="is decided by the fit of a calibrator"):
            hcal.Monitor(tolerance="auto", calibrator=nothing)
    with pytest.raises(ValueError, match="probs has 3 classes, and the calibrator that"):
        hcal.Monitor(tolerance="auto", calibrator=cal).update([[0.2, 0.3, 0.5]], [0])


def test_states_that_were_tampered_with_are_refused_in_one_line(tmp_path: Path) -> None:
    state = hcal.Monitor().update(*_stream(700, 3, "T=2")).state
    path = tmp_path / "state.json"

    def refused(text: str) -> None:
        path.write_text(text)
        with pytest.raises(ValueError, match="is not the state of a monitor") as refusal:
            hcal.Monitor.load(path)
        assert "\n" not in str(refusal.value)

    def changed(*keys: object, value: object) -> str:
        copy = json.loads(json.dumps(state))
        part = copy
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value
        return json.dumps(copy)

    weight = state["arrays"]["top-label weights"][0][0]
    refused("[" * 100_000)
    refused("[1]")
    refused("\x00")
    for keys, value in (
        (("arrays", "top-label weights"), [[-1.0] * 15]),
        (("arrays", "top-label weights", 0, 0), -0.1),
        (("arrays", "top-label weights", 0, 0), weight + 0.001),  # more than all of the capital
        (("arrays", "top-label start"), ["a"]),
        (("arrays", "top-label gained"), []),
        (("arrays",), {}),
        (("n",), -1),
        (("n",), 2.5),
        (("n_classes",), 10**9),
        (("confidence",), 2),
        (("tolerance",), "much"),
        (("past",), None),
        (("alarm",), {"row": 1}),
        (("alarm", "row"), "one"),
        (("alarms",), {}),
        (("files",), [{"name": 1}]),
        (("arrays", "total", 0, 0), -5),
        (("recent",), "x"),
        (("classes",), ["a"] * 2),
        (("schema",), 1),
    ):
        refused(changed(*keys, value=value))
    refused(json.dumps({k: v for k, v in state.items() if k != "recent"}))
    for allowed in ([0.1] * 3 + [-0.1], [0.1] * 3 + [1.0], [[0.1] * 4], [0.1] * 3, 0.1, ["a"] * 4):
        refused(json.dumps(state | {"tolerance": "auto", "automatic": allowed}))
    refused(json.dumps(state).replace('"confidence": 0.95', '"confidence": NaN'))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(ValueError, match="not a regular file"):
        hcal.Monitor.load(fifo)
    for valid in (state, state | {"tolerance": "auto", "automatic": [0.0, 0.1, 0.2, 0.99]}):
        path.write_text(json.dumps(valid))
        assert hcal.Monitor.load(path).state == valid
    path.write_text(changed("alarm", "evidence", value=1e300))  # as large as it is ever written
    assert hcal.Monitor.load(path).alarm.evidence == 1e300


def test_drift_is_found_without_labels_and_not_where_there_is_none() -> None:
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(20):
        old, same = 2 * rng.normal(size=(2, 400, 3))
        false += drift(old, same).changed
    assert false <= 2
    for k in (2, 5, 50):
        old, new = 2 * rng.normal(size=(2, 1000, k))
        change = drift(old, 1.6 * new)
        assert change.changed
        assert "The scores have changed" in str(change)
    old, new = rng.normal(-20, 1, size=(2, 1000, 50))
    old[:, :2] = np.log([0.5, 0.5])
    new[:, :2] = np.log([0.7, 0.3])  # the likely classes have changed, and none of the others
    assert drift(old, new).accuracy > 0.95
    assert drift(old[:50], new[:50]).rows == (50, 50)
    with pytest.raises(ValueError, match="too few rows: at least 50"):
        drift(old[:49], new)
    with pytest.raises(ValueError, match="reference has 50 classes"):
        drift(old, new[:, :3])


def test_the_p_value_of_the_stability_index_is_that_of_permuted_rows() -> None:
    """Over bins at the deciles of all rows, with half a row more in each."""
    rng = np.random.default_rng(0)
    old = rng.normal(size=80)
    new = rng.normal(0.25, 1, size=60)
    rows = np.concatenate([old, new])
    deciles = np.quantile(rows, np.arange(0.1, 1, 0.1))
    bins = np.searchsorted(deciles, rows)

    def index(order: np.ndarray) -> float:
        first, second = np.split(bins[order], [len(old)])
        a = (np.bincount(first, minlength=10) + 0.5) / (len(first) + 5)
        b = (np.bincount(second, minlength=10) + 0.5) / (len(second) + 5)
        return float(((a - b) * np.log(a / b)).sum())

    as_it_is = index(np.arange(140)) - 1e-9
    permuted = [index(rng.permutation(140)) for _ in range(3000)]
    expected = np.mean(np.array(permuted) >= as_it_is)
    assert 0.1 < expected < 0.9
    # Rows of a binary score are its logits, and what is binned is P(class 1), which keeps their order.
    assert drift(old, new).psi_p_value == pytest.approx(expected, abs=0.03)


def test_the_p_value_of_both_tests_of_drift_is_a_probability() -> None:
    """Twice the smaller one, and at most 1."""
    scores = np.random.default_rng(0).normal(size=(200, 3))
    same = drift(scores, scores)
    assert min(same.psi_p_value, same.accuracy_p_value) > 0.5
    assert same.p_value == 1.0
