"""A dataset in a training loop: samples by index, batches by ticket, views without copies."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from fastdata import manifest as manifests
from fastdata import seeding
from fastdata.arrays import join
from fastdata.codecs import open_codec
from fastdata.errors import ArgumentError, DataError, DatasetError, FastdataError
from fastdata.images import Like, Regions, Resample
from fastdata.manifest import Manifest, ShardTable
from fastdata.stores.base import Shards
from fastdata.types import Array, Batch, Int64Array, Sample, Samples, Values, lazy

ON_ERROR = ("raise", "shorten", "substitute")
_SUBSTITUTE = seeding.hash_text("substitute")
_SUBSTITUTE_TRIES = 16
_BY_FILE_NBYTES = 1 << 20  # indices of a view beyond this travel to workers by a mapped file

BatchTransform: TypeAlias = Callable[[Batch, np.random.Generator], Batch]


@dataclass
class _Loaded:
    """Some of the samples that were asked for: `positions` int64 [k], ascending, and why the others are not there."""

    positions: Int64Array
    batch: Batch
    images: frozenset[str]
    failures: dict[int, DataError] = field(default_factory=dict)


class Base(ABC):
    """What datasets and views of them have in common; samples are dicts of field name -> value.

    `ds[i]` has list semantics. `ds.__getitems__(tickets)` loads a batch: it takes plain indices, or tickets, which bring the randomness of a
    sample's augmentation with them. Everything may be used by several threads at once and after a fork.
    """

    takes_tickets = True
    """Tells batch samplers to send tickets in place of indices."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def column(self, name: str) -> Array:
        """One number or string per sample: an array [len(self), ...]; strings as an object array of `str`.

        Memory-mapped and read-only while the dataset has one segment of columns, a copy otherwise; of a view, a copy of its rows.

        Raises:
            KeyError: no such column; names those that there are.
        """

    def rows_of(self, name: str, rows: Int64Array) -> Array:
        """Rows of a column, a copy; only their strings are decoded where the column lies on disk."""
        return self.column(name)[rows]

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names that `column` takes."""

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...] | None:
        """Names of label 0, 1, ...; None where labels have no names."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Tells the content: equal for equal samples in equal order, whatever the store and the shards."""

    @property
    @abstractmethod
    def is_gather(self) -> bool:
        """A batch is only a gather of rows: nothing to decode or transform, and workers would not pay."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """Names of the fields that a sample has."""

    @property
    @abstractmethod
    def on_error(self) -> str:
        """What happens to a sample that cannot be loaded: raise, substitute, shorten."""

    @property
    @abstractmethod
    def batch_transforms(self) -> tuple[BatchTransform, ...]:
        """What is applied to a whole batch."""

    @abstractmethod
    def _load(self, indices: Int64Array, keys: seeding.UInt64Array) -> _Loaded:
        """Load samples, with the random key of each, as far as they can be loaded."""

    @property
    @abstractmethod
    def marks(self) -> frozenset[str]:
        """Names under which a batch says which of its samples have a value: `<field>.valid` of fields that some sample misses."""

    @abstractmethod
    def describe(self, index: int) -> str:
        """Name a sample for an error: sample 3 of out/shards/00000.tar (key 'cat/7.jpg')."""

    def __iter__(self) -> Iterator[Sample]:
        for index in range(len(self)):
            yield self[index]

    def __getitem__(self, index: int) -> Sample:
        """Load one sample.

        Raises:
            IndexError: outside of [-len, len).
            DataError: it cannot be loaded; names shard, sample, key and field.
        """
        if not isinstance(index, (int, np.integer)):
            raise TypeError(f"expected an index, got {type(index).__name__}; select() takes many")
        if not -len(self) <= index < len(self):
            raise IndexError(f"expected an index in [-{len(self)}, {len(self)}), got {index}")
        return self.__getitems__([int(index) % len(self)])[0]

    def __getitems__(self, tickets: Sequence[int] | Int64Array) -> Samples:
        """Load a batch; PyTorch's loader calls this with all indices of a batch."""
        given = np.asarray(tickets)
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"expected indices, got {given.dtype}")
        indices, nonces, padding = seeding.split_tickets(given.astype(np.int64))
        indices = np.where(indices < 0, indices + len(self), indices)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"expected indices under {len(self)}, got {indices.min()} to {indices.max()}")
        keys = seeding.hash64(nonces.astype(np.uint64), indices)
        plain = nonces == 0
        if plain.any():
            # Drawn by the generator that a stock loader seeds anew for each worker and epoch; the place in the batch keeps repeats apart.
            import torch

            word = int(torch.randint(1 << 62, (1,)).item())
            keys = np.where(plain, seeding.hash64(word, indices, np.arange(len(indices), dtype=np.uint64)), keys)
        loaded = self._load(indices, keys)
        errors: list[str] = []
        if loaded.failures:
            loaded, indices, errors = self._mend(loaded, indices, keys)
        positions = loaded.positions
        batch = loaded.batch
        if "index" in batch:
            batch["index"] = indices[positions]
        for name in loaded.images:
            if isinstance(batch[name], list):
                batch[name] = join(name, batch[name], lambda i: self.describe(int(indices[positions[i]])))
        if self.batch_transforms:
            word = int(np.bitwise_xor.reduce(seeding.hash64(keys[positions], np.arange(len(positions), dtype=np.uint64))))
            generator = np.random.Generator(np.random.Philox(key=word))
            for transform in self.batch_transforms:
                batch = transform(batch, generator)
        images = frozenset(name for name in loaded.images if name in batch)
        return Samples(batch, len(positions), images, padding[positions] if padding.any() else None, errors)

    def _mend(self, loaded: _Loaded, indices: Int64Array, keys: seeding.UInt64Array) -> tuple[_Loaded, Int64Array, list[str]]:
        """Do with samples that failed what `on_error` says: raise, replace them by others, or leave them out.

        A substitute is drawn by the sample's own key, so it is the same in every run. A batch is never empty: where all would be left out, one
        substitute takes their place.
        """
        if self.on_error == "raise":
            raise loaded.failures[min(loaded.failures)]
        errors = [str(error) for _, error in sorted(loaded.failures.items())]
        todo = np.array(sorted(loaded.failures), dtype=np.int64)
        if self.on_error == "shorten":
            todo = todo[: not len(loaded.positions)]
        pieces, indices = [loaded], indices.copy()
        for attempt in range(_SUBSTITUTE_TRIES):
            if not len(todo):
                break
            indices[todo] = (seeding.hash64(keys[todo], _SUBSTITUTE, attempt) % np.uint64(len(self))).astype(np.int64)
            again = self._load(indices[todo], keys[todo])
            pieces.append(_Loaded(todo[again.positions], again.batch, again.images))
            todo = todo[np.array(sorted(again.failures), dtype=np.int64)]
            error: DataError | None = next(iter(again.failures.values()), None)
        if len(todo):
            raise DataError(f"expected a substitute that loads, got {_SUBSTITUTE_TRIES} that do not; the last: {error}") from error
        return _merge(pieces), indices, errors

    def select(self, indices: Sequence[int] | Array) -> View:
        """View some samples, in this order, repeats allowed; no payload is copied.

        Args:
            indices: integers [n], each in [-len, len).

        Raises:
            ArgumentError: something else, or out of range.
        """
        chosen = np.asarray(indices)
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise ArgumentError(f"expected whole numbers [n], got {chosen.dtype} {list(chosen.shape)}; filter() takes a mask")
        chosen = chosen.astype(np.int64)
        chosen = np.where(chosen < 0, chosen + len(self), chosen)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise ArgumentError(f"expected indices in [-{len(self)}, {len(self)}), got {np.min(indices)} to {np.max(indices)}")
        return View(self, chosen)

    def filter(self, mask: Array | Sequence[bool] | Callable[[Mapping[str, Array]], Array]) -> View:
        """View the samples where a mask is true.

        Args:
            mask: bool [len(self)], or a function from a mapping of columns to such a mask: `lambda c: c["label"] == 3`.

        Raises:
            ArgumentError: something else.
        """
        wanted = np.asarray(mask(_ColumnsOf(self)) if callable(mask) else mask)
        if wanted.shape != (len(self),) or wanted.dtype != np.bool_:
            raise ArgumentError(f"expected a mask bool [{len(self)}], got {wanted.dtype} {list(wanted.shape)}")
        return View(self, np.flatnonzero(wanted).astype(np.int64))


class _ColumnsOf(Mapping[str, Array]):
    """The columns of a dataset or view as a mapping, read when asked for."""

    def __init__(self, dataset: Base) -> None:
        self._dataset = dataset

    def __getitem__(self, name: str) -> Array:
        return self._dataset.column(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._dataset.columns)

    def __len__(self) -> int:
        return len(self._dataset.columns)


class Dataset(Base):
    """A packed dataset.

    It names its generation: pickled or not, it never sees samples that were appended after it was opened. Handles are opened by the process that
    reads and are not pickled.

    Args:
        path: the dataset's folder.
        fields: names of fields to load; None: every field. "index" (int64, place in the dataset) and "key" (str) may be asked for.
        decode: for pictures, what to decode instead of whole pictures: field -> crop, field -> `like(other)`, or name -> (field, crop) for several
            views of one field.
        transform: applied to each sample: dict -> dict. The global generators of random, numpy and torch are seeded around it.
        batch_transforms: each applied to the batch in turn: (dict of arrays, pictures [B, H, W, 3]; a numpy Generator) -> dict.
        on_error: what happens to a sample that cannot be loaded: "raise", "substitute" another one, chosen by the ticket, or "shorten" the batch.

    Raises:
        DatasetError: no dataset is there, or one that this version cannot open.
        ArgumentError: unknown fields, or a `decode` that does not fit them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[str] | None = None,
        *,
        decode: Mapping[str, Any] | None = None,
        transform: Callable[[Sample], Sample] | None = None,
        batch_transforms: Sequence[BatchTransform] = (),
        on_error: str = "raise",
    ) -> None:
        if on_error not in ON_ERROR:
            raise ArgumentError(f"expected one of {list(ON_ERROR)}, got {on_error!r}, at on_error")
        if isinstance(fields, str):
            raise ArgumentError(f"expected a sequence of names, got the string {fields!r}, at fields")
        if decode is not None and not isinstance(decode, Mapping):
            raise ArgumentError(f"expected a dict such as {{'image': crop}}, got {type(decode).__name__}, at decode")
        if callable(batch_transforms):
            raise ArgumentError(
                f"expected a sequence of functions, got {type(batch_transforms).__name__}, at batch_transforms; put it into a list"
            )
        self.path = Path(os.path.abspath(path))
        self._fields = None if fields is None else tuple(fields)
        self._decode = dict(decode or {})
        self._transform = transform
        self._batch_transforms = tuple(batch_transforms)
        self._on_error = on_error
        self._open(None)

    def _open(self, generation: int | None) -> None:
        """Read the manifest; nothing else is touched before it is needed."""
        self._manifest, self._columns = manifests.open_folder(self.path, generation)
        self._codecs = {f.name: open_codec(f) for f in self._manifest.fields}
        self._plan = _plan_outputs(self._manifest, self._fields, self._decode)

    def __getstate__(self) -> dict[str, Any]:
        names = ("path", "_fields", "_decode", "_transform", "_batch_transforms", "_on_error")
        opened = (self._manifest.generation, self._manifest.fingerprint)
        return {**{name: self.__dict__[name] for name in names}, "opened": opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        generation, fingerprint = state.pop("opened")
        self.__dict__.update(state)
        self._open(generation)
        if self._manifest.fingerprint != fingerprint:
            raise DatasetError(f"expected the dataset that was opened, got another in its place, at {self.path}: open it again")

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, {len(self)} samples, {self._manifest.store}, {', '.join(self.outputs)})"

    @lazy
    def _shards(self) -> Shards:
        check = self._columns.check_unchanged
        try:
            table = ShardTable(self.path, self._manifest)
            payloads = [codec.stored for codec in self._codecs.values() if codec.payload]
            store, column = self._manifest.store, self._columns.slice
            return Shards(store, self.path, payloads, table.first, table.num_samples, table.files, column, check)
        finally:
            check()

    def __len__(self) -> int:
        return self._manifest.num_samples

    @property
    def manifest(self) -> Manifest:
        """What the dataset says of itself."""
        return self._manifest

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self._manifest.classes

    @property
    def fingerprint(self) -> str:
        return self._manifest.fingerprint

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._columns)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(output.name for output in self._plan)

    @property
    def on_error(self) -> str:
        return self._on_error

    @property
    def batch_transforms(self) -> tuple[BatchTransform, ...]:
        return self._batch_transforms

    @property
    def marks(self) -> frozenset[str]:
        specs = self._manifest.columns
        missing = (o for o in self._plan if f"{o.source}.valid" in specs or specs.get(f"{o.source}.nbytes", {}).get("missing"))
        return frozenset(f"{output.name}.valid" for output in missing)

    @property
    def is_gather(self) -> bool:
        codecs = [self._codecs[output.source] for output in self._plan if output.source in self._codecs]
        plain = all(output.crop is None for output in self._plan) and all(not c.payload or c.stored.dense for c in codecs)
        return plain and self._transform is None and not self._batch_transforms

    def column(self, name: str) -> Array:
        return self._columns[name]

    def rows_of(self, name: str, rows: Int64Array) -> Array:
        found = self._columns.take(name, rows)
        return np.array(found, dtype=object) if isinstance(found, list) else np.asarray(found)

    def describe(self, index: int) -> str:
        return f"{self._shards.locate(index)} (key {self._columns.strings('key', np.array([index]))[0]!r})"

    def _load(self, indices: Int64Array, keys: seeding.UInt64Array) -> _Loaded:
        failures: dict[int, DataError] = {}
        values = {name: self._read(name, indices, failures) for name in {o.source for o in self._plan if self._is_payload(o.source)}}
        batch: Batch = {}
        regions: dict[str, _Drawn] = {}
        images = set()
        for output in self._plan:
            name, source = output.name, output.source
            if source == "index":
                batch[name] = indices
            elif source == "key":
                batch[name] = self._columns.strings("key", indices)
            elif not self._is_payload(source):
                batch[name] = self._columns.take(source, indices)
                if f"{source}.valid" in self._columns:
                    batch[f"{name}.valid"] = np.asarray(self._columns.take(f"{source}.valid", indices))
            else:
                batch.update(self._decoded(output, values[source], indices, keys, regions, failures))
                if self._codecs[source].field.codec == "image":
                    images.add(name)
        kept = np.array([i for i in range(len(indices)) if i not in failures], dtype=np.int64)
        loaded = _Loaded(np.arange(len(indices)), batch, frozenset(images), failures)
        loaded = _take(loaded, kept) if failures else loaded
        return loaded if self._transform is None else self._transformed(loaded, indices, keys)

    def _is_payload(self, source: str) -> bool:
        return source in self._codecs and self._codecs[source].payload

    def _read(self, name: str, indices: Int64Array, failures: dict[int, DataError]) -> Values:
        """Read a payload field; where that fails, sample by sample, to learn which ones do."""
        f = self._codecs[name].stored
        try:
            return self._shards.read(f, indices)
        except DataError:
            pass
        values: list[Array] = []
        for i, index in enumerate(indices.tolist()):
            try:
                values.append(np.asarray(self._shards.read(f, np.array([index]))[0]))
            except DataError as error:
                failures[i] = self._failure(error, name, index)
                values.append(np.zeros(f.shape if f.dense else (0, *f.shape), dtype=f.dtype))
        return np.stack(values) if f.dense else values

    def _failure(self, error: DataError, name: str, index: int) -> DataError:
        """Say at which field of which sample an error happened."""
        failure = DataError(f"{error}, at field {name!r} of {self.describe(index)}")
        failure.__cause__ = error
        return failure

    def _decoded(
        self,
        output: _Output,
        values: Values,
        indices: Int64Array,
        keys: seeding.UInt64Array,
        regions: dict[str, _Drawn],
        failures: dict[int, DataError],
    ) -> Batch:
        """Decode a payload field of a batch, whole or what a crop needs of it; failures go into the dict."""
        codec, name, source = self._codecs[output.source], output.name, output.source
        info = {column: self._columns.take(f"{source}.{column}", indices) for column in codec.columns}
        missing = None
        if self._manifest.columns[f"{source}.nbytes"].get("missing"):
            missing = np.asarray(self._columns.take(f"{source}.nbytes", indices)) < 0
        extra: Batch = {} if missing is None else {f"{name}.valid": ~missing}
        dense = codec.field.dense and output.crop is None
        if dense and codec.stored.dense:
            return {name: np.asarray(values, dtype=np.dtype(codec.field.dtype)), **extra}
        nothing = np.zeros((0, *codec.field.shape), dtype=codec.field.dtype) if codec.field.codec == "ndarray" else None
        out: Any = np.zeros((len(indices), *codec.field.shape), dtype=codec.field.dtype) if dense else [nothing] * len(indices)
        if output.crop is not None:
            widths, heights = (np.maximum(1, np.asarray(info[side], dtype=np.int64)) for side in ("width", "height"))
            if isinstance(output.crop, Like):
                drawn = regions[name] = regions[output.crop.field]
                self._hold_sizes(drawn, output, widths, heights, indices, failures)
            else:
                stream = seeding.hash_text(name)
                boxes = output.crop.draw(widths, heights, lambda num: seeding.uniform(keys, stream, num))
                drawn = regions[name] = _Drawn(boxes, output.crop.size, widths, heights)
            out = np.zeros((len(indices), *drawn.size, 3), dtype=np.uint8)
        for i in range(len(indices)):
            if i in failures or (missing is not None and missing[i]):
                continue
            one = {column: value[i] for column, value in info.items()}
            try:
                if output.crop is None:
                    out[i] = codec.decode(codec.from_store(values[i], one), one)
                else:
                    box, flip = drawn.regions.boxes[i], bool(drawn.regions.flips[i])
                    cast(Any, codec).decode_region(values[i], one, box, out[i], flip=flip, interpolation=output.crop.interpolation)
            except DataError as error:
                failures[i] = self._failure(error, source, int(indices[i]))
        return {name: out, **extra}

    def _transformed(self, loaded: _Loaded, indices: Int64Array, keys: seeding.UInt64Array) -> _Loaded:
        """Apply the per-sample transform, with the global generators seeded by each sample's key."""
        assert self._transform is not None
        samples: list[Sample] = []
        with seeding.globals_restored():
            for i, position in enumerate(loaded.positions.tolist()):
                seeding.seed_globals(int(keys[position]))
                try:
                    sample = self._transform({name: _writable(value[i]) for name, value in loaded.batch.items()})
                except Exception as error:
                    where = self.describe(int(indices[position]))
                    raise FastdataError(f"expected transform to return, got {type(error).__name__}: {error}, at {where}") from error
                if not isinstance(sample, Mapping) or (samples and sample.keys() != samples[0].keys()):
                    got = list(sample) if isinstance(sample, Mapping) else type(sample).__name__
                    expected = list(samples[0]) if samples else "dict"
                    raise FastdataError(f"expected transform to give {expected}, got {got}, at {self.describe(int(indices[position]))}")
                samples.append(dict(sample))
        ragged = {o.name for o in self._plan if self._is_payload(o.source) and not self._codecs[o.source].field.dense} - loaded.images
        batch: Batch = {}
        for name in samples[0] if samples else ():
            values = [sample[name] for sample in samples]
            keep = name in ragged and all(isinstance(value, np.ndarray) for value in values)
            batch[name] = values if keep else join(name, values, lambda i: self.describe(int(indices[loaded.positions[i]])))
        images = {n for n in loaded.images if n in batch and all(isinstance(s[n], np.ndarray) and s[n].shape[-1:] == (3,) for s in samples)}
        return _Loaded(loaded.positions, batch, frozenset(images), loaded.failures)

    def _hold_sizes(
        self, drawn: _Drawn, output: _Output, widths: Int64Array, heights: Int64Array, indices: Int64Array, failures: dict[int, DataError]
    ) -> None:
        """Refuse samples whose pictures differ in size from those that their regions were drawn for."""
        for i in np.flatnonzero((drawn.widths != widths) | (drawn.heights != heights)).tolist():
            error = DataError(f"expected the picture's size {drawn.widths[i]} x {drawn.heights[i]}, got {widths[i]} x {heights[i]}")
            failures[i] = self._failure(error, output.source, int(indices[i]))


@dataclass(frozen=True)
class _Output:
    """A field of the sample: its name, the field of the dataset that it comes from, and what to decode of a picture (None: all)."""

    name: str
    source: str
    crop: Resample | Like | None = None


@dataclass(frozen=True)
class _Drawn:
    """The regions of a batch, the size they are resized to, and the sizes of the pictures that they were drawn for."""

    regions: Regions
    size: tuple[int, int]
    widths: Int64Array
    heights: Int64Array


def _plan_outputs(manifest: Manifest, wanted: Sequence[str] | None, decode: Mapping[str, Any]) -> tuple[_Output, ...]:
    """Settle what a sample holds, in order; a field that `like` refers to comes before the one that refers.

    Raises:
        ArgumentError: a name that is not there, or a crop of something that is no picture.
    """
    known = {f.name: f for f in manifest.fields}
    made: dict[str, _Output] = {}
    for name, value in decode.items():
        source, crop = value if isinstance(value, tuple) else (name, value)
        if source not in known:
            raise ArgumentError(f"expected one of the fields {list(known)}, got {source!r}, at decode")
        if known[source].codec != "image":
            raise ArgumentError(f"expected a field of pictures, got {source!r} of codec {known[source].codec!r}, at decode")
        if not isinstance(crop, (Resample, Like)):
            raise ArgumentError(f"expected a crop such as RandomResizedCrop(224), got {type(crop).__name__}, at decode[{name!r}]")
        made[name] = _Output(name, source, crop)
    outputs: dict[str, _Output] = {}
    for name in known if wanted is None else wanted:
        if name not in known and name not in made and name not in ("index", "key"):
            raise ArgumentError(f"expected some of {[*known, 'index', 'key']}, got {name!r}, at fields")
        # A field that others are views of gives these; only a crop under its own name keeps it beside them.
        views = [output for output in made.values() if name in (output.name, output.source)]
        outputs |= {output.name: output for output in views or [_Output(name, name)]}
    if unused := [name for name in made if name not in outputs]:
        raise ArgumentError(f"expected to decode what fields asks for, got {unused} besides, at decode")
    for output in outputs.values():
        if isinstance(output.crop, Like) and not isinstance(getattr(outputs.get(output.crop.field), "crop", None), Resample):
            raise ArgumentError(f"expected like() of a field that has a crop, got {output.crop.field!r}, at decode[{output.name!r}]")
    return tuple(sorted(outputs.values(), key=lambda output: isinstance(output.crop, Like)))


class View(Base):
    """Some samples of a dataset or view, in an order of its own; see `select` and `filter`."""

    def __init__(self, base: Base, indices: Int64Array) -> None:
        self._base, self._indices = base, indices

    def __getstate__(self) -> dict[str, Any]:
        if self._indices.nbytes <= _BY_FILE_NBYTES:
            return {"_base": self._base, "_indices": self._indices}
        if not hasattr(self, "_file"):
            self._file = _MappedIndices(self._indices)
            self._indices = self._file.indices
        return {"_base": self._base, "_file": self._file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_file" in state:
            self._indices = self._file.indices

    def __repr__(self) -> str:
        return f"View({len(self)} samples of {self._base!r})"

    def __len__(self) -> int:
        return len(self._indices)

    def column(self, name: str) -> Array:
        return self._base.rows_of(name, self._indices)

    def rows_of(self, name: str, rows: Int64Array) -> Array:
        return self._base.rows_of(name, self._indices[rows])

    @property
    def columns(self) -> tuple[str, ...]:
        return self._base.columns

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self._base.classes

    @property
    def fingerprint(self) -> str:
        state = seeding.hash64(self._indices, np.arange(len(self._indices), dtype=np.uint64))
        return f"{self._base.fingerprint}[{int(np.bitwise_xor.reduce(state, initial=0)):016x}]"

    @property
    def marks(self) -> frozenset[str]:
        return self._base.marks

    @property
    def is_gather(self) -> bool:
        return self._base.is_gather

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._base.outputs

    @property
    def on_error(self) -> str:
        return self._base.on_error

    @property
    def batch_transforms(self) -> tuple[BatchTransform, ...]:
        return self._base.batch_transforms

    def describe(self, index: int) -> str:
        return self._base.describe(int(self._indices[index]))

    def _load(self, indices: Int64Array, keys: seeding.UInt64Array) -> _Loaded:
        return self._base._load(self._indices[indices], keys)


class _MappedIndices:
    """Indices in a file without a name, which other processes of this machine open through the one that made it.

    It lives as long as this object in the process that made it; what was unpickled elsewhere stays valid, since it is mapped.
    """

    def __init__(self, indices: Int64Array) -> None:
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("fastdata-indices")
            self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        else:
            import tempfile

            self._descriptor, self.path = tempfile.mkstemp(prefix="fastdata-indices-")
            weakref.finalize(self, _unlink_in, os.getpid(), self.path)
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(np.ascontiguousarray(indices).data.cast("B"))
        weakref.finalize(self, _close_in, os.getpid(), self._descriptor)
        self._identity = _identify(self._descriptor)
        self.indices = self._map()

    def _map(self) -> Int64Array:
        try:
            with open(self.path, "rb") as file:
                if _identify(file.fileno()) != self._identity:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
                return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.int64)
        except OSError as error:
            raise DatasetError(
                f"expected the indices of a view, got {error.strerror}, at {self.path}: the process that made the view has ended; save the indices"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_identity": self._identity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.indices = self._map()


def _identify(descriptor: int) -> tuple[int, int, int, int]:
    """Tell a file from others that get its number later."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _close_in(pid: int, descriptor: int) -> None:
    """Close a descriptor, in the process that owns it alone."""
    if os.getpid() == pid:
        os.close(descriptor)


def _unlink_in(pid: int, path: str) -> None:
    """Remove a file, in the process that owns it alone."""
    if os.getpid() == pid:
        os.unlink(path)


class Concat(Base):
    """Datasets one behind the other; see `concat`."""

    def __init__(self, parts: Sequence[Base]) -> None:
        self._parts = tuple(parts)
        self._starts = np.cumsum([0, *map(len, parts)]).astype(np.int64)

    def __repr__(self) -> str:
        return f"Concat({', '.join(map(repr, self._parts))})"

    def __len__(self) -> int:
        return int(self._starts[-1])

    def column(self, name: str) -> Array:
        return np.concatenate([part.column(name) for part in self._parts])

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in self._parts[0].columns if all(name in part.columns for part in self._parts))

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self._parts[0].classes

    @property
    def fingerprint(self) -> str:
        return "+".join(part.fingerprint for part in self._parts)

    @property
    def marks(self) -> frozenset[str]:
        return frozenset().union(*(part.marks for part in self._parts))

    @property
    def is_gather(self) -> bool:
        return all(part.is_gather for part in self._parts)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._parts[0].outputs

    @property
    def on_error(self) -> str:
        return self._parts[0].on_error

    @property
    def batch_transforms(self) -> tuple[BatchTransform, ...]:
        return self._parts[0].batch_transforms

    def _place(self, index: int) -> tuple[Base, int]:
        part = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._parts[part], index - int(self._starts[part])

    def describe(self, index: int) -> str:
        part, local = self._place(index)
        return part.describe(local)

    def _load(self, indices: Int64Array, keys: seeding.UInt64Array) -> _Loaded:
        owners = np.searchsorted(self._starts, indices, side="right") - 1
        pieces = []
        failures: dict[int, DataError] = {}
        for owner in np.unique(owners).tolist() or [0]:
            places = np.flatnonzero(owners == owner)
            piece = self._parts[owner]._load(indices[places] - self._starts[owner], keys[places])
            failures |= {int(places[i]): error for i, error in piece.failures.items()}
            # A part that misses no value of a field has no marks of it; the others' batches do, and keys must not depend on the draw.
            unmarked = [mark for mark in self.marks if mark not in piece.batch and mark.removesuffix(".valid") in piece.batch]
            batch = {**piece.batch, **{mark: np.ones(len(piece.positions), dtype=bool) for mark in unmarked}}
            pieces.append(_Loaded(places[piece.positions], batch, piece.images))
        merged = pieces[0] if len(pieces) == 1 else _merge(pieces)
        merged.failures = failures
        return merged


def concat(datasets: Sequence[Base]) -> Concat:
    """Put datasets or views one behind the other, without copying.

    Args:
        datasets: with the same fields, classes, batch transforms and `on_error`.

    Raises:
        ArgumentError: none, or they differ; says in what.
    """
    if not datasets:
        raise ArgumentError("expected at least one dataset, got none, at concat")
    for name in ("outputs", "classes", "on_error", "batch_transforms"):
        first = getattr(datasets[0], name)
        for dataset in datasets:
            if getattr(dataset, name) != first:
                raise ArgumentError(f"expected datasets of equal {name}, got {first} and {getattr(dataset, name)}, at concat")
    return Concat(datasets)


def _writable(value: Any) -> Any:
    """An array that a transform may write to: some decoders give read-only ones."""
    return np.require(value, requirements="W") if isinstance(value, np.ndarray) else value


def _take(loaded: _Loaded, kept: Int64Array) -> _Loaded:
    """Keep some rows of what was loaded."""
    chosen = kept.tolist()
    batch = {name: value[kept] if isinstance(value, np.ndarray) else [value[i] for i in chosen] for name, value in loaded.batch.items()}
    return _Loaded(loaded.positions[kept], batch, loaded.images, loaded.failures)


def _merge(pieces: Sequence[_Loaded]) -> _Loaded:
    """Join pieces into the order of their positions."""
    pieces = [piece for piece in pieces if len(piece.positions)] or pieces[:1]
    if len(pieces) == 1:
        return _Loaded(pieces[0].positions, pieces[0].batch, pieces[0].images)
    positions = np.concatenate([piece.positions for piece in pieces])
    order = np.argsort(positions, kind="stable")
    batch: Batch = {}
    for name in pieces[0].batch:
        values = [piece.batch[name] for piece in pieces if name in piece.batch]
        if len(values) < len(pieces):
            continue  # a transform made something of some samples alone
        dense = all(isinstance(value, np.ndarray) and value.shape[1:] == values[0].shape[1:] for value in values)
        if dense and all(value.dtype == values[0].dtype for value in values):
            batch[name] = np.concatenate(values)[order]
        else:
            flat = [one for value in values for one in value]
            batch[name] = [flat[i] for i in order.tolist()]
    return _Loaded(positions[order], batch, frozenset.intersection(*(piece.images for piece in pieces)))
