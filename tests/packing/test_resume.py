"""A pack that was killed, stopped or divided ends in the bytes of one that nothing happened to."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastdata import registry
from fastdata.dataset import Dataset
from fastdata.errors import ArgumentError, DataError, DatasetError, WorkerError
from fastdata.manifest import ShardTable, load
from fastdata.packing import commit, pack, unfinished
from fastdata.packing.base import Progress
from fastdata.packing.verify import verify

STORES = registry.names("fastdata.stores")
Contents = Callable[[Path], dict[str, bytes]]


def packed_whole(source: Path, dest: Path, **options: Any) -> Path:
    """What one undisturbed process makes, with nothing beside it."""
    pack(source, dest, workers=1, **options)
    assert [path.name for path in dest.parent.iterdir() if dest.name in path.name] == [dest.name]
    return dest


def listed(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# --- killed ---


def die(wanted: Callable[[str, Any], bool], moment: int, tell: Any, source: Any, dest: Path, options: dict[str, Any]) -> None:
    """Pack in this process and its workers, or commit where there is no source.

    The process that comes to its `moment`-th wanted event of the interpreter kills them all.
    """
    main, count = os.getpid(), 0

    def hook(event: str, arguments: Any) -> None:
        nonlocal count
        if wanted(event, arguments):
            count += 1
            if count == moment:
                os.kill(main, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    if source is None:
        commit(dest)
    else:
        pack(source, dest, **options)
    tell.send(count)


def killed(wanted: Callable[[str, Any], bool], moment: int, source: Any, dest: Path, **options: Any) -> int | None:
    """Run `die`; give the number of events where it came to its end."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=die, args=(wanted, moment, theirs, source, dest, options))
    process.start()
    theirs.close()
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL)
    count = ours.recv() if process.exitcode == 0 else None
    ours.close()
    process.close()
    return count


def touches_disk(event: str, _: Any) -> bool:
    return event.startswith(("open", "os.", "shutil.", "fcntl.", "tempfile."))


def finishes_shard(event: str, arguments: Any) -> bool:
    return event == "os.rename" and str(arguments[1]).endswith(".npz")


def stopped(source: Any, dest: Path, after: int, **options: Any) -> None:
    """Pack until so many shards are finished, and one more is but for its line in the journal; then be killed."""
    assert killed(finishes_shard, after + 1, source, dest, workers=1, **options) is None
    assert unfinished(dest) == after


@pytest.mark.parametrize("store", STORES)
def test_a_pack_killed_at_thirty_random_moments_ends_in_the_same_bytes(
    store: str, photos: Path, tmp_path: Path, contents: Contents
) -> None:
    """Case 54: each is killed twice or more, by SIGKILL, with one to three workers."""
    options = {"to": store, "shard_size": 12_000}
    whole = contents(packed_whole(photos, tmp_path / "whole", **options))
    num_events = killed(touches_disk, -1, photos, tmp_path / "counted", workers=1, **options)
    assert num_events is not None
    assert num_events > 100
    generator = random.Random(len(store))
    for i in range(30 // len(STORES) + 1):
        place = tmp_path / str(i)
        place.mkdir()
        for workers in (1 + i % 3, 1):
            killed(touches_disk, generator.randrange(1, num_events), photos, place / "out", workers=workers, **options)
            if not (place / "out").exists():
                with pytest.raises(DatasetError):
                    Dataset(place / "out")
        pack(photos, place / "out", workers=1 + i % 2, **options)
        assert contents(place / "out") == whole
        assert [path.name for path in place.iterdir()] == ["out"]
    assert verify(tmp_path / "0/out").problems == []


def test_what_is_finished_is_not_packed_again(own_photos: Path, tmp_path: Path, contents: Contents) -> None:
    options = {"to": "tar", "shard_size": 12_000}
    whole = packed_whole(own_photos, tmp_path / "whole", **options)
    stopped(own_photos, tmp_path / "out", 3, **options)
    kept = {path: path.stat().st_mtime_ns for path in listed(tmp_path / "out.partial/shards")}
    packed = pack(own_photos, tmp_path / "out", workers=1, **options)
    again = {path.name: path.stat().st_mtime_ns for path in listed(tmp_path / "out/shards")}
    finished = sorted(kept, key=lambda path: path.name)[:3]
    assert [again[path.name] == kept[path] for path in finished] == [True] * 3
    assert packed.resumed == ShardTable(tmp_path / "out", load(tmp_path / "out")).num_samples[:3].sum() > 0
    assert contents(tmp_path / "out") == contents(whole)


def takes_name(event: str, arguments: Any) -> bool:
    return event == "os.rename" and str(arguments[0]).endswith("out.partial")


@pytest.mark.parametrize("by", ["pack", "commit", "part"])
def test_a_dataset_that_lacks_nothing_but_its_name_gets_it(by: str, photos: Path, tmp_path: Path, contents: Contents) -> None:
    whole = packed_whole(photos, tmp_path / "whole", to="mmap")
    assert killed(takes_name, 1, photos, tmp_path / "out", to="mmap") is None
    written = (tmp_path / "out.partial/manifest.json").stat().st_mtime_ns
    if by == "part":
        assert pack(photos, tmp_path / "out", to="mmap", part="1/1").num_samples == 24
    done = pack(photos, tmp_path / "out", to="mmap") if by == "pack" else commit(tmp_path / "out")
    assert (done.num_samples, done.already) == (24, False)
    assert (tmp_path / "out/manifest.json").stat().st_mtime_ns == written
    assert contents(tmp_path / "out") == contents(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


@pytest.mark.parametrize("store", ["tar", "mmap"])
def test_an_overwrite_killed_at_any_of_its_last_moments_never_brings_the_old_dataset_back(
    store: str, photos: Path, tmp_path: Path, contents: Contents
) -> None:
    """The old one has the same arguments, so nothing but its place tells it apart."""
    options = {"to": store, "shard_size": 9_000, "overwrite": True}
    old, new = Numbers(60, add=1), Numbers(60)
    pack(new, tmp_path / "whole", to=store, shard_size=9_000)
    whole = contents(tmp_path / "whole")
    pack(old, tmp_path / "out", workers=1, **options)
    num_events = killed(touches_disk, -1, new, tmp_path / "out", workers=1, **options)
    assert num_events is not None
    for moment in range(num_events - 45, num_events + 1):
        pack(old, tmp_path / "out", workers=1, **options)
        killed(touches_disk, moment, new, tmp_path / "out", workers=1, **options)
        pack(new, tmp_path / "out", workers=1, **options)
        assert contents(tmp_path / "out") == whole, moment
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"], moment


@pytest.mark.parametrize("store", ["tar", "mmap"])
def test_a_commit_killed_at_any_moment_is_done_by_the_next(store: str, photos: Path, tmp_path: Path, contents: Contents) -> None:
    options = {"to": store, "shard_size": 9_000}
    whole = contents(packed_whole(photos, tmp_path / "whole", **options))
    for number in (1, 2):
        pack(photos, tmp_path / "parts/out", part=f"{number}/2", **options)
    moment, place = 0, tmp_path / "out.d"
    while True:
        moment += 7
        shutil.copytree(tmp_path / "parts", place)
        ended = killed(touches_disk, moment, None, place / "out")
        assert commit(place / "out").num_samples == 24
        assert contents(place / "out") == whole, moment
        assert [path.name for path in place.iterdir()] == ["out"], moment
        shutil.rmtree(place)
        if ended is not None:
            break
    assert moment > 70


@pytest.mark.parametrize("place", ["out", "out.partial"])
def test_a_commit_touches_no_folder_of_another_program(place: str, tmp_path: Path) -> None:
    for name in ("manifest.json", "index.html", "journal/diary.txt"):
        (tmp_path / place / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place / name).write_text("{}")
    with pytest.raises(DatasetError):
        commit(tmp_path / "out")
    assert [path.name for path in listed(tmp_path / place)] == ["index.html", "diary.txt", "manifest.json"]


@pytest.mark.parametrize("inside", ["splits/mine.txt", "shards/mine.txt", "thesis.txt"])
def test_a_folder_of_that_name_that_no_pack_has_made_is_not_touched(inside: str, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial" / inside).parent.mkdir(parents=True)
    (tmp_path / "out.partial" / inside).write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(DatasetError, match="expected an unfinished dataset or nothing, got something else"):
            pack(photos, tmp_path / "out", to="tar", overwrite=overwrite)
    assert (tmp_path / "out.partial" / inside).read_text() == "precious"


@pytest.mark.parametrize("damage", ["shard cut", "shard gone", "journal cut", "journal empty", "stranger"])
def test_a_finished_shard_that_is_damaged_is_packed_again(damage: str, photos: Path, tmp_path: Path, contents: Contents) -> None:
    options = {"to": "tar", "shard_size": 12_000}
    whole = packed_whole(photos, tmp_path / "whole", **options)
    stopped(photos, tmp_path / "out", 3, **options)
    shard, entry = tmp_path / "out.partial/shards/00001.tar", tmp_path / "out.partial/journal/00001.npz"
    if damage == "shard cut":
        shard.write_bytes(shard.read_bytes()[:-512])
    elif damage == "shard gone":
        shard.unlink()
    elif damage == "journal cut":
        entry.write_bytes(entry.read_bytes()[:-100])
    elif damage == "journal empty":
        entry.write_bytes(b"")
    else:
        shutil.copy(entry, entry.with_name("00099.npz"))
        (shard.parent / "00099.tar").write_bytes(shard.read_bytes())
    pack(photos, tmp_path / "out", workers=1, **options)
    assert contents(tmp_path / "out") == contents(whole)


class Numbers:
    """A map-style dataset of arrays."""

    def __init__(self, num: int, add: int = 0, deadly: int = -1, how: Callable[[], Any] | None = None) -> None:
        self.num, self.add, self.deadly, self.how, self.main = num, add, deadly, how, os.getpid()

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < self.num:
            raise IndexError(i)
        if i == self.deadly and self.how and os.getpid() != self.main:
            self.how()
        return {"x": np.arange(i, i + 30) + self.add, "label": i % 3}


def segmentation_fault() -> None:
    ctypes.string_at(0)


def out_of_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (segmentation_fault, r"death by SIGSEGV, at sample 41\b"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"death by SIGKILL, at sample 41\b.*fewer --workers"),
        (lambda: os._exit(3), r"death by exit code 3, at sample 41\b"),
        (out_of_memory, r"enough memory, got no more, at sample 41\b.*fewer --workers"),
    ],
    ids=["SIGSEGV", "SIGKILL", "exit", "memory"],
)
def test_a_worker_that_dies_is_told_of_and_what_was_finished_is_kept(
    how: Callable[[], None], message: str, tmp_path: Path, contents: Contents
) -> None:
    with pytest.raises(WorkerError, match=message):
        pack(Numbers(60, deadly=41, how=how), tmp_path / "out", to="mmap", workers=2, shard_size=2000)
    assert unfinished(tmp_path / "out") > 0
    pack(Numbers(60), tmp_path / "out", to="mmap", workers=2, shard_size=2000)
    pack(Numbers(60), tmp_path / "whole", to="mmap", workers=1, shard_size=2000)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_map_style_dataset_that_gives_other_samples_is_not_gone_on_with(tmp_path: Path) -> None:
    stopped(Numbers(60), tmp_path / "out", 2, to="mmap", shard_size=2000)
    with pytest.raises(DatasetError, match=r"got another first sample than the one in shard 0, at .*out\.partial: remove it"):
        pack(Numbers(60, add=1), tmp_path / "out", to="mmap", shard_size=2000)
    with pytest.raises(DatasetError, match="other listing"):
        pack(Numbers(61), tmp_path / "out", to="mmap", shard_size=2000)


def test_an_iterable_starts_anew(tmp_path: Path, contents: Contents) -> None:
    samples = [Numbers(60)[i] for i in range(60)]
    stopped(Numbers(60), tmp_path / "other", 2, to="mmap", shard_size=2000)
    stopped(iter(samples), tmp_path / "out", 2, to="mmap", shard_size=2000)
    assert pack(iter(samples), tmp_path / "out", to="mmap", shard_size=2000).resumed == 0
    pack(samples, tmp_path / "whole", to="mmap", shard_size=2000)
    assert Dataset(tmp_path / "out").manifest.fingerprint == Dataset(tmp_path / "whole").manifest.fingerprint
    with pytest.raises(DatasetError, match=r"other .*listing"):
        pack(iter(samples), tmp_path / "other", to="mmap", shard_size=2000)
    assert unfinished(tmp_path / "other") >= 2


# --- other arguments, another source ---


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"to": "lmdb"}, r"to \(there 'tar', asked 'lmdb'\)"),
        ({"quality": 50}, r"quality \(there None, asked 50\)"),
        ({"shuffle": 1}, r"shuffle \(there None, asked 1\)"),
        ({"validate": False}, r"validate \(there None, asked False\)"),
        ({"shard_size": 9000}, r"shard_size \(there 12000, asked 9000\)"),
    ],
)
def test_other_arguments_are_refused_by_what_differs_or_start_anew(
    other: dict[str, Any], message: str, photos: Path, tmp_path: Path, contents: Contents
) -> None:
    options = {"to": "tar", "shard_size": 12_000}
    stopped(photos, tmp_path / "out", 2, **options)
    with pytest.raises(DatasetError, match=f"{message}.*--overwrite"):
        pack(photos, tmp_path / "out", workers=1, **{**options, **other})
    assert unfinished(tmp_path / "out") == 2
    assert pack(photos, tmp_path / "out", workers=1, overwrite=True, **{**options, **other}).resumed == 0
    whole = packed_whole(photos, tmp_path / "whole", **{**options, **other})
    assert contents(tmp_path / "out") == contents(whole)


@pytest.mark.parametrize("change", ["added", "removed", "grown", "renamed"])
def test_a_source_whose_listing_has_changed_is_refused_until_it_is_back(
    change: str, own_photos: Path, tmp_path: Path, contents: Contents
) -> None:
    options = {"to": "hdf5", "shard_size": 12_000}
    whole = packed_whole(own_photos, tmp_path / "whole", **options)
    stopped(own_photos, tmp_path / "out", 2, **options)
    shutil.copytree(own_photos, tmp_path / "before")
    last = listed(own_photos)[-1]
    if change == "added":
        shutil.copy(last, last.with_name("zzz.jpg"))
    elif change == "removed":
        last.unlink()
    elif change == "grown":
        last.write_bytes(last.read_bytes() + b"\0")
    else:
        last.rename(last.with_name("zzz.jpg"))
    with pytest.raises(DatasetError, match=r"other source \(its files have changed"):
        pack(own_photos, tmp_path / "out", workers=1, **options)
    shutil.rmtree(own_photos)
    shutil.copytree(tmp_path / "before", own_photos)
    assert pack(own_photos, tmp_path / "out", workers=1, **options).resumed > 0
    assert contents(tmp_path / "out") == contents(whole)


def test_overwriting_resumes_too(photos: Path, tmp_path: Path, contents: Contents) -> None:
    options = {"to": "tar", "shard_size": 12_000}
    pack(photos, tmp_path / "out", to="lmdb")
    old = contents(tmp_path / "out")
    stopped(photos, tmp_path / "out", 2, overwrite=True, **options)
    assert contents(tmp_path / "out") == old
    assert pack(photos, tmp_path / "out", overwrite=True, workers=1, **options).resumed > 0
    assert contents(tmp_path / "out") == contents(packed_whole(photos, tmp_path / "whole", **options))


# --- bad samples ---


@pytest.fixture
def some_bad(own_photos: Path) -> Path:
    """Every fourth of 24 photos is damaged, in two ways."""
    for i, path in enumerate(listed(own_photos)):
        if i % 8 == 5:
            path.write_bytes(path.read_bytes()[:-200])
        elif i % 8 == 7:
            path.write_bytes(b"")
    return own_photos


def test_a_pack_that_stopped_at_a_bad_sample_goes_on_when_those_are_to_be_skipped(
    some_bad: Path, tmp_path: Path, contents: Contents
) -> None:
    options = {"to": "tar", "shard_size": 3_000}
    with pytest.raises(DataError, match=r"expected a JPEG that decodes"):
        pack(some_bad, tmp_path / "out", workers=1, **options)
    assert unfinished(tmp_path / "out") > 0
    assert pack(some_bad, tmp_path / "out", workers=1, on_error="skip", **options).resumed > 0
    whole = packed_whole(some_bad, tmp_path / "whole", on_error="skip", **options)
    assert contents(tmp_path / "out") == contents(whole)


def test_a_pack_that_skipped_does_not_go_on_when_bad_samples_are_to_stop_it(some_bad: Path, tmp_path: Path) -> None:
    stopped(some_bad, tmp_path / "out", 6, to="tar", shard_size=3_000, on_error="skip")
    with pytest.raises(DataError, match=r"expected a JPEG that decodes"):
        pack(some_bad, tmp_path / "out", to="tar", shard_size=3_000, workers=1)


def test_reasons_are_grouped(some_bad: Path, tmp_path: Path) -> None:
    packed = pack(some_bad, tmp_path / "out", to="lmdb", on_error="skip", workers=2, shard_size=3_000)
    assert packed.rejected == 6
    assert sorted(packed.reasons.values()) == [3, 3]
    empty, truncated = sorted(packed.reasons, key=lambda reason: "JPEG" in reason)
    assert "empty file" in empty
    assert "premature end" in truncated
    assert str(some_bad) not in empty + truncated


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("limit", "enough"), [(6, True), (5, False), ("25%", True), ("24.9%", False), (0, False), ("100%", True)])
def test_bad_samples_are_limited(limit: int | str, enough: bool, workers: int, some_bad: Path, tmp_path: Path) -> None:
    options = {"to": "tar", "on_error": "skip", "shard_size": 3_000, "workers": workers}
    if enough:
        assert pack(some_bad, tmp_path / "out", max_errors=limit, **options).rejected == 6
        return
    with pytest.raises(DataError, match=r"expected at most .* bad samples, got more, at --max-errors; the last: expected a"):
        pack(some_bad, tmp_path / "out", max_errors=limit, **options)
    with pytest.raises(DatasetError):
        Dataset(tmp_path / "out")
    assert pack(some_bad, tmp_path / "out", **options).rejected == 6


def test_a_lower_limit_counts_what_was_skipped_before(some_bad: Path, tmp_path: Path) -> None:
    options = {"to": "tar", "on_error": "skip", "shard_size": 3_000, "workers": 1}
    with pytest.raises(DataError, match="at most 5 bad samples"):
        pack(some_bad, tmp_path / "out", max_errors=5, **options)
    with pytest.raises(DataError, match="at most 2 bad samples, got more, at --max-errors; the last: expected a"):
        pack(some_bad, tmp_path / "out", max_errors=2, **options)


def test_reasons_do_not_tell_places_apart(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("image,label\n" + "".join(f"gone{i}.jpg,{i % 2}\n" for i in range(9)) + "here.png,1\n")
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "here.png")
    packed = pack(tmp_path / "all.csv", tmp_path / "out", to="tar", on_error="skip")
    assert packed.reasons == {"expected a file, got No such file or directory": 9}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_shuffled_samples_are_mixed_among_the_parts_of_a_shard(kind: str, tmp_path: Path) -> None:
    """Case 91: of 20,000 rows sorted by label, neighbours are alike no more often than by chance."""
    labels = np.repeat(np.arange(10), 2000)
    if kind == "jsonl":
        (tmp_path / "x.jsonl").write_text("".join(f'{{"label": {label}, "text": "{"a" * 100}"}}\n' for label in labels.tolist()))
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pytest.importorskip("pyarrow").table({"label": labels, "text": ["a" * 100] * len(labels)})
        parquet.write_table(table, tmp_path / "x.parquet", row_group_size=400)
    packed = pack(tmp_path / f"x.{kind}", tmp_path / "out", to="mmap", shuffle=1)
    found = Dataset(tmp_path / "out").column("label")
    assert packed.num_samples == 20_000
    assert np.bincount(found).tolist() == [2000] * 10
    assert 0.08 < (found[1:] == found[:-1]).mean() < 0.16


def test_a_share_of_an_unknown_number_is_judged_at_the_end(tmp_path: Path) -> None:
    samples = [{"x": 1} if i % 4 else {"x": "no number"} for i in range(400)]
    samples[0] = {"x": 1}
    whole = ({"x": 1} if i < 1000 else sample for i, sample in enumerate([{"x": 1}] * 1000 + samples))
    with pytest.raises(DataError, match=r"expected at most 5 % of bad samples, got 99 of 1400, at --max-errors"):
        pack(whole, tmp_path / "out", to="tar", on_error="skip", max_errors="5%")


@pytest.mark.parametrize("limit", ["x", "-1", "101%", "1.5", "%", "1e3"])
def test_what_is_no_limit_is_refused(limit: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected a number of samples such as 100, or a share such as 0\.5%"):
        pack(photos, tmp_path / "out", to="tar", on_error="skip", max_errors=limit)
    with pytest.raises(ArgumentError, match="expected --on-error skip beside --max-errors"):
        pack(photos, tmp_path / "out", to="tar", max_errors=1)


# --- many machines ---


@pytest.mark.parametrize("store", STORES)
def test_parts_in_any_order_make_the_bytes_of_one_machine(store: str, photos: Path, tmp_path: Path, contents: Contents) -> None:
    """Case 59: shards are finished in a shuffled order, by several processes."""
    options = {"to": store, "shard_size": 9_000, "shuffle": 7}
    whole = packed_whole(photos, tmp_path / "whole", **options)
    totals = []
    for number in (3, 1, 5, 2, 4):
        packed = pack(photos, tmp_path / "out", part=f"{number}/5", workers=1 + number % 2, **options)
        assert (packed.part, packed.resumed) == (f"{number}/5", 0)
        totals.append(packed.num_samples)
        with pytest.raises(DatasetError, match="incomplete"):
            Dataset(tmp_path / "out")
    assert sum(totals) == 24
    assert min(totals) > 0
    packed = commit(tmp_path / "out")
    assert (packed.num_samples, packed.part) == (24, None)
    assert packed.fingerprint == Dataset(whole).manifest.fingerprint
    assert contents(tmp_path / "out") == contents(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_a_commit_without_all_parts_says_which_are_missing(photos: Path, tmp_path: Path) -> None:
    options = {"to": "tar", "shard_size": 9_000}
    with pytest.raises(DatasetError, match=r"expected parts of a dataset, got none"):
        commit(tmp_path / "out")
    pack(photos, tmp_path / "out", part="2/4", **options)
    with pytest.raises(DatasetError, match=r"expected \d+ shards, got \d+, at .*: pack part 1, 3, 4 of 4 again"):
        commit(tmp_path / "out")
    for number in (1, 3, 4):
        pack(photos, tmp_path / "out", part=f"{number}/4", **options)
    (tmp_path / "out.partial/shards/00002.tar").unlink()
    with pytest.raises(DatasetError, match=r"pack part 3 of 4 again"):
        commit(tmp_path / "out")
    pack(photos, tmp_path / "out", part="3/4", **options)
    assert commit(tmp_path / "out").num_samples == 24
    assert commit(tmp_path / "out").already


def test_parts_on_other_terms_are_refused(photos: Path, tmp_path: Path) -> None:
    options = {"to": "tar", "shard_size": 9_000}
    pack(photos, tmp_path / "out", part="2/4", **options)
    with pytest.raises(DatasetError, match=r"number of parts \(there 4, asked 5\)"):
        pack(photos, tmp_path / "out", part="1/5", **options)
    with pytest.raises(DatasetError, match=r"quality \(there None, asked 40\)"):
        pack(photos, tmp_path / "out", part="1/4", quality=40, **options)
    with pytest.raises(DatasetError, match=r"quality \(there None, asked 40\)"):
        pack(photos, tmp_path / "out", part="1/4", quality=40, overwrite=True, **options)


def test_one_process_may_finish_what_parts_have_begun(photos: Path, tmp_path: Path, contents: Contents) -> None:
    options = {"to": "tar", "shard_size": 9_000}
    pack(photos, tmp_path / "out", part="2/4", **options)
    assert pack(photos, tmp_path / "out", **options).resumed > 0
    assert contents(tmp_path / "out") == contents(packed_whole(photos, tmp_path / "whole", **options))


@pytest.mark.parametrize("part", ["0/4", "5/4", "3", "a/b", "1/0", "-1/4", "1/4/2"])
def test_what_is_no_part_is_refused(part: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected a part such as 3/16, counted from 1"):
        pack(photos, tmp_path / "out", to="tar", part=part)


def test_parts_at_the_same_time_do_not_disturb_each_other(photos: Path, tmp_path: Path, contents: Contents) -> None:
    """One part is started, and ended, while another is under way; a whole pack is kept out meanwhile."""
    options = {"to": "lmdb", "shard_size": 9_000}
    seen: list[str] = []

    def meanwhile(_: Progress) -> None:
        if not seen:
            seen.append(pack(photos, tmp_path / "out", part="2/2", workers=1, **options).part or "")
            for again in ("1/2", None):
                with pytest.raises(DatasetError, match="got another pack that is writing"):
                    pack(photos, tmp_path / "out", part=again, workers=1, **options)

    pack(photos, tmp_path / "out", part="1/2", workers=1, progress=meanwhile, **options)
    assert seen == ["2/2"]
    commit(tmp_path / "out")
    assert contents(tmp_path / "out") == contents(packed_whole(photos, tmp_path / "whole", **options))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def test_an_iterable_has_no_parts(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected a source that can be read in any order with --part, got an iterable"):
        pack(iter([{"a": 1}]), tmp_path / "out", to="tar", part="1/2")


# --- classes ---


def test_another_class_table_numbers_the_labels(photos: Path, own_photos: Path, tmp_path: Path) -> None:
    """Case 26: by a file, by JSON, by a dataset; classes that nobody has keep their place."""
    (tmp_path / "names.txt").write_text("eel\ndog\nfox\ncat\n")
    packed = pack(photos, tmp_path / "a", to="tar", classes=tmp_path / "names.txt")
    assert packed.classes == ("eel", "dog", "fox", "cat")
    dataset = Dataset(tmp_path / "a", fields=("label", "key"))
    assert {(dataset[i]["key"].split("/")[0], int(dataset[i]["label"])) for i in range(24)} == {("eel", 0), ("dog", 1), ("cat", 3)}
    (tmp_path / "names.json").write_text('{"cat": 3, "dog": 1, "fox": 2, "eel": 0}')
    for table in (tmp_path / "names.json", tmp_path / "a"):
        pack(photos, tmp_path / "b", to="tar", classes=table, overwrite=True)
        assert Dataset(tmp_path / "b").manifest.fingerprint == dataset.manifest.fingerprint
    (own_photos / "gnu").mkdir()
    shutil.copy(listed(own_photos)[0], own_photos / "gnu")
    with pytest.raises(ArgumentError, match=r"expected classes of the table that was given, got also 'gnu', at --classes"):
        pack(own_photos, tmp_path / "c", to="tar", classes=tmp_path / "a")
    with pytest.raises(DatasetError, match="got other classes"):
        pack(photos, tmp_path / "a", to="tar")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "names.txt", "expected a list of class names"),
        ("a\nb\na\n", "names.txt", "expected every class once, got 'a' again"),
        ('{"a": 0, "b": 2}', "names.json", "expected labels 0 to 1, each once"),
        ("[1, 2]", "names.json", "expected a list of class names"),
        ("[", "names.json", "expected a file of class names or a dataset"),
        ("a", "elsewhere.txt", "expected a file of class names or a dataset"),
    ],
)
def test_what_is_no_class_table_is_refused(text: str, name: str, message: str, photos: Path, tmp_path: Path) -> None:
    (tmp_path / name.replace("elsewhere", "here")).write_text(text)
    with pytest.raises(ArgumentError, match=f"{message}.*at --classes"):
        pack(photos, tmp_path / "out", to="tar", classes=tmp_path / name)


@pytest.mark.parametrize(("store", "shuffle", "warned"), [("tar", None, True), ("tar", 1, False), ("mmap", None, False)])
def test_sorted_labels_are_warned_of_where_shards_are_read_in_order(
    store: str, shuffle: int | None, warned: bool, photos: Path, tmp_path: Path
) -> None:
    """Case 91."""
    packed = pack(photos, tmp_path / "out", to=store, shuffle=shuffle)
    assert [("sorted by 'label'" in warning and "--shuffle" in warning) for warning in packed.warnings] == [True] * warned
