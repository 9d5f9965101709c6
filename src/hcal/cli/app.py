"""The commands. Each reads files, calls the library, and shows what came out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from hcal._version import __version__
from hcal.cli import console, options
from hcal.cli.files import (
    Blocks,
    Files,
    check_output,
    load_model,
    names_of,
    parse_params,
)
from hcal.cli.options import (
    IN_BLOCKS,
    OUTPUT,
    MethodOpt,
    ModelOpt,
    OutputOpt,
    PositiveOpt,
    Shown,
    reading,
)

app = typer.Typer(
    help="Turn the scores of any trained classifier into probabilities that can be trusted.",
    epilog="Start with: hcal demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
command = partial(options.command, app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hcal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


@command("hcal fit cal.npz -o model.hcal", "hcal fit t.csv --scores 'p_*' --label y --id id -o model.hcal")
def fit(
    *,
    files: Annotated[Files, reading()],
    output: OutputOpt,
    method: MethodOpt = None,
    preserve: Annotated[
        str | None, typer.Option("--preserve", help="what must not change: auto, accuracy, order or none")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", help="a parameter of the method, name=value; repeatable")
    ] = None,
    multilabel: Annotated[
        bool, typer.Option("--multilabel", help="several labels a row: y is a matrix of 0 and 1")
    ] = False,
    sample_rows: Annotated[
        int | None, typer.Option("--sample-rows", help="learn from a random sample of so many rows")
    ] = None,
    blocks: Annotated[Blocks, IN_BLOCKS],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Learn a calibrator from scores and labels of held-out rows."""
    from hcal.cli import models

    check_output(output, *files.file, files.labels)
    params = parse_params([*(param or []), *([] if preserve is None else [f"preserve={preserve}"])])
    calibrator, found = models.fit(
        files, blocks, output, method=method, params=params, sample_rows=sample_rows, multilabel=multilabel,
        quiet=shown.silent,
    )  # fmt: skip
    shown.show(lambda: found, lambda: models.show_fit(calibrator, found, files))


@command(
    "hcal apply model.hcal new.csv -o probs.csv", "hcal apply model.hcal 'days/*.parquet' -o calibrated/"
)
def apply(
    *,
    model: Annotated[Path, typer.Argument(help="a calibrator that hcal fit wrote", metavar="MODEL")],
    files: Annotated[Files, reading("group weight")],
    output: OutputOpt,
    keep: Annotated[bool, typer.Option("--keep", help="carry all other columns along")] = False,
    prior: Annotated[
        str | None,
        typer.Option("--prior", help="class frequencies of the new rows, with commas; or 'estimate'"),
    ] = None,
    blocks: Annotated[Blocks, IN_BLOCKS],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Turn new scores into calibrated probabilities; the model knows the columns it was fitted on."""
    from hcal.cli import models

    check_output(output, model, *files.file)
    found = models.apply(model, files, blocks, output, prior=prior, keep=keep, quiet=shown.silent)
    many = f" in {found['files']} files" if found["files"] > 1 else ""
    told = f"wrote [bold]{console.name(output)}[/]: {found['rows']:,} rows{many}"
    confidence = f"mean confidence {found['mean_confidence']:.4f}"
    shown.show(lambda: found, lambda: console.out().print(f"{told}, {confidence}"))


@command("hcal info model.hcal")
def info(
    *,
    model: Annotated[Path, typer.Argument(help="a calibrator that hcal fit wrote", metavar="MODEL")],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Show what a model file holds: method, classes, columns, when and on what it was fitted."""
    from hcal.cli import models

    found = models.info(model)
    shown.show(lambda: found, lambda: models.show_info(found))


@command("hcal export model.hcal -o model.onnx", "hcal export model.hcal -o model.json")
def export(
    *,
    model: Annotated[Path, typer.Argument(help="a calibrator that hcal fit wrote", metavar="MODEL")],
    output: OutputOpt,
    width: Annotated[str | None, typer.Option("--width", help="of an ONNX graph: float32 or float64")] = None,
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Write a model for use without hcal: .onnx, .json for any language, .py that needs numpy alone."""
    from hcal.integrations.export import export as write

    check_output(output, model)
    write(load_model(model), output, **({} if width is None else {"width": width}))
    told = f"wrote [bold]{console.name(output)}[/]"
    shown.show(lambda: {"output": str(output)}, lambda: console.out().print(told))


@command("hcal evaluate test.npz", "hcal evaluate test.npz --model model.hcal --json")
def evaluate(
    *,
    files: Annotated[Files, reading()],
    model: ModelOpt = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="names with commas between them; default: all")
    ] = None,
    ci: Annotated[
        float | None, typer.Option("--ci", help="add intervals of this level, such as 0.95")
    ] = None,
    positive: PositiveOpt = None,
    diagram: Annotated[bool, typer.Option(help="draw a reliability diagram in the terminal")] = True,
    blocks: Annotated[Blocks, IN_BLOCKS],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Measure how far probabilities can be trusted, before and after a calibrator."""
    from hcal.cli import measure

    found = measure.evaluate(model, files, blocks, names_of(metrics), ci, positive, quiet=shown.silent)
    shown.show(found.to_dict, lambda: measure.show_evaluation(found, draw=diagram))


@command("hcal report test.npz -o report.html", "hcal report study.csv --label y --cross-fit -o report.html")
def report(
    *,
    files: Annotated[Files, reading()],
    output: OutputOpt,
    model: ModelOpt = None,
    ci: Annotated[float, typer.Option("--ci", help="level of intervals and bands")] = 0.95,
    positive: PositiveOpt = None,
    threshold: Annotated[
        list[float] | None, typer.Option("--threshold", help="a probability where you decide; repeatable")
    ] = None,
    cost: Annotated[str | None, typer.Option("--cost", help="of errors, such as fn=10,fp=1")] = None,
    cross_fit: Annotated[
        bool,
        typer.Option("--cross-fit", help="few rows: fit and test the method on the same rows, by folds"),
    ] = False,
    method: MethodOpt = None,
    blocks: Annotated[Blocks, IN_BLOCKS],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Write one HTML page that says whether the probabilities can be trusted."""
    from hcal.cli import measure

    check_output(output, *files.file, model, files.labels)
    verdict = measure.report(
        output, model, files, blocks, ci=ci, positive=positive, threshold=threshold or [],
        cost=measure.parse_cost(cost), method=method, cross_fit=cross_fit, quiet=shown.silent,
    )  # fmt: skip
    for alarm in verdict.alarms:
        console.say("warning", "yellow", alarm)

    def show() -> None:
        console.out().print(f"[bold]{console.name(verdict.headline)}[/]")
        console.out().print("\n".join(verdict.sentences), markup=False)
        console.out().print(f"\nwrote [bold]{console.name(output)}[/]: open it in any browser")

    told = ("grade", "headline", "chips", "sentences", "alarms")
    shown.show(lambda: {"report": str(output), **{name: getattr(verdict, name) for name in told}}, show)


@command("hcal certify test.npz --model model.hcal", "hcal certify cal.npz --out-of-fold iso")
def certify(
    *,
    files: Annotated[Files, reading("weight")],
    model: ModelOpt = None,
    level: Annotated[float, typer.Option(help="probability with which all of it holds")] = 0.95,
    positive: PositiveOpt = None,
    out_of_fold: Annotated[
        str | None,
        typer.Option("--out-of-fold", help="a method: certify it on the rows it is fitted on, by folds"),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="probabilities of hcal apply: no row was used in its model's fit")
    ] = False,
    blocks: Annotated[Blocks, IN_BLOCKS],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Prove how far the probabilities can be from the truth, on rows that the model has not seen."""
    from hcal.cli import measure

    found = measure.certify(
        model,
        files,
        blocks,
        positive=positive,
        out_of_fold=out_of_fold,
        fresh=fresh,
        quiet=shown.silent,
        level=level,
    )
    shown.show(found.to_dict, lambda: typer.echo(str(found)))


@command(
    "hcal compare task.npz --methods ts,iso,pool", "hcal compare tasks/ --methods pool,h --out results.csv"
)
def compare(
    *,
    files: Annotated[Files, reading("weight")],
    test: Annotated[
        Path | None, typer.Option("--test", help="test on this file; else the test part, else folds")
    ] = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help="registry names with commas between them; default: all")
    ] = None,
    metrics: Annotated[str | None, typer.Option("--metrics", help="names with commas between them")] = None,
    sort: Annotated[str | None, typer.Option("--sort", help="a metric: the best method first")] = None,
    folds: Annotated[int, typer.Option("--folds", help="of a file without a test part")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", help="a csv of finished cells: a run that ended goes on there")
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="print a LaTeX table")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="print a markdown table")] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", help="processes; -1 for all cores")] = None,
    scheduler: Annotated[str | None, typer.Option("--scheduler", help="address of a Dask scheduler")] = None,
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Fit several methods and show which does best on rows that they have not seen."""
    from hcal.cli import measure

    check_output(out, *files.file, test, files.labels)
    table = measure.compare(
        files, test, folds=folds, methods=names_of(methods), metrics=names_of(metrics), results=out, n_jobs=jobs,
        scheduler=scheduler, progress=False if shown.silent else None,
    )  # fmt: skip
    table = table if sort is None else table.sorted(sort)

    def show() -> None:
        if latex or markdown:
            typer.echo(table.to_latex() if latex else table.to_markdown())
        else:
            console.show_wide(table)

    shown.show(table.to_dict, show)


@command("hcal watch monday.npz tuesday.npz --model model.hcal --state watch.json")
def watch(
    *,
    files: Annotated[Files, reading("group weight labels")],
    model: ModelOpt = None,
    level: Annotated[
        float, typer.Option("--level", help="probability of a false alarm, over all time")
    ] = 0.05,
    tolerance: Annotated[
        str, typer.Option("--tolerance", help="how far off is no reason to alarm; auto fits the data")
    ] = "auto",
    state: Annotated[
        Path | None, typer.Option("--state", help="go on from this file, if it exists, and write it")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="forget the evidence so far, keep the settings")
    ] = False,
    since: Annotated[str | None, typer.Option("--since", help="show recent rows from this date on")] = None,
    date: Annotated[str | None, typer.Option("--date", help="of these files; today by default")] = None,
    reference: Annotated[
        Path | None, typer.Option("--reference", help="compare scores with this file's, without labels")
    ] = None,
    prometheus: Annotated[
        Path | None, typer.Option("--prometheus", help="write counts for a textfile collector")
    ] = None,
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Check batches of predictions and labels as they come: is the model still calibrated?"""
    from hcal.certificates import Monitor
    from hcal.cli import measure
    from hcal.io import atomic_path

    for path in (state, prometheus):
        check_output(path, *files.file, model, reference)
    allowed = tolerance if tolerance == "auto" else float(tolerance)
    monitor = Monitor.load(state) if state is not None and state.exists() else Monitor(level, allowed)
    if reset:
        monitor.reset()
    calibrator = load_model(model)
    drifts: dict[str, Any] = {}
    for file in files.file:
        measure.watch(monitor, file, files, calibrator, date)
        if reference is not None:
            drifts[file.name] = measure.score_drift(reference, file, files, calibrator)
        if not shown.silent:
            console.out().print(f"{console.name(file.name)}: {console.name(monitor)}")
            if file.name in drifts:
                console.out().print(f"  {console.name(drifts[file.name])}")
    if state is not None:
        monitor.save(state)
    if prometheus is not None:
        with atomic_path(prometheus) as temporary:
            temporary.write_text(monitor.prometheus(), encoding="utf-8")
    alarm = None if monitor.alarm is None else vars(monitor.alarm)
    found = {"rows": monitor.n, "log_evidence": monitor.log_evidence, "alarm": alarm, "files": monitor.files}
    found |= {"windows": monitor.windows(since), "drift": {name: vars(each) for name, each in drifts.items()}}
    if shown.json:
        console.print_json(found)
    if monitor.alarm is not None:
        raise typer.Exit(3)  # 1 is an error, 2 a wrong command


@command("hcal demo", "hcal demo --method ts --output /tmp/demo")
def demo(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="the folder to write to")] = Path(
        "hcal-demo"
    ),
    method: MethodOpt = "pool",
    seed: Annotated[int, typer.Option("--seed", help="seed of the split and of the training")] = 0,
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Train an over-confident network on digits, calibrate it, show before and after."""
    from hcal.cli.demo import run_demo

    run_demo(output, method=method or "pool", random_state=seed, quiet=shown.quiet, json=shown.json)
