"""The commands. Each reads files, calls the library, and shows what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hcal._version import __version__
from hcal.cli import bench, console
from hcal.cli.files import Ask, calibrator_and_data, check_output, parse_params, shape_of
from hcal.cli.options import (
    BatchRowsOpt,
    ClassesOpt,
    DataArg,
    GroupOpt,
    IdOpt,
    InputOpt,
    JsonOpt,
    LabelOpt,
    LabelsOpt,
    MethodOpt,
    ModelOpt,
    OptionScoreOpt,
    QuietOpt,
    SchedulerOpt,
    ScoresOpt,
    WeightOpt,
    WorkersOpt,
    names_of,
)

app = typer.Typer(
    help="Turn the scores of any trained classifier into probabilities that can be trusted.",
    epilog="Start with: hcal demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _examples(*commands: str) -> str:
    return "\n\n".join(["Examples:", *(f"  [cyan]{command}[/]" for command in commands)])


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


@app.command(
    epilog=_examples(
        "hcal fit cal.npz -o model.hcal", "hcal fit scores.npy --labels y.npy --input probs -o m.hcal"
    )
)
def fit(
    file: DataArg,
    output: Annotated[Path, typer.Option("--output", "-o", help="the model file to write")],
    method: MethodOpt = None,
    input: InputOpt = None,
    labels: LabelsOpt = None,
    score: OptionScoreOpt = "sum",
    scores: ScoresOpt = None,
    label: LabelOpt = None,
    weight: WeightOpt = None,
    classes: ClassesOpt = None,
    preserve: Annotated[
        str | None, typer.Option("--preserve", help="what must not change: order, accuracy or none")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", help="a parameter of the method, name=value; repeatable")
    ] = None,
    batch_rows: BatchRowsOpt = None,
    workers: WorkersOpt = None,
    scheduler: SchedulerOpt = None,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Learn a calibrator from scores and labels of held-out rows."""
    with console.friendly():
        from hcal.cli.fit import run_fit
        from hcal.cli.scale import Scale

        check_output(output, *file, labels)
        params = parse_params([*(param or []), *([] if preserve is None else [f"preserve={preserve}"])])
        ask = Ask(file, input, labels, scores, label, weight=weight, classes=classes, score=score)
        scale = Scale(batch_rows, workers, scheduler)
        done = run_fit(method, ask, params, scale, output, quiet=quiet or json)
        if json:
            console.print_json(done.to_dict())
        elif not quiet:
            done.show()


@app.command(epilog=_examples("hcal apply model.hcal new.npz -o probs.npz"))
def apply(
    model: Annotated[Path, typer.Argument(help="a calibrator that hcal fit wrote", metavar="MODEL")],
    file: DataArg,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="where the probabilities go; type by extension")
    ],
    input: InputOpt = None,
    score: OptionScoreOpt = "sum",
    prior: Annotated[
        str | None,
        typer.Option("--prior", help="class frequencies of the new rows, with commas; or 'estimate'"),
    ] = None,
    scores: ScoresOpt = None,
    label: LabelOpt = None,
    id: IdOpt = None,
    batch_rows: BatchRowsOpt = None,
    workers: WorkersOpt = None,
    scheduler: SchedulerOpt = None,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Turn new scores into calibrated probabilities."""
    with console.friendly():
        from hcal.cli.apply import run_apply
        from hcal.cli.scale import Scale

        ask = Ask(file, input, None, scores, label, id, score=score)
        scale = Scale(batch_rows, workers, scheduler)
        written = run_apply(model, ask, output, prior, scale, quiet=quiet or json)
        if json:
            console.print_json(written.to_dict())
        elif not quiet:
            written.show()


@app.command(epilog=_examples("hcal evaluate test.npz", "hcal evaluate test.npz --model model.hcal --json"))
def evaluate(
    file: DataArg,
    model: ModelOpt = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="names with commas between them; default: all")
    ] = None,
    ci: Annotated[
        float | None, typer.Option("--ci", help="add intervals of this level, such as 0.95")
    ] = None,
    input: InputOpt = None,
    labels: LabelsOpt = None,
    score: OptionScoreOpt = "sum",
    scores: ScoresOpt = None,
    label: LabelOpt = None,
    group: GroupOpt = None,
    weight: WeightOpt = None,
    classes: ClassesOpt = None,
    diagram: Annotated[bool, typer.Option(help="draw a reliability diagram in the terminal")] = True,
    batch_rows: BatchRowsOpt = None,
    workers: WorkersOpt = None,
    scheduler: SchedulerOpt = None,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Measure how far probabilities can be trusted, before and after a calibrator."""
    with console.friendly():
        from hcal.cli.evaluate import run_evaluate, show
        from hcal.cli.scale import Scale

        ask = Ask(
            file, input, labels, scores, label, group=group, weight=weight, classes=classes, score=score
        )
        scale = Scale(batch_rows, workers, scheduler)
        measured, notes = run_evaluate(model, ask, names_of(metrics), ci, scale, quiet=quiet or json)
        for note in notes:
            console.say("warning", "yellow", note)
        if json:
            console.print_json(measured.to_dict(notes))
        elif not quiet:
            show(measured, draw=diagram)


@app.command(
    epilog=_examples(
        "hcal report test.npz -o report.html", "hcal report test.npz --model model.hcal -o r.html"
    )
)
def report(
    file: DataArg,
    output: Annotated[Path, typer.Option("--output", "-o", help="the HTML page to write")],
    model: ModelOpt = None,
    input: InputOpt = None,
    labels: LabelsOpt = None,
    score: OptionScoreOpt = "sum",
    names: Annotated[
        Path | None, typer.Option("--names", help="a text file with one class name a line")
    ] = None,
    ci: Annotated[float, typer.Option("--ci", help="level of intervals and bands")] = 0.95,
    positive: Annotated[str | None, typer.Option(help="the positive class of two, name or number")] = None,
    group: GroupOpt = None,
    scores: ScoresOpt = None,
    label: LabelOpt = None,
    classes: ClassesOpt = None,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Write one HTML page that shows whether the probabilities can be trusted."""
    with console.friendly():
        from hcal.cli.report import write

        check_output(output, *file, model, labels, names)
        ask = Ask(file, input, labels, scores, label, group=group, classes=classes, score=score)
        calibrator, data = calibrator_and_data(model, ask)
        with console.working(f"measuring {shape_of(data)}", quiet=quiet or json):
            verdict = write(output, data, calibrator, names=names, ci=ci, positive=positive)
        for alarm in verdict.alarms:
            console.say("warning", "yellow", alarm)
        if json:
            console.print_json({"report": str(output), "grade": verdict.grade, "headline": verdict.headline,
                                "sentences": verdict.sentences, "alarms": verdict.alarms})  # fmt: skip
        elif not quiet:
            console.out().print(f"[bold]{console.name(verdict.headline)}[/]")
            console.out().print("\n".join(verdict.sentences), markup=False)
            console.out().print(f"\nwrote [bold]{console.name(output)}[/]: open it in any browser")


@app.command(
    epilog=_examples(
        "hcal certify test.npz --model model.hcal", "hcal certify test.npz --group site --plot proof.png"
    )
)
def certify(
    file: DataArg,
    model: ModelOpt = None,
    level: Annotated[float, typer.Option(help="probability with which all of it holds")] = 0.95,
    group: GroupOpt = None,
    assume: Annotated[
        str | None, typer.Option("--assume", help="monotone: add what follows if accuracy never falls")
    ] = None,
    positive: Annotated[
        str | None, typer.Option("--positive", help="the class to certify of two, name or number")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="write the picture, .png or .svg")] = None,
    input: InputOpt = None,
    labels: LabelsOpt = None,
    score: OptionScoreOpt = "sum",
    scores: ScoresOpt = None,
    label: LabelOpt = None,
    classes: ClassesOpt = None,
    batch_rows: BatchRowsOpt = None,
    workers: WorkersOpt = None,
    scheduler: SchedulerOpt = None,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Prove how far the probabilities can be from the truth, on rows that the model has not seen."""
    with console.friendly():
        from hcal.cli.certify import run_certify, save_picture
        from hcal.cli.scale import Scale

        if plot is not None:
            check_output(plot, *file, model)
        ask = Ask(file, input, labels, scores, label, group=group, classes=classes, score=score)
        wanted = {"level": level, "assume": assume, "positive": positive}
        scale = Scale(batch_rows, workers, scheduler)
        certificate = run_certify(model, ask, wanted, scale, quiet=quiet or json)
        if plot is not None:
            save_picture(certificate.plot(), plot)
        if json:
            console.print_json(certificate.to_dict())
        elif not quiet:
            console.show_wide(certificate)


@app.command(
    epilog=_examples(
        "hcal compare task.npz --methods ts,iso,h", "hcal compare cal.csv --test test.csv --plot methods.png"
    )
)
def compare(
    file: DataArg,
    test: Annotated[
        Path | None, typer.Option("--test", help="judge on this file; else the test part, else folds")
    ] = None,
    methods: Annotated[
        str | None, typer.Option("--methods", help="registry names with commas between them; default: all")
    ] = None,
    metrics: Annotated[str | None, typer.Option("--metrics", help="names with commas between them")] = None,
    folds: Annotated[int, typer.Option("--folds", help="of a file without a test part")] = 5,
    plot: Annotated[Path | None, typer.Option("--plot", help="write the picture, .png or .svg")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="processes; -1 for all cores")] = None,
    input: InputOpt = None,
    labels: LabelsOpt = None,
    score: OptionScoreOpt = "sum",
    scores: ScoresOpt = None,
    label: LabelOpt = None,
    group: Annotated[
        str | None, typer.Option("--group", help="a column: no group on both sides of a fold")
    ] = None,
    classes: ClassesOpt = None,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Fit several methods and show which does best on rows that they have not seen."""
    with console.friendly():
        from hcal.cli.certify import save_picture
        from hcal.cli.compare import compare_file

        if plot is not None:
            check_output(plot, *file, test, labels)
        ask = Ask(file, input, labels, scores, label, group=group, classes=classes, score=score)
        table = compare_file(
            ask, test, methods=names_of(methods), metrics=names_of(metrics), folds=folds, jobs=jobs,
            progress=False if quiet or json else None,
        )  # fmt: skip
        if plot is not None:
            save_picture(table.plot(), plot)
        if json:
            console.print_json(table.to_dict())
        elif not quiet:
            console.show_wide(table)


@app.command(epilog=_examples("hcal watch monday.npz tuesday.npz --model model.hcal --state watch.json"))
def watch(
    files: Annotated[list[Path], typer.Argument(help="batches in the order of time", metavar="FILE...")],
    model: ModelOpt = None,
    level: Annotated[
        float, typer.Option("--level", help="probability of a false alarm, over all time")
    ] = 0.05,
    tolerance: Annotated[float, typer.Option("--tolerance", help="how far off is no reason to alarm")] = 0.0,
    state: Annotated[
        Path | None, typer.Option("--state", help="go on from this file, if it exists, and write it")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="write the evidence over time, .png")] = None,
    input: InputOpt = None,
    scores: ScoresOpt = None,
    label: LabelOpt = None,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Watch batches of predictions and labels: is the model still calibrated?"""
    with console.friendly():
        from hcal.cli.certify import open_monitor, save_picture, watch_batch

        for path in filter(None, (state, plot)):
            check_output(path, *files, model)
        monitor = open_monitor(state, level, tolerance)
        for file in files:
            calibrator, data = calibrator_and_data(model, Ask([file], input, None, scores, label))
            watch_batch(monitor, data, calibrator)
            if not quiet and not json:
                console.out().print(f"{file.name}: {monitor}", markup=False)
        if state is not None:
            monitor.save(state)
        if plot is not None:
            save_picture(monitor.plot().figure, plot)
        if json:
            alarm = None if monitor.alarm is None else vars(monitor.alarm)
            console.print_json({"rows": monitor.n, "log_evidence": monitor.log_evidence, "alarm": alarm})
        if monitor.alarm is not None:
            raise typer.Exit(3)  # 1 is an error, 2 a wrong command


@app.command(epilog=_examples("hcal demo", "hcal demo --method ts --output /tmp/demo"))
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="the folder to write to")] = Path(
        "hcal-demo"
    ),
    method: MethodOpt = "h",
    seed: Annotated[int, typer.Option("--seed", help="seed of the split and of the training")] = 0,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Train an over-confident network on digits, calibrate it, show before and after."""
    with console.friendly():
        from hcal.cli.story import run_demo

        run_demo(output, method=method or "h", random_state=seed, quiet=quiet, json=json)


app.add_typer(bench.app, name="bench")
