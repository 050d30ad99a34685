"""One job as plain dicts and sets: the model that the state machine holds the catalog to. Nothing of the code under test is in it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from holdfast.catalog.types import AttemptToken, KeepLast, Retention

States = Mapping[str, bytes]


@dataclass(slots=True)
class Line:
    """One job, in plain words. Checkpoints are numbers; `order` is when they were committed."""

    epoch: int = 0
    head: int | None = None
    last_id: int = 0
    order: list[int] = field(default_factory=list)
    states: dict[int, States] = field(default_factory=dict)
    parent: dict[int, int | None] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    open: dict[AttemptToken, tuple[int, int | None]] = field(default_factory=dict)  # attempt -> its number, its parent
    pins: dict[AttemptToken, int] = field(default_factory=dict)  # of readers

    def kept(self) -> set[int]:
        return self.live | self.held | set(self.pins.values()) | {parent for _, parent in self.open.values() if parent is not None}

    def opened(self, token: AttemptToken, number: int, parent: int | None) -> None:
        assert number > self.last_id, f"checkpoint id {number} comes back; {self.last_id} was given before"
        self.last_id = number
        self.open[token] = (number, parent)

    def commit(self, token: AttemptToken, states: States, retention: Retention) -> None:
        number, parent = self.open.pop(token)
        self.open = {t: (n, p) for t, (n, p) in self.open.items() if n > number}
        self.order.append(number)
        self.states[number], self.parent[number], self.head = states, parent, number
        if isinstance(retention, KeepLast):
            line = [n for n in self.ancestry(number) if n in self.live or n == number][: retention.count]
            if len(line) == retention.count:
                older = self.order[: self.order.index(line[-1])]
                self.live -= set(older) - self.held
        self.live.add(number)

    def ancestry(self, number: int | None) -> Iterator[int]:
        while number is not None:
            yield number
            number = self.parent[number]
