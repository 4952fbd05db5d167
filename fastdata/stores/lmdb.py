"""A shard is one LMDB file: a named database per field, key = index in the shard as 8 bytes, big-endian, value = the field's bytes.

Nobody writes to a finished shard, so readers use no lock file and need no right to write.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import DataError, DatasetError, ShardError
from fastdata.stores.base import Reader as BaseReader
from fastdata.stores.base import Writer as BaseWriter
from fastdata.stores.base import sync, to_elements
from fastdata.types import Array, Buffer, Field, Int64Array, Record, Values, nbytes

SUFFIX = ".lmdb"
TRUSTING = True
_FIRST_MAP_NBYTES = 64 << 20  # doubled whenever it is full
_COMMIT_NBYTES = 16 << 20  # per transaction: its pages stay in memory until it ends
_MAX_NBYTES = 0xFFFFFFFF  # LMDB keeps the size of a value in 32 bits


class Writer(BaseWriter):
    """Write into a growing map, then copy without slack."""

    def __init__(self, path: Path, stem: str, fields: Sequence[Field]) -> None:
        super().__init__(path, stem, fields)
        self._growing = path.with_name(path.name + ".growing")
        self._map_nbytes = _FIRST_MAP_NBYTES
        self._num = 0
        self._pending: list[tuple[str, bytes, Buffer]] = []
        self._pending_nbytes = 0
        with _told(path):
            self._environment = self._open()
            self._databases = {f.name: self._environment.open_db(f.name.encode()) for f in self.fields}

    def _open(self) -> Any:
        import lmdb

        self._growing.unlink(missing_ok=True)
        # Durability comes from the copy's fsync: the growing file is thrown away.
        return lmdb.open(
            os.fsencode(self._growing), map_size=self._map_nbytes, subdir=False, max_dbs=max(1, len(self.fields)), sync=False, lock=False
        )

    def append(self, record: Record) -> None:
        """Queue the values; a transaction writes some megabytes of them."""
        for name, value in record.values.items():
            if value is not None and nbytes(value.data) > _MAX_NBYTES:
                raise DataError(f"expected a value under 4 GiB in LMDB, got {nbytes(value.data)} bytes, at field {name!r}; use --to mmap")
        key = self._num.to_bytes(8, "big")
        for name, value in record.values.items():
            if value is not None:
                self._pending.append((name, key, value.data))
                self._pending_nbytes += nbytes(value.data)
        self._num += 1
        if self._pending_nbytes > _COMMIT_NBYTES:
            self._commit()

    def _commit(self) -> None:
        """Write what is queued; grow the map and write it again when it did not fit."""
        import lmdb

        while True:
            try:
                with _told(self.path), self._environment.begin(write=True) as transaction:
                    for name, key, data in self._pending:
                        transaction.put(key, data, db=self._databases[name], append=True)
                break
            except lmdb.MapFullError:
                self._map_nbytes = 2 * self._map_nbytes + self._pending_nbytes
                self._environment.set_mapsize(self._map_nbytes)
        self._pending, self._pending_nbytes = [], 0

    def close(self) -> Mapping[str, Sequence[int]]:
        """Commit the rest, copy compactly, throw the growing file away."""
        self._commit()
        # The file remembers the size of its map; the last one depends on the data alone, and so do the bytes.
        with _told(self.path):
            self._environment.copy(os.fsencode(self.path), compact=True)
        sync(self.path)
        self.abort()
        return {}

    def abort(self) -> None:
        """Close the environment and remove the growing file."""
        self._environment.close()
        self._growing.unlink(missing_ok=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Make the library's errors ours, but for a full map; of a full disk it often says no more than that writing failed."""
    import lmdb

    try:
        yield
    except lmdb.MapFullError:
        raise
    except lmdb.Error as error:
        raise DatasetError(f"expected to write a shard, got {error}, at {path}: the disk may be full") from error


class Reader(BaseReader):
    """Read by key, one transaction for a call."""

    def __init__(self, path: Path, fields: Sequence[Field], num_samples: int, column: Callable[[str], Array]) -> None:
        import lmdb

        self._path = path
        try:
            self._shared = _shared(path, fields)
            with _transaction(self._shared.environment) as transaction:
                for field in fields:
                    entries = transaction.stat(self._shared.databases[field.name])["entries"]
                    if entries > num_samples:
                        raise ShardError(f"expected at most {num_samples} values, got {entries}, at field {field.name!r} of {path}")
        except lmdb.Error as error:
            if "already open" in str(error):
                raise DatasetError(f"expected to open {path}, got an environment that is open in this process: close that first") from error
            raise ShardError(f"expected an LMDB file, got {error}, at {path}") from error

    def read(self, field: Field, rows: Int64Array) -> Values:
        """Copy the values out, since they do not outlive the transaction."""
        import lmdb

        database = self._shared.databases[field.name]
        try:
            with _transaction(self._shared.environment) as transaction:
                found = [transaction.get(row.to_bytes(8, "big"), db=database) for row in rows.tolist()]
        except lmdb.Error as error:
            raise ShardError(f"expected values of field {field.name!r}, got {error}, at {self._path}") from error
        if field.dense and None in found:
            raise ShardError(f"expected a value, got none, at sample {rows[found.index(None)]} of {self._path}")
        values = [to_elements(field, b"" if data is None else data) for data in found]
        return np.concatenate(values) if field.dense else values


class _Environment:
    """An open environment with its databases, closed with the last reader."""

    def __init__(self, path: Path, fields: Sequence[Field]) -> None:
        import lmdb

        self.environment = lmdb.open(
            os.fsencode(path), subdir=False, readonly=True, lock=False, readahead=False, max_dbs=max(1, len(fields))
        )
        self.databases = {field.name: self.environment.open_db(field.name.encode(), create=False) for field in fields}

    def __del__(self) -> None:
        if environment := getattr(self, "environment", None):
            environment.close()


# LMDB refuses to open one file twice in a process, and two datasets may well name the same folder: they share it.
_open: weakref.WeakValueDictionary[tuple[int, int], _Environment] = weakref.WeakValueDictionary()
_gate = threading.Condition()  # held while a file is opened, a transaction is counted in or out, and during a fork
_active = 0  # transactions under way
_FORK_WAITS_S = 10  # for transactions, which take milliseconds; longer only where a reader itself forks


def _shared(path: Path, fields: Sequence[Field]) -> _Environment:
    """The environment of a file, opened unless it is."""
    status = path.stat()
    with _gate:
        environment = _open.get((status.st_dev, status.st_ino))
        if environment is None:
            environment = _open[status.st_dev, status.st_ino] = _Environment(path, fields)
        return environment


@contextmanager
def _transaction(environment: Any) -> Iterator[Any]:
    """A read transaction that no fork falls into."""
    global _active
    with _gate:
        _active += 1
    try:
        with environment.begin() as transaction:
            yield transaction
    finally:
        with _gate:
            _active -= 1
            _gate.notify_all()


def _before_fork() -> None:
    """Wait for transactions of other threads: a child that inherits one could never close the environment, and closing would wait for ever."""
    _gate.acquire()
    _gate.wait_for(lambda: not _active, _FORK_WAITS_S)


def _after_fork() -> None:
    """Close what a child inherited, so that it can open the file for itself; without a lock file the parent's is untouched."""
    global _gate, _active
    _gate, _active = threading.Condition(), 0
    for environment in list(_open.values()):
        environment.environment.close()
    _open.clear()


os.register_at_fork(before=_before_fork, after_in_parent=lambda: _gate.release(), after_in_child=_after_fork)
