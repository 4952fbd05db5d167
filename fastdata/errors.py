"""Every error of the package: *expected X, got Y, at Z*, and the cure.

Each is also the built-in that it resembles, carries one message, and pickles, since errors cross processes.
"""

from __future__ import annotations

import signal


class FastdataError(Exception):
    """The base of every error that the package raises on purpose."""


class ArgumentError(FastdataError, ValueError):
    """An argument that cannot be meant: found before any work starts. Exit code 2 on the command line."""


class DataError(FastdataError, ValueError):
    """A sample that cannot be read, decoded or encoded: what `on_error` is about. Exit code 1."""


class ShardError(DataError):
    """A shard that is missing, cut short or not the one that the manifest tells of. Exit code 1."""


class DatasetError(FastdataError, OSError):
    """A folder that is not a dataset this version can open, or a pack that could not finish. Exit code 1."""


class WorkerError(FastdataError, RuntimeError):
    """A worker process that died; says of what, where that is known. Exit code 1."""


def cause_of_death(exitcode: int) -> str:
    """Name the signal that ended a process, or its exit code."""
    return signal.Signals(-exitcode).name if exitcode < 0 else f"exit code {exitcode}"
