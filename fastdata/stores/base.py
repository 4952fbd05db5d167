"""The contract of a store, bytes <-> disk by index, and the one place that knows about open handles, processes and locks.

A file of this folder defines `SUFFIX`, a class `Writer` and a class `Reader` derived from the ones here. A shard is one file
`<number><SUFFIX>`, or with an empty suffix one folder. `TRUSTING = True` says that the store's library follows what a file says without
checks, so that damaged bytes may end the process; `SEQUENTIAL = True`, that others read such shards from begin to end. A store knows the
form of a field (dtype, shape, dense or ragged) and no codec; it imports no torch.
"""

from __future__ import annotations

import os
import shutil
import threading
from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib

from fastdata import registry
from fastdata.errors import DatasetError, ShardError
from fastdata.types import Array, Buffer, Field, Int64Array, Record, Values, nbytes

MAX_OPEN = 256
"""Files of shards that a process keeps open for one dataset: well under the usual limit of 1,024, several datasets included."""

_READ_NBYTES = 4 << 20
_WRITE_NBYTES = 64 << 10  # at once: large beside a call of the system, and still in the cache of the CPU that wrote it
_SYNC_NBYTES = 8 << 20  # after which the disk begins to take them, while more are written
_WRITE_PIECES = 512  # at once: under the 1,024 that the system takes
_PARSER_TRIES = 10


class Writer(ABC):
    """Write one shard, in order. Not thread-safe; one process.

    Args:
        path: of the shard, under its temporary name; nothing is there yet.
        stem: the shard's number as its file name has it, "00000".
        fields: the payload fields.

    Attributes:
        crc32: checksums of files that were taken while they were written, known after `close`; others are read again.
    """

    def __init__(self, path: Path, stem: str, fields: Sequence[Field]) -> None:
        self.path, self.stem, self.fields = path, stem, tuple(fields)
        self.crc32: dict[Path, int] = {}

    @abstractmethod
    def append(self, record: Record) -> None:
        """Add one record.

        Raises:
            DataError: a value beyond the store's limits; nothing was written, and the next record may follow.
        """

    @abstractmethod
    def close(self) -> Mapping[str, Sequence[int]]:
        """Finish the shard, flushed to the disk.

        Returns:
            Columns that only this store has, int64, one number for each record.
        """

    def abort(self) -> None:  # noqa: B027
        """Let go of what is open, after an error; the caller removes the files."""


class Reader(ABC):
    """Read one shard by index. Opened in the process that reads; threads may share it; closed when the last reference goes.

    Args:
        path: of the shard.
        fields: the payload fields.
        num_samples: how many the manifest says there are.
        column: gives a column's rows of this shard, memory-mapped.

    Raises:
        ShardError: it is not what the manifest tells of.
    """

    @abstractmethod
    def __init__(self, path: Path, fields: Sequence[Field], num_samples: int, column: Callable[[str], Array]) -> None: ...

    @abstractmethod
    def read(self, field: Field, rows: Int64Array) -> Values:
        """Read a field of some samples.

        Args:
            field: one of the payload fields.
            rows: int64 [k], indices in the shard, in any order.

        Returns:
            Dense: one array [k, *shape]. Ragged: k arrays [n_i, *shape]; of a missing value an empty one. They may be read-only views of
            a mapping that lives as long as they do, never of something that ends with the call.

        Raises:
            ShardError: the shard ends early or has something else there.
        """

    def place(self, field: Field, row: int) -> str:
        """Say where in the shard a value lies, for an error; nothing where only the store's library knows."""
        return ""


class ArrayReader(Reader):
    """A reader over arrays that lie in memory or are mapped; a store fills the two dicts and has nothing else to do.

    Attributes:
        dense: field name -> [num_samples, *shape].
        ragged: field name -> (elements [total, *shape], offsets int64 [num_samples + 1]).
    """

    dense: dict[str, Array]
    ragged: dict[str, tuple[Array, Int64Array]]

    def check(self, path: Path, num_samples: int, fields: Sequence[Field]) -> None:
        """Hold the arrays against the manifest.

        Raises:
            ShardError: other dtype, shape or count.
        """
        for field in fields:
            dtype = np.dtype(field.dtype)
            if field.dense:
                array, expected = self.dense[field.name], (num_samples, *field.shape)
            else:
                array, offsets = self.ragged[field.name]
                if len(offsets) != num_samples + 1:
                    raise ShardError(f"expected {num_samples + 1} offsets, got {len(offsets)}, at field {field.name!r} of {path}")
                expected = (int(offsets[-1]), *field.shape)
            if array.shape != expected or array.dtype != dtype:
                got = f"{array.dtype} {list(array.shape)}"
                raise ShardError(f"expected {dtype} {list(expected)}, got {got}, at field {field.name!r} of {path}")

    def place(self, field: Field, row: int) -> str:
        if field.dense:
            return f"row {row} of {field.name}"
        start, stop = self.ragged[field.name][1][row : row + 2]
        return f"elements {start} to {stop} of {field.name}"

    def read(self, field: Field, rows: Int64Array) -> Values:
        """Gather dense rows; slice ragged ones."""
        if field.dense:
            return self.dense[field.name][rows]
        elements, offsets = self.ragged[field.name]
        return [elements[start:stop] for start, stop in zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)]


class Output:
    """A file that is written from begin to end in few calls of the system, its checksum taken on the way.

    Attributes:
        crc32: of all bytes, once it is closed.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.crc32 = path, 0
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115
        self._pending: list[Any] = []
        self._pending_nbytes = self._unsynced_nbytes = 0
        self._syncing: threading.Thread | None = None
        self._error: OSError | None = None

    def write(self, *pieces: Buffer) -> None:
        """Take bytes, which stay as they are until they are written."""
        self._pending += pieces
        self._pending_nbytes += sum(map(nbytes, pieces))
        if self._pending_nbytes >= _WRITE_NBYTES or len(self._pending) >= _WRITE_PIECES:
            self._flush()

    def _flush(self) -> None:
        for piece in self._pending:
            self.crc32 = isal_zlib.crc32(piece, self.crc32)
        written = os.writev(self._file.fileno(), self._pending) if self._pending else 0
        if written < self._pending_nbytes:  # a full disk, or more than one call takes
            rest = memoryview(b"".join(self._pending))[written:]
            while rest:
                rest = rest[self._file.write(rest) :]
        self._unsynced_nbytes += self._pending_nbytes
        self._pending, self._pending_nbytes = [], 0
        if self._unsynced_nbytes >= _SYNC_NBYTES and not (self._syncing and self._syncing.is_alive()):
            self._unsynced_nbytes = 0
            self._syncing = threading.Thread(target=self._sync)
            self._syncing.start()

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:  # the system tells it once
            self._error = self._error or error

    def close(self) -> None:
        """Write the rest, flushed to the disk."""
        self._flush()
        self._sync()
        self.abort()
        if self._error:
            raise self._error

    def abort(self) -> None:
        """Close the file as it is."""
        if self._syncing:
            self._syncing.join()
        self._file.close()


class ArraySpool(Output):
    """Append the values of one field to a file of bare elements, keeping the offsets of ragged ones."""

    def __init__(self, path: Path, field: Field) -> None:
        super().__init__(path)
        self.field = field
        self.dtype = np.dtype(field.dtype).newbyteorder("<")
        self.offsets = array("q", [0])

    def append(self, data: Buffer | None) -> None:
        """Add one value; None adds an empty one."""
        elements = to_elements(self.field, b"" if data is None else data)
        if elements.size:
            self.write(elements.astype(self.dtype, copy=False))
        self.offsets.append(self.offsets[-1] + len(elements))

    def ends(self) -> Int64Array:
        """The offsets, int64 [n + 1], in elements."""
        return np.array(self.offsets, "<i8")


def to_elements(field: Field, data: Buffer) -> Array:
    """View bytes, or an array, as elements of the field: [n, *shape], of a dense field its one [1, *shape]."""
    flat = data.reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    element = np.dtype(field.dtype).itemsize * int(np.prod(field.shape, dtype=np.int64))
    if element and flat.nbytes % element:
        raise ShardError(f"expected a multiple of {element} bytes, got {flat.nbytes}")
    num = flat.nbytes // element if element else int(field.dense)
    return flat.view(np.dtype(field.dtype).newbyteorder("<")).reshape(num, *field.shape)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a shard, its file or its folder, or what an earlier try has left of it."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Shards:
    """All shards of a dataset, opened as they are needed, a bounded number at a time.

    Handles belong to the process that opened them: a forked child drops what it inherited without closing it, and nothing is pickled. Threads
    may share it.

    Args:
        store: name of the store.
        root: folder of the dataset.
        fields: the payload fields.
        first: int64 [num_shards], index of each shard's first sample, ascending.
        num_samples: int64 [num_shards].
        files: gives the files of a shard as (path relative to `root`, bytes); the first path tells where the shard is.
        column: gives rows [start, stop) of a column.
        check: called when a shard was opened; raises where the dataset was replaced meanwhile.
    """

    def __init__(
        self,
        store: str,
        root: Path,
        fields: Sequence[Field],
        first: Int64Array,
        num_samples: Int64Array,
        files: Callable[[int], Sequence[tuple[str, int]]],
        column: Callable[[str, int, int], Array],
        check: Callable[[], None],
    ) -> None:
        self._module = registry.load("fastdata.stores", store, f"store of {root}")
        self._root, self._fields, self._first, self._num_samples = root, tuple(fields), first, num_samples
        self._files, self._column, self._check = files, column, check
        self._open: OrderedDict[int, Reader] = OrderedDict()
        self._num_files = 0
        self._inherited: list[object] = []
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("open shards are not pickled; the dataset opens them again")

    def path(self, shard: int) -> Path:
        """Where a shard is: its file, or its folder."""
        path = self._root / self._files(shard)[0][0]
        return path if self._module.SUFFIX else path.parent

    def locate(self, index: int) -> str:
        """Name the shard of a sample, and the sample in it, for an error."""
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        return f"sample {index - int(self._first[shard])} of {self.path(shard)}"

    def place(self, index: int) -> str:
        """Say where in its shard a sample's values lie, for an error; nothing where only the store's library knows."""
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        reader, row = self.reader(shard), index - int(self._first[shard])
        found = [place for field in self._fields if (place := reader.place(field, row))]
        return f" ({', '.join(found)})" if found else ""

    def reader(self, shard: int) -> Reader:
        """The open reader of a shard, opened and checked for its size when it is not.

        Raises:
            ShardError: a file of it is missing or has another size.
        """
        if os.getpid() != self._pid:
            # Forked: closing the parent's handles here could disturb it (LMDB's do), so they are kept and never touched; the lock may have
            # been held at the fork.
            self._inherited.append(self._open)
            self._open, self._num_files, self._pid, self._lock = OrderedDict(), 0, os.getpid(), threading.Lock()
        with self._lock:
            reader: Reader | None = self._open.get(shard)
            if reader is not None:
                self._open.move_to_end(shard)
                return reader
            start, num_samples = int(self._first[shard]), int(self._num_samples[shard])
            path = self.path(shard)
            try:
                for name, nbytes in self._files(shard):
                    check_size(self._root / name, nbytes)
                reader = self._module.Reader(path, self._fields, num_samples, lambda name: self._column(name, start, start + num_samples))
            except (DatasetError, ShardError):
                raise
            except Exception as error:  # a foreign file may raise anything: zipfile's, struct's and tokenize's errors have no common base
                raise ShardError(f"expected a shard that opens, got {type(error).__name__}: {error}, at {path}") from error
            finally:
                self._check()  # behind the opening: what was opened before a change is the old dataset's
            self._open[shard] = reader
            self._num_files += len(self._files(shard))
            while self._num_files > MAX_OPEN and len(self._open) > 1:
                closed, _ = self._open.popitem(last=False)
                self._num_files -= len(self._files(closed))
            return reader

    def read(self, field: Field, indices: Int64Array) -> Values:
        """Read a field of samples of any shards.

        Args:
            field: a payload field.
            indices: int64 [B], in any order, repeats allowed.

        Returns:
            As `Reader.read` does, in the order of `indices`.
        """
        shards = np.searchsorted(self._first, indices, side="right") - 1
        if len(indices) and (shards == shards[0]).all():
            return self.reader(int(shards[0])).read(field, indices - self._first[shards[0]])
        dense = np.empty((len(indices), *field.shape), dtype=field.dtype) if field.dense else None
        ragged: list[Array] = [] if field.dense else [_NOTHING] * len(indices)
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard)
            values = self.reader(shard).read(field, indices[places] - self._first[shard])
            if dense is not None:
                dense[places] = values
            else:
                for place, value in zip(places.tolist(), values, strict=True):
                    ragged[place] = value
        return ragged if dense is None else dense


_NOTHING = np.empty(0, dtype=np.uint8)


def map_npy(path: Path) -> Array:
    """Map a .npy file, read-only; one without elements, which cannot be mapped, is read.

    Raises:
        Exception: of any kind, since a damaged header is given to Python's parser.
    """
    # Not np.load, which takes a foreign file for a zip or a pickle.
    for _ in range(_PARSER_TRIES):
        try:
            try:
                mapped: Array = np.lib.format.open_memmap(path, mode="r")
                return mapped
            except ValueError:
                with open(path, "rb") as file:
                    read: Array = np.lib.format.read_array(file, allow_pickle=False)
                    return read
        except SystemError as error:  # "AST constructor recursion depth mismatch": CPython's parser, used by several threads at once
            mismatch = error
    raise mismatch


def crc32(path: Path) -> int:
    """Checksum of a file, read in pieces."""
    value = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_READ_NBYTES):
            value = isal_zlib.crc32(piece, value)
    return value


def check_size(path: Path, nbytes: int) -> None:
    """Hold a file's size against the manifest.

    Raises:
        ShardError: it is missing or has another size.
    """
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise ShardError(f"expected a file of {nbytes} bytes, got none ({error.strerror}), at {path}") from error
    if size != nbytes:
        what = "cut short" if size < nbytes else "replaced or written to"
        raise ShardError(f"expected {nbytes} bytes, got {size}, at {path}: it was {what} since it was packed; see fastdata verify")
