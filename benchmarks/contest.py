"""What every benchmark against peers has in common: contestants do the same work in turn, and what they did is held against the source.

    expected   what the source holds, which also warms the page cache
    warm-up    each contestant once, its memory watched
    rounds     A B C, B C A, C A B, ...: each in a process of its own, in its package's environment; flushed, checked, removed
    table      medians, spread and ratios; JSON with every round; bars

A contestant that did other work than was asked, or failed, is in the table with a sentence in place of figures.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks import peers

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_S = 0.05  # between two looks at the memory of a contestant's processes
LIMIT_S = 3600  # for a step: some packages wait for ever for a worker that has failed
MEAN_COLOUR = 2.0  # levels of 255 that the mean of a re-encoded picture may be off
SIDE = 1  # pixels that a resized picture's sides may be off: some round, some cut


@dataclass(frozen=True)
class Contestant:
    """Who does a work, and how.

    Attributes:
        module: in `benchmarks/contestants/`.
        options: what the module is told besides.
        peer: whose environment it runs in; None: this one.
    """

    name: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    peer: str | None = None


@dataclass(frozen=True)
class Work:
    """What all of them do; the others are compared with the first.

    Attributes:
        name: as the modules know it.
        expected: what a contestant's check must tell, out of the source.
    """

    name: str
    title: str
    expected: Callable[[], dict[str, Any]]
    contestants: Sequence[Contestant]


@dataclass
class Row:
    """What came of a contestant.

    Attributes:
        rounds: what `do` answered.
        peak_mb: memory of all its processes together, in the warm-up: shared pages counted once.
        trouble: why it cannot be compared.
    """

    name: str
    rounds: list[dict[str, Any]] = field(default_factory=list)
    peak_mb: float = 0.0
    trouble: str | None = None

    @property
    def seconds(self) -> list[float]:
        """Of each round, until all is on the disk: what a `sync` behind the work took is part of it."""
        return [done["seconds"] + done["sync_s"] for done in self.rounds]

    @property
    def returned_s(self) -> list[float]:
        """Of each round."""
        return [done["seconds"] for done in self.rounds]


class Failure(Exception):
    """A sentence about a contestant that does not take part any more."""


def compete(work: Work, photos: Path, workers: int, rounds: int) -> list[Row]:
    """Let all contestants do a work, a warm-up and then so many rounds."""
    expected = work.expected()
    rows = [Row(contestant.name) for contestant in work.contestants]
    for number in range(rounds + 1):
        for i in order(len(rows), number):
            row, contestant = rows[i], work.contestants[i]
            if row.trouble:
                continue
            print(f"{work.name}, {f'round {number}' if number else 'warm-up'}: {row.name}", file=sys.stderr, flush=True)
            try:
                with tempfile.TemporaryDirectory(prefix="fastdata-bench-") as folder:
                    task = {
                        "work": work.name,
                        "photos": str(photos),
                        "out": f"{folder}/out",
                        "workers": workers,
                        "options": contestant.options,
                    }
                    done, peak = _ask(contestant, {"step": "do", **task}, watch=not number)
                    told, _ = _ask(contestant, {"step": "check", **task}, watch=False)
            except (Failure, peers.Trouble) as trouble:
                row.trouble = str(trouble)
                continue
            row.trouble = difference(expected, told)
            if number:
                row.rounds.append(done)
            else:
                row.peak_mb = peak / 1e6
    return rows


def order(num: int, number: int) -> list[int]:
    """In which order they take part in a round: each begins as often as any other."""
    return [(i + number) % num for i in range(num)]


def _ask(contestant: Contestant, asked: Mapping[str, Any], watch: bool) -> tuple[dict[str, Any], int]:
    """Run a contestant for one step; give its answer, and the peak of its memory in bytes if that is watched."""
    python = peers.interpreter(contestant.peer) if contestant.peer else Path(sys.executable)
    os.sync()  # what others left to be written
    command = [str(python), "-m", f"benchmarks.contestants.{contestant.module}", json.dumps(asked)]
    with tempfile.TemporaryFile() as said, start(command, said) as process:
        with watching(process.pid) if watch else contextlib.nullcontext([0]) as peaks:
            try:
                answer, _ = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired as error:
                raise Failure(f"failed: no end after {LIMIT_S} s") from error
        if process.returncode:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            raise Failure(f"failed: {lines[-1] if lines else f'exit code {process.returncode}'}")
    answered: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return answered, max(peaks)


@contextlib.contextmanager
def start(command: Sequence[str], said: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a session of its own, which ends with this block, whatever it has started."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, cwd=ROOT, start_new_session=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def watching(pid: int) -> Iterator[list[int]]:
    """Look again and again at the memory of a process and all that it started; gives what was seen, in bytes."""
    seen, stop = list[int](), threading.Event()

    def watch() -> None:
        while True:
            seen.append(sum(map(_memory, _tree(pid))))
            if stop.wait(SAMPLE_S):
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _tree(int(child))


def _memory(pid: int) -> int:
    """The share of a process in the memory that is in use: pages that several map are divided among them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def difference(expected: Mapping[str, Any], told: Mapping[str, Any]) -> str | None:
    """Say how what a contestant did differs from the work; None where it does not."""
    if told["num_samples"] != expected["num_samples"]:
        return f"other work: {told['num_samples']} of {expected['num_samples']} samples"
    if told.get("sha256") != expected.get("sha256"):
        return "other work: other bytes, keys or labels"
    wanted, found = expected.get("pictures", {}), told.get("pictures", {})
    if wanted.keys() != found.keys():
        return f"other work: {len(wanted.keys() - found.keys())} keys are missing"
    bounds = (0, SIDE, SIDE, *[MEAN_COLOUR] * 3)
    for what, columns in (("label", (0,)), ("size", (1, 2)), ("colour", (3, 4, 5))):
        far = sum(any(abs(found[key][i] - w[i]) > bounds[i] for i in columns if i < len(w)) for key, w in wanted.items())
        if far:
            return f"other work: {far} of {len(wanted)} pictures of another {what}"
    return None


def table(rows: Sequence[Row], num_samples: int) -> str:
    """Medians until all is on the disk, their spread, and how many times the first one's time each takes; and when each returned."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'':{width}}   median s   (min to max)      returned s   samples/s   MB written   peak MB   time / {rows[0].name}"]
    for row in rows:
        if row.trouble or not row.rounds:
            lines.append(f"{row.name:{width}}   {row.trouble or 'not run'}")
            continue
        seconds = statistics.median(row.seconds)
        spread = f"({min(row.seconds):.2f} to {max(row.seconds):.2f})"
        returned = f"{statistics.median(row.returned_s):11.2f}{num_samples / seconds:12,.0f}"
        figures = f"{seconds:11.2f}   {spread:17}{returned}{row.rounds[-1]['nbytes'] / 1e6:13,.1f}{row.peak_mb:10,.0f}"
        ratio = seconds / statistics.median(rows[0].seconds) if rows[0].rounds and not rows[0].trouble else None
        lines.append(f"{row.name:{width}}{figures}{f'{ratio:8.2f}x' if ratio else ''}")
    return "\n".join(lines)


def to_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """All that was measured."""
    return [{**asdict(row), "median_s": statistics.median(row.seconds) if row.rounds else None} for row in rows]


def machine() -> dict[str, Any]:
    """Where it was measured, and how busy that was."""
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def plot(panels: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Draw medians as bars with their spread, a panel for each work; the same measurements give the same file."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("expected the package matplotlib to plot, got none; pip install 'fastdata-torch[plot]'")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "fastdata", "svg.fonttype": "none", "font.size": 9})
    from matplotlib.figure import Figure

    shown = {title: [row for row in rows if row.rounds and not row.trouble] for title, rows in panels.items()}
    heights = [1 + len(rows) for rows in shown.values()]
    figure = Figure(figsize=(7.5, 0.6 + 0.32 * sum(heights)), layout="constrained", facecolor="white")
    grid = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)
    for axes, (title, rows) in zip(grid[:, 0], shown.items(), strict=True):
        medians = [statistics.median(row.seconds) for row in rows]
        below = [median - min(row.seconds) for median, row in zip(medians, rows, strict=True)]
        above = [max(row.seconds) - median for median, row in zip(medians, rows, strict=True)]
        colours = ["#2a6f97" if row.name.startswith("fastdata") else "#b0b7bd" for row in rows]
        axes.barh([row.name for row in rows], medians, xerr=[below, above], color=colours, ecolor="#444444", capsize=2)
        for i, (median, row) in enumerate(zip(medians, rows, strict=True)):
            axes.annotate(f"{median:.2f} s", (max(row.seconds), i), (4, 0), textcoords="offset points", va="center")
        axes.invert_yaxis()
        axes.margins(x=0.14)
        axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
    grid[-1, 0].set_xlabel("seconds, less is better")
    figure.savefig(path, format="svg", metadata={"Date": None})
