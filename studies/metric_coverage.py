"""Do the intervals cover, are the debiased metrics unbiased, does the calibration test hold its level?

Synthetic sets with known truth: z ~ Normal(0, 1.5²) for K = 10 classes, labels from softmax(z), predictions
softmax(T·z); T = 1 is calibrated. N = 2000 rows a set. Estimands: for scores and binned errors the value of
the population; for hce_pooled and skce the mean, over sets, of the same statistic with the true
probabilities in place of the labels.

    python -m studies.metric_coverage --jobs 2              # scores, debiased, tests: 15 CPU-minutes
    python -m studies.metric_coverage --jobs 2 --plug-in    # all plug-in errors: 70 CPU-minutes
    python -m studies.metric_coverage --write               # tables of studies/results/metric_coverage.md
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from hcal.metrics import METRICS, Sample, calibration_test
from hcal.metrics.resampling import intervals
from hcal.metrics.windowed import h_error, remove_same_rows, signed_root, stable_order, sum_windows
from hcal.numerics import log_softmax, softmax

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "metric_coverage.json"
PAGE = HERE / "results" / "metric_coverage.md"
N, K, SCALE = 2000, 10, 1.5
SHARD = 50
HEAD = """# Coverage of the intervals and level of the tests, measured

K = 10, N = 2000, z ~ Normal(0, 1.5²), labels from softmax(z), predictions softmax(T·z).
Reproduce: `python -m studies.metric_coverage --jobs 2`, then the same with `--plug-in`, then
`--write`.
"""
SCORES = ("nll", "brier", "accuracy")
PLUG_IN = [n for n, m in METRICS.items() if m.kind == "plug-in" and n != "dkde_ce"]


def draw(
    rng: np.random.Generator, n: int, temperature: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return true probabilities, predictions and labels."""
    z = SCALE * rng.normal(size=(n, K))
    p = softmax(z)
    y = (p.cumsum(1) > rng.random((n, 1))).argmax(1)
    return p, softmax(temperature * z), np.minimum(y, K - 1)


def population(temperature: float, n: int = 1_000_000) -> dict[str, float]:
    """Return the true scores and binned errors, from true probabilities in place of labels."""
    rng = np.random.default_rng(12345)
    z = SCALE * rng.normal(size=(n, K))
    p = softmax(z)
    q = softmax(temperature * z)
    conf = q.max(1)
    acc = p.max(1)
    order = np.argsort(conf)
    gap = np.concatenate([[0.0], np.cumsum((conf - acc)[order])])
    mass = gap[np.rint(n * np.arange(16) / 15).astype(int)]
    edges = np.linspace(0, 1, 16)
    width = gap[np.searchsorted(conf[order], edges, side="right")]
    nll = -(p * log_softmax(temperature * z)).sum(1)
    brier = (q**2).sum(1) - 2 * (p * q).sum(1) + 1
    return {
        "nll": float(nll.mean()),
        "brier": float(brier.mean()),
        "accuracy": float(acc.mean()),
        "dece": float(np.abs(np.diff(mass)).sum() / n),
        "ece_ew": float(np.abs(np.diff(width)).sum() / n),
    }


def true_hce_squared(s: Sample, p: np.ndarray, window: int = 200) -> float:
    """The squared error over windows of pooled events whose marks are the true probabilities."""
    flat = s.data.probs.ravel()
    place = stable_order(flat)
    d = (flat - p.ravel())[place]
    sums = sum_windows(d, place // s.k, s.n, window)
    remove_same_rows(sums, d, place, s.k, window)
    return sums.products / sums.pairs


def true_skce(s: Sample, p: np.ndarray) -> float:
    """Mean over i < j of the kernel times ⟨π_i − p_i, π_j − p_j⟩."""
    q = s.data.probs
    squares = s.data.squares
    squared_distances = squares[:, None] + squares - 2 * q @ q.T
    kernel = np.exp(-np.sqrt(np.maximum(squared_distances, 0)))
    kernel *= (p - q) @ (p - q).T
    np.fill_diagonal(kernel, 0.0)
    return float(kernel.sum() / (s.n * (s.n - 1)))


def study(temperature: float, sets: int, *, seed: int = 0, resamples: int = 200) -> dict[str, Any]:
    """Return estimates, coverage of 95 % intervals, and rejections of the tests at 5 %."""
    shards = [shard(temperature, sets, seed=seed, resamples=resamples)]
    return summary(temperature, shards, cheap(temperature, sets, seed=seed, resamples=resamples))


def cheap(
    temperature: float, sets: int, *, seed: int, resamples: int = 400
) -> dict[str, np.ndarray]:
    """Return what costs little: intervals of the scores, and rejections of the ks test, one row a set."""
    rng = np.random.default_rng([3, round(1000 * temperature), seed])
    ends = interval_rows(rng, temperature, sets, SCORES, resamples)
    return {"ks test": ks_rejections(temperature, sets, seed), **ends}


def interval_rows(
    rng: np.random.Generator, temperature: float, sets: int, names: Iterable[str], resamples: int
) -> dict[str, np.ndarray]:
    """Return estimate and ends of the 95 % interval of every metric, one row a set."""
    rows: dict[str, list[tuple[float, float, float]]] = {n: [] for n in names}
    for i in range(sets):
        _, q, y = draw(rng, N, temperature)
        s = Sample(q, y)
        values = {n: METRICS[n].function(s) for n in rows}
        for n, interval in intervals(s, values, 0.95, resamples=resamples, random_state=i).items():
            rows[n].append((values[n], interval.low, interval.high))
    return {n: np.array(v) for n, v in rows.items()}


def ks_rejections(temperature: float, sets: int, seed: int) -> np.ndarray:
    """Return whether the test by resampled KS errors rejects at 5 %, for each of some sets."""
    rng = np.random.default_rng([2, round(1000 * temperature), seed])
    sets_drawn = (draw(rng, N, temperature) for _ in range(sets))
    samples = (Sample(q, y) for _, q, y in sets_drawn)
    tests = (calibration_test(s, resamples=199, random_state=i) for i, s in enumerate(samples))
    return np.array([t.p_value <= 0.05 for t in tests])


def shard(
    temperature: float, sets: int, *, seed: int, resamples: int = 200
) -> dict[str, np.ndarray]:
    """Return the raw values of some sets, one row a set.

    Calibrated sets (T = 1) need no intervals of dece and skce, which are degenerate there; skce hardly sees
    T = 1.2, so its interval is judged at T = 2.
    """
    rng = np.random.default_rng([seed, round(1000 * temperature)])
    calibrated = temperature == 1
    clearly = temperature >= 1.5
    names = ("hce_pooled",) if calibrated else ("dece", "hce_pooled")
    if clearly:
        names = ("dece", "skce", "hce_pooled")
    rows: dict[str, list[Any]] = {}
    for i in range(sets):
        p, q, y = draw(rng, N, temperature)
        s = Sample(q, y)
        values = {n: METRICS[n].function(s) for n in names}
        for n, interval in intervals(s, values, 0.95, resamples=resamples, random_state=i).items():
            rows.setdefault(n, []).append((values[n], interval.low, interval.high))
        rows.setdefault("dece values", []).append(METRICS["dece"].function(s))
        h = h_error(s, events="pooled")
        exceeds_noise = h.value > h.noise
        rows.setdefault("hce_squared", []).append(
            (h.squared, true_hce_squared(s, p), exceeds_noise)
        )
        test = calibration_test(s, method="skce", resamples=99, random_state=i)
        rows.setdefault("skce test", []).append(test.p_value <= 0.05)
        if clearly and i < 5:  # varies little from set to set, and costs a pass over all pairs
            rows.setdefault("skce truth", []).append(true_skce(s, p))
    return {name: np.array(values, dtype=np.float64) for name, values in rows.items()}


def summary(
    temperature: float, shards: list[dict[str, np.ndarray]], others: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Return the figures of all shards together with those of the cheap part."""
    measured = list(shards[0])
    rows = {name: np.concatenate([part[name] for part in shards]) for name in measured} | others
    squared, true_squared, above = rows["hce_squared"].T
    truth = population(temperature) | {"hce_pooled": float(signed_root(true_squared.mean()))}
    if "skce truth" in rows:
        truth["skce"] = float(rows["skce truth"].mean())
    names = [n for n in METRICS if n in rows]
    tests = ("ks", "skce")
    coverage = {}
    for name in names:
        _, low, high = rows[name].T
        coverage[name] = float(((low <= truth[name]) & (truth[name] <= high)).mean())
    hce_squared = {
        "mean": float(squared.mean()),
        "truth": float(true_squared.mean()),
        "mc_se": float((squared - true_squared).std() / np.sqrt(len(squared))),
        "above_noise": float(above.mean()),
    }
    return {
        "temperature": temperature,
        "sets": len(squared),
        "n": N,
        "k": K,
        "truth": {name: truth[name] for name in names},
        "mean": {name: float(rows[name][:, 0].mean()) for name in names},
        "sd": {name: float(rows[name][:, 0].std()) for name in names},
        "coverage": coverage,
        "width": {name: float((rows[name][:, 2] - rows[name][:, 1]).mean()) for name in names},
        "hce_squared": hce_squared,
        "dece": {"truth": truth["dece"], "mean": float(rows["dece values"].mean())},
        "judged": {name: len(rows[name]) for name in names},
        "rejected": {name: float(rows[f"{name} test"].mean()) for name in tests},
        "tested": {name: len(rows[f"{name} test"]) for name in tests},
    }


def plug_in_truth(temperature: float) -> dict[str, float]:
    """Return what the bias-aware intervals should cover: 0 if calibrated, else the value at N = 400 000."""
    if temperature == 1:
        return dict.fromkeys(PLUG_IN, 0.0)
    rng = np.random.default_rng([1, round(1000 * temperature)])
    _, q, y = draw(rng, 400_000, temperature)
    large = Sample(q, y)
    return {n: METRICS[n].function(large) for n in PLUG_IN}


def plug_in_shard(temperature: float, sets: int, *, seed: int) -> dict[str, np.ndarray]:
    """Return estimate and interval of every plug-in error, one row a set."""
    rng = np.random.default_rng([1, round(1000 * temperature), seed])
    return interval_rows(rng, temperature, sets, PLUG_IN, resamples=100)


def plug_in_summary(temperature: float, shards: list[dict[str, np.ndarray]]) -> dict[str, Any]:
    """Return the coverage of the bias-aware intervals over all shards."""
    rows = {n: np.concatenate([part[n] for part in shards]) for n in PLUG_IN}
    truth = plug_in_truth(temperature)
    covered = {}
    for name, values in rows.items():
        _, low, high = values.T
        covered[name] = (low <= truth[name]) & (truth[name] <= high)
    return {
        "temperature": temperature,
        "sets": len(rows[PLUG_IN[0]]),
        "n": N,
        "k": K,
        "truth": truth,
        "mean": {n: float(v[:, 0].mean()) for n, v in rows.items()},
        "coverage": {n: float(v.mean()) for n, v in covered.items()},
    }


def _load() -> dict[str, Any]:
    if not RESULTS.exists():
        return {"study": {}, "plug_in": {}}
    return json.loads(RESULTS.read_text())


def _store(kind: str, temperature: float, results: dict[str, Any]) -> None:
    content = _load()
    content[kind][f"{temperature:g}"] = results
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


Shard = Callable[..., dict[str, np.ndarray]]


def run_shards(kind: str, run: Shard, temperature: float, sets: int, raw: Path, jobs: int) -> None:
    """Run sets by shards that are kept in ``raw``, so that a run that was stopped goes on."""
    raw.mkdir(parents=True, exist_ok=True)
    paths = [raw / f"{kind}-{temperature:g}-{seed}.npz" for seed in range(-(-sets // SHARD))]
    todo = [(seed, path) for seed, path in enumerate(paths) if not path.exists()]
    jobs_to_do = []
    for seed, path in todo:
        size = min(SHARD, sets - SHARD * seed)
        jobs_to_do.append(delayed(_run_shard)(run, temperature, size, seed, path))
    Parallel(n_jobs=jobs, verbose=1)(jobs_to_do)


def _run_shard(run: Shard, temperature: float, sets: int, seed: int, path: Path) -> None:
    part = path.with_suffix(".part.npz")
    np.savez(part, **run(temperature, sets, seed=seed))
    part.rename(path)


def _shards(kind: str, temperature: float, raw: Path) -> list[dict[str, np.ndarray]]:
    shards = []
    for path in sorted(raw.glob(f"{kind}-{temperature:g}-*.npz")):
        with np.load(path) as f:
            shards.append({name: f[name] for name in f.files})
    return shards


def collect(temperature: float, raw: Path) -> None:
    """Store the figures of all shards that are there."""
    kinds = {k: _shards(k, temperature, raw) for k in ("study", "cheap", "plug")}
    if kinds["study"] and kinds["cheap"]:
        cheap_parts = kinds["cheap"]
        others = {}
        for name in cheap_parts[0]:
            others[name] = np.concatenate([part[name] for part in cheap_parts])
        _store("study", temperature, summary(temperature, kinds["study"], others))
    if kinds["plug"]:
        _store("plug_in", temperature, plug_in_summary(temperature, kinds["plug"]))


def tables() -> str:
    """Return the measured figures as markdown."""
    content = _load()
    study_by_t = sorted(content["study"].values(), key=lambda r: r["temperature"])
    plug_by_t = sorted(content["plug_in"].values(), key=lambda r: r["temperature"])
    lines = []
    for r in study_by_t:
        t = r["temperature"]
        h = r["hce_squared"]
        rejected = r["rejected"]
        lines += [
            f"**T = {t:g}**. Calibration test at 5 %: ks rejects {rejected['ks']:.1%} (of "
            f"{r['tested']['ks']} sets), skce {rejected['skce']:.1%} (of {r['tested']['skce']} "
            f"sets). hce_pooled squared: mean {h['mean']:.3e}, truth {h['truth']:.3e} (Monte Carlo "
            f"error {h['mc_se']:.1e}, {r['sets']} sets); hce_pooled above its noise level in "
            f"{h['above_noise']:.1%}. dece: mean {r['dece']['mean']:.4f}, truth "
            f"{r['dece']['truth']:.4f}.",
            "",
            "| metric | sets | truth | mean estimate | sd | coverage of 95 % | mean width |",
            "|---|---|---|---|---|---|---|",
        ]
        for n in r["coverage"]:
            row = (r["truth"][n], r["mean"][n], r["sd"][n])
            cells = " | ".join(f"{v:.4g}" for v in row)
            share = f"{r['coverage'][n]:.1%}"
            lines.append(f"| {n} | {r['judged'][n]} | {cells} | {share} | {r['width'][n]:.4g} |")
        lines.append("")
    if plug_by_t:
        head = " | ".join(f"T = {r['temperature']:g} ({r['sets']} sets)" for r in plug_by_t)
        lines += [f"| bias-aware interval of | {head} |", "|---" * (1 + len(plug_by_t)) + "|"]
        for n in (name for name in PLUG_IN if all(name in r["coverage"] for r in plug_by_t)):
            cells = " | ".join(
                f"{r['coverage'][n]:.1%} (truth {r['truth'][n]:.3g}, mean {r['mean'][n]:.3g})"
                for r in plug_by_t
            )
            lines.append(f"| {n} | {cells} |")
    return "\n".join(lines)


def write_page() -> None:
    PAGE.write_text(f"{HEAD}\n{tables()}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=2000)
    parser.add_argument("--temperatures", default=None)
    parser.add_argument("--raw", default=Path(tempfile.gettempdir()) / "hcal_metric_coverage")
    parser.add_argument("--plug-in", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--collect", action="store_true", help="only store the figures of finished shards"
    )
    parser.add_argument(
        "--write", action="store_true", help="only rewrite the tables of docs/metrics.md"
    )
    options = parser.parse_args()
    if options.write:
        write_page()
        return
    temperatures = options.temperatures or ("1,1.2" if options.plug_in else "1,1.2,2")
    raw = Path(options.raw)
    runs: dict[str, Shard] = (
        {"plug": plug_in_shard} if options.plug_in else {"study": shard, "cheap": cheap}
    )
    for temperature in map(float, temperatures.split(",")):
        for kind, run in {} if options.collect else runs.items():
            run_shards(kind, run, temperature, options.sets, raw, options.jobs)
        collect(temperature, raw)


if __name__ == "__main__":
    main()
