"""Key groups: the unit by which state is split and moved between subtasks (as Flink's KeyGroupRangeAssignment has it).

A key's group is `pmod(murmur3(key columns), max_parallelism)` with Spark's hash (`murmur3.py`), whichever engine computes it.
"""

from holdfast.catalog.arguments import is_whole
from holdfast.catalog.errors import UsageError
from holdfast.catalog.types import DEFAULT_MAX_PARALLELISM, MAX_PARALLELISM_LIMIT

KEY_GROUP_COLUMN = "_key_group"  # every file of rows has it: int32, the last column


def default_max_parallelism(parallelism: int) -> int:
    """The number of key groups for a job that starts with this parallelism: `min(max(next power of two of 1.5 p, 128), 32768)`."""
    wanted = parallelism + parallelism // 2
    power = 1 << (wanted - 1).bit_length() if wanted > 1 else 1
    return min(max(power, DEFAULT_MAX_PARALLELISM), MAX_PARALLELISM_LIMIT)


def groups_of(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """The key groups that subtask `subtask` (from 0) of `parallelism` owns: `[ceil(i*M/p), ceil((i+1)*M/p) - 1]`.

    Raises UsageError unless these are numbers, 1 <= parallelism <= max_parallelism and 0 <= subtask < parallelism.
    """
    for number in (subtask, parallelism, max_parallelism):
        if not is_whole(number):
            msg = f"groups_of({subtask!r}, {parallelism!r}, {max_parallelism!r}): {number!r} is not a number: pass three numbers"
            raise UsageError(msg)
    require_parallelism(parallelism, max_parallelism)
    if not 0 <= subtask < parallelism:
        msg = f"subtask={subtask} is not one of {parallelism} subtasks: pass 0 to {parallelism - 1}"
        raise UsageError(msg)
    return range(-(-subtask * max_parallelism // parallelism), -(-(subtask + 1) * max_parallelism // parallelism))


def require_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Raises UsageError unless each subtask gets a key group of its own."""
    if not 1 <= parallelism <= max_parallelism:
        msg = (
            f"parallelism={parallelism} is not 1 to {max_parallelism}, the number of key groups: give less, or rewrite a savepoint with "
            "holdfast.rekey(savepoint, max_parallelism=...)"
        )
        raise UsageError(msg)


def require_groups(groups: range, max_parallelism: int) -> range:
    """The range itself, if it is one of key groups without gaps. Raises UsageError."""
    if groups.step != 1 or not 0 <= groups.start < groups.stop <= max_parallelism:
        msg = f"key_groups={groups} is not a range within 0 to {max_parallelism - 1}: give range(first, last + 1)"
        raise UsageError(msg)
    return groups
