"""How fast a folder of photos loads: each store through this package's loader, beside torch's DataLoader over the files themselves.

python -m benchmarks.loading PHOTOS [--workers N] [--rounds N] [--json]

PHOTOS is a folder of class folders of JPEGs. The work is the same for all: shuffled batches of 64, a random resized crop to 224 x 224 with flip,
antialiased, uint8, in the main process. Rounds are interleaved after one warm pass of each; the table gives medians and the spread. Every pass is
checked: each sample exactly once, batches of the right shape, and the mean colour within two levels of the others'.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import fastdata

SIZE, BATCH = 224, 64


class Files(torch.utils.data.Dataset[Any]):
    """What most training scripts begin with: open, crop, resize and flip by Pillow, file by file."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.rglob("*.jpg"))
        classes = sorted({path.parent.name for path in self.paths})
        self.labels = [classes.index(path.parent.name) for path in self.paths]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        with Image.open(self.paths[index]) as file:
            image = file.convert("RGB")
        box = self.box(*image.size)
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return {"image": torch.from_numpy(np.array(image)).permute(2, 0, 1), "label": self.labels[index], "index": index}

    def box(self, width: int, height: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = width * height * random.uniform(0.08, 1.0)
            ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                x, y = random.randint(0, width - w), random.randint(0, height - h)
                return x, y, x + w, y + h
        side = min(width, height)
        x, y = (width - side) // 2, (height - side) // 2
        return x, y, x + side, y + side


def passes(loader: Any, num_samples: int) -> Iterator[tuple[float, float]]:
    """Go over the loader again and again; give samples per second and mean colour of each pass, checked."""
    while True:
        seen, colour, start = [], 0.0, time.perf_counter()
        for batch in loader:
            assert batch["image"].shape[1:] == (3, SIZE, SIZE)
            assert batch["image"].dtype == torch.uint8
            colour += float(batch["image"][:, :, ::16, ::16].float().mean()) * len(batch["index"])
            seen.append(batch["index"])
        seconds = time.perf_counter() - start
        assert sorted(torch.cat(seen).tolist()) == list(range(num_samples)), "samples were lost or doubled"
        yield num_samples / seconds, colour / num_samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    files = Files(args.photos)
    loaders: dict[str, Any] = {
        "torch DataLoader, Pillow": torch.utils.data.DataLoader(
            files, BATCH, shuffle=True, num_workers=args.workers, persistent_workers=True, prefetch_factor=4
        )
    }
    with tempfile.TemporaryDirectory(prefix="fastdata-loading-") as folder:
        for store in ("tar", "lmdb", "mmap", "hdf5"):
            fastdata.pack(args.photos, Path(folder) / store, to=store)
            crop = fastdata.RandomResizedCrop(SIZE, flip=True)
            dataset = fastdata.Dataset(Path(folder) / store, fields=("image", "label", "index"), decode={"image": crop})
            loaders[f"fastdata, {store}"] = fastdata.DataLoader(dataset, BATCH, shuffle=True, num_workers=args.workers, seed=0)
        runs = {name: passes(loader, len(files)) for name, loader in loaders.items()}
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
        for i in range(args.rounds + 1):
            for name, run in runs.items():
                result = next(run)
                if i:
                    measured[name].append(result)
        colours = [statistics.mean(colour for _, colour in results) for results in measured.values()]
        assert max(colours) - min(colours) < 2, f"other pictures were loaded: mean colours {colours}"
    rows = [
        {"loader": name, "median": statistics.median(r), "min": min(r), "max": max(r)}
        for name, r in ((name, [rate for rate, _ in results]) for name, results in measured.items())
    ]
    if args.json:
        print(json.dumps({"num_samples": len(files), "workers": args.workers, "rounds": args.rounds, "rows": rows}))
        return
    print(f"{len(files)} photos, {args.workers} workers, {args.rounds} rounds: img/s")
    for row in rows:
        print("{loader:26}{median:8.0f}   ({min:.0f} to {max:.0f})".format(**row), f"  {row['median'] / rows[0]['median']:.2f}x")


if __name__ == "__main__":
    main()
