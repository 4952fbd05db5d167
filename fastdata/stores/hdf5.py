"""A shard is one HDF5 file: a dataset `<field>` [n, ...] where all values have one shape, else `<field>` and `<field>.offsets`.

Datasets are contiguous, so the reader asks the library where they lie and maps them: no handle stays open, and reading costs what it does
from a plain array.
"""

from __future__ import annotations

import shutil
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
_RESERVED_NBYTES = 64 << 10  # what the description of some dozen datasets takes, and more


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

        for spool in self._spools:
            spool.close()
        ends = [spool.ends() for spool in self._spools]
        # On a full disk the library crashes, so it only lays the file out, in space that is there; elements are copied by ourselves.
        with open(self.path, "wb") as reserved:
            reserved.write(bytes(_RESERVED_NBYTES))
        copies: list[tuple[int | None, Path | Array]] = []
        with h5py.File(self.path, "w", libver="latest", locking=False) as file:
            for spool, offsets in zip(self._spools, ends, strict=True):
                field = spool.field
                copies.append((_allocate(file, field.name, (int(offsets[-1]), *field.shape), spool.dtype), spool.path))
                if not field.dense:
                    copies.append((_allocate(file, f"{field.name}.offsets", offsets.shape, offsets.dtype), offsets))
        with open(self.path, "r+b") as target:
            for at, elements in copies:
                if at is None:
                    continue
                target.seek(at)
                if isinstance(elements, Path):
                    with open(elements, "rb") as source:
                        shutil.copyfileobj(source, target, _COPY_NBYTES)
                else:
                    target.write(elements.data.cast("B"))
        sync(self.path)
        self.abort()
        return {}

    def abort(self) -> None:
        """Remove the spools."""
        for spool in self._spools:
            spool.abort()
            spool.path.unlink(missing_ok=True)


def _allocate(file: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int | None:
    """Make a contiguous dataset without writing its elements; give the offset where they belong, None where it has none."""
    import h5py

    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_layout(h5py.h5d.CONTIGUOUS)
    settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    settings.set_obj_track_times(False)
    kind, space = h5py.h5t.py_create(dtype, logical=True), h5py.h5s.create_simple(shape)
    offset: int | None = h5py.h5d.create(file.id, name.encode(), kind, space, settings).get_offset()
    return offset if 0 not in shape else None


class Reader(ArrayReader):
    """Map the datasets."""

    def __init__(self, path: Path, fields: Sequence[Field], num_samples: int, column: Callable[[str], Array]) -> None:
        self.dense, self.ragged = {}, {}
        whole = np.memmap(path, np.uint8, "r").view(np.ndarray)  # one mapping of all: each holds an open file
        with _opened(path) as file:
            for field in fields:
                if field.dense:
                    self.dense[field.name] = _mapped(whole, file, field.name, path)
                else:
                    offsets = _mapped(whole, file, f"{field.name}.offsets", path)
                    self.ragged[field.name] = _mapped(whole, file, field.name, path), offsets
        self.check(path, num_samples, fields)


def _opened(path: Path) -> Any:
    """Open without a lock, since shared file systems and read-only mounts refuse it, and a finished shard never changes."""
    import h5py

    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        if "locking flag" not in str(error):
            raise
        return h5py.File(path, "r")  # the caller has it open with a lock: so it must be here


def _mapped(whole: Array, file: Any, name: str, path: Path) -> Array:
    """View one contiguous dataset in the mapped file."""
    dataset = file[name]
    if 0 in dataset.shape:
        return np.empty(dataset.shape, dataset.dtype)
    offset = dataset.id.get_offset()
    if offset is None:
        raise ShardError(f"expected a contiguous dataset, got one in chunks, at {name!r} of {path}")
    return np.ndarray(dataset.shape, dataset.dtype, whole.data, offset)
