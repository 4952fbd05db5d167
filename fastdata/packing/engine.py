"""Run a function over tasks in worker processes that are watched: one that dies is named, with the sample it was at."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from fastdata.errors import FastdataError, WorkerError, cause_of_death
from fastdata.packing.base import Status

T = TypeVar("T")
R = TypeVar("R")

_TICK_S = 0.2  # how often progress is told
_ORPHAN_CHECK_S = 1.0
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_NOTE_NBYTES = 4096


class _Shared:
    """A status in memory that outlives the worker: two counters and a note."""

    def __init__(self, context: Any) -> None:
        self._counts = context.RawArray("q", 2)
        self._note = context.RawArray("c", _NOTE_NBYTES)

    def at(self, what: str) -> None:
        self._note.value = what.encode("utf-8", "backslashreplace")[: _NOTE_NBYTES - 1]

    def done(self, nbytes: int) -> None:
        self._counts[0] += 1
        self._counts[1] += nbytes

    def read(self) -> tuple[int, int, str]:
        return self._counts[0], self._counts[1], self._note.value.decode("utf-8", "replace")


class _Local:
    """The status of a run in this very process."""

    def __init__(self, tick: Callable[[int, int], object]) -> None:
        self._tick, self._num, self._nbytes, self._told = tick, 0, 0, 0.0
        self.note = ""

    def at(self, what: str) -> None:
        self.note = what

    def done(self, nbytes: int) -> None:
        self._num, self._nbytes = self._num + 1, self._nbytes + nbytes
        if time.monotonic() - self._told > _TICK_S:
            self._told = time.monotonic()
            self._tick(self._num, self._nbytes)


def run(function: Callable[[T, Status], R], tasks: Iterable[T], workers: int, tick: Callable[[int, int], object]) -> Iterator[R]:
    """Call `function(task, status)` for all tasks, in up to `workers` processes.

    1: in this one; and so where this one is a daemon, which may have no children.

    Args:
        function: picklable where processes are spawned; its errors come out here.
        tasks: handed out in order, as workers become free.
        tick: called with samples and bytes done, some times a second.

    Yields:
        Results in the order in which they are done.

    Raises:
        WorkerError: a worker died; says by which signal, and at which sample.
    """
    if workers == 1 or multiprocessing.current_process().daemon:
        status = _Local(tick)
        for task in tasks:
            try:
                result = function(task, status)
            except MemoryError as full:
                raise _out_of_memory(status.note) from full
            yield result
        return
    # Forked workers start at once, and take sources from the caller's __main__ without importing it again. They use no torch,
    # and their OpenCV no threads, so nothing is missed that a fork leaves behind.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    crew: dict[Any, tuple[Any, _Shared]] = {}
    pending = iter(tasks)
    idle: list[Any] = []
    finished = False
    try:
        while True:
            while not finished and (idle or len(crew) < workers):
                try:
                    task = next(pending)
                except StopIteration:
                    finished = True
                    break
                connection = idle.pop() if idle else _start(context, function, crew)
                connection.send(task)
            busy = [connection for connection in crew if connection not in idle]
            if not busy:
                return
            ready = multiprocessing.connection.wait([*busy, *(crew[c][0].sentinel for c in busy)], timeout=_TICK_S)
            tick(sum(shared.read()[0] for _, shared in crew.values()), sum(shared.read()[1] for _, shared in crew.values()))
            for connection in busy:
                process, shared = crew[connection]
                if connection in ready or (process.sentinel in ready and connection.poll()):
                    try:
                        error, result = connection.recv()
                    except EOFError:
                        raise _death(process, shared) from None
                    if error is not None:
                        raise error
                    idle.append(connection)
                    yield result
                elif process.sentinel in ready:
                    raise _death(process, shared)
    finally:
        for process, _ in crew.values():
            process.kill()
        for connection, (process, _) in crew.items():
            process.join()
            connection.close()


def _start(context: Any, function: Callable[[T, Status], R], crew: dict[Any, tuple[Any, _Shared]]) -> Any:
    """Start one worker; give the connection to it."""
    ours, theirs = context.Pipe()
    shared = _Shared(context)
    process = context.Process(target=_serve, args=(theirs, function, shared, os.getpid()), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork beside threads, such as numpy's
        process.start()
    theirs.close()
    crew[ours] = process, shared
    return ours


def _serve(connection: Any, function: Callable[[Any, Status], Any], status: _Shared, parent: int) -> None:
    """A worker's life: tasks in, results out, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the main process decides
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if callable(signal.getsignal(ending)):
            signal.signal(ending, signal.SIG_DFL)  # the command line's handlers are the main process's
    _end_with(parent)
    os.environ["OPENCV_FOR_THREADS_NUM"] = "1"
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)
    if "torch" in sys.modules:
        # A dataset of the caller's may use it, and would wait for ever for threads that a fork leaves behind.
        sys.modules["torch"].set_num_threads(1)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[Exception | None, Any] = None, function(task, status)
        except MemoryError:
            answer = _out_of_memory(status.read()[2]), None
        except Exception as error:
            answer = _picklable(error), None
        connection.send(answer)


def _end_with(parent: int) -> None:
    """See to it that this worker ends when the main process does, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    """Leave when the main process is gone."""
    while os.getppid() == parent:
        time.sleep(_ORPHAN_CHECK_S)
    os._exit(1)


def _picklable(error: Exception) -> Exception:
    """The error itself, or its text where it does not travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return FastdataError(f"{type(error).__name__}: {error}")
    return error


def _out_of_memory(note: str) -> WorkerError:
    return WorkerError(f"expected enough memory, got no more, at {note}: try fewer --workers")


def _death(process: Any, shared: _Shared) -> WorkerError:
    """Say how a worker died, and at what."""
    process.join()
    code = process.exitcode
    hint = "; the system may have run out of memory: try fewer --workers" if code == -signal.SIGKILL else ""
    return WorkerError(
        f"expected a worker to finish its shard, got its death by {cause_of_death(code)}, at {shared.read()[2] or 'its start'}{hint}"
    )
