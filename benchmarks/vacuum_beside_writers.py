"""`vacuum_beside_writers`: eight processes that commit twice a second each, with and without maintenance that never stops.

The maintenance is one process that does a vacuum, a scrub and upkeep (which is a vacuum, a fold, and tidying up), again and again without a
pause. The writers have a job each in one catalog; a checkpoint is a state of 25 kB in a file, a small one in the row, and the commit. What
is timed is the whole block. Windows with and without maintenance take turns, over the same catalog and the same processes. The upkeep that
coordinators run by themselves is off in both: what folds is the maintenance alone.

`failed` counts checkpoints that raised. `resent` counts entries of the log that a writer had to send again because an entry of the
maintenance was there first: each compare-and-swap that was lost is held against who won it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from deltalake import DeltaTable

import holdfast
from benchmarks.harness import Result, ratio, spread, tell
from holdfast.catalog.ledger import delta_commit
from holdfast.catalog.ledger.delta_commit import Committer, Entry

WRITERS, ROUNDS, SECONDS = 8, 5, 12.0
EVERY_S = 0.5
STATE = b"x" * 25_000
P50_AT_MOST = 1.3


def run(scratch: Path, writers: int = WRITERS, rounds: int = ROUNDS, window_s: float = SECONDS) -> list[Result]:
    """`p50`, `failed` and `resent`."""
    holdfast.open(scratch / "catalog", create=True).close()
    crew = [Worker.start("write", scratch, str(n)) for n in range(writers)]
    cleaner = Worker.start("maintain", scratch, "")
    sides = {"without": Window(), "with": Window()}
    done: dict[str, int] = {}
    try:
        for n in range(rounds):
            for name, window in sides.items():
                tell(f"vacuum_beside_writers: round {n + 1} of {rounds}, {name} maintenance")
                if name == "with":
                    cleaner.ask(window_s)
                for worker in crew:
                    worker.ask(window_s)
                for worker in crew:
                    window.add(Window(**worker.told()))
                if name == "with":
                    done = {what: done.get(what, 0) + count for what, count in cleaner.told().items()}
    finally:
        for worker in (*crew, cleaner):
            worker.stop()
    tell("")
    return _results(sides, done, writers)


@dataclass(slots=True)
class Window:
    """What a writer did in some windows: the seconds of each checkpoint, and what became of the entries that it sent."""

    taken_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    sent: int = 0
    lost_to_maintenance: int = 0
    lost_to_writers: int = 0
    missed: int = 0  # checkpoints that were due in the window, and for which there was no time

    def add(self, other: "Window") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def clear(self) -> None:
        for name in self.__slots__:
            setattr(self, name, type(getattr(self, name))())


def _results(sides: dict[str, Window], done: dict[str, int], writers: int) -> list[Result]:
    on, off = sides["with"], sides["without"]
    figures: dict[str, Any] = {"writers": writers, "every_s": EVERY_S, "maintenance": done}
    for name, window in sides.items():
        figures |= {
            name: spread(window.taken_s, "ms") | {"p99_ms": round(quantiles(window.taken_s, n=100)[-1] * 1000, 1), "missed": window.missed}
        }
    races = {
        name: {"sent": w.sent, "lost_to_maintenance": w.lost_to_maintenance, "lost_to_writers": w.lost_to_writers}
        for name, w in sides.items()
    }
    failed = [*on.failed, *off.failed]
    return [
        Result(
            benchmark="vacuum_beside_writers", measures="p50", ratio=ratio(on.taken_s, off.taken_s), at_most=P50_AT_MOST, figures=figures
        ),
        Result(
            benchmark="vacuum_beside_writers",
            measures="failed",
            ratio=len(failed),
            at_most=0,
            figures={"checkpoints": len(on.taken_s) + len(off.taken_s), "errors": sorted(set(failed))},
        ),
        Result(benchmark="vacuum_beside_writers", measures="resent", ratio=on.lost_to_maintenance, at_most=0, figures=races),
    ]


@dataclass(slots=True)
class Worker:
    """A process that works for a window when it is asked to, and tells what it did."""

    process: "subprocess.Popen[str]"

    @classmethod
    def start(cls, does: str, scratch: Path, name: str) -> "Worker":
        command = [sys.executable, "-m", "benchmarks.vacuum_beside_writers", does, str(scratch / "catalog"), name]
        worker = cls(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        worker.told()  # it is ready
        return worker

    def ask(self, window_s: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(window_s) + "\n")
        self.process.stdin.flush()

    def told(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


def write() -> None:
    """The program of a writer. Each begins at a moment of its own within the interval."""
    root, n = Path(sys.argv[2]), int(sys.argv[3])
    window = Window()
    with holdfast.open(root) as catalog, catalog.coordinate(f"job-{n}") as job:
        job._upkeep = None
        counting(window)
        _checkpoint(job)
        print("{}", flush=True)
        for line in sys.stdin:
            window.clear()
            began = time.monotonic()
            due, until = began + EVERY_S * n / WRITERS, began + json.loads(line)
            while due < until:
                time.sleep(max(due - time.monotonic(), 0))
                if time.monotonic() < until:
                    _timed(window, job)
                else:
                    window.missed += 1
                due += EVERY_S
            print(json.dumps(asdict(window)), flush=True)


def _timed(window: Window, job: holdfast.Coordinator) -> None:
    started = time.perf_counter()
    try:
        _checkpoint(job)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is counted
        window.failed.append(f"{type(error).__name__}: {error}")
    else:
        window.taken_s.append(time.perf_counter() - started)


def _checkpoint(job: holdfast.Coordinator) -> None:
    with job.checkpoint() as checkpoint:
        checkpoint.write_bytes("state", STATE)
        checkpoint.write_bytes("offsets", b"42")


def counting(window: Window) -> None:
    """From here every entry that this process sends is counted, and of those that lost, who had won."""
    send: Callable[[Committer, DeltaTable, int, Entry], bool] = Committer._send

    def counted(committer: Committer, handle: DeltaTable, version: int, entry: Entry) -> bool:
        landed = send(committer, handle, version, entry)
        window.sent += 1
        if not landed:
            winner = delta_commit.read_whole(committer.log, version).keys
            is_a_job = any(key.startswith("holdfast/job/") for key in winner)
            window.lost_to_writers += is_a_job
            window.lost_to_maintenance += not is_a_job
        return landed

    Committer._send = counted  # type: ignore[method-assign,assignment]


def maintain() -> None:
    """The program of the maintenance."""
    with holdfast.open(sys.argv[2]) as catalog:
        catalog.vacuum()
        print("{}", flush=True)
        for line in sys.stdin:
            until, done = time.monotonic() + json.loads(line), dict.fromkeys(("vacuum", "scrub", "upkeep", "fold"), 0)
            while time.monotonic() < until:
                for what in ("vacuum", "scrub", "upkeep"):
                    report = getattr(catalog, what)()
                    done[what] += 1
                    done["fold"] += what == "upkeep" and report.fold.is_folded
            print(json.dumps(done), flush=True)


if __name__ == "__main__":
    {"write": write, "maintain": maintain}[sys.argv[1]]()
