"""Make a folder of class folders of real photos, cut from the pictures that scikit-image's wheel brings.

python scripts/make_photos.py DEST [--count N] [--seed N]

Some hundred JPEG crops of 200 to 500 px, quality 90 to 95, one class per picture. Needs no network, and equal arguments make equal crops.
Grey pictures stay grey, as in any real collection.
"""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

# The photographs, micrographs and telescope pictures whose shorter side has 300 px; the wheel's other files are drawings and scans of text.
PICTURES = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "cell.png",
    "chelsea.png",
    "clock_motion.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "motorcycle_left.png",
    "retina.jpg",
    "rocket.jpg",
)


def make_photos(dest: Path, *, count: int = 400, seed: int = 0) -> int:
    """Write crops as `dest/<picture>/<number>.jpg` and return how many.

    Args:
        dest: the folder, made if missing.
        count: crops in all, dealt to the classes as evenly as it goes.
        seed: of positions, sizes and qualities.
    """
    rng = np.random.default_rng(seed)
    for k, name in enumerate(PICTURES):
        with files("skimage").joinpath("data", name).open("rb") as file, Image.open(file) as picture:
            picture.load()
        folder = dest / Path(name).stem
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(k, count, len(PICTURES)):
            width, height = (int(rng.integers(200, min(side, 500) + 1)) for side in picture.size)
            left, top = (int(rng.integers(0, side - crop + 1)) for side, crop in zip(picture.size, (width, height), strict=True))
            crop = picture.crop((left, top, left + width, top + height))
            crop.save(folder / f"{number // len(PICTURES):04d}.jpg", quality=int(rng.integers(90, 96)))
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dest", type=Path, help="folder to write into")
    parser.add_argument("--count", type=int, default=400, help="crops in all (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    args = parser.parse_args()
    if args.count < len(PICTURES):
        parser.error(f"expected at least one crop for each of {len(PICTURES)} classes, got {args.count}, at --count")
    print(f"{make_photos(args.dest, count=args.count, seed=args.seed)} photos in {len(PICTURES)} classes, in {args.dest}")


if __name__ == "__main__":
    main()
