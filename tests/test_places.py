"""Where datasets lie: on disks that cannot be written to, under another user, in more shards than files may be open."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fastdata import registry
from fastdata.dataset import Dataset
from fastdata.packing import pack
from fastdata.packing.verify import verify
from fastdata.summary import info

STORES = registry.names("fastdata.stores")
NOBODY = 65534


def in_a_fork(function: Callable[[], None]) -> int | None:
    """Run in a process that may change its rights; 0 where nothing was raised."""
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    process.join(60)
    return process.exitcode


def read_all(root: Path) -> None:
    """Use a dataset in every way that reads."""
    dataset = Dataset(root)
    assert len(dataset.__getitems__(range(24))) == 24
    assert dataset.column("key")[0] == "cat/000.jpg"
    assert info(root)["num_samples"] == 24
    assert verify(root).problems == []


@pytest.fixture
def readonly(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Put a folder on a disk that is mounted read-only."""
    place = Path(tempfile.mkdtemp())  # not below tmp_path, which is closed to other users
    place.chmod(0o755)
    mount = ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        place.rmdir()
        pytest.skip(f"a read-only disk needs the right to mount one: {done.stderr.strip()}")

    def put(folder: Path) -> Path:
        shutil.copytree(folder, place / folder.name)
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        with pytest.raises(OSError, match="Read-only"):
            (place / folder.name / "x").touch()
        return place / folder.name

    yield put
    subprocess.run(["umount", "-l", place], check=True)
    place.rmdir()


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="mounts a disk and becomes another user, as root of Linux can")
@pytest.mark.parametrize("store", STORES)
def test_a_read_only_mount_and_a_user_without_rights_suffice(
    store: str, photos: Path, tmp_path: Path, readonly: Callable[[Path], Path]
) -> None:
    """Cases 57, 125."""
    pack(photos, tmp_path / "out", to=store, shard_size=12_000)
    root = readonly(tmp_path / "out")
    read_all(root)

    def as_nobody() -> None:
        os.setuid(NOBODY)
        read_all(root)

    assert in_a_fork(as_nobody) == 0


@pytest.mark.parametrize("store", STORES)
def test_more_shards_than_files_may_be_open_are_read(store: str, tmp_path: Path) -> None:
    """Twice the limit, at random."""
    limit = 450
    num_shards = 2 * limit
    np.save(tmp_path / "x.npy", np.arange(num_shards * 4).reshape(num_shards, 4))
    samples = [{"x": row, "t": "a text of more than eight bytes"} for row in np.load(tmp_path / "x.npy")]
    pack(samples, tmp_path / "out", to=store, shard_size=1)

    def read() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        dataset = Dataset(tmp_path / "out")
        assert info(tmp_path / "out")["num_shards"] == num_shards
        order = np.random.default_rng(0).permutation(num_shards)
        for i in range(0, num_shards, 50):
            batch = dataset.__getitems__(order[i : i + 50])
            assert [sample["x"][0] for sample in batch] == (4 * order[i : i + 50]).tolist()

    assert in_a_fork(read) == 0
