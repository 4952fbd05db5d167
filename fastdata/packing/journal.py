"""`out.partial`: a dataset while it is packed, so that a pack that was killed goes on after its last finished shard.

    shards/00000.tar ...        finished shards; what is being written has another ending
    journal/job.json            the terms on which it is packed
    journal/00000.npz           of each finished shard: columns, rejects and summary, written last
    journal/plan.json           how many shards there are, written once the source was listed to its end

A pack locks the whole folder; parts of one that run on several machines lock their share. The kernel frees the locks, however a process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any

import numpy as np

from fastdata import manifest as manifests
from fastdata.errors import DataError, DatasetError
from fastdata.packing.base import Listing, Reject, ShardSummary, Terms
from fastdata.stores.base import check_size, remove, sync
from fastdata.types import Array

_LOCK_WAITS_S = 3  # for the workers of a killed pack to end, which hold its lock until then


class Journal:
    """What is known of an unfinished dataset, on disk alone. Picklable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = folder.with_name(f".{folder.name}.lock")
        self._place = folder / "journal"

    @contextlib.contextmanager
    def claimed(self, part: int | None) -> Iterator[None]:
        """Keep every other pack out, or if this is one of several parts, every one but the other parts.

        Raises:
            DatasetError: another one is writing.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            whole = self._lock(stack, self.lock, fcntl.LOCK_EX if part is None else fcntl.LOCK_SH)
            if part is not None:
                own = self.folder.with_name(f".{self.folder.name}.{part}.lock")
                self._lock(stack, own, fcntl.LOCK_EX)
                stack.callback(own.unlink, missing_ok=True)
            try:
                if part is None:
                    for left in self.folder.parent.glob(f".{glob.escape(self.folder.name)}.*.lock"):  # of parts that were killed
                        left.unlink(missing_ok=True)
                yield
            finally:
                with contextlib.suppress(BlockingIOError):  # other parts are at work, and the last one removes it
                    fcntl.flock(whole, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self.lock.unlink(missing_ok=True)

    def _lock(self, stack: contextlib.ExitStack, path: Path, how: int) -> IO[bytes]:
        deadline = time.monotonic() + _LOCK_WAITS_S
        while True:
            file = stack.enter_context(open(path, "wb"))  # noqa: SIM115
            try:
                fcntl.flock(file, how | fcntl.LOCK_NB)
                if path.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    return file  # else its last owner has just removed it
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise DatasetError(f"expected to be alone, got another pack that is writing, at {self.folder}") from error
                time.sleep(_LOCK_WAITS_S / 30)

    def begin(self, terms: Terms) -> None:
        """Make the folder, with the terms in it; where another part has just done so, that is as well."""
        for folder in (self._place, self.folder / "shards"):
            folder.mkdir(parents=True, exist_ok=True)
        document = {**asdict(terms), "fields": {f.name: manifests.field_to_json(f) for f in terms.fields}}
        self._write("job.json", document, replace=False)

    def terms(self) -> Terms | None:
        """The terms on which the folder was begun; None where there are none.

        Raises:
            DatasetError: they cannot be read.
        """
        path = self._place / "job.json"
        try:
            document = json.loads(path.read_bytes())
            listing = document["listing"]
            classes = document["classes"]
            return Terms(
                options=document["options"],
                fields=manifests.fields_from_json(document["fields"]),
                classes=None if classes is None else tuple(classes),
                listing=None if listing is None else Listing(**listing),
                version=document["version"],
                num_parts=document["num_parts"],
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError) as error:
            raise DatasetError(f"expected the terms of an unfinished dataset, got {error!r}, at {path}: remove {self.folder}") from error

    @property
    def exists(self) -> bool:
        """Whether the folder was made by a pack: it has a journal, or it is a dataset that a newer one has taken the place of."""
        return self._place.is_dir() or (self.folder / "manifest.json").is_file()

    @property
    def ended(self) -> bool:
        """Whether the dataset has its manifest, and lacks nothing but its name.

        One without a journal had its name before, and was to be removed.
        """
        return (self.folder / "manifest.json").is_file() and (self._place / "job.json").is_file()

    def clear(self) -> None:
        """Remove everything, in an order that leaves no dataset and nothing of unknown origin wherever it is interrupted."""
        if not self.folder.is_dir():
            return
        self._place.mkdir(exist_ok=True)
        (self.folder / "manifest.json").unlink(missing_ok=True)
        for path in sorted(self.folder.iterdir(), key=lambda path: path == self._place):
            remove(path)
        self.folder.rmdir()

    def write(self, summary: ShardSummary, rejects: Sequence[Reject], columns: Mapping[str, Array]) -> None:
        """Note a shard as finished, once its files have their names."""
        head = {**vars(summary), "missing": sorted(summary.missing)}
        arrays = {**columns, ":summary": _to_array(head), ":rejects": _to_array([vars(reject) for reject in rejects])}
        path = self._shard(summary.number)
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)

    def summary(self, number: int) -> ShardSummary | None:
        """What is known of a finished shard; None of one that is not, or whose files are gone."""
        try:
            with open(self._shard(number), "rb") as file, np.load(file, allow_pickle=False) as entries:
                document = _from_array(entries[":summary"])
            summary = ShardSummary(**{field.name: document[field.name] for field in fields(ShardSummary)})
            summary.files = [(manifests.checked_name(name), size, crc32) for name, size, crc32 in summary.files]
            summary.missing = set(summary.missing)
            summary.reasons, summary.notes = Counter(summary.reasons), Counter(summary.notes)
            for name, size, _ in summary.files:
                check_size(self.folder / name, size)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, DataError):
            return None
        return summary if summary.number == number else None

    def finished(self) -> list[ShardSummary]:
        """What is known of all finished shards, by their numbers."""
        numbers = sorted(int(path.stem) for path in self._place.glob("*.npz") if path.stem.isdecimal())
        return [summary for summary in map(self.summary, numbers) if summary is not None]

    @contextlib.contextmanager
    def columns(self, number: int) -> Iterator[Mapping[str, Array]]:
        """The columns of a finished shard, by name; loaded one by one."""
        with np.load(self._shard(number), allow_pickle=False) as entries:
            yield _Columns(entries)

    def rejects(self, number: int) -> list[Reject]:
        """The samples that were left out of a finished shard."""
        with np.load(self._shard(number), allow_pickle=False) as entries:
            return [Reject(**document) for document in _from_array(entries[":rejects"])]

    def planned(self, plan: Mapping[str, Any]) -> None:
        """Note what is known once the source was listed to its end."""
        self._write("plan.json", plan, replace=True)

    def plan(self) -> dict[str, Any] | None:
        """What `planned` noted."""
        try:
            found: dict[str, Any] = json.loads((self._place / "plan.json").read_bytes())
        except FileNotFoundError:
            return None
        return found

    def end(self) -> None:
        """Remove the journal of a dataset that has its name."""
        shutil.rmtree(self._place, ignore_errors=True)

    def _shard(self, number: int) -> Path:
        return self._place / f"{number:05d}.npz"

    def _write(self, name: str, document: Any, replace: bool) -> None:
        """Write a JSON file whole or not at all, also beside other processes that do so."""
        descriptor, temporary = tempfile.mkstemp(prefix=f"{name}.", dir=self._place)
        try:
            with open(descriptor, "wb") as file:
                file.write(_to_json(document))
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # another user's part may have to read it
            target = self._place / name
            if replace or not _linked(temporary, target):
                os.rename(temporary, target)
            sync(self._place)
        finally:
            Path(temporary).unlink(missing_ok=True)


class _Columns(Mapping[str, Array]):
    """The entries of a shard's journal that are columns."""

    def __init__(self, entries: Any) -> None:
        self._entries = entries

    def __getitem__(self, name: str) -> Array:
        column: Array = self._entries[name]
        return column

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._entries.files if not name.startswith(":"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _linked(temporary: str, target: Path) -> bool:
    """Give a file its name unless that is taken, which is as well; False where the file system has no links."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        return True
    except OSError:
        return target.exists()
    return True


def _to_json(document: Any) -> bytes:
    # Names may hold bytes that are no UTF-8, as lone surrogates: Python's escapes of these are JSON's.
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _to_array(document: Any) -> Array:
    return np.frombuffer(_to_json(document), np.uint8)


def _from_array(data: Array) -> Any:
    return json.loads(data.tobytes())
