"""How fast a dataset loads on this machine."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

from fastdata.dataset import Dataset
from fastdata.errors import ArgumentError
from fastdata.images import RandomResizedCrop
from fastdata.loader import DataLoader

CROP = 224


def bench(path: str | os.PathLike[str], *, batch_size: int = 64, workers: int | None = None, epochs: int = 3) -> dict[str, Any]:
    """Load a dataset, shuffled, as a training loop does, and measure.

    Pictures that differ in size are cropped by RandomResizedCrop(224); everything else is loaded whole.

    Args:
        batch_size: samples of a batch.
        workers: None: what the loader takes by itself.
        epochs: passes over the dataset.

    Returns:
        `samples_per_s` and `mb_per_s` (10^6 packed bytes), medians over the epochs, each without its first batch where it has others;
        `first_batch_s` from the making
        of the loader to its first batch; `peak_memory_mb`, the largest sum seen of the shares (PSS) of main process and workers, in 10^6 bytes.

    Raises:
        DatasetError: no dataset is there.
        ArgumentError: an argument below 1, or workers below 0.
    """
    if epochs < 1:
        raise ArgumentError(f"expected at least 1, got {epochs}, at --epochs")
    whole = Dataset(path)
    decode = {f.name: RandomResizedCrop(CROP) for f in whole.manifest.fields if f.codec == "image" and not f.dense}
    dataset = Dataset(path, decode=decode)
    payloads = [f.name for f in whole.manifest.fields if f"{f.name}.nbytes" in whole.columns]
    nbytes = sum(int(whole.column(f"{name}.nbytes").clip(0).sum()) for name in payloads) / len(whole)
    started = time.perf_counter()
    loader = DataLoader(dataset, batch_size, shuffle=True, seed=0, num_workers="auto" if workers is None else workers)
    first_batch_s, rates, peak = 0.0, [], 0
    for _ in range(epochs):
        num, begun = 0, time.perf_counter()
        for i, batch in enumerate(loader):
            first_batch_s = first_batch_s or time.perf_counter() - started
            if i == 0 and len(loader) > 1:
                begun = time.perf_counter()
                continue
            num += len(next(iter(batch.values())))
        rates.append(num / (time.perf_counter() - begun))
        peak = max(peak, _memory_nbytes())
        del batch
    rate = statistics.median(rates)
    return {
        "path": str(Path(path)),
        "store": whole.manifest.store,
        "num_samples": len(whole),
        "batch_size": batch_size,
        "workers": loader.num_workers,
        "epochs": epochs,
        "crop": CROP if decode else None,
        "samples_per_s": rate,
        "samples_per_s_of_epochs": rates,
        "mb_per_s": rate * nbytes / 1e6,
        "first_batch_s": first_batch_s,
        "peak_memory_mb": peak / 1e6,
    }


def _memory_nbytes() -> int:
    """Memory of this process and its children: proportional shares where the system tells them, else the peak of this process alone."""
    try:
        children = [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
        total = 0
        for pid in (os.getpid(), *children):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
        return total
    except (OSError, StopIteration):
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
