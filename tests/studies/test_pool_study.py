"""The study of the default: its measures, and that the committed boards hold what the page promises."""

from __future__ import annotations

import numpy as np

from studies import pool as study


def test_measures_by_hand() -> None:
    of_peers = {}
    for i, name in enumerate(study.PEERS["multiclass"]):
        of_peers[name] = {"nll": 0.2 + 0.01 * i, "brier": 0.1}
    peers = {"t": of_peers}
    rates = study.win_rates("t", {"nll": 0.205, "brier": 0.1}, 3, peers)
    assert rates == {"wins_brier": 0.0, "wins_nll": 10 / 11}
    measures = study.score(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0, 0]))
    assert measures["zeros"] == 1
    assert abs(measures["brier"] - (0.5 + 2.0) / 2) < 1e-12
    ones = {m: 1.0 for names in study.GROUPS.values() for m in names}
    halves = dict.fromkeys(ones, 0.5)
    assert study.joint(halves, ones)["joint"] == 0.5
    moved = study.moves(np.array([[0.5, 0.5]]), np.array([[0.4, 0.6]]), np.array([0]))
    assert abs(moved["max"] - 0.1) < 1e-12


def test_parts_can_be_left_out_and_come_back() -> None:
    before = study.calibrator.weigh, study.members.CAUTION
    cal, y, test, y_test = study.demo(0)
    full_pool = study.score(study.predict("pool", cal, y, test, "logits"), y_test)["nll"]
    for name, how in study.parts().items():
        with study.changed(**how):
            probs = study.predict("pool", cal[:800], y[:800], test, "logits")
            nll = study.score(probs, y_test)["nll"]
        assert nll < 1.2 * full_pool, name
    assert (study.calibrator.weigh, study.members.CAUTION) == before


def test_committed_boards_are_above_the_gates() -> None:
    means = study.summary(study.read(study.RESULTS / "pool_boards.csv"))
    assert means["network", "pool"]["joint"] <= 0.548
    assert means["network", "pool"]["nll"] <= 0.39361 * 1.002  # that of 0.3
    for kind, method, brier, nll in (
        ("binary", "pool", 0.79, 0.82),
        ("multiclass", "pool", 0.86, 0.90),
        ("multiclass", "pool:none", 0.855, 0.90),
    ):
        assert means[kind, method]["wins_brier"] >= brier
        assert means[kind, method]["wins_nll"] >= nll
    rows = study.read(study.RESULTS / "pool_boards.csv")
    for row in rows:
        if row["kind"] != "network" and row["method"].startswith("pool"):
            assert not float(row["zeros"]), row


def test_the_committed_rows_are_as_steady_as_the_page_says() -> None:
    limits = {"noise": 1e-5, "float32": 1e-3, "permuted": 1e-6, "threads": 1e-6}
    rows = study.read(study.RESULTS / "pool_stability.csv")
    for method in ("pool", "smooth_spline"):
        for name, limit in limits.items():
            moves = []
            for row in rows:
                if (row["method"], row["perturbation"]) == (method, name):
                    moves.append(float(row["max"]))
            assert len(moves) == 38
            assert max(moves) <= limit, (method, name)
