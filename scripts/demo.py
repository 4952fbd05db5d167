"""Pack real photos and text into each store, check them, load them, train a little, and print a table.

scripts/demo [FOLDER] [--photos N] [--steps N]

Everything is made in a temporary folder and removed, or made in FOLDER and kept.
The photos are crops of scikit-image's own pictures (make_photos.py), the text is the language reference that comes with every Python.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import fastdata
from make_photos import PICTURES, make_photos

PHOTO_STORES = ("tar", "lmdb", "mmap", "hdf5")
TEXT_STORES = ("mmap", "tar")
TRAINED = "lmdb"  # the store that the network is trained from; any other gives the same batches
CROP = fastdata.RandomResizedCrop(64, flip=True)


def command(*argv: str) -> str:
    """Run the command line that users run, its own messages shown, and return what it prints."""
    done = subprocess.run([str(Path(sys.executable).with_name("fastdata")), *argv], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}fastdata {' '.join(argv)}: exit code {done.returncode}")
    return done.stdout


def make_texts(dest: Path) -> int:
    """Write one .txt per topic of Python's language reference and return how many."""
    dest.mkdir()
    for name, text in topics.items():
        (dest / f"{name}.txt").write_text(text, encoding="utf-8")
    return len(topics)


def pack(source: Path, out: Path, store: str) -> float:
    """Pack and verify; return samples per second of the packing."""
    packed = json.loads(command("pack", str(source), str(out), "--to", store, "--json"))
    command("verify", str(out))
    return float(packed["num_samples"] / packed["seconds"])


def photo_loader(out: Path) -> fastdata.DataLoader:
    return fastdata.DataLoader(fastdata.Dataset(out, decode={"image": CROP}), batch_size=32, shuffle=True, seed=0)


def text_loader(out: Path) -> fastdata.DataLoader:
    return fastdata.DataLoader(fastdata.Dataset(out), batch_size=32, shuffle=True, seed=0)


def load(loader: fastdata.DataLoader, field: str) -> float:
    """Make a pass to start workers and warm caches, then passes for a second; return samples per second of these."""
    for _ in loader:
        pass
    num_samples, start = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < 1:
        num_samples += sum(len(batch[field]) for batch in loader)
    return num_samples / seconds


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def conv(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU(inplace=True)
    )


def endless(loader: fastdata.DataLoader) -> Iterator[dict[str, Any]]:
    while True:  # each pass is a new epoch: another order, other crops
        yield from loader


def train(loader: fastdata.DataLoader, steps: int) -> list[float]:
    """Train a small network for some steps and return the loss of each."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = (conv(3, 32), conv(32, 64), conv(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, len(PICTURES)))
    model = nn.Sequential(*layers).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _, batch in zip(range(steps), endless(loader), strict=False):
        image = batch["image"].to(device, non_blocking=True).float() / 255  # uint8 travels, a quarter of the bytes; floats are made here
        loss = nn.functional.cross_entropy(model(image), batch["label"].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def demo(folder: Path, *, num_photos: int, steps: int) -> None:
    photos, texts = folder / "photos", folder / "texts"
    make_photos(photos, count=num_photos)
    num_texts = make_texts(texts)
    print(f"{num_photos} photos in {len(PICTURES)} classes, {megabytes(photos):.1f} MB; {num_texts} texts, {megabytes(texts):.1f} MB")

    table = Table("data", "store", caption="text in documents/s; photos load as random crops of 64 x 64")
    for column in ("MB", "pack img/s", "load img/s"):
        table.add_column(column, justify="right")
    for kind, source, stores, make_loader, field in (
        ("photos", photos, PHOTO_STORES, photo_loader, "image"),
        ("text", texts, TEXT_STORES, text_loader, "text"),
    ):
        for store in stores:
            out = folder / f"{source.name}-{store}"
            print(f"{kind} to {store}: pack, verify, load")
            packed_per_s = pack(source, out, store)
            loaded_per_s = load(make_loader(out), field)
            table.add_row(kind, store, f"{megabytes(out):.1f}", f"{packed_per_s:,.0f}", f"{loaded_per_s:,.0f}")

    losses = train(photo_loader(folder / f"photos-{TRAINED}"), steps)
    first, last = sum(losses[:5]) / len(losses[:5]), sum(losses[-5:]) / len(losses[-5:])
    print(f"trained a small CNN from {TRAINED} for {steps} steps: loss {first:.2f} in the first five, {last:.2f} in the last five")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="where to make everything, and keep it; missing or empty")
    parser.add_argument("--photos", type=int, default=480, help="photos to make (default %(default)s)")
    parser.add_argument("--steps", type=int, default=30, help="training steps (default %(default)s)")
    args = parser.parse_args()
    if args.photos < len(PICTURES):
        parser.error(f"expected at least one photo for each of {len(PICTURES)} classes, got {args.photos}, at --photos")
    if args.steps < 1:
        parser.error(f"expected at least 1, got {args.steps}, at --steps")
    if args.folder is None:
        with tempfile.TemporaryDirectory(prefix="fastdata-demo-") as folder:
            demo(Path(folder), num_photos=args.photos, steps=args.steps)
        return
    if args.folder.exists() and (not args.folder.is_dir() or any(args.folder.iterdir())):
        parser.error(f"expected a missing or empty folder, got one with files, at {args.folder}")
    args.folder.mkdir(parents=True, exist_ok=True)
    demo(args.folder, num_photos=args.photos, steps=args.steps)


if __name__ == "__main__":  # workers under spawn and forkserver import this file again
    main()
