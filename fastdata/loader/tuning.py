"""How many workers, from the CPUs that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

from fastdata.distributed import local_world_size

MAX_WORKERS = 8  # more have to be asked for: beyond it memory and start-up cost more than they bring on most machines
_SHARE = 0.6  # of the physical cores: the main process, the pin thread and the GPU's driver want the rest
PREFETCH_FACTOR = 4  # batches in flight for each worker: absorbs a slow picture or a large validation step


def usable_cores() -> float:
    """Physical cores that this process may use: its affinity without hyperthreads, and the quota of its control group."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in cpus:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(path.read_text().strip())
        except OSError:
            siblings.add(str(cpu))
    return min(float(len(siblings)), _quota())


def _quota() -> float:
    """CPUs that the control group grants, by cpu.max of version 2 or cpu.cfs_* of version 1; infinity without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            folder = Path("/sys/fs/cgroup/cpu")
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return float("inf")
    return float("inf") if quota in ("max", "-1") else max(1.0, int(quota) / int(period))


def auto_workers() -> int:
    """Workers for one rank: six tenths of the physical cores over the ranks of this machine, at least 1, at most 8."""
    return max(1, min(MAX_WORKERS, round(_SHARE * usable_cores() / local_world_size())))
