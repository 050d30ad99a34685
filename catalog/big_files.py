"""What a fold makes facts of, and what it leaves where it is (design, section 4b). Pure.

Of handles, files, states and acknowledgements there may be millions that live for long. Where there are many, a fold puts them into *big
files*, of such rows alone and in the order of jobs. A later fold leaves a big file as it is while most of its rows live, and keeps beside
it what ends them. So its work follows what has changed: it makes facts of the small rows, of big files that it writes again, and of the
rows in other big files that are about the same files of state as small ones. Of all other rows it has counts.

Why no answer needs the others. What is told of a file of state, its row, its handles of whatever job, their ends, its condemnation, its
release, its end, all name the file. So of a file that no small row names, nothing was said since its rows were put where they are: what is
open is open, what had an end has it in its row, and nothing has been condemned or gone. The same rows stay on both sides of
`folding.require_equal`, and say the same on both:
* Where jobs stand, their attempts, checkpoints, lines, names and holds, and who owns files, are of small rows alone: no big kind has a say
  in them, and `folded` says a job's seq. Which files an open owner has not released, by their rows, no rule asks.
* Whether a row that was not read is of the content of a checkpoint depends on its own interval and on which checkpoints are kept.
* Whether a file is in use, or there, is asked of its row and all its handles, which are read together, or none of them. An inline chunk
  has an id of its own and no row. Handles of a fork name the file of another job, and those of a savepoint its own.
* The rule of each small row asks for rows about the file that it names: an end for its handle, a condemnation and a *gone* for the row.
* Nothing asks for states and acknowledgements but views, which look for a checkpoint first.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from holdfast.catalog import facts as f
from holdfast.catalog.facts import BIG_KINDS
from holdfast.catalog.ledger import FILE_ROWS, Alike, BigFile, Row
from holdfast.catalog.lineage import Lineage
from holdfast.catalog.references import FileStatus, References, contains
from holdfast.catalog.state import Ref
from holdfast.catalog.types import FileId


def named(rows: Iterable[Row]) -> frozenset[FileId]:
    """The files of state that these rows are about."""
    return frozenset(file_id for row in rows if (file_id := getattr(row.fact, "file_id", None)) is not None)


def written_again(small: Sequence[Row], files: Sequence[BigFile]) -> list[str]:
    """The names of the big files that a fold writes again.

    Those of which half is stale: dead, or ended by a row beside. And, the stalest first, as many rows of others as there are rows beside:
    those are read at each fold. So what a fold costs by its past grows with the root of what lives, and not with it.
    """
    if not files:
        return []
    judge = _Judge(small, files)
    budget = sum(map(judge.ended_beside, files))
    stale = {file.name: judge.dead(file) + judge.ended_beside(file) for file in files}
    again = []
    for file in sorted(files, key=lambda file: stale[file.name] / file.rows, reverse=True):
        if 2 * stale[file.name] >= file.rows:
            again.append(file.name)
        elif stale[file.name] and file.rows <= budget:
            again.append(file.name)
            budget -= file.rows
    return again


class _Judge:
    """How many rows of a big file say nothing any more, or not by themselves."""

    def __init__(self, small: Sequence[Row], files: Sequence[BigFile]) -> None:
        self._past = References.of(row.fact for rows in (small, *(file.about for file in files)) for row in rows)
        self._seqs = self._past.kept_seqs()
        self._content = Lineage.of(self._past.state).content

    def dead(self, file: BigFile) -> int:
        return sum(count for alike, count in file.counts.items() if self._is_dead(alike))

    def ended_beside(self, file: BigFile) -> int:
        return sum(1 for row in file.about if self._is_ended_beside(row.fact))

    def _is_dead(self, alike: Alike) -> bool:
        """By what the row itself says."""
        if alike.kind == f.FileWritten.kind:
            return False
        if alike.kind != f.HandleAdded.kind:
            return alike.checkpoint_id is None or Ref(alike.job_id, alike.checkpoint_id) not in self._content
        if alike.from_seq is None or alike.to_seq is None:
            return False
        return not contains(alike.from_seq, alike.to_seq, self._seqs.get((alike.job_id, alike.savepoint), []))

    def _is_ended_beside(self, fact: f.Fact) -> bool:
        if isinstance(fact, f.FileWritten):
            return self._past.status[fact.file_id] is FileStatus.GONE
        return isinstance(fact, f.HandleAdded) and fact.to_seq is None and self._past.to_seq(fact) is not None


def parted(kept: Sequence[Row], file_rows: int = FILE_ROWS) -> tuple[Sequence[Row], list[list[Row]]]:
    """What a fold keeps as small rows, and what as rows of big files: nothing, unless there are more than `file_rows` of big kinds.

    The rows of a job are in as few files as may be, so that its own processes read theirs and few others. A file has at least half as many
    rows as it may have; what is left over stays small.
    """
    many = [row for row in kept if row.fact.kind in BIG_KINDS]
    if len(many) <= file_rows:
        return kept, []
    *files, rest = _in_order_of_jobs(many, file_rows)
    if 2 * len(rest) >= file_rows:
        files, rest = [*files, rest], []
    return [*rest, *(row for row in kept if row.fact.kind not in BIG_KINDS)], files


def _in_order_of_jobs(many: Sequence[Row], file_rows: int) -> Iterator[list[Row]]:
    """Files of rows of big kinds; the last one, which may be empty, is what is left over."""
    filling: list[Row] = []
    for _, of_job in groupby(sorted(many, key=_job_of), key=_job_of):
        its_own = list(of_job)
        if 2 * len(filling) >= file_rows and len(filling) + len(its_own) > file_rows:
            yield filling
            filling = []
        filling += its_own
        while len(filling) >= file_rows:
            yield filling[:file_rows]
            filling = filling[file_rows:]
    yield filling


def _job_of(row: Row) -> str:
    assert not isinstance(row.fact, f.RunEnded)
    return row.fact.job_id
