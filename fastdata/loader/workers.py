"""What a worker does before its first batch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import get_worker_info

from fastdata.distributed import rank
from fastdata.seeding import hash64, seed_globals


class WorkerInit:
    """One thread for each library, and global generators that differ between workers, epochs and ranks.

    Args:
        user: the caller's own `worker_init_fn`, called last.
        rank: of the process that the worker works for, known where that was asked when the worker was sent away; a forked one asks itself.
    """

    def __init__(self, user: Callable[[int], None] | None, rank: int | None = None) -> None:
        self.user, self._rank = user, rank

    def __reduce__(self) -> tuple[type[WorkerInit], tuple[Any, int]]:
        # Asked now and not when the loader was made: the process group may have come up in between.
        return WorkerInit, (self.user, rank() if self._rank is None else self._rank)

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
        seed_globals(int(hash64(info.seed, rank() if self._rank is None else self._rank)[0]))
        if self.user is not None:
            self.user(worker_id)
