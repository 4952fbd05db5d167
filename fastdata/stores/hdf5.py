"""A shard is one HDF5 file: a dataset `<field>` [n, ...] where all values have one shape, else `<field>` and `<field>.offsets`.

Datasets are contiguous, so the reader asks the library where they lie and maps them: no handle stays open, and reading costs what it does
from a plain array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import ShardError
from fastdata.stores.base import ArrayReader, ArraySpool, sync
from fastdata.stores.base import Writer as BaseWriter
from fastdata.types import Array, Field, Record

SUFFIX = ".h5"
_COPY_NBYTES = 16 << 20  # per step from the spool into the file: large beside a call, small beside memory


class Writer(BaseWriter):
    """Spool the elements beside the file, since a contiguous dataset wants its size when it is made."""

    def __init__(self, path: Path, stem: str, fields: Sequence[Field]) -> None:
        super().__init__(path, stem, fields)
        self._spools = [ArraySpool(path.with_name(f"{path.name}.{field.name}.spool"), field) for field in fields]

    def append(self, record: Record) -> None:
        """Add the values to their spools."""
        for spool in self._spools:
            value = record.values[spool.field.name]
            spool.append(None if value is None else value.data)

    def close(self) -> Mapping[str, Sequence[int]]:
        """Copy the spools into the file."""
        import h5py

        with h5py.File(self.path, "w", libver="latest", locking=False) as file:
            for spool in self._spools:
                offsets, field = spool.close(), spool.field
                shape = (int(offsets[-1]), *field.shape)
                dataset = file.create_dataset(field.name, shape, spool.dtype)
                if 0 not in shape:
                    elements = np.memmap(spool.path, spool.dtype, "r", shape=shape)
                    step = max(1, _COPY_NBYTES * shape[0] // elements.nbytes)
                    for start in range(0, shape[0], step):
                        dataset[start : start + step] = elements[start : start + step]
                if not field.dense:
                    file.create_dataset(f"{field.name}.offsets", data=offsets)
        sync(self.path)
        self.abort()
        return {}

    def abort(self) -> None:
        """Remove the spools."""
        for spool in self._spools:
            spool.file.close()
            spool.path.unlink(missing_ok=True)


class Reader(ArrayReader):
    """Map the datasets."""

    def __init__(self, path: Path, fields: Sequence[Field], num_samples: int, column: Callable[[str], Array]) -> None:
        import h5py

        self.dense, self.ragged = {}, {}
        # Locking is off, since shared file systems and read-only mounts refuse it, and a finished shard never changes.
        with h5py.File(path, "r", locking=False) as file:
            for field in fields:
                if field.dense:
                    self.dense[field.name] = _mapped(path, file, field.name)
                else:
                    offsets = _mapped(path, file, f"{field.name}.offsets")
                    self.ragged[field.name] = _mapped(path, file, field.name), offsets
        self.check(path, num_samples, fields)


def _mapped(path: Path, file: Any, name: str) -> Array:
    """Map one contiguous dataset."""
    dataset = file[name]
    if 0 in dataset.shape:
        return np.empty(dataset.shape, dataset.dtype)
    offset = dataset.id.get_offset()
    if offset is None:
        raise ShardError(f"expected a contiguous dataset, got one in chunks, at {name!r} of {path}")
    return np.memmap(path, dataset.dtype, "r", offset, dataset.shape).view(np.ndarray)
