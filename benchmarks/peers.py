"""The packages that benchmarks compare with, each in an environment of its own, so that none bends another's versions.

python -m benchmarks.peers list
python -m benchmarks.peers install NAME...
python -m benchmarks.peers remove NAME...

Environments are made under ~/.cache/fastdata-peers, or where FASTDATA_PEERS says, by venv and pip alone. System packages that a peer is
built with are named where they are missing, never installed. A new peer is one entry of `PEERS`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

TORCH = ("torch==2.13.0",)
TORCHVISION = ("torch==2.14.1", "torchvision==0.29.1")
"""Of peers that import torchvision, which wants the very build of torch that it was made with: some 6 GB on disk."""


class Trouble(Exception):
    """A sentence for whoever wants a peer that cannot be had."""


@dataclass(frozen=True)
class Peer:
    """How a peer is installed.

    Attributes:
        requirements: for pip, with exact versions.
        modules: what must import afterwards.
        debian: packages that it is built with.
        pythons: the lowest and the highest minor version of Python 3 that it runs on.
    """

    requirements: tuple[str, ...]
    modules: tuple[str, ...]
    debian: tuple[str, ...] = ()
    pythons: tuple[int, int] = (10, 14)


PEERS = {
    "ffcv": Peer(
        # Its package does not name pillow, which it imports.
        (*TORCH, "ffcv==1.0.2", "numba==0.68.1", "numpy==2.4.6", "opencv-python==5.0.0.93", "pillow==13.0.0"),
        ("ffcv.writer", "ffcv.reader"),
        ("g++", "pkg-config", "libopencv-dev", "libturbojpeg0-dev"),
        (11, 13),
    ),
    "litdata": Peer((*TORCH, "litdata==0.2.76"), ("litdata",)),
    "streaming": Peer((*TORCHVISION, "mosaicml-streaming==0.13.0"), ("streaming",), pythons=(10, 13)),
    "webdataset": Peer(("webdataset==1.0.2",), ("webdataset",)),
}


def root() -> Path:
    """Where the environments are."""
    return Path(os.environ.get("FASTDATA_PEERS") or "~/.cache/fastdata-peers").expanduser().absolute()


def interpreter(name: str) -> Path:
    """The Python of a peer.

    Raises:
        Trouble: it is not installed, or in other versions.
    """
    folder = root() / name
    stamp = folder / "requirements.txt"  # written last
    if not stamp.exists():
        raise Trouble(f"expected the peer {name}, got none, at {folder}: python -m benchmarks.peers install {name}")
    if stamp.read_text() != _stamp(PEERS[name]):
        raise Trouble(f"expected {' '.join(PEERS[name].requirements)}, got others, at {folder}: python -m benchmarks.peers install {name}")
    return folder / "bin" / "python"


def install(name: str) -> None:
    """Make the environment of a peer, in place of one that is there.

    Raises:
        Trouble: it cannot be had here.
    """
    peer, folder = PEERS[name], root() / name
    python = choose_python(name, peer.pythons, sys.version_info[1], shutil.which)
    if missing := _missing_debian(peer.debian):
        raise Trouble(f"expected the system packages of {name}, got none of {', '.join(missing)}: apt-get install {' '.join(missing)}")
    shutil.rmtree(folder, ignore_errors=True)
    log = root() / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    own = folder / "bin" / "python"
    steps: dict[str, list[str | Path]] = {
        "make an environment": [python, "-m", "venv", folder],
        f"install {' '.join(peer.requirements)}": [own, "-m", "pip", "install", "--quiet", *peer.requirements],
        f"import {', '.join(peer.modules)}": [own, "-c", f"import {', '.join(peer.modules)}"],
    }
    with open(log, "wb") as output:
        for what, command in steps.items():
            if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=root(), check=False).returncode:
                lines = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
                why = next((line for line in reversed(lines) if "rror" in line), lines[-1]).strip()
                raise Trouble(f"expected to {what}, got: {why}; all of it is in {log}")
    log.unlink()
    (folder / "requirements.txt").write_text(_stamp(peer))


def _stamp(peer: Peer) -> str:
    return "".join(f"{requirement}\n" for requirement in peer.requirements)


def choose_python(name: str, pythons: tuple[int, int], running: int, which: Callable[[str], str | None]) -> str:
    """Choose this Python where it will do, else the newest on the path that does.

    Raises:
        Trouble: there is none.
    """
    lowest, highest = pythons
    if lowest <= running <= highest:
        return sys.executable
    for minor in range(highest, lowest - 1, -1):
        if found := which(f"python3.{minor}"):
            return found
    raise Trouble(f"expected Python 3.{lowest} to 3.{highest} for {name}, got 3.{running} and no other on the path")


def _missing_debian(packages: Sequence[str]) -> list[str]:
    """Which system packages are not there; none where nobody can tell."""
    if not packages or not shutil.which("dpkg-query"):
        return []
    command = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *packages]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [package for package in packages if f"{package} installed\n" not in told]


def _state(name: str) -> str:
    try:
        interpreter(name)
    except Trouble as trouble:
        return str(trouble)
    return f"installed: {' '.join(PEERS[name].requirements)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("list", "install", "remove"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PEERS))
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - PEERS.keys()):
        parser.error(f"expected names of {', '.join(PEERS)}, got {', '.join(unknown)}")
    if args.command != "list" and not args.names:
        parser.error(f"expected names, got none: {', '.join(PEERS)}")
    failed = False
    for name in args.names or PEERS:
        if args.command == "remove":
            shutil.rmtree(root() / name, ignore_errors=True)
        elif args.command == "install":
            try:
                install(name)
            except Trouble as trouble:
                failed = True
                print(f"{name:12}{trouble}")
                continue
        print(f"{name:12}{_state(name)}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
