"""The environments of peers: what is there, what is not, and why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import contest, pack, peers

ROOT = Path(peers.__file__).parents[1]


@pytest.mark.parametrize("command", [["-m", "benchmarks.peers"], ["benchmarks/peers.py"]])
def test_the_list_names_every_peer_and_how_to_get_it(tmp_path: Path, command: list[str]) -> None:
    settings = {**os.environ, "FASTDATA_PEERS": str(tmp_path)}
    done = subprocess.run([sys.executable, *command, "list"], cwd=ROOT, env=settings, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(peers.PEERS)
    assert all(f"got none, at {tmp_path / name}: python -m benchmarks.peers install {name}" in done.stdout for name in peers.PEERS)


def test_a_name_that_is_no_peer_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "install", "nobody"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "got nobody" in done.stderr


def test_a_peer_in_other_versions_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDATA_PEERS", str(tmp_path))
    python = tmp_path / "webdataset" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    stamp = tmp_path / "webdataset" / "requirements.txt"
    stamp.write_text("webdataset==0.1\n")
    with pytest.raises(peers.Trouble, match=r"expected webdataset==.*, got others"):
        peers.interpreter("webdataset")
    stamp.write_text("".join(f"{requirement}\n" for requirement in peers.PEERS["webdataset"].requirements))
    assert peers.interpreter("webdataset") == python


def test_the_running_python_is_chosen_where_it_will_do_else_the_newest_that_does() -> None:
    there = {"python3.10": "/a/python3.10", "python3.11": "/a/python3.11"}
    assert peers.choose_python("x", (10, 12), 12, there.get) == sys.executable
    assert peers.choose_python("x", (10, 12), 13, there.get) == "/a/python3.11"
    with pytest.raises(peers.Trouble, match=re.escape("expected Python 3.12 to 3.13 for x, got 3.14 and no other on the path")):
        peers.choose_python("x", (12, 13), 14, there.get)


def test_every_requirement_has_an_exact_version() -> None:
    assert all("==" in requirement for peer in peers.PEERS.values() for requirement in peer.requirements)


def test_what_pip_cannot_install_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDATA_PEERS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setitem(peers.PEERS, "nobody", peers.Peer(("fastdata-no-such-package==1.0",), ("nobody",)))
    with pytest.raises(
        peers.Trouble, match=r"expected to install fastdata-no-such-package==1\.0, got: ERROR: .*; all of it is in .*nobody\.log"
    ):
        peers.install("nobody")
    with pytest.raises(peers.Trouble, match="expected the peer nobody"):
        peers.interpreter("nobody")


def test_every_contestant_has_a_module_and_a_known_peer(tmp_path: Path) -> None:
    for work in pack.works(tmp_path):
        for contestant in work.contestants:
            assert (Path(contest.__file__).parent / "contestants" / f"{contestant.module}.py").is_file()
            assert contestant.peer is None or contestant.peer in peers.PEERS
