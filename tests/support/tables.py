"""Many cases in one test, over what is prepared once: every case is tried, and all that failed are named at the end.

with table() as case:
    for name, value in CASES.items():
        with case(name):
            assert ...
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

Case = Callable[[object], AbstractContextManager[None]]


@contextmanager
def table() -> Iterator[Case]:
    """Gives a block for each case. Raises the failures of all of them, each with the name of its case."""
    failed: dict[str, BaseException] = {}
    named: set[str] = set()

    @contextmanager
    def case(name: object) -> Iterator[None]:
        assert str(name) not in named, f"two cases are named {name}"
        named.add(str(name))
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"in case {name}")
            failed[str(name)] = error

    yield case
    if failed:
        msg = f"{len(failed)} cases failed: {', '.join(failed)}"
        raise BaseExceptionGroup(msg, [*failed.values()])
