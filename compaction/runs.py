"""A maintenance run: the batches in which it deletes, and the fact that says what ran, when, how it ended, and its figures."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from holdfast.catalog.environment import Environment
from holdfast.catalog.facts import RunEnded

BATCH = 1000  # what is deleted at a time: a request to an object store, and how often a run reports and can be ended

Progress = Callable[[int, int], None]  # done, of how many

S = TypeVar("S", bound=Sequence[object])


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRun:
    """A run that has begun."""

    run_id: str
    what: str
    started_at: datetime

    @classmethod
    def begin(cls, what: str, environment: Environment) -> "MaintenanceRun":
        return cls(run_id=environment.new_id(), what=what, started_at=environment.now())

    def ended(self, environment: Environment, outcome: str, figures: Mapping[str, int]) -> RunEnded:
        """The fact that ends it: outcome in a word, figures as numbers."""
        return RunEnded(
            run_id=self.run_id,
            what=self.what,
            started_at=self.started_at,
            ended_at=environment.now(),
            outcome=outcome,
            figures=json.dumps(figures, sort_keys=True),
        )


def batches(todo: S, size: int | None = None) -> Iterator[S]:
    """All of it, BATCH at a time or as many as are asked for."""
    step = BATCH if size is None else size
    return (todo[first : first + step] for first in range(0, len(todo), step))  # type: ignore[misc]  # a slice is of the same type


def reasons(errors: Mapping[str, OSError]) -> list[str]:
    """What was not deleted and why, for a report."""
    return [f"{path}: {error}" for path, error in errors.items()]
