"""The jobs of a catalog as plain dicts and sets: the model that the state machine holds it to. Nothing of the code under test is in it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from holdfast.catalog.types import AttemptToken, KeepLast, Retention

States = Mapping[str, bytes]
Place = tuple[str, int]  # a job, and the number of a checkpoint or savepoint of it


@dataclass(slots=True)
class Line:
    """One job, in plain words. Checkpoints are numbers; `order` is when they (and savepoints) were committed."""

    job: str
    epoch: int = 0
    begin: Place | None = None  # what the newest start began with, or the last commit after it
    claimed_by: str | None = None
    last_id: int = 0
    order: list[int] = field(default_factory=list)
    states: dict[int, States] = field(default_factory=dict)
    parent: dict[int, Place | None] = field(default_factory=dict)
    savepoints: set[int] = field(default_factory=set)
    live: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    open: dict[AttemptToken, tuple[int, Place | None]] = field(default_factory=dict)  # attempt -> its number, its parent
    pins: dict[AttemptToken, int] = field(default_factory=dict)  # of readers

    @property
    def head(self) -> int | None:
        return self.begin[1] if self.begin and self.begin[0] == self.job else None

    @property
    def checkpoints(self) -> list[int]:
        """The live checkpoints of the line itself."""
        return sorted(self.live - self.savepoints)

    def opened(self, token: AttemptToken, number: int, parent: Place | None) -> None:
        self._give(number)
        self.open[token] = (number, parent)

    def saved(self, number: int, of: int) -> None:
        """A savepoint: a number of the same counter, and nothing else of the line."""
        self._give(number)
        self.savepoints.add(number)
        self._committed(number, self.states[of], (self.job, of))

    def commit(self, token: AttemptToken, states: States) -> int:
        number, parent = self.open.pop(token)
        self.open = {t: (n, p) for t, (n, p) in self.open.items() if n > number}
        self._committed(number, states, parent)
        self.begin = (self.job, number)
        return number

    def drop(self, numbers: Iterable[int]) -> None:
        """Without a question asked. A head that goes leaves the job without one."""
        self.live -= {*numbers}
        if self.head is not None and self.head not in self.live:
            self.begin = None

    def before(self, number: int) -> set[int]:
        """What retention drops if this is the oldest that it keeps."""
        return {*self.order[: self.order.index(number)]} - self.held - self.savepoints

    def ancestry(self, number: int | None) -> Iterator[int]:
        while number is not None:
            yield number
            parent = self.parent[number]
            number = parent[1] if parent and parent[0] == self.job else None

    def _give(self, number: int) -> None:
        assert number > self.last_id, f"checkpoint id {number} comes back; {self.last_id} was given before"
        self.last_id = number

    def _committed(self, number: int, states: States, parent: Place | None) -> None:
        self.order.append(number)
        self.states[number], self.parent[number] = states, parent
        self.live.add(number)


class Lines(dict[str, Line]):
    """All jobs: what one of them does that the others feel."""

    def is_live(self, place: Place | None) -> bool:
        return place is None or place[1] in self[place[0]].live

    def kept(self, job: str) -> set[int]:
        """Live, held, or pinned by a reader or by an open attempt of any job."""
        parents = {parent for line in self.values() for _, parent in line.open.values() if parent is not None}
        return self[job].live | self[job].held | {*self[job].pins.values()} | {number for of, number in parents if of == job}

    def start(self, job: str, begin: Place | None, *, claim: bool = False) -> None:
        """A new epoch; of the jobs that this one has claimed as well."""
        line = self[job]
        line.begin, line.claimed_by = begin, None
        if claim and begin is not None:
            self[begin[0]].claimed_by = job
        for fenced in [line, *self._claimed(job)]:
            fenced.epoch += 1
            fenced.open.clear()

    def commit(self, job: str, token: AttemptToken, states: States, retention: Retention) -> None:
        """Of keep-last: the newest of the head's ancestry that are live stay, with everything that was committed after them."""
        line = self[job]
        number = line.commit(token, states)
        if not isinstance(retention, KeepLast):
            return
        own = [*line.ancestry(number)]
        kept = [n for n in own if n in line.checkpoints][: retention.count]
        if len(kept) == retention.count:
            line.drop(line.before(kept[-1]))
        for claimed in self._claimed(job):
            self._retain_claimed(claimed, line.parent[own[-1]], retention.count - len(kept))

    def _retain_claimed(self, line: Line, origin: Place | None, missing: int) -> None:
        """The ancestry goes on in the claimed job, of which as many are kept as the claiming one has too few."""
        ancestry = line.ancestry(origin[1]) if origin and origin[0] == line.job else iter(())
        kept = [*islice((n for n in ancestry if n in line.checkpoints), missing)]
        if len(kept) == missing:
            line.drop(line.before(kept[-1]) if kept else line.live - line.held - line.savepoints)

    def _claimed(self, job: str) -> list[Line]:
        return [line for line in self.values() if line.claimed_by == job]
