"""What every benchmark shares: timing of interleaved runs, the result with its goal, the machine, and how both are printed.

A ratio is of two medians taken in one run: the sides take turns (A, B, A, B, ...), so that a busy minute of the machine
slows both. A figure without its floor from the same run says little: a shared machine was seen to differ by a factor of two.
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

BUDGET_S = 120  # of the rounds; with set-up and the last round a benchmark stays below five minutes even on a busy machine
VERSIONS_OF = ("holdfast", "deltalake", "pyarrow", "duckdb", "pyspark", "delta-spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure with its goal, of which one bound is given. `ratio` is judged as it is printed."""

    benchmark: str
    measures: str
    ratio: float
    figures: Mapping[str, Any]
    at_most: float | None = None
    at_least: float | None = None

    @property
    def goal(self) -> str:
        return f">= {self.at_least:g}" if self.at_most is None else f"<= {self.at_most:g}"

    @property
    def holds(self) -> bool:
        if self.at_most is not None:
            return self.ratio <= self.at_most
        return self.at_least is not None and self.ratio >= self.at_least

    def as_json(self, machine: Mapping[str, Any]) -> str:
        """One line, for programs."""
        return json.dumps(
            {
                "benchmark": self.benchmark,
                "measures": self.measures,
                "ratio": self.ratio,
                "goal": self.goal,
                "holds": self.holds,
                "figures": dict(self.figures),
                "machine": dict(machine),
            }
        )

    def as_text(self) -> str:
        """A few lines, for people."""
        verdict = "holds" if self.holds else "DOES NOT HOLD"
        head = f"{self.benchmark} {self.measures}: {self.ratio:g} (goal {self.goal}: {verdict})"
        return "\n".join([head, *(f"    {name}: {_plain(value)}" for name, value in self.figures.items())])


def ratio(ours: Sequence[float], floor: Sequence[float]) -> float:
    """The median of ours against the median of the floor, to three decimals."""
    return round(statistics.median(ours) / statistics.median(floor), 3)


def seconds(act: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def interleave(
    sides: Mapping[str, Callable[[int], float]], rounds: int, *, what: str, within_s: float = BUDGET_S
) -> dict[str, list[float]]:
    """Each side once a round, in turn. A side is given the round's number and returns its seconds: what it prepares is not counted.

    On a slow machine there are fewer rounds: none begins when the time is over.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    started = time.perf_counter()
    for n in range(rounds):
        if n > 0 and time.perf_counter() - started > within_s:
            break
        tell(f"{what}: round {n + 1} of {rounds}")
        for name, side in sides.items():
            taken[name].append(side(n))
    tell("")
    return taken


def spread(taken: Sequence[float], unit: str = "s") -> dict[str, float | int]:
    """Median and what surrounds it, so that a reader sees how noisy the run was. `unit` is "s" or "ms"."""
    scale = 1000 if unit == "ms" else 1
    low, _, high = statistics.quantiles(taken, n=4) if len(taken) > 1 else (taken[0],) * 3
    values = {"median": statistics.median(taken), "p25": low, "p75": high, "min": min(taken), "max": max(taken)}
    return {**{f"{name}_{unit}": round(value * scale, 3) for name, value in values.items()}, "runs": len(taken)}


def machine(scratch: str) -> dict[str, Any]:
    """What the figures depend on. `load_1m` above 0 before the run means that the machine was shared."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "filesystem": _filesystem(scratch),
        "system": f"{platform.system()} {platform.release()}",
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in VERSIONS_OF},
    }


def tell(text: str) -> None:
    """Progress, on standard error: one line that is written over on a terminal, nothing elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _plain(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)


@cache
def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _filesystem(directory: str) -> str:
    """The type of the file system below a directory: on tmpfs, for one, a sync costs nothing."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    path = os.path.realpath(directory)
    over = [(len(at), kind) for at, kind in mounts if path == at or path.startswith(at.rstrip("/") + "/")]
    return max(over)[1] if over else "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def own_peak_kb() -> int:
    """The most memory that this process had. `getrusage` would give a child of a large process at least what its parent had at the fork."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])
