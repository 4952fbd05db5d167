"""Contests: the same work for all, in turn, and what was done is held against the source."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import contest, pack
from benchmarks.contest import Contestant, Row, Work
from benchmarks.contestants.base import Photo, digest, list_photos, measures, split

BYTES = digest([("cat/1", 0, b"one"), ("dog/2", 1, b"two")])
PICTURES = measures([("cat/1", 0, 341, 256, (10.0, 20.0, 30.0)), ("dog/2", 1, 256, 341, (0.0, 0.0, 0.0))])


def test_the_digest_of_a_dataset_depends_on_keys_labels_and_bytes_and_not_on_their_order() -> None:
    assert digest([("dog/2", 1, b"two"), ("cat/1", 0, b"one")]) == BYTES
    others = ([("cat/1", 0, b"one")], [("cat/1", 0, b"two"), ("dog/2", 1, b"one")], [("cat/1", 1, b"one"), ("dog/2", 1, b"two")])
    assert all(digest(other)["sha256"] != BYTES["sha256"] for other in others)


def test_equal_work_is_told_from_other_work() -> None:
    """case 126: same samples and same output checked by checksum."""
    assert contest.difference(BYTES, dict(BYTES)) is None
    assert contest.difference(BYTES, {**BYTES, "num_samples": 1}) == "other work: 1 of 2 samples"
    assert contest.difference(BYTES, {**BYTES, "sha256": "0"}) == "other work: other bytes, keys or labels"


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        ([0, 342, 255, 11.9, 18.1, 30.0], None),
        ([1, 341, 256, 10.0, 20.0, 30.0], "other work: 1 of 2 pictures of another label"),
        ([0, 341, 254, 10.0, 20.0, 30.0], "other work: 1 of 2 pictures of another size"),
        ([0, 341, 256, 10.0, 20.0, 32.1], "other work: 1 of 2 pictures of another colour"),
    ],
)
def test_pictures_that_were_encoded_anew_may_differ_by_a_pixel_and_two_levels(picture: list[float], said: str | None) -> None:
    assert contest.difference(PICTURES, {"num_samples": 2, "pictures": {**PICTURES["pictures"], "cat/1": picture}}) == said


def test_pictures_under_other_keys_are_other_work() -> None:
    found = {"cat/1": PICTURES["pictures"]["cat/1"], "dog/3": PICTURES["pictures"]["dog/2"]}
    assert contest.difference(PICTURES, {"num_samples": 2, "pictures": found}) == "other work: 1 keys are missing"


@given(num=st.integers(1, 9), rounds=st.integers(1, 9))
def test_every_round_has_everybody_and_all_begin_equally_often(num: int, rounds: int) -> None:
    orders = [contest.order(num, number) for number in range(rounds)]
    assert all(sorted(one) == list(range(num)) for one in orders)
    begun = Counter(one[0] for one in orders)
    assert max(begun.values()) - min(begun[i] for i in range(num)) <= 1


@given(num_photos=st.integers(0, 30), num=st.integers(1, 5))
def test_a_list_is_split_into_runs_of_almost_equal_length(num_photos: int, num: int) -> None:
    photos = [Photo(str(i), str(i), i) for i in range(num_photos)]
    runs = split(photos, num)
    assert list(itertools.chain(*runs)) == photos
    assert len(runs) == num
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


def a_row(name: str, *seconds: float, trouble: str | None = None) -> Row:
    return Row(name, [{"seconds": one - 0.25, "sync_s": 0.25, "nbytes": 2_000_000} for one in seconds], 50.0, trouble)


def test_the_table_has_medians_spread_and_the_ratio_to_the_first() -> None:
    ours, peer, other = contest.table(
        [a_row("ours", 3, 1, 2), a_row("peer", 5), a_row("other", 1, trouble="failed: no")], 100
    ).splitlines()[1:]
    assert ours.split() == ["ours", "2.00", "(1.00", "to", "3.00)", "1.75", "50", "2.0", "50", "1.00x"]
    assert peer.split() == ["peer", "5.00", "(5.00", "to", "5.00)", "4.75", "20", "2.0", "50", "2.50x"]
    assert other.split() == ["other", "failed:", "no"]


def test_nobody_is_compared_with_a_first_one_that_did_other_work() -> None:
    rows = [a_row("ours", 1, trouble="other work: 1 of 2 samples"), a_row("peer", 5)]
    assert not contest.table(rows, 100).splitlines()[2].endswith("x")


def test_a_contest_compares_what_did_the_same_work_and_says_why_others_did_not(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 126: a warm-up that is not counted, several rounds, the same samples."""
    monkeypatch.setenv("FASTDATA_PEERS", str(tmp_path / "peers"))
    contestants = [
        Contestant("ours", "fastdata", {"to": "tar", "validate": False}),
        Contestant("tar", "tar"),
        Contestant("wrong", "fastdata", {"to": "nowhere"}),
        Contestant("absent", "webdataset", peer="webdataset"),
    ]
    ours, tar, wrong, absent = contest.compete(Work("store", "store", lambda: pack.stored(photos), contestants), photos, 2, 2)
    assert ours.trouble is None
    assert tar.trouble is None
    assert [len(row.rounds) for row in (ours, tar, wrong, absent)] == [2, 2, 0, 0]
    assert all(done["nbytes"] > sum(path.stat().st_size for path in photos.rglob("*.jpg")) for done in ours.rounds + tar.rounds)
    assert ours.peak_mb > 0
    assert "expected one of ['hdf5', 'lmdb', 'mmap', 'tar'], got 'nowhere'" in (wrong.trouble or "")
    assert "expected the peer webdataset, got none" in (absent.trouble or "")


def test_a_contestant_that_lost_a_sample_is_not_compared(own_photos: Path) -> None:
    expected = pack.stored(own_photos)
    next(own_photos.rglob("*.jpg")).unlink()
    (row,) = contest.compete(Work("store", "store", lambda: expected, [Contestant("tar", "tar")]), own_photos, 2, 1)
    assert row.trouble == "other work: 23 of 24 samples"


@pytest.mark.parametrize(("work", "options"), [("validate", {}), ("resize", {"image": "jpeg", "resize_long": 32, "quality": 90})])
def test_what_pillow_makes_of_the_source_is_what_a_pack_holds(
    photos: Path, monkeypatch: pytest.MonkeyPatch, work: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(pack, "LONG_SIDE", 32)
    expected = {"validate": pack.sizes, "resize": pack.resized}[work]
    contestants = [Contestant("ours", "fastdata", {"to": "tar", **options})]
    contestants += [Contestant("decoder", "decode")] if work == "validate" else []
    rows = contest.compete(Work(work, work, lambda: expected(photos), contestants), photos, 2, 1)
    assert [row.trouble for row in rows] == [None] * len(contestants)


def test_memory_is_watched_of_a_process_and_its_children() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'held = b\"1\" * 300_000_000; print(flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        with contest.watching(process.pid) as peaks:
            pass
        process.stdin.write(b"\n")
    assert max(peaks) > 300_000_000


def test_a_contestant_that_does_not_end_is_told_of(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "LIMIT_S", 0)
    (row,) = contest.compete(Work("store", "store", dict, [Contestant("tar", "tar")]), photos, 2, 1)
    assert row.trouble == "failed: no end after 0 s"


def test_with_a_contestant_ends_what_it_has_started() -> None:
    child = "import signal; signal.pause()"
    script = f"import signal, subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); print(flush=True); signal.pause()"
    out, into = os.pipe()
    with open(out, "rb") as ended:
        with open(into, "wb") as said, contest.start([sys.executable, "-c", script], said) as process:
            assert process.stdout is not None
            process.stdout.readline()
        # The pipe ends when nobody is left who could write to it.
        assert select.select([ended], [], [], 60)[0] == [ended]
        assert ended.read() == b""


def test_a_corpus_is_made_of_real_copies_once(photos: Path, tmp_path: Path) -> None:
    nbytes = 2 * sum(path.stat().st_size for path in photos.rglob("*.jpg")) + 1
    made = pack.corpus(photos, nbytes, tmp_path)
    copies = list_photos(str(made))
    assert [photo.label for photo in copies[:1] + copies[-1:]] == [0, 2]
    assert len(copies) == 2 * 24 + 1
    assert sum(os.path.getsize(photo.path) for photo in copies) >= nbytes
    assert all(os.stat(photo.path).st_nlink == 1 and not os.path.islink(photo.path) for photo in copies)
    before = made.stat().st_mtime_ns
    assert pack.corpus(photos, nbytes, tmp_path) == made
    assert made.stat().st_mtime_ns == before
    assert list(tmp_path.iterdir()) == [made]


def test_another_source_makes_another_corpus(own_photos: Path, tmp_path: Path) -> None:
    made = pack.corpus(own_photos, 1000, tmp_path / "cache")
    shutil.rmtree(own_photos / "cat")
    assert pack.corpus(own_photos, 1000, tmp_path / "cache") != made


def test_columns_and_journal_of_a_pack_are_weighed(photos: Path) -> None:
    held = pack.footprint(photos, 1)
    assert held["columns"] > 16  # a digest alone has as many
    assert held["journal"] > 16


def test_measurements_are_plain_json() -> None:
    (row,) = json.loads(json.dumps(contest.to_json([a_row("ours", 3, 1, 2)])))
    assert row["median_s"] == 2
    assert [done["seconds"] for done in row["rounds"]] == [2.75, 0.75, 1.75]


def test_the_same_measurements_give_the_same_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    panels = {"store": [a_row("ours", 3, 1, 2), a_row("peer", 5), a_row("other", 1, trouble="failed: no")]}
    for name in ("a.svg", "b.svg"):
        contest.plot(panels, tmp_path / name)
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn == (tmp_path / "b.svg").read_text()
    assert all(word in drawn for word in ("store", "ours", "peer", "2.00 s"))
    assert "other" not in drawn
