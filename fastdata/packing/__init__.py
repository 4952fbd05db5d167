"""The way of samples into a dataset: `pack()` and what it is made of; `base.py` says how the steps fit together."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fastdata import manifest as manifests
from fastdata import registry
from fastdata.codecs import open_codec
from fastdata.errors import ArgumentError, DataError, DatasetError, FastdataError
from fastdata.manifest import Manifest
from fastdata.packing.base import Job, Packed, Progress, ShardSummary, Status, Task
from fastdata.packing.commit import commit
from fastdata.packing.engine import run
from fastdata.packing.plan import MAX_SHARD_NBYTES, Listing, default_shard_nbytes, plan, survey
from fastdata.packing.shard import draw, pack_shard
from fastdata.pictures import MAX_PIXELS
from fastdata.sources import open_source
from fastdata.sources.base import Drawn
from fastdata.stores.base import sync
from fastdata.types import Field

_LOCK_WAITS_S = 3  # for the workers of a killed pack to end, which hold its lock until then
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of linux/fcntl.h and linux/fs.h
_IMAGE_FORMS = ("jpeg", "keep", "png", "raw")
_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}


def pack(
    source: str | Path | Iterable[Any] | Any,
    dest: str | Path,
    *,
    to: str,
    source_kind: str | None = None,
    workers: int | None = None,
    shard_size: int | str | None = None,
    shuffle: int | None = None,
    image: str = "keep",
    resize_short: int | None = None,
    resize_long: int | None = None,
    resize: tuple[int, int] | str | None = None,
    quality: int | None = None,
    background: str = "#ffffff",
    on_error: str = "raise",
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Packed:
    """Pack a corpus into a dataset.

    The bytes depend on the source's data and the arguments, never on `workers` or the machine. A pack that fails or is killed leaves no
    folder that opens.

    Args:
        source: a folder or file of a kind that is recognised, any iterable of dicts, or a map-style dataset of dicts.
        dest: the dataset's folder; with the same arguments as a dataset that is there, nothing is done.
        to: the store: tar, lmdb, mmap or hdf5.
        source_kind: settles doubt about what the source is; a name of a file in `fastdata/sources/`.
        workers: processes; None: one for every CPU that this process may use. An iterable is packed by the process that iterates.
        shard_size: bytes of the source for each shard, as a number or "256MB"; None: 256 MB, or a sixteenth of the source where that is
            less, but at least 1 MB.
        shuffle: seed of a random order; None keeps the source's order.
        image: what pictures become: "keep" stores their files byte for byte, "jpeg", "png", "raw" pixels.
        resize_short: shrink so that the shorter side has this many pixels.
        resize_long: shrink so that the longer side has this many pixels.
        resize: (height, width) or "HxW": resize to exactly this.
        quality: of JPEGs that are encoded, 1 to 100; None: 90. Under "keep" it matters where a resize has to encode.
        background: colour that shows through transparent pixels, "#rrggbb".
        on_error: "raise" at the first bad sample, or "skip" it and list it in rejects.jsonl.
        overwrite: replace a dataset that is at `dest`.
        progress: called some times a second.

    Returns:
        A summary.

    Raises:
        ArgumentError: something that cannot be meant; nothing was written.
        DataError: a bad sample, with `on_error="raise"`.
        DatasetError: `dest` is in the way, or cannot be written.
        WorkerError: a worker died.
    """
    started = time.monotonic()
    target = Path(os.path.realpath(dest))
    workers = _check_choices(to, image, on_error, workers, quality)
    pictures = _picture_options(image, resize_short, resize_long, resize, quality, background)
    shard_nbytes = None if shard_size is None else parse_nbytes(shard_size, "--shard-size")
    opened = open_source(source, source_kind)
    _check_places(source, target)
    fields = tuple(_with_pictures(field, pictures) if field.codec == "image" else field for field in opened.fields)
    try:
        manifests.check_fields(fields)
    except ValueError as error:
        raise ArgumentError(f"{error}, at {source}") from error
    if opened.trouble and on_error == "raise":
        raise ArgumentError(opened.trouble)
    if shuffle is not None and not opened.splits:
        raise ArgumentError(
            "expected a source that can be read in any order with --shuffle, got an iterable; pass a list or a map-style dataset"
        )
    listing = survey(opened) if opened.splits else None
    if shard_nbytes is None:
        shard_nbytes = default_shard_nbytes(listing.nbytes) if listing else MAX_SHARD_NBYTES
    options = {
        "source": listing.sha256 if listing and opened.comparable else None,
        "source_kind": type(opened).__module__.rpartition(".")[2],
        "to": to,
        "shard_size": shard_nbytes,
        "shuffle": shuffle,
        **pictures,
    }
    compare = partial(_compare, target, options, overwrite)
    if already := compare():
        return replace(already, seconds=time.monotonic() - started)
    folder = target.with_name(target.name + ".partial")
    job = Job(opened, fields, to, folder, on_error, shuffle)
    total = listing.nbytes if listing else 0
    try:
        with _claimed(folder):
            if already := compare():  # what another pack has finished meanwhile
                return replace(already, seconds=time.monotonic() - started)
            tick = lambda num, nbytes: progress and progress(Progress(num, nbytes, total))  # noqa: E731
            summaries, finished = _pack_into(job, target, options, compare, listing, shard_nbytes, workers, tick)
    except FastdataError:
        raise
    except OSError as error:
        raise DatasetError(f"expected to write a dataset, got {error.strerror or error}, at {error.filename or folder}") from error
    notes: Counter[str] = sum((summary.notes for summary in summaries), Counter())
    kept = [summary for summary in summaries if summary.num_samples]
    return Packed(
        path=str(target),
        store=to,
        num_samples=finished.num_samples,
        num_shards=len(kept),
        nbytes=sum(size for summary in kept for _, size, _ in summary.files),
        seconds=time.monotonic() - started,
        fingerprint=finished.fingerprint,
        classes=finished.classes,
        rejected=sum(len(summary.rejects) for summary in summaries),
        notes=dict(sorted(notes.items())),
        ignored=dict(sorted(opened.ignored.items())),
        warnings=tuple(opened.warnings),
    )


def _pack_into(
    job: Job,
    target: Path,
    options: Mapping[str, Any],
    compare: Callable[[], Packed | None],
    listing: Listing | None,
    shard_nbytes: int,
    workers: int,
    tick: Callable[[int, int], object],
) -> tuple[list[ShardSummary], Manifest]:
    """Pack all shards into the partial folder, finish it and give it its name; leave nothing behind otherwise."""
    try:
        summaries = sorted(_pack_shards(job, listing, shard_nbytes, workers, tick), key=lambda summary: summary.number)
        kept = [summary for summary in summaries if summary.num_samples]
        if not kept:
            rejects = [reject for summary in summaries for reject in summary.rejects]
            why = f": all {len(rejects)} were rejected; the first: {rejects[0].reason}" if rejects else ""
            raise DataError(f"expected at least one good sample, got none{why}")
        finished = commit(job, summaries, kept, options)
        if compare():
            raise DatasetError(f"expected to be alone, got a dataset that another program has put there meanwhile, at {target}")
        _move(job.folder, target)
    except BaseException:
        shutil.rmtree(job.folder, ignore_errors=True)
        raise
    return summaries, finished


def _pack_shards(
    job: Job, listing: Listing | None, shard_nbytes: int, workers: int, tick: Callable[[int, int], object]
) -> Iterator[ShardSummary]:
    """Pack all shards; summaries come as they are done."""
    if listing is not None:
        tasks = plan(job.source, shard_nbytes, job.shuffle, listing)
        if workers > 1:
            for field in job.fields:
                open_codec(field).load_libraries()
        yield from run(partial(_pack_task, job), tasks, workers, tick)
        return
    # What comes out of an iterator exists in this process alone, and its sizes are known as it comes.
    samples = itertools.chain.from_iterable(map(job.source.read, job.source.parts()))
    for number in itertools.count():
        group = _Group(samples, shard_nbytes)
        yield from run(lambda _, status, n=number, g=group: pack_shard(job, n, g, status), [None], 1, tick)  # type: ignore[misc]
        if group.ended:
            return


class _Group:
    """The next samples of an iterator, until their sizes fill a shard."""

    def __init__(self, samples: Iterator[Drawn], shard_nbytes: int) -> None:
        self._samples, self._left, self.ended = samples, shard_nbytes, False

    def __iter__(self) -> Iterator[Drawn]:
        while self._left > 0:
            drawn = next(self._samples, None)
            if drawn is None:
                self.ended = True
                return
            self._left -= max(1, drawn.nbytes)
            yield drawn


def _pack_task(job: Job, task: Task, status: Status) -> ShardSummary:
    """Pack one shard in a worker."""
    return pack_shard(job, task.number, draw(job, task, status), status)


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_nbytes(value: int | str, where: str) -> int:
    """Read a size such as 1000, "256MB" (10^6) or "1GiB" (2^30).

    Raises:
        ArgumentError: it is none, or not positive.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(value).strip())
    known = match is not None and match[2].upper() in _UNITS and len(match[1]) < 30
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match and known else 0
    if size < 1:
        raise ArgumentError(f"expected a size such as 256MB or 1GiB, got {value!r}, at {where}")
    return size


def _check_choices(to: str, image: str, on_error: str, workers: int | None, quality: int | None) -> int:
    """Refuse what no pack can mean; give the number of workers."""
    for value, known, where in (
        (to, registry.names("fastdata.stores"), "--to"),
        (image, _IMAGE_FORMS, "--image"),
        (on_error, ("raise", "skip"), "--on-error"),
    ):
        if value not in known:
            raise ArgumentError(f"expected one of {list(known)}, got {value!r}, at {where}")
    if workers is not None and workers < 1:
        raise ArgumentError(f"expected at least 1, got {workers}, at --workers")
    if quality is not None and not 1 <= quality <= 100:
        raise ArgumentError(f"expected 1 to 100, got {quality}, at --quality")
    return workers or usable_cpus()


def _picture_options(
    image: str, short: int | None, long: int | None, exact: tuple[int, int] | str | None, quality: int | None, background: str
) -> dict[str, Any]:
    """What the image codec is told, as the manifest keeps it."""
    given = {"--resize-short": short, "--resize-long": long, "--resize": exact}
    if len(named := [flag for flag, value in given.items() if value is not None]) > 1:
        raise ArgumentError(f"expected one way to resize, got {' and '.join(named)}")
    resized: dict[str, int] | None = None
    if exact is not None:
        match = re.fullmatch(r"(\d+)[xX](\d+)", exact if isinstance(exact, str) else "x".join(map(str, exact)))
        if not match:
            raise ArgumentError(f"expected HEIGHTxWIDTH such as 256x256, got {exact!r}, at --resize")
        resized = {"height": int(match[1]), "width": int(match[2])}
    elif short is not None:
        resized = {"short": short}
    elif long is not None:
        resized = {"long": long}
    if resized and not all(1 <= side <= 65535 for side in resized.values()):
        raise ArgumentError(f"expected 1 to 65535 pixels, got {resized}, at {named[0]}")
    if resized and resized.get("height", 1) * resized.get("width", 1) > MAX_PIXELS:
        raise ArgumentError(f"expected a picture of at most {MAX_PIXELS} pixels, got {resized}, at {named[0]}")
    match = re.fullmatch(r"#?([0-9a-fA-F]{6})", background)
    if not match:
        raise ArgumentError(f"expected a colour such as #ffffff, got {background!r}, at --background")
    return {"image": image, "resize": resized, "quality": quality, "subsampling": "4:2:0", "background": list(bytes.fromhex(match[1]))}


def _with_pictures(field: Field, pictures: Mapping[str, Any]) -> Field:
    """A picture field as it will be packed: what the caller asked, over what the source says of itself."""
    kept_raw = pictures["image"] == "keep" and field.options.get("image") == "raw"
    options = {**pictures, **({"image": "raw"} if kept_raw else {}), **({"mask": True} if field.options.get("mask") else {})}
    resized = pictures["resize"] or {}
    shape = field.shape if field.dense and not resized else (resized["height"], resized["width"], 3) if "height" in resized else ()
    dense = options["image"] == "raw" and bool(shape)
    return replace(field, dtype="uint8", shape=shape if dense else (), dense=dense, options=options)


def _check_places(source: Any, target: Path) -> None:
    """Refuse a target inside of its source, one that is a whole file system, or where no folder can be made."""
    if isinstance(source, (str, Path)):
        inside = Path(os.path.realpath(source))
        if inside.is_dir() and (target == inside or inside in target.parents):
            raise ArgumentError(f"expected a target outside of the source, got {target} inside of {source}, at OUT")
    if os.path.ismount(target):
        raise ArgumentError(f"expected a folder that can be renamed, got the mount point {target}, at OUT; name a folder inside of it")
    parent = next(p for p in target.parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ArgumentError(f"expected a folder that can be written to, got {parent}, at OUT")
    if target.name.endswith(".partial"):
        raise ArgumentError(f"expected a name without .partial, which marks unfinished datasets, got {target.name!r}, at OUT")


def _compare(target: Path, options: Mapping[str, Any], overwrite: bool) -> Packed | None:
    """Look at what is there already: the same dataset, or something that must not be touched.

    Returns:
        The summary of the same dataset; None when it may be replaced.
    """
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return None
    if not _is_ours(target, {"columns", "manifest.json", "shards"}):
        raise DatasetError(f"expected a dataset or nothing, got something else, at {target}: it is not touched, not even with --overwrite")
    if overwrite:
        return None
    there = manifests.load(target)
    differing = [
        f"{name} (there {there.options.get(name)!r}, asked {value!r})"
        for name, value in options.items()
        if name != "source" and there.options.get(name) != value
    ]
    if options["source"] is None:
        differing.append("source (objects of Python cannot be compared)")
    elif there.options.get("source") != options["source"]:
        differing.append("source (its files have changed, or it is another one)")
    if differing:
        raise DatasetError(
            f"expected the arguments of the dataset that is there, got other {', '.join(differing)}, at {target}; --overwrite replaces it"
        )
    table = manifests.ShardTable(target, there)
    rejects = target / "rejects.jsonl"
    rejected = sum(1 for _ in open(rejects, "rb")) if rejects.exists() else 0  # noqa: SIM115
    return Packed(
        str(target),
        there.store,
        there.num_samples,
        len(table.first),
        table.nbytes,
        0.0,
        there.fingerprint,
        there.classes,
        rejected,
        already=True,
    )


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """An empty partial folder that no other pack writes to: the kernel holds the lock and frees it, however this process ends."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f".{folder.name}.lock")
    with contextlib.ExitStack() as stack:
        deadline = time.monotonic() + _LOCK_WAITS_S
        while True:
            file = stack.enter_context(open(lock, "wb"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(lock)):
                    break  # else its last owner has just removed it
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise DatasetError(f"expected to be alone, got another pack that is writing, at {folder}") from error
                time.sleep(_LOCK_WAITS_S / 30)
        try:
            _remove_unfinished(folder)
            for name in ("journal", "shards"):
                (folder / name).mkdir(parents=True)
            yield
        finally:
            lock.unlink(missing_ok=True)


def _remove_unfinished(folder: Path) -> None:
    """Remove what an earlier pack left, and nothing else that may have its name.

    Raises:
        DatasetError: something else is there.
    """
    if not folder.is_symlink() and _is_ours(folder, set()):
        shutil.rmtree(folder)
    elif os.path.lexists(folder):
        raise DatasetError(f"expected an unfinished dataset or nothing, got something else, at {folder}: move it away")


def _is_ours(folder: Path, names: set[str]) -> bool:
    """Tell a folder that holds these by their names, and nothing that this package does not write."""
    if not folder.is_dir():
        return False
    found = {path.name for path in folder.iterdir()}
    return names <= found <= {"columns", "journal", "manifest.json", "manifest.json.tmp", "manifests", "rejects.jsonl", "shards", "splits"}


def _move(folder: Path, target: Path) -> None:
    """Give a finished dataset its name; one that is there gets the partial folder's, in one step where the system can, and is removed."""
    if not target.exists():
        os.rename(folder, target)
    elif not _exchange(folder, target):
        old = target.with_name(f".{target.name}.{os.getpid()}.old")
        os.rename(target, old)
        try:
            os.rename(folder, target)
        except BaseException:
            os.rename(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    sync(target.parent)
    shutil.rmtree(folder, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders, so that no moment is without either; False where system or file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    return renameat2 is not None and renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
