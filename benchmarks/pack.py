"""How long it takes to make a dataset of photos: this package beside its peers, in the same work with the same number of processes.

python -m benchmarks.pack PHOTOS [--works store validate resize] [--workers 2] [--rounds 5] [--nbytes 1GB] [--json FILE] [--plot FILE.svg]

PHOTOS is a folder of class folders of JPEGs; its files are copied under other names until there are --nbytes of them, once, to
~/.cache/fastdata-bench. Datasets are written to the folder for temporary files, and removed.

    store       the files' bytes, keys and labels, nothing decoded; each peer as its documentation has it, `tar cf` as a floor
    validate    as `store`, and every picture decoded to be sure of it, beside the decoder alone, which writes nothing
    resize      longer side 341 (of a 4:3 photo: shorter side 256), JPEG quality 90; FFCV knows only a limit for the longer side

Times are of the work alone, with no start of an interpreter or import in it, until the files are on the disk: this package flushes them
itself, for the others a `sync` behind their work is counted. The table says when each returned, too. Memory is that of all processes of a
contestant, with what they import. Peers are installed by `python -m benchmarks.peers install NAME...`; one that is not there says so in the
table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image, ImageStat

import fastdata
from benchmarks import contest
from benchmarks.contest import Contestant, Work
from benchmarks.contestants.base import digest, list_photos, measures
from fastdata.packing.options import parse_nbytes

LONG_SIDE, QUALITY = 341, 90


def works(photos: Path) -> list[Work]:
    """All works, with who takes part."""
    store = [Contestant(f"fastdata, {to}", "fastdata", {"to": to, "validate": False}) for to in ("tar", "lmdb", "mmap")]
    store += [
        Contestant("WebDataset", "webdataset", peer="webdataset"),
        Contestant("Streaming", "streaming", peer="streaming"),
        Contestant("LitData", "litdata", peer="litdata"),
        Contestant("LitData, fork", "litdata", {"start_method": "fork"}, peer="litdata"),
        Contestant("tar cf, one process", "tar"),
    ]
    resize = {"to": "tar", "image": "jpeg", "resize_long": LONG_SIDE, "quality": QUALITY}
    return [
        Work("store", "store the bytes, nothing decoded", lambda: stored(photos), store),
        Work(
            "validate",
            "store the bytes, every picture decoded",
            lambda: sizes(photos),
            [Contestant("fastdata, tar", "fastdata", {"to": "tar"}), Contestant("decoder alone", "decode")],
        ),
        Work(
            "resize",
            f"resize to a longer side of {LONG_SIDE}, JPEG quality {QUALITY}",
            lambda: resized(photos),
            [
                Contestant("fastdata, tar", "fastdata", resize),
                Contestant("fastdata, tar, unchecked", "fastdata", {**resize, "validate": False}),
                Contestant("FFCV", "ffcv", {"long_side": LONG_SIDE, "quality": QUALITY}, peer="ffcv"),
            ],
        ),
    ]


def stored(photos: Path) -> dict[str, Any]:
    """What a dataset of the bytes must hold."""
    return digest((key, label, Path(path).read_bytes()) for path, key, label in list_photos(str(photos)))


def sizes(photos: Path) -> dict[str, Any]:
    """What every picture that was decoded must have been, by Pillow."""

    def pictures() -> Iterator[tuple[str, int, int, int, tuple[()]]]:
        for path, key, label in list_photos(str(photos)):
            with Image.open(path) as image:
                yield key, label, *image.size, ()

    return measures(pictures())


def resized(photos: Path) -> dict[str, Any]:
    """What resized pictures must be: their sizes, and the mean colours of the originals, by Pillow."""

    def pictures() -> Iterator[tuple[str, int, int, int, list[float]]]:
        for path, key, label in list_photos(str(photos)):
            with Image.open(path) as image:
                scale = min(1.0, LONG_SIDE / max(image.size))
                width, height = (round(side * scale) for side in image.size)
                yield key, label, width, height, ImageStat.Stat(image.convert("RGB")).mean

    return measures(pictures())


def corpus(source: Path, nbytes: int, cache: Path) -> Path:
    """Copy the photos of class folders, again and again under other names, until there are so many bytes; once for each source."""
    photos = list_photos(str(source))
    if not photos:
        sys.exit(f"expected class folders of photos, got none, at {source}")
    weights = [os.path.getsize(photo.path) for photo in photos]
    listing = json.dumps([nbytes, *((photo.key, size) for photo, size in zip(photos, weights, strict=True))])
    target = cache / f"photos-{hashlib.sha256(listing.encode()).hexdigest()[:16]}"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{target.name}-", dir=cache) as folder:
        made = Path(folder) / "photos"
        written = copy = 0
        while written < nbytes:
            for photo, size in zip(photos, weights, strict=True):
                name, _, stem = photo.key.partition("/")
                (made / name).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(photo.path, made / name / f"{stem}-{copy}{os.path.splitext(photo.path)[1]}")
                written += size
                if written >= nbytes:
                    break
            copy += 1
        made.rename(target)
    return target


def footprint(photos: Path, workers: int) -> dict[str, float]:
    """Bytes of columns and journal for each sample, on disk."""

    def nbytes(folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    with tempfile.TemporaryDirectory(prefix="fastdata-bench-") as folder:
        out = Path(folder) / "out"
        # A part leaves its journal, which a whole pack removes at its end.
        fastdata.pack(photos, out, to="tar", workers=workers, validate=False, part="1/1")
        journal = nbytes(Path(f"{out}.partial") / "journal")
        packed = fastdata.commit(out)
        return {"columns": nbytes(out / "columns") / packed.num_samples, "journal": journal / packed.num_samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--works", nargs="+", choices=("store", "validate", "resize"), default=["store", "validate", "resize"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nbytes", default="1GB", help="of all photos together, at least")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the medians")
    args = parser.parse_args()
    photos = corpus(args.photos, parse_nbytes(args.nbytes, "--nbytes"), Path("~/.cache/fastdata-bench").expanduser())
    listed = list_photos(str(photos))
    num_samples, nbytes = len(listed), sum(os.path.getsize(photo.path) for photo in listed)
    before = contest.machine()
    print(f"{num_samples:,} photos, {nbytes / 1e6:,.1f} MB, {args.workers} workers, {args.rounds} rounds after a warm-up, page cache warm")
    print(f"{before['cpu']}, {before['cores']} cores, load {before['load_average'][0]:.2f}")
    held = footprint(photos, args.workers)
    results = []
    for work in (work for work in works(photos) if work.name in args.works):
        rows = contest.compete(work, photos, args.workers, args.rounds)
        print(f"\n{work.title}\n{contest.table(rows, num_samples)}", flush=True)
        results.append((work, rows))
    print(
        "\ntimes end when all is on the disk: fastdata flushes its files itself, the others leave it to the system, here to a sync behind them"
    )
    print(f"fastdata keeps {held['columns']:.0f} bytes of columns for each sample, and while it packs {held['journal']:.0f} of journal.")
    if args.plot:
        contest.plot({work.title: rows for work, rows in results}, args.plot)
    if args.json:
        measured = {
            "num_samples": num_samples,
            "nbytes": nbytes,
            "workers": args.workers,
            "rounds": args.rounds,
            "machine": before,
            "load_average_after": os.getloadavg(),
            "bytes_per_sample": held,
            "works": {work.name: contest.to_json(rows) for work, rows in results},
        }
        args.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
