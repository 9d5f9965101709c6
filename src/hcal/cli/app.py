"""The commands. Each reads files, calls the library, and shows what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hcal._version import __version__
from hcal.cli import bench, console, opening

if TYPE_CHECKING:
    from hcal.calibrators.base import Calibrator
    from hcal.data import DataFile

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


DataArg = Annotated[
    list[Path],
    typer.Argument(
        help=".npz .npy .csv .parquet .safetensors, a numpy pickle .p, or .jsonl of lm-evaluation-harness "
        "(these may be several)",
        metavar="FILE",
    ),
]
ScoreOpt = Annotated[
    str,
    typer.Option("--score", help="of an option, in .jsonl samples: sum, length or mutual-information"),
]
InputOpt = Annotated[
    str | None, typer.Option("--input", help="logits, probs or log_probs; needed where the file does not say")
]
LabelsOpt = Annotated[Path | None, typer.Option("--labels", help="a second file with the labels y")]
QuietOpt = Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors and warnings")]
JsonOpt = Annotated[bool, typer.Option("--json", help="print one JSON object for machines")]
ModelOpt = Annotated[Path | None, typer.Option("--model", "-m", help="a calibrator that hcal fit wrote")]


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


def _methods(incomplete: str) -> list[str]:
    from hcal.calibrators import list_calibrators

    return [name for name in list_calibrators() if name.startswith(incomplete)]


@app.command(
    epilog=_examples(
        "hcal fit cal.npz -o model.hcal",
        "hcal fit scores.npy --labels y.npy --input probs -o m.hcal",
        "hcal fit samples_*.jsonl -o model.hcal",
    )
)
def fit(
    file: DataArg,
    output: Annotated[Path, typer.Option("--output", "-o", help="the model file to write")],
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="a calibrator by its registry name \\[default: h; ts for questions]",
            autocompletion=_methods,
        ),
    ] = None,
    input: InputOpt = None,
    labels: LabelsOpt = None,
    score: ScoreOpt = "sum",
    param: Annotated[
        list[str] | None, typer.Option("--param", help="a parameter of the method, name=value; repeatable")
    ] = None,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Learn a calibrator from scores and labels of held-out rows."""
    with console.friendly():
        from hcal.calibrators.files import save
        from hcal.cli.report import origin
        from hcal.data import read_data

        _check_output(output, *file, labels)
        data = read_data(file, part="cal", kind=input, labels=labels, score=opening.check_score(score))
        calibrator = opening.new_calibrator(method, data, _params(param or []))
        method = calibrator.name
        with console.fitting(calibrator, f"fitting {method} on {_shape(data)}", quiet=quiet or json):
            calibrator.fit(data.values, data.labels())
        calibrator.info_["fitted_on"] |= origin(data)
        save(calibrator, output)
        if json:
            console.print_json(
                {"model": str(output), "method": method, "converged": calibrator.converged_,
                 "rows": len(data.values), "classes": calibrator.n_classes_,
                 "scores": calibrator.scores_, "info": calibrator.info_}
            )  # fmt: skip
        elif not quiet:
            _show_fit(calibrator, data, output)


def _show_fit(calibrator: Calibrator, data: DataFile, output: Path) -> None:
    out = console.out()
    scores = calibrator.scores_
    title = console.name(f"{calibrator.title} on {_shape(data)}")
    note = "the rows it learned from; judge it on others"
    out.print(console.before_after(scores["before"], scores["after"], title=f"{title} [dim]({note})[/]"))
    model = console.name(output)
    out.print(f"\nwrote [bold]{model}[/]")
    if data.part:
        out.print(f"next:  [cyan]hcal evaluate {console.name(data.path)} --model {model}[/]")
    else:
        out.print(f"next:  [cyan]hcal apply {model} NEW.npz -o probs.npz[/]")


@app.command(epilog=_examples("hcal apply model.hcal new.npz -o probs.npz"))
def apply(
    model: Annotated[Path, typer.Argument(help="a calibrator that hcal fit wrote", metavar="MODEL")],
    file: DataArg,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="where the probabilities go; type by extension")
    ],
    input: InputOpt = None,
    score: ScoreOpt = "sum",
    prior: Annotated[
        str | None,
        typer.Option(
            "--prior",
            help="class frequencies of the new rows, with commas; or 'estimate' from their scores",
        ),
    ] = None,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Turn new scores into calibrated probabilities."""
    with console.friendly():
        from hcal.calibrators.files import load
        from hcal.data import can_write, write_probs

        can_write(output)
        _check_output(output, model, *file)
        calibrator = load(model)
        data = opening.read_for(calibrator, model, file, kind=input, score=score)
        with console.working(f"applying {calibrator.name} to {_shape(data)}", quiet=quiet or json):
            calibrator = opening.for_prior(calibrator, prior, data.values)
            probs = calibrator.predict_proba(data.values)
        write_probs(output, probs, data.y)
        confidence = float(probs.max(axis=1).mean())
        if json:
            console.print_json({"output": str(output), "rows": len(probs), "classes": probs.shape[1],
                                "mean_confidence": confidence, "method": calibrator.name})  # fmt: skip
        elif not quiet:
            console.out().print(
                f"wrote [bold]{console.name(output)}[/]: probs {probs.shape[0]:,} × {probs.shape[1]}, "
                f"mean confidence {confidence:.4f}"
            )


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
    score: ScoreOpt = "sum",
    diagram: Annotated[bool, typer.Option(help="draw a reliability diagram in the terminal")] = True,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Measure how far probabilities can be trusted, before and after a calibrator."""
    with console.friendly():
        from hcal.cli.evaluate import measure, show
        from hcal.cli.report import same_file
        from hcal.evaluation import learned_from

        calibrator, data = opening.calibrator_and_data(model, file, input, labels, score)
        with console.working(f"measuring {_shape(data)}", quiet=quiet or json):
            measured = measure(data, calibrator, _names(metrics), ci)
        notes = learned_from(calibrator, data.values) + same_file(calibrator, data)
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
    score: ScoreOpt = "sum",
    names: Annotated[
        Path | None, typer.Option("--names", help="a text file with one class name a line")
    ] = None,
    ci: Annotated[float, typer.Option("--ci", help="level of intervals and bands")] = 0.95,
    positive: Annotated[str | None, typer.Option(help="the positive class of two, name or number")] = None,
    group: Annotated[str | None, typer.Option(help="a column of the file: judge every group")] = None,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Write one HTML page that shows whether the probabilities can be trusted."""
    with console.friendly():
        from hcal.cli.certify import read_groups
        from hcal.cli.report import write

        _check_output(output, *file, model, labels, names)
        calibrator, data = opening.calibrator_and_data(model, file, input, labels, score)
        with console.working(f"measuring {_shape(data)}", quiet=quiet or json):
            groups = None if group is None else read_groups(data, group)
            verdict = write(output, data, calibrator, names=names, ci=ci, positive=positive, groups=groups)
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
    group: Annotated[
        str | None, typer.Option("--group", help="a column of the file: certify every group")
    ] = None,
    assume: Annotated[
        str | None, typer.Option("--assume", help="monotone: add what follows if accuracy never falls")
    ] = None,
    positive: Annotated[int, typer.Option("--positive", help="the class to certify of two")] = 1,
    plot: Annotated[Path | None, typer.Option("--plot", help="write the picture, .png or .svg")] = None,
    input: InputOpt = None,
    labels: LabelsOpt = None,
    score: ScoreOpt = "sum",
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Prove how far the probabilities can be from the truth, on rows that the model has not seen."""
    with console.friendly():
        from hcal.cli.certify import certify_file, save_picture

        if plot is not None:
            _check_output(plot, *file, model)
        calibrator, data = opening.calibrator_and_data(model, file, input, labels, score)
        with console.working(f"certifying {_shape(data)}", quiet=quiet or json):
            certificate = certify_file(
                data, calibrator, level=level, group=group, assume=assume, positive=positive
            )
        if plot is not None:
            save_picture(certificate.plot(), plot)
        if json:
            console.print_json(certificate.to_dict())
        elif not quiet:
            console.out().print(certificate)


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
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Watch batches of predictions and labels: is the model still calibrated?"""
    with console.friendly():
        from hcal.cli.certify import open_monitor, save_picture, watch_batch

        for path in filter(None, (state, plot)):
            _check_output(path, *files, model)
        monitor = open_monitor(state, level, tolerance)
        for file in files:
            calibrator, data = opening.calibrator_and_data(model, [file], input, None, "sum")
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
    method: Annotated[
        str, typer.Option("--method", help="a calibrator by its registry name", autocompletion=_methods)
    ] = "h",
    seed: Annotated[int, typer.Option("--seed", help="seed of the split and of the training")] = 0,
    quiet: QuietOpt = False,
    json: JsonOpt = False,
) -> None:
    """Train an over-confident network on digits, calibrate it, show before and after."""
    with console.friendly():
        from hcal.cli.story import run_demo

        run_demo(output, method=method, random_state=seed, quiet=quiet, json=json)


# -- shared by the commands -----------------------------------------------------------------------


def _names(metrics: str | None) -> list[str] | None:
    return None if metrics is None else [name.strip() for name in metrics.split(",") if name.strip()]


def _params(pairs: list[str]) -> dict[str, Any]:
    """Parse ``name=value`` pairs; a value is JSON where it can be, else text."""
    params: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--param expects name=value, got {pair!r}")
        try:
            params[name] = json.loads(value)
        except json.JSONDecodeError:
            params[name] = value
    if "input" in params:
        raise ValueError("say what the file holds with --input, not --param input=…")
    return params


def _shape(data: DataFile) -> str:
    shape = " × ".join(f"{n:,}" for n in data.values.shape)
    return f"{data.name} ({shape}{f', {data.part} part' if data.part else ''})"


def _check_output(output: Path, *read: Path | None) -> None:
    """Refuse, before the work begins, an output without a folder or one that would replace what is read."""
    if not output.parent.is_dir():
        raise FileNotFoundError(f"no such directory: {output.parent}")
    console.refuse_inputs(output, *read)


app.add_typer(bench.app, name="bench")
