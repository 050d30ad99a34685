"""How long Spark's sort operators took within an action: Spark counts it, and its SQL status store reports it.

An action of the DataFrame writer has a plan that Python never sees; so it is found by a description of its own, which the user's
interface of Spark shows as well. A session without a JVM of its own (Spark Connect) reports nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.catalog.environment import Environment
from holdfast.writers.spark.partitioning import is_arranged
from holdfast.writers.upload import UploadContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DESCRIPTION = "spark.job.description"
SORT_TIME = "sort time"  # the name of the metric of Spark's SortExec, in milliseconds
EVENTS_WITHIN_MS = 5_000  # Spark tells its store of an action by a queue
NEWEST = 100  # the store has a thousand actions, and each is a call to the JVM


@dataclass(slots=True)
class SortTime:
    """Of an action's sort operators, summed over its tasks; None where Spark does not tell."""

    ms: int | None = None


@contextmanager
def timed_sort_of_savepoint(spark: "SparkSession", context: UploadContext, environment: Environment) -> Iterator[SortTime]:
    """As `timed_sort`, where the uploaders sort."""
    if not is_arranged(context):
        yield SortTime()
        return
    with timed_sort(spark, context, environment) as taken:
        yield taken


@contextmanager
def timed_sort(spark: "SparkSession", context: UploadContext, environment: Environment) -> Iterator[SortTime]:
    """Run the actions of the block under a description of their own; their sort time is known when it has ended without an error."""
    taken = SortTime()
    jvm_context = getattr(getattr(spark, "_jsc", None), "sc", None)
    if jvm_context is None:
        yield taken
        return
    number = context.metadata.checkpoint_id
    described = f"holdfast: state {context.state!r} of checkpoint {number} of {context.job_id} ({environment.new_id()})"
    before = spark.sparkContext.getLocalProperty(DESCRIPTION)
    spark.sparkContext.setLocalProperty(DESCRIPTION, described)
    try:
        yield taken
    finally:
        spark.sparkContext.setLocalProperty(DESCRIPTION, before)  # type: ignore[arg-type]  # None unsets it
    taken.ms = _sort_ms(spark, described)


def _sort_ms(spark: "SparkSession", description: str) -> int | None:
    """What goes wrong here is no reason to fail a checkpoint: these are Spark's insides, and may change."""
    try:
        spark._jsc.sc().listenerBus().waitUntilEmpty(EVENTS_WITHIN_MS)  # noqa: SLF001 - no other way leads there
        executions = spark._jsparkSession.sharedState().statusStore().executionsList()  # noqa: SLF001
        found = [execution for execution in islice(_items(executions), NEWEST) if execution.description() == description]
        return sum(_value(spark, metric.accumulatorId()) for execution in found for metric in _sorts(execution)) if found else None
    except Exception:  # noqa: BLE001 - see above
        return None


def _sorts(execution: Any) -> Iterator[Any]:
    return (metric for metric in _items(execution.metrics()) if metric.name() == SORT_TIME)


def _value(spark: "SparkSession", accumulator_id: int) -> int:
    """Adaptive execution plans again as it runs: nothing is left of a sort that it dropped."""
    accumulator = spark._jvm.org.apache.spark.util.AccumulatorContext.get(accumulator_id)  # type: ignore[union-attr]  # noqa: SLF001
    return max(0, int(accumulator.get().value())) if accumulator.isDefined() else 0


def _items(sequence: Any) -> Iterator[Any]:
    """Of a sequence of Scala, the last first."""
    return (sequence.apply(i) for i in reversed(range(sequence.size())))
