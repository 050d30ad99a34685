"""What others start threads for, done at once: one order of calls, which a test can choose."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def at_once(work: Callable[[], T]) -> "Future[T]":
    """What `Environment.start` gives, with the work done. A crash is of the whole process, and is not kept for later."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future
