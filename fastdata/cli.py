"""The command line: the only file that prints or exits."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import fastdata
from fastdata import registry
from fastdata.errors import ArgumentError, FastdataError

if TYPE_CHECKING:
    from fastdata.packing.base import Packed, Progress

app = typer.Typer(
    name="fastdata",
    help="From a corpus of images or text to batches in a PyTorch training loop.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_LINE_S = 5.0  # between lines of progress where there is no terminal
_SHOWN = 20
_INTERRUPTED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_Out = Annotated[Path, typer.Argument(metavar="OUT", help="The dataset's folder.")]


def _known(package: str) -> str:
    return ", ".join(name for name in registry.names(package) if name != "python")


def _version(asked: bool) -> None:
    if asked:
        _print(f"fastdata {fastdata.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def pack(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Folder of pictures or text, or a manifest file.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    to: Annotated[str, typer.Option(help=f"Store: {_known('fastdata.stores')}.")],
    source_kind: Annotated[
        str | None, typer.Option("--source", metavar="KIND", help=f"Settle doubt about SOURCE: {_known('fastdata.sources')}.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes.  [default: every usable CPU]")] = None,
    shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of the source per shard.  [default: 256MB, or a sixteenth of the source]")
    ] = None,
    shuffle: Annotated[int | None, typer.Option(metavar="SEED", help="Pack in a random order.")] = None,
    documents: Annotated[
        str | None, typer.Option(help="What a text is: the file, a line, or a block between blank lines.  [default: file]")
    ] = None,
    hidden: Annotated[bool, typer.Option("--hidden", help="Take hidden and system files too.")] = False,
    classes: Annotated[str | None, typer.Option(metavar="FILE|DATASET", help="Number labels by this class table.")] = None,
    image: Annotated[str, typer.Option(help="What pictures become: keep, jpeg, png, raw.")] = "keep",
    resize_short: Annotated[int | None, typer.Option(metavar="PX", help="Shrink the shorter side to this.")] = None,
    resize_long: Annotated[int | None, typer.Option(metavar="PX", help="Shrink the longer side to this.")] = None,
    resize: Annotated[str | None, typer.Option(metavar="HxW", help="Resize to exactly this.")] = None,
    quality: Annotated[int | None, typer.Option(help="Of JPEGs that are encoded, 1 to 100.  [default: 90]")] = None,
    background: Annotated[str, typer.Option(metavar="COLOUR", help="Behind transparent pixels.")] = "#ffffff",
    compress: Annotated[str | None, typer.Option(help="Compress texts, JSON and arrays: zstd.  [default: not]")] = None,
    validate: Annotated[bool, typer.Option("--validate/--no-validate", help="Decode every payload once.")] = True,
    on_error: Annotated[str, typer.Option(help="At a bad sample: raise, or skip it and list it in rejects.jsonl.")] = "raise",
    max_errors: Annotated[str | None, typer.Option(metavar="N|P%", help="Skip no more than these.  [default: any number]")] = None,
    part: Annotated[
        str | None, typer.Option(metavar="K/N", help="Pack one of N shares of the shards, from 1; then: fastdata commit.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a dataset that is at OUT.")] = False,
    as_json: _Json = False,
) -> None:
    """Pack a corpus into a dataset."""
    from fastdata.packing import pack as run

    with _telling_what_is_left(out), _progress("packing") as progress:
        packed = run(
            source,
            out,
            to=to,
            source_kind=source_kind,
            workers=workers,
            shard_size=shard_size,
            shuffle=shuffle,
            documents=documents,
            hidden=hidden,
            classes=classes,
            image=image,
            resize_short=resize_short,
            resize_long=resize_long,
            resize=resize,
            quality=quality,
            background=background,
            compress=compress,
            validate=validate,
            on_error=on_error,
            max_errors=max_errors,
            part=part,
            overwrite=overwrite,
            progress=progress,
        )
    _print_packed(packed, as_json)


@app.command()
def commit(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The dataset's folder, as the parts had it.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a dataset that is at OUT.")] = False,
    as_json: _Json = False,
) -> None:
    """Finish a dataset that was packed in parts."""
    from fastdata.packing import commit as run

    _print_packed(run(out, overwrite=overwrite), as_json)


def _print_packed(packed: Packed, as_json: bool) -> None:
    if as_json:
        _print_json(packed.to_json())
        return
    for warning in packed.warnings:
        _print(f"warning: {warning}")
    for what, count in packed.ignored.items():
        _print(f"ignored: {count} {what}")
    for what, count in packed.notes.items():
        _print(f"note: {what}: {count}")
    if packed.classes is not None:
        shown = ", ".join(f"{i} {name}" for i, name in enumerate(packed.classes[:_SHOWN]))
        _print(f"classes: {shown}{f' and {len(packed.classes) - _SHOWN} more' if len(packed.classes) > _SHOWN else ''}")
    if packed.already:
        _print(f"already packed: {packed.num_samples} samples at {packed.path}")
        return
    for reason, count in list(packed.reasons.items())[:_SHOWN]:
        _print(f"skipped: {count}: {reason}")
    if len(packed.reasons) > _SHOWN:
        _print(f"skipped: {sum(list(packed.reasons.values())[_SHOWN:])} for {len(packed.reasons) - _SHOWN} other reasons")
    what = f"packed part {packed.part}" if packed.part else "packed"
    skipped = f", {packed.rejected} skipped{'' if packed.part else ' (see rejects.jsonl)'}" if packed.rejected else ""
    resumed = f" ({packed.resumed} of them before)" if packed.resumed else ""
    rate = f"{packed.seconds:.1f} s, {packed.samples_per_s:.0f} samples/s"
    _print(
        f"{what}: {packed.num_samples} samples{resumed}{skipped}, {packed.num_shards} shards, {packed.nbytes / 1e6:.1f} MB, {rate},"
        f" at {packed.path}"
    )
    if packed.part:
        _print(f"when all parts are packed: fastdata commit {packed.path.removesuffix('.partial')}")


@contextmanager
def _telling_what_is_left(out: Path) -> Iterator[None]:
    """When a pack fails or is interrupted, say what the next one goes on from."""
    try:
        yield
    except BaseException:
        from fastdata.packing import unfinished

        count = 0
        with suppress(OSError, ValueError):
            count = unfinished(out)
        if count:
            print(f"unfinished: {count} shards wait at {out}.partial; the command that made them goes on from there", file=sys.stderr)
        raise


@app.command()
def info(out: _Out, as_json: _Json = False) -> None:
    """Show what a dataset holds, without reading payloads."""
    from fastdata.summary import info as run

    described = run(out)
    if as_json:
        _print_json(described)
        return
    fields, classes = described.pop("fields"), described.pop("classes")
    options = described.pop("options")
    for name, value in described.items():
        _print(f"{name}: {value}")
    for name, f in fields.items():
        _print(f"field {name}:")
        for key, value in f.items():
            if isinstance(value, dict):
                value = ", ".join(f"{k} {v}" for k, v in value.items())
            _print(f"  {key}: {value}")
    if classes is not None:
        _print(f"classes: {len(classes)}")
        for i, (name, count) in enumerate(classes.items()):
            _print(f"  {i} {name}: {count}")
    _print("options: " + ", ".join(f"{name} {value}" for name, value in options.items() if value is not None))


@app.command()
def verify(
    out: _Out,
    quick: Annotated[bool, typer.Option("--quick", help="Look at sizes and counts alone.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes.  [default: every usable CPU]")] = None,
    as_json: _Json = False,
) -> None:
    """Check sizes, counts, checksums and every payload; exit 1 and a list if anything is wrong."""
    from fastdata.packing.options import usable_cpus
    from fastdata.packing.verify import verify as run

    with _progress("verifying") as progress:
        verified = run(out, quick=quick, workers=workers or usable_cpus(), progress=progress)
    if as_json:
        _print_json({**vars(verified), "ok": not verified.problems})
    else:
        for problem in verified.problems:
            _print(problem)
        state = f"problems: {len(verified.problems)}" if verified.problems else "all well"
        what = "sizes and counts" if quick else "verified"
        _print(f"{what}: {verified.num_samples} samples, {verified.num_shards} shards, {state}, at {verified.path}")
    if verified.problems:
        raise typer.Exit(1)


@app.command()
def bench(
    out: _Out,
    batch_size: Annotated[int, typer.Option(help="Samples of a batch.")] = 64,
    workers: Annotated[int | None, typer.Option(help="Processes; 0: load in the main process.  [default: as the loader chooses]")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the dataset.")] = 3,
    as_json: _Json = False,
) -> None:
    """Measure how fast a dataset loads here, shuffled; pictures of varying size are cropped to 224 x 224."""
    from fastdata.measure import bench as run

    measured = run(out, batch_size=batch_size, workers=workers, epochs=epochs)
    if as_json:
        _print_json(measured)
        return
    _print(f"{measured['samples_per_s']:.0f} samples/s, {measured['mb_per_s']:.1f} MB/s (median of {epochs} epochs)")
    _print(f"first batch after {measured['first_batch_s']:.2f} s, peak memory {measured['peak_memory_mb']:.0f} MB")
    crop = f", random crop to {measured['crop']}" if measured["crop"] else ""
    _print(
        f"{measured['num_samples']} samples, batches of {batch_size}, {measured['workers']} workers{crop}, {measured['store']}, at {measured['path']}"
    )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[Progress], None]]:
    """Tell of progress on the error stream: a bar on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        told = time.monotonic()

        def line(progress: Progress) -> None:
            nonlocal told
            if time.monotonic() - told > _LINE_S:
                told = time.monotonic()
                share = f", {100 * progress.nbytes / progress.total_nbytes:.0f} %" if progress.total_nbytes else ""
                print(f"{what}: {progress.num_samples} samples, {progress.nbytes / 1e6:.0f} MB{share}", file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.fields[samples]} samples"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, samples=0)
        yield lambda p: bar.update(task, completed=p.nbytes, total=p.total_nbytes or None, samples=p.num_samples)


def _print(line: str) -> None:
    if sys.stdout is None:
        return  # closed by the caller, who does not want to know
    # File names may hold what no encoding has.
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding))


def _print_json(value: Any) -> None:
    print(json.dumps(value))


def _end(number: int, _: object) -> NoReturn:
    """End as by Ctrl-C, so that nothing unfinished is left."""
    sys.exit(128 + number)


def main() -> NoReturn:
    """Run the command line; a user's mistake is one sentence and exit code 2, trouble with data or disk one sentence and 1."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) == signal.SIG_DFL:  # what nohup ignores stays ignored
            signal.signal(ending, _end)
    try:
        app()
    except SystemExit as end:
        if end.code in _INTERRUPTED:
            print("interrupted", file=sys.stderr)
        raise
    except FastdataError as error:
        print(f"error: {error}".encode("utf-8", "backslashreplace").decode(), file=sys.stderr)
        sys.exit(2 if isinstance(error, ArgumentError) else 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
