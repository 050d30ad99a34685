"""Maintenance in the model: vacuum, scrub, and the folder of the ledger. Each step is one thing that a process does, others run between."""

from contextlib import suppress

from holdfast.catalog import lineage
from holdfast.catalog.errors import ForeignTokensError, RetryError
from holdfast.catalog.ledger import FILE_ROWS, LedgerConflictError, SnapshotLostError
from holdfast.catalog.ledger.memory import MemoryLedger
from holdfast.catalog.ledger.memory_history import MemoryHistory
from holdfast.catalog.schema import Operation
from holdfast.catalog.state import CatalogState, in_order
from holdfast.compaction import garbage, orphans, scrub, vacuum
from holdfast.compaction.fold import FoldPlan, plan_fold
from tests.support.faults import Crash
from tests.support.model_world import Violation, World


class Vacuum:
    """Plans in one step, runs the plan in a later one; others run between its calls."""

    def __init__(self, world: World) -> None:
        self.w, self.busy, self.name = world, False, "vacuum"
        self.plan: vacuum.VacuumPlan | None = None

    def step(self) -> bool:
        w = self.w
        if self.plan is None:
            self.plan = vacuum.plan_vacuum(garbage.find_garbage(w.said))
            return bool(self.plan.unreferenced or self.plan.condemned)
        if w.random.random() < 0.3 and not w.calm:
            return True  # slow: the plan grows old
        w.story.append(f"vacuum of {[file.path for file in (*self.plan.unreferenced, *self.plan.condemned)]}")
        with suppress(RetryError):
            vacuum.run_vacuum(self.plan, w.maintainer, w.storage, w.environment)
        return False


class Scrub:
    """Lists, then reads the attempts, the file rows, and what both have forgotten, then deletes: others run between and within its steps."""

    def __init__(self, world: World) -> None:
        self.w, self.busy, self.name = world, False, "scrub"
        self.listed: list | None = None
        self.rule: orphans.OrphanRule | None = None
        self.past_history: MemoryHistory | None = None
        self.plan: scrub.ScrubPlan | None = None

    def step(self) -> bool:
        w = self.w
        if self.listed is None:
            self.list_storage()
        elif self.rule is None:
            if w.folds and not w.calm and w.random.random() < 0.5:
                return True  # a long listing
            self.rule = orphans.OrphanRule.over(self.remembered(), set())
        elif self.rule.past is orphans.nothing_forgotten:
            self.rule.present = w.said.present_paths()
            self.rule.past = orphans.past_of(MemoryLedger(w.log), self.past_history or MemoryHistory(w.told_facts))
        elif self.plan is None:
            self.plan = scrub.plan_scrub(self.listed, self.rule)
            return bool(self.plan.orphans or self.plan.unknown.count)
        else:
            w.story.append(f"scrub of {[orphan.path for orphan in self.plan.orphans]}")
            try:
                scrub.run_scrub(self.plan, w.maintainer, w.storage, w.environment)
            except ForeignTokensError as error:
                raise Violation(f"I4: {error}") from error
            except RetryError:
                pass
            return False
        return True

    def list_storage(self) -> None:
        self.listed = list(self.w.storage.walk(""))

    def remembered(self) -> CatalogState:
        """What its process has in memory: at the newest version, and no more than a fold of that would leave, perhaps."""
        state = CatalogState()
        state.apply(in_order(MemoryLedger(self.w.log).scan()))
        if self.w.folds and self.w.random.random() < 0.5:
            lineage.forget(state)
        return state


class Folder:
    """Reads a snapshot, makes it durable, tells the history, folds, cleans the log: dies before and after each, and others run between."""

    STEPS = ("read", "settle", "tell", "replace", "clean")

    def __init__(self, world: World) -> None:
        self.w, self.busy, self.name = world, False, "folder"
        self.ledger, self.history = MemoryLedger(world.log), MemoryHistory(world.told_facts)
        self.operation = Operation(operation_id=world.environment.new_id(), at=world.environment.now(), by=self.name)
        self.plan: FoldPlan | None = None
        self.file_rows = (FILE_ROWS, 2, 8)[world.seed // 2 % 3]
        self.todo = [*self.STEPS]

    def step(self) -> bool:
        w = self.w
        if w.random.random() < (0.6 if self.todo[0] == "replace" else 0.1) and not w.calm:
            return True  # slow: others commit and fold
        self._may_die("before")
        goes_on: bool = getattr(self, self.todo.pop(0))()
        w.observe()
        self._may_die("after")
        return goes_on and bool(self.todo)

    def read(self) -> bool:
        self.plan = plan_fold(self.ledger, self.operation, self.file_rows)
        return True

    def settle(self) -> bool:
        self.ledger.make_durable()
        return True

    def tell(self) -> bool:
        try:
            if self.ledger.version > self.history.told_to:
                self.history.tell(self.ledger.commits(self.history.told_to), self.ledger.version)
        except (LedgerConflictError, SnapshotLostError):  # and has cleaned the log, perhaps
            self.w.story.append("folder: another has told the history")
            return False
        self.w.story.append(f"the history is told up to {self.history.told_to}")
        self.history.refresh()
        return True

    def replace(self) -> bool:
        landed = self.ledger.fold(self.plan.small, self.operation, big=self.plan.big, staying=self.plan.staying)
        self.w.story.append(f"fold of {self.ledger.version} {'lands' if landed else 'comes too late'}")
        return landed and self.w.random.random() < 0.6

    def clean(self) -> bool:
        """Only what is durable and what the history has, and never the commit that it names."""
        self.w.log.clean(self.clean_below())
        self.w.story.append(f"the log is cleaned below {self.w.log.cleaned_below}")
        return False

    def clean_below(self) -> int:
        return min(self.w.log.durable_version, max(self.history.told_to, 0))

    def _may_die(self, when: str) -> None:
        if not self.w.calm and self.w.random.random() < 0.05:
            raise Crash(f"dies {when} a step")


class Upkeep:
    """A vacuum, and a fold that forgets what it freed; then perhaps a second vacuum, which had the first one's plan."""

    def __init__(self, world: World) -> None:
        self.w, self.busy, self.name = world, False, "upkeep"
        self.todo: list[Vacuum | Folder] = [Vacuum(world)]

    def step(self) -> bool:
        first = self.todo[0]
        if first.step():
            return True
        self.todo.pop(0)
        if isinstance(first, Vacuum) and not self.todo:
            late = Vacuum(self.w)
            late.plan = first.plan
            self.todo = [Folder(self.w), *([late] if self.w.random.random() < 0.4 else [])]
            return True
        return bool(self.todo)
