"""What a worker does before its first batch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.data import get_worker_info

from fastdata.distributed import rank
from fastdata.seeding import hash64, seed_globals


@dataclass(frozen=True)
class WorkerInit:
    """One thread for each library, and global generators that differ between workers, epochs and ranks.

    Attributes:
        rank: of the process that the worker works for, which a spawned worker cannot ask.
        user: the caller's own `worker_init_fn`, called last.
    """

    rank: int
    user: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        torch.set_num_threads(1)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ["OPENCV_FOR_THREADS_NUM"] = "1"
        if "cv2" in sys.modules:
            # After a fork the threads of the parent's pool are not there, and waiting for them would be for ever.
            sys.modules["cv2"].setNumThreads(0)
        info = get_worker_info()
        assert info is not None
        # torch's seed differs by worker and pass, and is the same on ranks that were seeded alike.
        seed_globals(int(hash64(info.seed, self.rank)[0]))
        if self.user is not None:
            self.user(worker_id)


def worker_init(user: Callable[[int], None] | None) -> WorkerInit:
    """The initialiser for workers of this process; one that wraps another already, as a loader that is made anew passes it, stays."""
    return user if isinstance(user, WorkerInit) else WorkerInit(rank(), user)
