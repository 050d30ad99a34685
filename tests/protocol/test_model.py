"""The protocol over the project's own decisions: no random history breaks a promise, and the search is a function of its seed."""

from itertools import permutations

from holdfast.catalog.facts import HandleAdded
from holdfast.catalog.references import FileStatus
from holdfast.catalog.types import Role
from holdfast.compaction import garbage
from tests.protocol.model import explore, history
from tests.support.model_world import JOBS, World

HISTORIES = 600
WHAT_HAPPENS = (
    "commits", "aborts", "expires", "kill", "drop", "hold", "pins", "vacuum of", "scrub of", "late put", "late delete", "power loss",
    "starts at 1", "dies before", "dies after", "outcome unknown", "refused", "is fenced", "learns that", "reuse is refused",
    "savepoint 0", "is committed", " forks ", " claims ", "task owns", " releases ", "is released", "has stores of",
    "a share is missing", " lands", "comes too late", "another has told the history", "the log is cleaned", "a process forgets", "has ended",
    "copies", "which was folded away", "in no snapshot",
)  # fmt: skip


def test_no_history_breaks_a_promise() -> None:
    """As `make model` does at length: several processes, one step at a time, judged after every step and cleaned up at the end."""
    found = explore(HISTORIES)
    assert found is None, "\n".join((*found.story, f"seed {found.seed}: {found.violation}"))


def test_the_same_seed_is_the_same_history() -> None:
    for seed in (0, 1, 2):
        assert history(seed).story == history(seed).story


def test_histories_do_everything_that_they_are_for() -> None:
    """A model in which nothing happens finds nothing."""
    stories = "\n".join(line for seed in range(60) for line in history(seed).story)
    for what in WHAT_HAPPENS:
        assert what in stories, f"no history has: {what}"


def test_histories_have_layers_whose_handles_begin_in_another_order() -> None:
    """Change sets with tombstones, bases of one key group and of one that is empty; and a base that was added again after what lies
    above it: only then is the order of layers another than that of beginnings."""
    found = set()
    for seed in range(60):
        world = history(seed, rest=False, folds=False)
        for job in JOBS:
            for seq in world.record.seqs[job]:
                handles = [handle for handle in world.references.content(job, seq) if handle.role is not Role.MANIFEST]
                found |= {(handle.role, handle.layer > 0, handle.key_group_from is not None, handle.inline) for handle in handles}
                found |= {"out of order" for low, high in permutations(handles, 2) if is_out_of_order(low, high)}
    assert {"out of order", (Role.UPSERTS, True, False, None), (Role.DELETES, True, False, None)} <= found
    assert {(Role.BASE, True, True, None), (Role.BASE, True, True, b""), (Role.BASE, True, False, None)} <= found


def is_out_of_order(low: HandleAdded, high: HandleAdded) -> bool:
    return low.state == high.state and low.layer < high.layer and low.from_seq > high.from_seq


def test_the_cleanup_query_is_the_plain_record_at_the_end_of_every_history() -> None:
    """What a vacuum may take next is exactly what no kept checkpoint promised."""
    for seed in range(100):
        world: World = history(seed, rest=False)
        found = garbage.find_garbage(world.references)
        needed = {i for key in world.record.kept() for i in world.record.committed[key].file_ids}
        gone = {i for i, status in world.references.status.items() if status is FileStatus.GONE}
        assert {
            file.file_id for file in (*found.unreferenced, *found.condemned)
        } == world.record.rows - needed - gone - world.record.owned.keys()
