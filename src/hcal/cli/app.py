"""The commands. Each reads files, calls the library, and shows what came out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hcal._version import __version__
from hcal.cli import commands, console, warm
from hcal.cli.commands import BY_BLOCKS, OUTPUT, Shown, reading
from hcal.cli.files import Ask, calibrator_and_data, check_output, parse_params, shape_of
from hcal.cli.options import InputOpt, LabelOpt, MethodOpt, ModelOpt, ScoresOpt, names_of
from hcal.cli.scale import Scale

app = typer.Typer(
    help="Turn the scores of any trained classifier into probabilities that can be trusted.",
    epilog="Start with: hcal demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
command = partial(commands.command, app)


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


@command("hcal fit cal.npz -o model.hcal", "hcal fit scores.npy --labels y.npy --input probs -o m.hcal")
def fit(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="the model file to write")],
    method: MethodOpt = None,
    ask: Annotated[Ask, reading("file input labels score scores label id weight classes")],
    preserve: Annotated[
        str | None, typer.Option("--preserve", help="what must not change: order, accuracy or none")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", help="a parameter of the method, name=value; repeatable")
    ] = None,
    scale: Annotated[Scale, BY_BLOCKS],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Learn a calibrator from scores and labels of held-out rows."""
    from hcal.cli.fit import run_fit

    check_output(output, *ask.file, ask.labels)
    params = parse_params([*(param or []), *([] if preserve is None else [f"preserve={preserve}"])])
    done = run_fit(method, ask, params, scale, output, quiet=shown.silent)
    shown.show(done.to_dict, done.show)


@command("hcal apply model.hcal new.npz -o probs.npz")
def apply(
    *,
    model: Annotated[Path, typer.Argument(help="a calibrator that hcal fit wrote", metavar="MODEL")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="where the probabilities go; type by extension")
    ],
    ask: Annotated[Ask, reading("file input score scores label id")],
    prior: Annotated[
        str | None,
        typer.Option("--prior", help="class frequencies of the new rows, with commas; or 'estimate'"),
    ] = None,
    scale: Annotated[Scale, BY_BLOCKS],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Turn new scores into calibrated probabilities."""
    from hcal.cli.apply import run_apply

    written = run_apply(model, ask, output, prior, scale, quiet=shown.silent)
    shown.show(written.to_dict, written.show)


@command("hcal evaluate test.npz", "hcal evaluate test.npz --model model.hcal --json")
def evaluate(
    *,
    model: ModelOpt = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="names with commas between them; default: all")
    ] = None,
    ci: Annotated[
        float | None, typer.Option("--ci", help="add intervals of this level, such as 0.95")
    ] = None,
    ask: Annotated[Ask, reading("file input labels score scores label id group weight classes")],
    diagram: Annotated[bool, typer.Option(help="draw a reliability diagram in the terminal")] = True,
    scale: Annotated[Scale, BY_BLOCKS],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Measure how far probabilities can be trusted, before and after a calibrator."""
    from hcal.cli.evaluate import run_evaluate, show

    measured, notes = run_evaluate(model, ask, names_of(metrics), ci, scale, quiet=shown.silent)
    for note in notes:
        console.say("warning", "yellow", note)
    shown.show(lambda: measured.to_dict(notes), lambda: show(measured, draw=diagram))


@command("hcal report test.npz -o report.html", "hcal report test.npz --model model.hcal -o r.html")
def report(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="the HTML page to write")],
    model: ModelOpt = None,
    names: Annotated[
        Path | None, typer.Option("--names", help="a text file with one class name a line")
    ] = None,
    ci: Annotated[float, typer.Option("--ci", help="level of intervals and bands")] = 0.95,
    positive: Annotated[str | None, typer.Option(help="the positive class of two, name or number")] = None,
    ask: Annotated[Ask, reading("file input labels score group scores label id classes")],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Write one HTML page that shows whether the probabilities can be trusted."""
    from hcal.cli.report import show_verdict, to_dict, write

    check_output(output, *ask.file, model, ask.labels, names)
    calibrator, data = calibrator_and_data(model, ask)
    with console.working(f"measuring {shape_of(data)}", quiet=shown.silent):
        verdict = write(output, data, calibrator, names=names, ci=ci, positive=positive)
    for alarm in verdict.alarms:
        console.say("warning", "yellow", alarm)
    shown.show(lambda: to_dict(verdict, output), lambda: show_verdict(verdict, output))


@command("hcal certify test.npz --model model.hcal", "hcal certify test.npz --group site --plot proof.png")
def certify(
    *,
    model: ModelOpt = None,
    level: Annotated[float, typer.Option(help="probability with which all of it holds")] = 0.95,
    assume: Annotated[
        str | None, typer.Option("--assume", help="monotone: add what follows if accuracy never falls")
    ] = None,
    positive: Annotated[
        str | None, typer.Option("--positive", help="the class to certify of two, name or number")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="write the picture, .png or .svg")] = None,
    ask: Annotated[Ask, reading("file group input labels score scores label id classes")],
    scale: Annotated[Scale, BY_BLOCKS],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Prove how far the probabilities can be from the truth, on rows that the model has not seen."""
    from hcal.cli.certify import run_certify, save_picture

    if plot is not None:
        check_output(plot, *ask.file, model)
    wanted = {"level": level, "assume": assume, "positive": positive}
    certificate = run_certify(model, ask, wanted, scale, quiet=shown.silent)
    if plot is not None:
        save_picture(certificate.plot(), plot)
    shown.show(certificate.to_dict, lambda: console.show_wide(certificate))


_FoldGroupOpt = Annotated[
    str | None, typer.Option("--group", help="a column: no group on both sides of a fold")
]


@command(
    "hcal compare task.npz --methods ts,iso,h", "hcal compare cal.csv --test test.csv --plot methods.png"
)
def compare(
    *,
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
    ask: Annotated[Ask, reading("file input labels score scores label id classes", group=_FoldGroupOpt)],
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Fit several methods and show which does best on rows that they have not seen."""
    from hcal.cli.certify import save_picture
    from hcal.cli.compare import compare_file

    if plot is not None:
        check_output(plot, *ask.file, test, ask.labels)
    table = compare_file(
        ask, test, methods=names_of(methods), metrics=names_of(metrics), folds=folds, jobs=jobs,
        progress=False if shown.silent else None,
    )  # fmt: skip
    if plot is not None:
        save_picture(table.plot(), plot)
    shown.show(table.to_dict, lambda: console.show_wide(table))


@command("hcal watch monday.npz tuesday.npz --model model.hcal --state watch.json")
def watch(
    *,
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
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Watch batches of predictions and labels: is the model still calibrated?"""
    from hcal.cli.certify import open_monitor, save_picture, watch_batch

    for path in filter(None, (state, plot)):
        check_output(path, *files, model)
    monitor = open_monitor(state, level, tolerance)
    for file in files:
        calibrator, data = calibrator_and_data(model, Ask([file], input, scores=scores, label=label))
        watch_batch(monitor, data, calibrator)
        if not shown.silent:
            console.out().print(f"{file.name}: {monitor}", markup=False)
    if state is not None:
        monitor.save(state)
    if plot is not None:
        save_picture(monitor.plot().figure, plot)
    if shown.json:
        alarm = None if monitor.alarm is None else vars(monitor.alarm)
        console.print_json({"rows": monitor.n, "log_evidence": monitor.log_evidence, "alarm": alarm})
    if monitor.alarm is not None:
        raise typer.Exit(3)  # 1 is an error, 2 a wrong command


@command("hcal demo", "hcal demo --method ts --output /tmp/demo")
def demo(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="the folder to write to")] = Path(
        "hcal-demo"
    ),
    method: MethodOpt = "h",
    seed: Annotated[int, typer.Option("--seed", help="seed of the split and of the training")] = 0,
    shown: Annotated[Shown, OUTPUT],
) -> None:
    """Train an over-confident network on digits, calibrate it, show before and after."""
    from hcal.cli.story import run_demo

    run_demo(output, method=method or "h", random_state=seed, quiet=shown.quiet, json=shown.json)


command("hcal warm")(warm.warm)
