"""Folded against unfolded, over random histories of the model: the same answers, garbage, verdicts and decisions (I9).

python -m tests.protocol.bisimulation                  the fold as written: no difference in N histories
python -m tests.protocol.bisimulation --mutants        each kind of kept fact left out: the first difference found
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from holdfast.catalog import facts as f
from holdfast.catalog import folding
from holdfast.catalog.ledger import Row
from holdfast.catalog.ledger.memory import MemoryLedger, MemoryLog, _Commit
from holdfast.catalog.ledger.memory_history import MemoryHistory, MemoryTold
from holdfast.catalog.lineage import forget
from holdfast.catalog.schema import Operation
from holdfast.catalog.state import CatalogState, in_order
from holdfast.compaction.fold import run_fold
from tests.protocol.model import history
from tests.support.bisimulation import Difference, require_same
from tests.support.fold_mutants import OF_FACTS, OF_FILES, OF_PARTIAL
from tests.support.model_ports import NOW, ModelEnvironment

FOLDS = 3
STAYS = 0.7  # of the big rows that a partial fold finds, so many are not written again
OPERATION = Operation(operation_id="said", at=NOW, by="model")
FOLDING = Operation(operation_id="folded", at=NOW, by="folder")


@dataclass(frozen=True, slots=True)
class Found:
    seed: int
    difference: str


def versions_of(seed: int) -> tuple[list[list[f.Fact]], Sequence[str]]:
    """The facts of each version of a history without folds, and the paths it made. Some checkpoints tell of batches of streaming queries."""
    world, source, versions = history(seed, rest=False, folds=False), random.Random(seed), []
    for commit in world.log.commits:
        versions.append([_with_progress(fact, source) for fact in commit.facts])
    return versions, [*world.path_of.values()]


def _with_progress(fact: f.Fact, source: random.Random) -> f.Fact:
    if not isinstance(fact, f.CheckpointCommitted) or source.random() < 0.4:
        return fact
    return replace(fact, progress=json.dumps({"query_id": source.choice("qrs"), "batch_id": fact.seq}))


def check_whole(seed: int) -> None:
    """Folds of folds and of what came later, compared with every fact at each fold and at later versions. Raises Difference."""
    _check(seed, partly=False)


def check_partly(seed: int) -> None:
    """As `check_whole`, of folds by which some of the big rows that the last one wrote stay."""
    _check(seed, partly=True)


def check_files(seed: int) -> None:
    """Folds as upkeep makes them, of a ledger with big files of a few rows: compared with every fact at one of them, and at the end.

    Raises Difference.
    """
    versions, found = versions_of(seed)
    source, log, told = random.Random(seed), MemoryLog(), MemoryTold()
    environment, file_rows = ModelEnvironment(), source.choice((1, 2, 4, 8, 16))
    folds = [source.randint(1, len(versions) - 1) for _ in range(3 * FOLDS)]
    for at, facts in enumerate(versions):
        if facts:
            log.commit(log.version, _Commit(replace(OPERATION, operation_id=f"op {at}"), frozenset(), tuple(facts)))
        if at in folds:
            run_fold(MemoryLedger(log), MemoryHistory(told), environment, file_rows=file_rows)
        if at in (folds[0], len(versions) - 1):
            full = [fact for each in versions[: at + 1] for fact in each]
            require_same(full, MemoryLedger(log).scan(), source=source, paths_found=found)


CHECKS = {"whole": check_whole, "partial": check_partly, "of big files": check_files}


def _check(seed: int, *, partly: bool) -> None:
    versions, found = versions_of(seed)
    source, last = random.Random(seed), len(versions) - 1
    kept: list[Row] = []
    before = -1
    for at in sorted(source.randint(1, last) for _ in range(FOLDS)):
        rows = [*kept, *_rows(versions[before + 1 : at + 1])]
        staying = _staying(rows, len(kept), source) if partly else frozenset()
        kept = [*(rows[n] for n in sorted(staying)), *folding.fold(rows, FOLDING, staying=staying)]
        before = at
        for end in sorted({at, source.randint(at, last), last}):
            later = _rows(versions[at + 1 : end + 1])
            full = [fact for facts in versions[: end + 1] for fact in facts]
            require_same(full, [row.fact for row in (*kept, *later)], source=source, paths_found=found)
        if not partly:
            _check_memory([fact for facts in versions[: at + 1] for fact in facts], kept)


def _rows(versions: Sequence[Sequence[f.Fact]]) -> list[Row]:
    return [Row(fact, OPERATION) for facts in versions for fact in facts]


def _staying(rows: Sequence[Row], kept: int, source: random.Random) -> frozenset[int]:
    """Some of the big rows that the last fold wrote."""
    return frozenset(n for n in range(kept) if rows[n].fact.kind in f.BIG_KINDS and source.random() < STAYS)


def _check_memory(full: list[f.Fact], kept: Sequence[Row]) -> None:
    """A process that forgets remembers, field by field, what one that reads the fold does."""
    remembered, read = CatalogState(handles_of="*"), CatalogState(handles_of="*")
    remembered.apply(in_order(full))
    forget(remembered)
    read.apply(in_order(row.fact for row in kept))
    for job_id, job in read.jobs.items():
        if remembered.jobs[job_id] != job:
            raise Difference(f"I9: job {job_id} is remembered as {remembered.jobs[job_id]}, read as {job}")
    if remembered != read:
        raise Difference(f"I9: remembered {remembered.names}, read {read.names}")


def explore(histories: int, *, first_seed: int = 0, check: Callable[[int], None] = check_whole, mutant: str | None = None) -> Found | None:
    """The first difference in as many histories, if there is one. A fold that cannot be read any more is one, too, of a mutant."""
    with {**OF_FACTS, **OF_PARTIAL, **OF_FILES}[mutant].without() if mutant else nullcontext():
        for seed in range(first_seed, first_seed + histories):
            try:
                check(seed)
            except Difference as difference:
                return Found(seed, str(difference))
            except Exception as error:
                if mutant is None:
                    error.add_note(f"in the history of seed {seed}")
                    raise
                return Found(seed, f"{type(error).__name__}: {error}")
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--mutants", action="store_true")
    args = parser.parse_args()
    if args.mutants:
        missed = 0
        for name, mutant in OF_FACTS.items():
            found = explore(args.histories, first_seed=args.first_seed, mutant=name)
            missed += found is None
            told = f"seed {found.seed}: {found.difference[:200]}" if found else "NOT CAUGHT"
            print(f"{name:50s} {told}  (kept: {mutant.meaning})", flush=True)
        sys.exit(missed > 0)
    for name, check in CHECKS.items():
        found = explore(args.histories, first_seed=args.first_seed, check=check)
        print(f"{name} folds: " + (str(found) if found else f"no difference in {args.histories} histories"))
        if found:
            sys.exit(1)


if __name__ == "__main__":
    main()
