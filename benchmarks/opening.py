"""What opening a dataset costs, by its number of samples: time and memory beyond `import fastdata.dataset`.

python -m benchmarks.opening [--json]

Each figure is the median over fresh processes; the datasets hold only small columns, written here. Memory is all that is resident after
opening, and what the process has of its own (without the page cache of mapped files) after the first batch of 64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from fastdata import manifest
from fastdata.types import Field

SIZES = (10**4, 10**5, 10**6, 10**7)
ROUNDS = 5
OPEN = """
import json, sys, time
import torch, fastdata.dataset
def memory(*kinds):
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return sum(int(lines[kind].split()[0]) for kind in kinds) / 1e3
resident, own, start = memory("VmRSS"), memory("RssAnon"), time.perf_counter()
dataset = fastdata.dataset.Dataset(sys.argv[1])
opened = time.perf_counter() - start
opened_mb = memory("VmRSS") - resident
start = time.perf_counter()
batch = dataset.__getitems__(list(range(0, len(dataset), len(dataset) // 64))[:64])
print(json.dumps([opened * 1e3, opened_mb, (time.perf_counter() - start) * 1e3, memory("RssAnon") - own]))
"""


def make(root: Path, num_samples: int) -> Path:
    """Write a dataset of labels and keys, as documented in the README."""
    root.mkdir()
    folder = root / "columns" / "0"
    folder.mkdir(parents=True)
    keys = np.char.zfill(np.arange(num_samples).astype("S8"), 8)
    columns = {
        "label": np.arange(num_samples) % 1000,
        "digest": np.zeros((num_samples, manifest.DIGEST_NBYTES), np.uint8),
        "key": np.frombuffer(keys.tobytes(), np.uint8),
        "key.offsets": np.arange(num_samples + 1) * 8,
        "shards": np.array(
            [(0, 0, num_samples, b"shards/00000.lmdb", 0, 0)],
            dtype=[("shard", "<i8"), ("first", "<i8"), ("num_samples", "<i8"), ("name", "S17"), ("nbytes", "<i8"), ("crc32", "<u4")],
        ),
    }
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column)
    specs = {
        "label": {"dtype": "int64", "shape": []},
        "digest": {"dtype": "uint8", "shape": [manifest.DIGEST_NBYTES]},
        "key": {"dtype": "str"},
    }
    fields = (Field("label", "scalar", "int64"),)
    segments = (manifest.Segment(0, 0, num_samples),)
    manifest.save(root, manifest.Manifest(num_samples, "lmdb", fields, specs, None, {}, "sha256:none", segments))
    return root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="fastdata-opening-") as folder:
        for num_samples in SIZES:
            root = make(Path(folder) / str(num_samples), num_samples)
            rounds = [json.loads(subprocess.check_output([sys.executable, "-c", OPEN, str(root)])) for _ in range(ROUNDS)]
            medians = [statistics.median(values) for values in zip(*rounds, strict=True)]
            rows.append(
                dict(zip(("num_samples", "open_ms", "open_mb", "first_batch_ms", "first_batch_mb"), (num_samples, *medians), strict=True))
            )
    if args.json:
        print(json.dumps({"rounds": ROUNDS, "rows": rows}))
        return
    print("   samples   open ms        MB   first batch ms    own MB")
    for row in rows:
        print("{num_samples:10,}{open_ms:10.1f}{open_mb:10.1f}{first_batch_ms:17.1f}{first_batch_mb:10.1f}".format(**row))


if __name__ == "__main__":
    main()
