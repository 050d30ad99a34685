"""The protocol over the project's own decisions: no random history breaks a promise, and the search is a function of its seed."""

from holdfast.catalog import cleanup
from tests.model import explore, history
from tests.support.model_world import World

HISTORIES = 2000
WHAT_HAPPENS = (
    "commits", "aborts", "kill", "drop", "hold", "pins", "vacuum of", "scrub of", "late put", "late delete", "power loss",
    "starts at 1", "dies before", "dies after", "outcome unknown", "refused", "is fenced", "learns that", "reuse is refused",
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


def test_the_cleanup_query_is_the_plain_record_at_the_end_of_every_history() -> None:
    """What a vacuum may take next is exactly what no kept checkpoint promised."""
    for seed in range(100):
        world: World = history(seed, rest=False)
        garbage = cleanup.find_garbage(world.references)
        needed = {i for key in world.record.kept() for i in world.record.committed[key].file_ids}
        gone = {i for i, status in world.references.status.items() if status is cleanup.FileStatus.GONE}
        assert {file.file_id for file in (*garbage.unreferenced, *garbage.condemned)} == world.record.rows - needed - gone
