"""The tuned DataLoader: torch's, with this package's order, batches and defaults."""

from __future__ import annotations

import inspect
import multiprocessing.connection
import os
import signal
import traceback
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from pickle import PicklingError
from typing import Any

import torch
import torch.utils.data

from fastdata.collate import ERRORS, Collate
from fastdata.errors import ArgumentError, FastdataError, WorkerError, cause_of_death
from fastdata.loader.tuning import PREFETCH_FACTOR, auto_workers
from fastdata.loader.workers import WorkerInit
from fastdata.samplers import Batches, Sampler, Sequential, Shuffle

_KEPT_ERRORS = 100


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Load batches as dicts of tensors, in an order that does not depend on workers, and is split over ranks.

    torch's arguments mean what they mean there; what follows is different or new. Every default gives way to an argument.

    Args:
        dataset: a `fastdata.Dataset` or view of one; any other map-style dataset works too, without tickets.
        batch_size: samples of a batch on one rank.
        shuffle: another uniform permutation each epoch; False: the dataset's order. A sampler or batch sampler in its place is used as it is.
        num_workers: "auto": six tenths of the physical cores that this process may use, over the ranks of this machine, 1 to 8; 0 where a batch
            is only a gather of rows.
        pin_memory: None: when there is CUDA.
        prefetch_factor: batches in flight for each worker; None: 4. Ignored without workers, and so is `persistent_workers` (None: true).
        seed: of the order and of all augmentation.
        tail: what happens to the last, incomplete batch: "drop", "pad", "exact", "keep"; see `samplers.Batches`. `drop_last=True` is "drop".

    Attributes:
        num_errors: samples that were replaced or left out so far, where the dataset's `on_error` does that.
        errors: a sentence for each of the first hundred.

    Raises:
        ArgumentError: arguments that contradict one another.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler | Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int | str = "auto",
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool | None = None,
        drop_last: bool | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        seed: int | None = None,
        tail: str | None = None,
        **kwargs: Any,
    ) -> None:
        _check(dataset, batch_size, shuffle, sampler, batch_sampler, drop_last, seed, tail)
        iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        if iterable and (shuffle or tail is not None):
            named = "shuffle=True" if shuffle else f"tail={tail!r}"
            raise ArgumentError(f"expected a dataset with samples by index, got an IterableDataset, which has its own order, with {named}")
        if num_workers == "auto":
            num_workers = 0 if getattr(dataset, "is_gather", False) else auto_workers()
        if not isinstance(num_workers, int) or isinstance(num_workers, bool) or num_workers < 0:
            raise ArgumentError(f"expected 'auto' or at least 0, got {num_workers!r}, at num_workers")
        self.seed, self.tail, self.shuffle = seed, tail, shuffle
        self.num_errors = 0
        self._running: weakref.ref[Generator[Any, None, None]] | None = None
        self.errors: list[str] = []
        batches: Batches | None = batch_sampler if isinstance(batch_sampler, Batches) else None
        if batch_sampler is None and not iterable:
            if sampler is None:
                sampler = (Shuffle if shuffle else Sequential)(len(dataset), seed=seed or 0)
            if batch_size is None:
                pass  # single samples, in the order of the sampler
            elif isinstance(sampler, Sampler):
                batches = Batches(sampler, batch_size, drop_last or None, tail=tail, dataset=dataset)
            elif tail is not None:
                raise ArgumentError(f"expected a sampler of fastdata with tail={tail!r}, got {type(sampler).__name__}; use drop_last")
        if collate_fn is None and batch_size is not None:
            collate_fn = Collate(valid=batches is not None and batches.tail == "exact")
        if generator is None and seed is not None:
            generator = torch.Generator().manual_seed(seed & (1 << 63) - 1)
        with_workers: dict[str, Any] = {}
        if num_workers:
            with_workers = {
                "prefetch_factor": PREFETCH_FACTOR if prefetch_factor is None else prefetch_factor,
                "persistent_workers": True if persistent_workers is None else persistent_workers,
                "multiprocessing_context": multiprocessing_context,
                "timeout": timeout,
            }
        how: dict[str, Any] = {"batch_size": batch_size, "sampler": sampler, "drop_last": bool(drop_last)}
        if batch_sampler is not None:
            how = {"batch_sampler": batch_sampler}
        super().__init__(
            dataset,
            **how,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            # A framework that makes a loader anew passes what it found here.
            worker_init_fn=worker_init_fn if isinstance(worker_init_fn, WorkerInit) else WorkerInit(worker_init_fn),
            generator=generator,
            **with_workers,
            **kwargs,
        )
        if batches is not None:
            batches.bind(dataset)
            # torch makes its own from sampler and batch_size, which thus are there for frameworks to read, and forbids to set another.
            object.__setattr__(self, "batch_sampler", batches)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is. Without it each pass is the next one, from 0 on."""
        owners: tuple[Any, ...] = (self.batch_sampler, self.sampler)
        for owner in owners:
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
                return

    def __iter__(self) -> Any:
        if not all(worker.is_alive() for worker in getattr(self._iterator, "_workers", ())):
            self._iterator = None  # persistent workers that died between two passes serve no other
        running = self._running() if self._running else None
        if running is not None and inspect.getgeneratorstate(running) != inspect.GEN_CLOSED:
            # Persistent workers serve one pass: a second one at the same time gets workers of its own.
            self._iterator = None
        try:
            with warnings.catch_warnings():
                # torch warns beside the error, which says less and speaks of Python 3.14 alone.
                warnings.filterwarnings("ignore", "Got pickle error", UserWarning)
                passing = super().__iter__()
        except (PicklingError, AttributeError, TypeError) as error:
            # "Can't pickle local object" or, from Python 3.12 on, "Can't get local object".
            if not isinstance(error, PicklingError) and not any(word in str(error) for word in ("pickle", "get local")):
                raise
            raise ArgumentError(
                f"expected dataset, transforms, collate_fn and worker_init_fn that workers can be sent, got {error}; define them at the top "
                "level of a module, not as a lambda or inside of a function, or use multiprocessing_context='fork'"
            ) from error
        counted = self._counted(passing)
        self._running = weakref.ref(counted)
        return counted

    def _counted(self, passing: Any) -> Generator[Any, None, None]:
        """Pass batches on, and take out what they tell of samples that failed."""
        try:
            for batch in passing:
                if isinstance(batch, dict) and ERRORS in batch:
                    sentences = batch.pop(ERRORS)
                    if not self.num_errors:
                        warnings.warn(f"a sample could not be loaded, and others may follow (see num_errors): {sentences[0]}", stacklevel=2)
                    self.num_errors += len(sentences)
                    self.errors += sentences[: _KEPT_ERRORS - len(self.errors)]
                yield batch
        except Exception as error:
            if self.num_workers:
                # torch's frame that raises a worker's error also holds it. Collected as a cycle, queues go before workers, and each of these is
                # waited for 5 s in vain.
                traceback.clear_frames(error.__traceback__)
                if isinstance(error, FastdataError):
                    # torch gives the text of the worker's traceback; its end is what the user needs.
                    sentence = str(error).strip().rpartition(f"{type(error).__module__}.{type(error).__name__}: ")[2]
                    raise type(error)(sentence) from error
                if (dead := _dead_worker(passing, error)) is not None:
                    self._iterator = None  # persistent workers serve no other pass when one of them is gone
                    raise dead from error
            raise


def _dead_worker(passing: Any, error: Exception) -> WorkerError | None:
    """Say which worker of a pass has died, and of what; None where all live."""
    workers = getattr(passing, "_workers", ())
    if isinstance(error, (EOFError, OSError)):
        # A connection that breaks off is the first that is seen of a worker's death.
        multiprocessing.connection.wait([worker.sentinel for worker in workers], timeout=1)
    for worker in workers:
        if not worker.is_alive() and (code := worker.exitcode):
            hint = "; the system may have run out of memory: try fewer workers" if code == -signal.SIGKILL else ""
            death = f"the death of process {worker.pid} by {cause_of_death(code)}{hint}"
            return WorkerError(f"expected a DataLoader worker to load its batches, got {death}")
    return None


def _check(
    dataset: Any,
    batch_size: int | None,
    shuffle: bool | None,
    sampler: Any,
    batch_sampler: Any,
    drop_last: bool | None,
    seed: int | None,
    tail: str | None,
) -> None:
    """Refuse arguments that contradict one another, by their names here."""
    if isinstance(dataset, (str, os.PathLike)):
        raise ArgumentError(f"expected a dataset, got the {type(dataset).__name__} {dataset!r}; open it with fastdata.Dataset")
    if seed is not None and not isinstance(seed, int):
        raise ArgumentError(f"expected a whole number, got {seed!r}, at seed")
    if batch_sampler is not None:
        given = {
            "batch_size": batch_size != 1,
            "shuffle": shuffle,
            "sampler": sampler is not None,
            "drop_last": drop_last,
            "tail": tail is not None,
        }
        if clash := [name for name, value in given.items() if value]:
            raise ArgumentError(f"expected batch_sampler alone to make the batches, got {', '.join(clash)} beside it; leave that out")
    if sampler is not None and shuffle is not None and shuffle:
        raise ArgumentError("expected sampler alone to make the order, got shuffle=True beside it; leave one out, or use samplers.Shuffle")
    for name, owner in (("sampler", sampler), ("batch_sampler", getattr(batch_sampler, "sampler", None))):
        if owner is not None and seed is not None and getattr(owner, "seed", seed) != seed:
            raise ArgumentError(f"expected the seed {owner.seed} of {name}, got seed={seed} beside it; leave one out")
        if isinstance(owner, Sampler) and hasattr(dataset, "__len__") and owner.num_samples > len(dataset):
            raise ArgumentError(f"expected a {name} of at most {len(dataset)} samples, as the dataset has, got {owner!r}")
    if batch_size is None and (drop_last or tail is not None):
        raise ArgumentError("expected no drop_last and no tail with batch_size=None, which makes no batches")
