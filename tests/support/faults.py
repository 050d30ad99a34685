"""The script of what goes wrong: counts calls over all wrapped ports and breaks the ones it is told to.

Wrap storage and ledger with one `Faults`, run once without a script to count, then once for each call and mode:

    faults = Faults()
    run(FaultyStorage(storage, faults))
    for n in range(1, faults.calls + 1):
        for mode in MODES:
            ...run(FaultyStorage(storage, Faults({n: mode})))
"""

import threading
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

Mode = Literal["before", "after", "lost"]
MODES: tuple[Mode, ...] = ("before", "after", "lost")
Hook = Callable[[int, str, str], None]
T = TypeVar("T")


class Crash(BaseException):
    """The process died here. No `except Exception` swallows it, as none would survive a SIGKILL."""


class LostResponseError(OSError):
    """The call had its effect, and its caller will not hear of it."""


class Faults:
    """Counts calls from 1. At call n of the script: `before` dies without the effect, `after` with it, `lost` has it and raises OSError.

    `on_call(n, verb, path)` runs before the effect of every call; calls that it makes itself through wrapped ports pass
    uncounted. Once dead, every call raises Crash: a dead process does nothing more, not even in its `finally` blocks.
    """

    def __init__(self, script: Mapping[int, Mode] | None = None, on_call: Hook | None = None) -> None:
        self.script = dict(script or {})
        self.on_call = on_call
        self.log: list[tuple[str, str]] = []
        self.dead = False
        self._lock = threading.Lock()
        self._hooking = threading.local()

    @property
    def calls(self) -> int:
        return len(self.log)

    def run(self, verb: str, path: str, effect: Callable[[], T]) -> T:
        """The effect's result, unless the script says otherwise for this call."""
        self.require_alive()
        if getattr(self._hooking, "active", False):
            return effect()
        with self._lock:
            self.log.append((verb, path))
            n = len(self.log)
        self._hook(n, verb, path)
        self.require_alive()  # the hook, or another thread, may have ended the process
        mode = self.script.get(n)
        if mode is None:
            return effect()
        if mode == "before":
            self.die(n, verb, path)
        try:
            effect()
        except Exception as error:
            self._lose(mode, n, verb, path, error)
        self._lose(mode, n, verb, path, None)
        raise AssertionError

    def die(self, n: int = 0, verb: str = "", path: str = "") -> None:
        """End the process, here and for every later call."""
        self.dead = True
        raise Crash(f"call {n}: {verb} {path}")

    def require_alive(self) -> None:
        if self.dead:
            raise Crash("the process is dead")

    def _hook(self, n: int, verb: str, path: str) -> None:
        if self.on_call is None:
            return
        self._hooking.active = True
        try:
            self.on_call(n, verb, path)
        finally:
            self._hooking.active = False

    def _lose(self, mode: Mode, n: int, verb: str, path: str, error: Exception | None) -> None:
        if mode == "after":
            self.die(n, verb, path)
        raise LostResponseError(f"call {n}: response of {verb} {path} lost") from error
