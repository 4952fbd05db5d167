"""The way of samples into a dataset: `pack()` and what it is made of; `base.py` says how the steps fit together."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fastdata
from fastdata import manifest as manifests
from fastdata import registry
from fastdata.codecs import open_codec
from fastdata.errors import ArgumentError, DataError, DatasetError, FastdataError
from fastdata.manifest import Manifest
from fastdata.packing import columns
from fastdata.packing import options as given
from fastdata.packing.base import Job, Packed, Progress, ShardSummary, Status, Task, Terms
from fastdata.packing.engine import run
from fastdata.packing.journal import Journal
from fastdata.packing.plan import MAX_SHARD_NBYTES, default_shard_nbytes, plan, survey
from fastdata.packing.shard import begins_alike, draw, pack_shard, too_many
from fastdata.packing.target import check_places, compare, describe, differences, foreign, place
from fastdata.sources import open_source
from fastdata.sources.base import Drawn, few


def pack(
    source: str | Path | Iterable[Any] | Any,
    dest: str | Path,
    *,
    to: str,
    source_kind: str | None = None,
    documents: str | None = None,
    hidden: bool = False,
    classes: str | Path | None = None,
    workers: int | None = None,
    shard_size: int | str | None = None,
    shuffle: int | None = None,
    image: str = "keep",
    resize_short: int | None = None,
    resize_long: int | None = None,
    resize: tuple[int, int] | str | None = None,
    quality: int | None = None,
    background: str = "#ffffff",
    compress: str | None = None,
    validate: bool = True,
    on_error: str = "raise",
    max_errors: int | str | None = None,
    part: str | None = None,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Packed:
    """Pack a corpus into a dataset.

    The bytes depend on the source's data and the arguments, never on `workers`, the machine, or how often a pack was killed: with the same
    arguments the next one goes on after the last finished shard, in `<dest>.partial`. (One of an iterable starts anew.) `workers`, `on_error`,
    `max_errors`, `overwrite` and `progress` may differ then. A pack that fails or is killed leaves no folder that opens.

    Args:
        source: a folder or file of a kind that is recognised, any iterable of dicts, or a map-style dataset of dicts.
        dest: the dataset's folder; with the same arguments as a dataset that is there, nothing is done.
        to: the store: tar, lmdb, mmap or hdf5.
        source_kind: settles doubt about what the source is; a name of a file in `fastdata/sources/`.
        documents: what a text of a text file is: the "file" (None means that too), a "line" or a "block" between blank lines.
        hidden: take hidden and system files and folders as well.
        classes: a dataset, or a file of class names, whose table numbers the labels; classes that it lacks are refused.
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
        compress: "zstd" compresses each text, JSON value and array; None does not. Pictures never are.
        validate: decode every payload once. False reads no more than the header of pictures that are kept as they are.
        on_error: "raise" at the first bad sample, or "skip" it and list it in rejects.jsonl.
        max_errors: with "skip": stop at more bad samples than this number or this share ("0.5%") of all. Where the number of samples is known
            only when the source is read, a share is judged at the end.
        part: "3/16" packs the third sixteenth of the shards (counted from 1) and leaves them to `commit`; the other parts may be packed
            by other machines that share the disk.
        overwrite: replace a dataset that is at `dest`, and an unfinished one that was begun with other arguments.
        progress: called some times a second.

    Returns:
        A summary.

    Raises:
        ArgumentError: something that cannot be meant; nothing was written.
        DataError: a bad sample, with `on_error="raise"`, or too many.
        DatasetError: `dest` is in the way, or cannot be written.
        WorkerError: a worker died.
    """
    started = time.monotonic()
    target = Path(os.path.realpath(dest))
    workers = given.check_choices(to, image, on_error, compress, workers, quality)
    pictures = given.picture_options(image, resize_short, resize_long, resize, quality, background)
    shard_nbytes = None if shard_size is None else given.parse_nbytes(shard_size, "--shard-size")
    limit = given.parse_max_errors(max_errors, on_error)
    share = given.parse_part(part)
    table = None if classes is None else given.read_classes(classes)
    ways = {"documents": documents, "hidden": hidden or None}
    opened = open_source(source, source_kind, {name: value for name, value in ways.items() if value is not None})
    if table is not None:
        opened.name_classes(table)
    check_places(source, target)
    fields = tuple(given.packed_field(field, pictures, compress) for field in opened.fields)
    try:
        manifests.check_fields(fields)
    except ValueError as error:
        raise ArgumentError(f"{error}, at {source}") from error
    for field in fields:
        open_codec(field).load_libraries(validate)
    if opened.trouble and on_error == "raise":
        raise ArgumentError(opened.trouble)
    for flag, value in (("--shuffle", shuffle), ("--part", part)):
        if value is not None and not opened.splits:
            raise ArgumentError(
                f"expected a source that can be read in any order with {flag}, got an iterable; pass a list or a map-style dataset"
            )
    listing = survey(opened) if opened.splits else None
    if shard_nbytes is None:
        shard_nbytes = default_shard_nbytes(listing.nbytes) if listing else MAX_SHARD_NBYTES
    # Of what came later than the first datasets, the default is not written down.
    later = {"documents": None if documents == "file" else documents, "hidden": hidden or None, "compress": compress}
    options = {
        "source": listing.sha256 if listing and opened.comparable else None,
        "source_kind": type(opened).__module__.rpartition(".")[2],
        "to": to,
        "shard_size": shard_nbytes,
        "shuffle": shuffle,
        **pictures,
        **{name: value for name, value in later.items() if value is not None},
        **({} if validate else {"validate": False}),
    }
    terms = Terms(options, fields, opened.classes, listing, fastdata.__version__, share[1] if share else 1)
    journal = Journal(target.with_name(target.name + ".partial"))
    rejects = given.max_rejects(limit, listing.num_samples if listing else None)
    job = Job(opened, fields, to, journal.folder, on_error, rejects, shuffle, validate)
    try:
        if (already := compare(target, terms, overwrite)) and not journal.lock.exists():
            return replace(already, seconds=time.monotonic() - started)
        with journal.claimed(share[0] if share else None):
            if already := compare(target, terms, overwrite):  # what another pack has finished meanwhile
                _tidy(journal, target)
                return replace(already, seconds=time.monotonic() - started)
            finished = _resume(journal, terms, share, overwrite)
            try:
                if not journal.ended:
                    _pack_shards(job, journal, terms, share, workers, finished, progress)
                    _check_share(journal, limit[1])
                packed = (
                    _commit(journal, terms, target, overwrite) if share is None else _summary(journal, terms, journal.finished(), share)
                )
            except BaseException:
                goes_on = journal.ended or any(summary.num_samples for summary in journal.finished())
                if share is None and (listing is None or not goes_on):
                    journal.clear()
                raise
    except FastdataError:
        raise
    except OSError as error:
        raise DatasetError(f"expected to write a dataset, got {error.strerror or error}, at {error.filename or journal.folder}") from error
    resumed = sum(summary.num_samples for summary in finished.values() if _is_in(share, summary.number))
    return replace(packed, seconds=time.monotonic() - started, resumed=resumed)


def commit(dest: str | Path, *, overwrite: bool = False) -> Packed:
    """Finish a dataset whose shards were packed in parts; its bytes are those that one machine would have made.

    Args:
        dest: the dataset's folder, as the parts had it.
        overwrite: replace a dataset that is there.

    Raises:
        DatasetError: shards are missing, or a part is still being packed; `dest` is in the way, or cannot be written.
        DataError: not one good sample.
    """
    started = time.monotonic()
    target = Path(os.path.realpath(dest))
    journal = Journal(target.with_name(target.name + ".partial"))
    try:
        with journal.claimed(None):
            _tidy(journal, target)
            terms = journal.terms()
            if terms is None and (target / "manifest.json").is_file():
                packed = describe(target)
            elif terms is None:
                raise DatasetError(f"expected parts of a dataset, got none, at {journal.folder}: pack them with fastdata pack --part")
            else:
                packed = _commit(journal, terms, target, overwrite)
    except FastdataError:
        raise
    except OSError as error:
        raise DatasetError(f"expected to write a dataset, got {error.strerror or error}, at {error.filename or journal.folder}") from error
    return replace(packed, seconds=time.monotonic() - started)


def unfinished(dest: str | Path) -> int:
    """Count the finished shards that wait for the next pack into `dest`, after one that failed or was killed."""
    target = Path(os.path.realpath(dest))
    return len(Journal(target.with_name(target.name + ".partial")).finished())


def _resume(journal: Journal, terms: Terms, share: tuple[int, int] | None, overwrite: bool) -> dict[int, ShardSummary]:
    """Begin a partial folder, or look at what is there; give the shards that need not be packed again.

    Raises:
        DatasetError: it was begun on other terms, or is something else.
    """
    folder = journal.folder
    if os.path.lexists(folder):
        stranger = foreign(folder) or (None if journal.exists or not any(folder.iterdir()) else str(folder))
        if stranger is not None:
            raise DatasetError(f"expected an unfinished dataset or nothing, got something else, at {stranger}: move it away")
        differing = _differences(journal, terms)
        # What comes out of an iterator cannot be compared, nor can it be read from the middle.
        if share is None and (differing is None or (overwrite and differing) or (not differing and terms.listing is None)):
            journal.clear()
        elif differing is None and journal.exists and (folder / "manifest.json").is_file():
            raise DatasetError(f"expected parts of a dataset, got one that was replaced, at {folder}: remove it")
        elif not differing and journal.ended:
            return {}
        else:
            _refuse(journal, differing)
    journal.begin(terms)
    _refuse(journal, _differences(journal, terms))  # another part may have begun it meanwhile
    return {summary.number: summary for summary in journal.finished()}


def _tidy(journal: Journal, target: Path) -> None:
    """Remove what a pack has left that was killed when its dataset had just got its name; folders of others are not touched."""
    made = [folder for folder in (target, journal.folder) if foreign(folder) is None and (folder / "manifest.json").is_file()]
    if target in made:
        Journal(target).end()
    if journal.folder in made and not journal.ended:
        journal.clear()


def _refuse(journal: Journal, differing: list[str] | None) -> None:
    if differing:
        cure = "go on with those, remove it, or start anew with --overwrite and without --part"
        raise DatasetError(
            f"expected the arguments of the unfinished dataset at {journal.folder}, got other {', '.join(differing)}: {cure}"
        )


def _differences(journal: Journal, terms: Terms) -> list[str] | None:
    """Say how the terms on which a partial folder was begun differ; None where there are none, or none that tell enough."""
    there = journal.terms()
    if there is None or (journal.ended and terms.options["source"] is None):
        return None  # of objects of Python nothing but the samples could tell whether they are the same
    differing = differences(there.options, terms.options)
    if there.num_parts != terms.num_parts and terms.num_parts > 1:
        differing.append(f"number of parts (there {there.num_parts}, asked {terms.num_parts})")
    names = ("fields", "classes", "version") if terms.options["source"] else ("listing", "fields", "classes", "version")
    return differing or [name for name in names if getattr(there, name) != getattr(terms, name)]


def _pack_shards(
    job: Job,
    journal: Journal,
    terms: Terms,
    share: tuple[int, int] | None,
    workers: int,
    finished: Mapping[int, ShardSummary],
    progress: Callable[[Progress], None] | None,
) -> None:
    """Pack all shards that are not finished, or this part's."""
    own = [summary for summary in finished.values() if _is_in(share, summary.number)]
    done_samples, done_nbytes = (sum(getattr(summary, name) for summary in own) for name in ("num_drawn", "nbytes_drawn"))
    total = terms.listing.nbytes // (share[1] if share else 1) if terms.listing else 0

    def tick(num_samples: int, nbytes: int) -> None:
        if progress:
            progress(Progress(done_samples + num_samples, done_nbytes + nbytes, total))

    bad = next((summary for summary in finished.values() if summary.num_rejected), None)
    if job.on_error == "raise" and bad:
        raise DataError(journal.rejects(bad.number)[0].reason)
    if terms.listing is None:
        summaries = _from_iterable(job, journal, terms.options["shard_size"], tick)
    else:
        summaries = run(partial(_pack_task, job, journal), _todo(job, journal, terms, share, finished), workers, tick)
    num_rejected = sum(summary.num_rejected for summary in finished.values())
    for summary in itertools.chain([None], summaries):
        if summary and summary.num_rejected:
            bad, num_rejected = summary, num_rejected + summary.num_rejected
        if bad and job.max_rejects is not None and num_rejected > job.max_rejects:
            raise too_many(job.max_rejects, journal.rejects(bad.number)[-1].reason)


def _from_iterable(job: Job, journal: Journal, shard_nbytes: int, tick: Callable[[int, int], object]) -> Iterator[ShardSummary]:
    """Pack what comes out of an iterator: it exists in this process alone, and its sizes are known as it comes."""
    samples = itertools.chain.from_iterable(map(job.source.read, job.source.parts()))

    def groups() -> Iterator[tuple[int, _Group]]:
        for number in itertools.count():
            group = _Group(samples, shard_nbytes)
            yield number, group
            if group.ended:
                journal.planned(_plan_of(job, number + 1))
                return

    yield from run(lambda group, status: _pack_group(job, journal, *group, status), groups(), 1, tick)


def _todo(job: Job, journal: Journal, terms: Terms, share: tuple[int, int] | None, finished: Mapping[int, ShardSummary]) -> Iterator[Task]:
    """The shards that are to be packed; all are counted once the source was listed to its end."""
    assert terms.listing is not None
    num_shards = 0
    for task in plan(job.source, terms.options["shard_size"], job.shuffle, terms.listing):
        num_shards += 1
        if task.number in finished:
            if not job.source.comparable and finished[task.number].num_samples:
                with journal.columns(task.number) as there:
                    if not begins_alike(job, task, there):
                        got = f"another first sample than the one in shard {task.number}"
                        raise DatasetError(f"expected the source of the unfinished dataset, got {got}, at {journal.folder}: remove it")
        elif _is_in(share, task.number):
            yield task
    journal.planned(_plan_of(job, num_shards))


def _is_in(share: tuple[int, int] | None, number: int) -> bool:
    """Tell whether a shard belongs to a part, such as (3, 16), or to all of them."""
    return share is None or number % share[1] == share[0] - 1


def _plan_of(job: Job, num_shards: int) -> dict[str, Any]:
    """What `_commit` needs to know of a source that it does not open."""
    return {"num_shards": num_shards, "ignored": dict(sorted(job.source.ignored.items())), "warnings": list(job.source.warnings)}


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


def _pack_task(job: Job, journal: Journal, task: Task, status: Status) -> ShardSummary:
    """Pack one shard in a worker."""
    return _pack_group(job, journal, task.number, draw(job, task, status), status)


def _pack_group(job: Job, journal: Journal, number: int, samples: Iterable[Drawn], status: Status) -> ShardSummary:
    """Pack one shard, and note it as finished."""
    summary, rejects, found = pack_shard(job, number, samples, status)
    journal.write(summary, rejects, found)
    return summary


def _check_share(journal: Journal, percent: float | None) -> None:
    """Hold the bad samples against a share of all, whose number may be known only now."""
    if percent is None:
        return
    summaries = journal.finished()
    num_rejected, num_drawn = sum(s.num_rejected for s in summaries), sum(s.num_drawn for s in summaries)
    if num_rejected > num_drawn * percent / 100:
        raise DataError(f"expected at most {percent:g} % of bad samples, got {num_rejected} of {num_drawn}, at --max-errors")


def _commit(journal: Journal, terms: Terms, target: Path, overwrite: bool) -> Packed:
    """Finish a partial folder, unless it has its manifest already, and give it its name."""
    packed: Packed | None = None
    if not journal.ended:
        finished = journal.finished()
        _check_complete(journal, terms, finished)
        packed = _summary(journal, terms, finished, None)
        manifest = columns.write(terms, journal, finished)
        warnings = (*packed.warnings, *_sorted_labels(journal.folder, manifest))
        packed = replace(packed, path=str(target), fingerprint=manifest.fingerprint, warnings=warnings)
    if compare(target, terms, overwrite):
        raise DatasetError(f"expected to be alone, got a dataset that another program has put there meanwhile, at {target}")
    place(journal.folder, target)
    Journal(target).end()
    journal.clear()
    return packed or replace(describe(target), already=False)


def _check_complete(journal: Journal, terms: Terms, finished: Sequence[ShardSummary]) -> None:
    """Refuse to finish a dataset that lacks shards."""
    plan = journal.plan()
    if plan is None:
        raise DatasetError(f"expected parts that were packed to their end, got none, at {journal.folder}: run them again")
    missing = sorted(set(range(plan["num_shards"])) - {summary.number for summary in finished})
    if missing:
        parts = sorted({number % terms.num_parts + 1 for number in missing})
        got = f"{plan['num_shards'] - len(missing)}, at {journal.folder}"
        which = f"part {few(map(str, parts), len(parts))} of {terms.num_parts}".replace("'", "")
        raise DatasetError(f"expected {plan['num_shards']} shards, got {got}: pack {which} again")


def _summary(journal: Journal, terms: Terms, finished: Sequence[ShardSummary], share: tuple[int, int] | None) -> Packed:
    """Sum up what the journal tells of all shards, or of one part's."""
    summaries = [summary for summary in finished if _is_in(share, summary.number)]
    kept = [summary for summary in summaries if summary.num_samples]
    plan = journal.plan() or {}
    return Packed(
        path=str(journal.folder),
        store=terms.options["to"],
        num_samples=sum(summary.num_samples for summary in kept),
        num_shards=len(kept),
        nbytes=sum(size for summary in kept for _, size, _ in summary.files),
        seconds=0.0,
        fingerprint="",
        classes=terms.classes,
        rejected=sum(summary.num_rejected for summary in summaries),
        part=f"{share[0]}/{share[1]}" if share else None,
        reasons=dict(sum((summary.reasons for summary in summaries), Counter[str]()).most_common()),
        notes=dict(sorted(sum((summary.notes for summary in summaries), Counter[str]()).items())),
        ignored=plan.get("ignored", {}),
        warnings=tuple(plan.get("warnings", ())),
    )


def _sorted_labels(folder: Path, manifest: Manifest) -> list[str]:
    """Warn of labels in order in a store that is often read in order."""
    module = registry.load("fastdata.stores", manifest.store, "--to")
    found = []
    for field in manifest.fields if getattr(module, "SEQUENTIAL", False) and manifest.options["shuffle"] is None else ():
        if field.name == "label" and field.codec == "scalar" and field.dtype != "str":
            labels = manifests.open_array(folder / "columns" / "0" / f"{field.name}.npy")
            if labels[0] != labels[-1] and (labels[1:] >= labels[:-1]).all():
                found.append(
                    f"samples lie sorted by {field.name!r}: whoever reads the shards in order wants them packed with --shuffle SEED"
                )
    return found
