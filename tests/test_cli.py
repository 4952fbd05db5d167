"""The command line: exit codes, one clear sentence for every mistake, and a light start."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata import registry
from fastdata.dataset import Dataset
from fastdata.packing import pack

ROOT = Path(__file__).resolve().parents[1]
STORES = registry.names("fastdata.stores")
HEAVY = ("torch", "h5py", "lmdb", "cv2", "webdataset", "PIL", "simplejpeg", "turbojpeg", "rich.progress")
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def packed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tar dataset, read only."""
    out = tmp_path_factory.mktemp("cli") / "out"
    pack(photos, out, to="tar", workers=1, shard_size=9000)
    return out


def loaded_by(code: str) -> list[str]:
    """Which of the heavy packages a fresh interpreter has loaded after `code`."""
    script = f"import sys\n{code}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    found: list[str] = eval(done.stdout.splitlines()[-1])
    return found


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import fastdata") == []


def test_help_loads_nothing_heavy() -> None:
    code = "from fastdata.cli import app\nfor arguments in (['--help'], ['pack', '--help']):\n    app(arguments, standalone_mode=False)"
    assert loaded_by(code) == []


def test_packing_text_loads_no_torch() -> None:
    code = "import tempfile, fastdata\nfastdata.pack([{'text': 'x'}], tempfile.mkdtemp() + '/out', to='tar', workers=1)"
    assert loaded_by(code) == []


def test_help_shows_every_command_and_store(fastdata: Command) -> None:
    ran = fastdata("--help")
    assert ran.code == 0
    assert all(command in ran.out for command in ("pack", "info", "verify", "bench"))
    ran = fastdata("pack", "--help")
    assert ran.code == 0
    assert all(name in ran.out for name in (*STORES, *registry.names("fastdata.sources")))
    flags = "--to --source --workers --shard-size --shuffle --image --resize-short --resize-long --resize --quality --on-error --overwrite --json"
    assert all(flag in ran.out for flag in flags.split())


def mistaken(ran: Any, code: int, *words: str) -> None:
    """It ended with `code` and one sentence that has all the words, nothing else."""
    assert ran.code == code, ran
    assert ran.out == "", ran
    assert len(ran.err.splitlines()) == 1, ran
    assert ran.err.startswith("error: expected "), ran
    for word in words:
        assert word in ran.err, ran


def test_mistakes_of_usage_end_with_2_and_one_sentence(fastdata: Command, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    mistaken(fastdata("pack", tmp_path / "missing", out, "--to", "tar"), 2, "got nothing", str(tmp_path / "missing"))
    mistaken(fastdata("pack", tmp_path / "empty", out, "--to", "tar"), 2, str(tmp_path / "empty"))
    mistaken(fastdata("pack", photos, out, "--to", "lmbd"), 2, "['hdf5', 'lmdb', 'mmap', 'tar'], got 'lmbd', at --to")
    mistaken(fastdata("pack", photos, out, "--to", "tar", "--image", "gif"), 2, "at --image")
    mistaken(fastdata("pack", photos, out, "--to", "tar", "--shard-size", "big"), 2, "256MB", "--shard-size")
    mistaken(fastdata("pack", photos, out, "--to", "tar", "--resize", "9", "--resize-long", "9"), 2, "--resize-long and --resize")
    mistaken(fastdata("pack", photos, photos / "out", "--to", "tar"), 2, "outside of the source")
    mistaken(fastdata("pack", photos, out, "--to", "tar", "--workers", "0"), 2, "--workers")
    assert not out.exists()


def test_a_flag_or_command_that_is_not_there_ends_with_2(fastdata: Command, photos: Path, tmp_path: Path) -> None:
    for arguments in (
        ["pack", photos, tmp_path / "out"],
        ["pack", photos, tmp_path / "out", "--to", "tar", "--fast"],
        ["pack", photos, tmp_path / "out", "--to", "tar", "--workers", "many"],
        ["pick"],
    ):
        ran = fastdata(*arguments)
        assert ran.code == 2, ran
        assert "Traceback" not in ran.err
        assert "Error" in ran.err


def test_trouble_with_data_ends_with_1_and_one_sentence(fastdata: Command, own_photos: Path, packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/thesis.txt").write_text("")
    mistaken(fastdata("pack", own_photos, tmp_path / "taken", "--to", "tar"), 1, str(tmp_path / "taken"), "not touched")
    mistaken(fastdata("pack", own_photos, packed, "--to", "lmdb"), 1, "to (there 'tar', asked 'lmdb')", "--overwrite")
    victim = own_photos / "cat/000.jpg"
    victim.write_bytes(victim.read_bytes()[:-200])
    mistaken(fastdata("pack", own_photos, out, "--to", "tar"), 1, str(victim), "JPEG", "'image'")
    assert not out.exists()
    for path in own_photos.glob("*/*"):
        path.write_bytes(b"")
    mistaken(fastdata("pack", own_photos, out, "--to", "tar", "--on-error", "skip"), 1, "at least one good sample")
    assert not out.exists()


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_folder_that_is_no_dataset_ends_with_1_and_one_sentence(command: str, fastdata: Command, packed: Path, tmp_path: Path) -> None:
    mistaken(fastdata(command, tmp_path / "missing"), 1, "got nothing", str(tmp_path / "missing"))
    mistaken(fastdata(command, tmp_path), 1, "a folder without one", str(tmp_path))
    newer = tmp_path / "newer"
    shutil.copytree(packed, newer)
    document = json.loads((newer / "manifest.json").read_text())
    (newer / "manifest.json").write_text(json.dumps({**document, "fastdata": 2}))
    mistaken(fastdata(command, newer), 1, "version 1, got 2", "update fastdata", str(newer))
    (newer / "manifest.json").write_text("{")
    mistaken(fastdata(command, newer), 1, "expected a manifest", str(newer / "manifest.json"))


def test_packing_says_what_it_did_and_does_it_once(fastdata: Command, photos: Path, tmp_path: Path) -> None:
    ran = fastdata("pack", photos, tmp_path / "out", "--to", "mmap", "--workers", "2")
    assert ran.code == 0, ran
    assert ran.err == ""
    assert "classes: 0 cat, 1 dog, 2 eel" in ran.out
    assert "packed: 24 samples, 1 shards" in ran.out
    ran = fastdata("pack", photos, tmp_path / "out", "--to", "mmap")
    assert ran.code == 0, ran
    assert f"already packed: 24 samples at {tmp_path / 'out'}" in ran.out
    ran = fastdata("pack", photos, tmp_path / "out", "--to", "tar", "--overwrite")
    assert ran.code == 0, ran
    assert Dataset(tmp_path / "out").manifest.store == "tar"


def test_skipped_samples_are_counted_and_the_exit_code_is_0(fastdata: Command, own_photos: Path, tmp_path: Path) -> None:
    """Case 1: done, with the number of what was left out."""
    (own_photos / "cat/000.jpg").write_bytes(b"")
    ran = fastdata("pack", own_photos, tmp_path / "out", "--to", "tar", "--on-error", "skip")
    assert ran.code == 0, ran
    assert "packed: 23 samples, 1 skipped (see rejects.jsonl)" in ran.out


def test_json_is_one_object(fastdata: Command, photos: Path, tmp_path: Path) -> None:
    def parsed(*arguments: str | Path, code: int = 0) -> Any:
        ran = fastdata(*arguments, "--json")
        assert ran.code == code, ran
        assert len(ran.out.splitlines()) == 1
        return json.loads(ran.out)

    out = tmp_path / "out"
    first = parsed("pack", photos, out, "--to", "lmdb", "--shard-size", "9000")
    assert (first["num_samples"], first["store"], first["already"], first["rejected"]) == (24, "lmdb", False, 0)
    assert first["classes"] == ["cat", "dog", "eel"]
    assert parsed("pack", photos, out, "--to", "lmdb", "--shard-size", "9000")["already"] is True

    info = parsed("info", out)
    files = sorted(photos.glob("*/*"))
    assert (info["version"], info["store"], info["num_samples"]) == (1, "lmdb", 24)
    assert info["fingerprint"] == first["fingerprint"]
    assert info["num_shards"] == first["num_shards"] > 2
    assert info["nbytes"] == sum(path.stat().st_size for path in (out / "shards").iterdir())
    assert info["classes"] == {name: len([*(photos / name).iterdir()]) for name in ("cat", "dog", "eel")}
    sizes = sorted(path.stat().st_size for path in files)
    assert info["fields"]["image"]["total_nbytes"] == sum(sizes)
    assert (info["fields"]["image"]["nbytes"]["min"], info["fields"]["image"]["nbytes"]["max"]) == (sizes[0], sizes[-1])

    verified = parsed("verify", out)
    assert verified["ok"] is True
    assert verified["problems"] == []
    shard = out / "shards/00001.lmdb"
    shard.write_bytes(shard.read_bytes()[:-1])
    verified = parsed("verify", out, code=1)
    assert verified["ok"] is False
    assert str(shard) in verified["problems"][0]


def test_a_pack_in_parts_is_committed(fastdata: Command, photos: Path, tmp_path: Path) -> None:
    for number in (2, 1):
        ran = fastdata("pack", photos, tmp_path / "out", "--to", "tar", "--part", f"{number}/2", "--shard-size", "9KB")
        assert ran.code == 0, ran
        assert f"packed part {number}/2: " in ran.out
        assert ran.out.splitlines()[-1] == f"when all parts are packed: fastdata commit {tmp_path / 'out'}"
        if number == 2:
            assert fastdata("commit", tmp_path / "out").err.startswith("error: expected")
    ran = fastdata("commit", tmp_path / "out")
    assert (ran.code, ran.out.splitlines()[-1].startswith("packed: 24 samples, ")) == (0, True), ran
    assert "classes: 0 cat, 1 dog, 2 eel" in ran.out
    assert "warning: samples lie sorted by 'label'" in ran.out
    assert fastdata("verify", tmp_path / "out", "--quick").out.startswith("sizes and counts: 24 samples")
    again = fastdata("commit", tmp_path / "out")
    assert (again.code, again.out.splitlines()[-1].startswith("already packed: 24 samples")) == (0, True)


def test_a_pack_that_fails_says_what_is_left_and_the_next_one_goes_on(fastdata: Command, own_photos: Path, tmp_path: Path) -> None:
    bad = own_photos / "eel/023.jpg"
    bad.write_bytes(bad.read_bytes()[:-300])
    command = ("pack", own_photos, tmp_path / "out", "--to", "tar", "--shard-size", "9KB", "--workers", "1")
    ran = fastdata(*command)
    assert ran.code == 1
    left, error = ran.err.splitlines()
    assert re.fullmatch(rf"unfinished: \d+ shards wait at {tmp_path}/out\.partial; the command that made them goes on from there", left)
    assert error.startswith("error: expected a JPEG")
    ran = fastdata(*command, "--on-error", "skip", "--max-errors", "10%")
    assert ran.code == 0, ran
    assert re.search(r"^skipped: 1: expected a JPEG that decodes, got premature end", ran.out, re.MULTILINE)
    assert re.search(r"^packed: 23 samples \(\d+ of them before\), 1 skipped", ran.out, re.MULTILINE)
    ran = fastdata(*command[:2], tmp_path / "other", *command[3:], "--on-error", "skip", "--max-errors", "0")
    assert (ran.code, "expected at most 0 bad samples" in ran.err) == (1, True)


def test_info_reads_no_shard(fastdata: Command, packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "out")
    shutil.rmtree(tmp_path / "out/shards")
    ran = fastdata("info", tmp_path / "out")
    assert ran.code == 0, ran
    assert "num_samples: 24" in ran.out


def test_info_tells_mean_and_deviation_of_the_pixels(fastdata: Command, photos: Path, packed: Path) -> None:
    described = json.loads(fastdata("info", packed, "--json").out)["fields"]["image"]
    dataset = Dataset(packed, fields=("image",))
    everything = np.concatenate([dataset[i]["image"].reshape(-1, 3) for i in range(len(dataset))]) / 255
    assert described["mean"] == pytest.approx(everything.mean(axis=0), abs=1e-6)
    assert described["std"] == pytest.approx(everything.std(axis=0), abs=1e-6)


def test_verify_ends_with_1_and_lists_what_is_wrong(fastdata: Command, packed: Path, tmp_path: Path) -> None:
    ran = fastdata("verify", packed)
    assert ran.code == 0, ran
    assert "all well" in ran.out
    shutil.copytree(packed, tmp_path / "out")
    (tmp_path / "out/shards/00000.tar").unlink()
    ran = fastdata("verify", tmp_path / "out")
    assert ran.code == 1, ran
    assert str(tmp_path / "out/shards/00000.tar") in ran.out
    assert len(ran.out.splitlines()) == 2
    assert "Traceback" not in ran.err


def test_bench_measures_and_says_where_a_shard_is_cut(fastdata: Command, packed: Path, tmp_path: Path) -> None:
    ran = fastdata("bench", packed, "--batch-size", "8", "--workers", "0", "--epochs", "2", "--json")
    assert ran.code == 0, ran
    measured = json.loads(ran.out)
    assert measured["samples_per_s"] > 0
    assert measured["num_samples"] == 24
    shutil.copytree(packed, tmp_path / "out")
    shard = tmp_path / "out/shards/00001.tar"
    shard.write_bytes(shard.read_bytes()[:-512])
    mistaken(fastdata("bench", tmp_path / "missing"), 1, "got nothing", str(tmp_path / "missing"))
    mistaken(fastdata("bench", tmp_path / "out", "--batch-size", "8", "--workers", "0"), 1, "cut short", str(shard))


def test_names_that_the_terminal_cannot_show_are_no_trouble(fastdata: Command, own_photos: Path, tmp_path: Path) -> None:
    """Case 29."""
    (own_photos / "cat").rename(os.fsdecode(os.fsencode(own_photos) + b"/\xff\xe6\x9d\xb1"))
    for settings in ({"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, {}):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        ran = fastdata("pack", own_photos, tmp_path / "out", "--to", "tar", **settings)
        assert ran.code == 0, ran
        assert ran.err == ""
        for command in ("info", "verify"):
            ran = fastdata(command, tmp_path / "out", **settings)
            assert ran.code == 0, ran
            assert ran.err == ""


def test_a_reader_that_has_enough_is_no_trouble(packed: Path) -> None:
    """`fastdata info out | head -1` ends quietly."""
    command = f"{sys.executable} -W error -m fastdata.cli info {packed} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.stderr == ""
