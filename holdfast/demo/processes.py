"""Child processes of the demo: started in a session of their own, heard line by line, and killed with everything they started."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Listener = Callable[[Event], None]
LOG_TAIL_LINES = 15
LOOK_EVERY_S = 0.01


class ChildFailedError(Exception):
    """A child ended by itself and not well, or did not come to its end; the message has the end of its log where there is more to say."""


class Child:
    """One process and what it starts. Its reports (lines of JSON on standard output) are sent to `listener`, in a thread of their own."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path, listener: Listener) -> None:
        self._module, self._log, self._listener = module, log, listener
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                text=True,
            )
        self._has_ended_well = False
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process, and of its session."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> int:
        """SIGKILL the process and everything of its session: JVM, executors, Python workers. Returns how many processes that were.

        Nothing of the session runs when this returns. No harm after a `wait` that ended well: there is nothing left then.
        """
        if self._has_ended_well:
            return 0
        killed: set[int] = set()
        with suppress(ProcessLookupError):
            killed |= session_members(self._process.pid) or {self._process.pid}
            os.killpg(self._process.pid, signal.SIGKILL)
        while members := session_members(self._process.pid):
            for pid in members:
                with suppress(ProcessLookupError):  # it ended since it was listed
                    os.kill(pid, signal.SIGKILL)
            killed |= members
            time.sleep(LOOK_EVERY_S)
        self._end()
        return len(killed)

    def wait(self, timeout_s: float | None = None) -> None:
        """Until the process ends by itself. Raises ChildFailedError if it ends with an error, or not in time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            msg = f"{self._module} did not end within {timeout_s:g} s; the end of {self._log}:\n{self._tail()}"
            raise ChildFailedError(msg) from error
        self._end()
        self.require_well()
        self._has_ended_well = True

    def require_well(self) -> None:
        """Raises ChildFailedError if the process has ended, and not well."""
        code = self._process.poll()
        if code:
            msg = f"{self._module} ended with code {code}; the end of {self._log}:\n{self._tail()}"
            raise ChildFailedError(msg)

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    def _end(self) -> None:
        self._process.wait()
        self._reader.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                event = parse_event(line)
                if event is not None:
                    self._listener(event)


def parse_event(line: str) -> Event | None:
    """What a child reports in one line; None for a line of something else (a library's print, or one that a kill cut short)."""
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def session_members(session: int, proc: Path = Path("/proc")) -> set[int]:
    """The processes of a session, where the system says so (Linux); Python workers of Spark have process groups of their own."""
    members = set()
    for stat in proc.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # it ended while it was read
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                members.add(int(stat.parent.name))
    return members
