"""Copies of what takes long to prepare: a scene is made once, and each test goes on from a copy of its own.

A copy shares with the original what never changes (facts, manifests, functions that close over nothing that does) and nothing else. What can
be neither shared nor copied raises, so that no test finds what another one left.
"""

import io
import pickle
import threading
from types import FunctionType
from typing import Any, Generic, TypeVar

from holdfast.catalog.facts import KINDS
from holdfast.catalog.ledger import ToldCommit
from holdfast.catalog.ledger.memory import _Commit
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.state import Ref

T = TypeVar("T")

SHARED: tuple[type, ...] = (*KINDS.values(), _Commit, ToldCommit, Manifest, bytes)
FIXED = (*SHARED, str, int, float, Ref, type(None))
MADE_ANEW = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock, threading.local: threading.local}


class Snapshot(Generic[T]):
    """A thing as it is now; `copy()` gives it so again and again."""

    def __init__(self, thing: T) -> None:
        self._shared: list[Any] = []
        stream = io.BytesIO()
        _Pickler(stream, self._shared).dump(thing)
        self._bytes = stream.getvalue()

    def copy(self) -> T:
        copied: T = _Unpickler(io.BytesIO(self._bytes), self._shared).load()
        return copied


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._shared, self._numbers = shared, {}

    def persistent_id(self, thing: Any) -> int | None:
        if not (isinstance(thing, SHARED) or (isinstance(thing, FunctionType) and _is_fixed(thing))):
            return None
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._shared)
            self._shared.append(thing)
        return self._numbers[id(thing)]

    def reducer_override(self, thing: Any) -> Any:
        make = MADE_ANEW.get(type(thing))
        return NotImplemented if make is None else (make, ())


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(stream)
        self._shared = shared

    def persistent_load(self, number: int) -> Any:
        return self._shared[number]


def _is_fixed(function: FunctionType) -> bool:
    return all(isinstance(cell.cell_contents, FIXED) for cell in function.__closure__ or ())
