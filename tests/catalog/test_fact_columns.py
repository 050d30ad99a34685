"""Facts as columns are the same rows, and the same facts, as those made of objects."""

import random

import pyarrow as pa
import pytest

from holdfast.catalog import facts as f
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.memory import MemoryLedger, MemoryLog
from holdfast.catalog.schema import SCHEMA, FactColumns, Operation, to_table
from tests.protocol.model import history as model_history
from tests.support.history import T0, history

OPERATION = Operation(operation_id="op", at=T0, by="ann@host")
RUN = f.RunEnded(run_id="r", what="vacuum", started_at=T0, ended_at=T0, outcome="done", figures="{}")
ALL = [*(fact for _, facts in history() for fact in facts), RUN]


def columns_of(kind: str, facts: list[f.Fact]) -> FactColumns:
    """Those of a kind, by its columns."""
    table = to_table([fact for fact in facts if fact.kind == kind], OPERATION)
    names = [name for name in f.KINDS[kind].__dataclass_fields__ if name != "kind"]
    return FactColumns.of_kind(kind, **{name: table[name] for name in names})


def test_the_history_has_every_kind_but_what_a_fold_writes():
    assert {fact.kind for fact in ALL} >= f.KINDS.keys() - {"folded", "job_ended", "release"}


@pytest.mark.parametrize("kind", sorted({fact.kind for fact in ALL}))
def test_columns_of_a_kind_are_its_objects(kind):
    objects = [fact for fact in ALL if fact.kind == kind]
    columns = columns_of(kind, ALL)
    assert list(columns) == objects
    assert to_table(columns, OPERATION).equals(to_table(objects, OPERATION))
    assert to_table(columns, OPERATION).schema.equals(SCHEMA)


@pytest.mark.parametrize("seed", range(20))
def test_any_facts_in_columns_make_the_rows_that_objects_make(seed):
    """Of several kinds, put together and taken apart anywhere."""
    rng = random.Random(seed)
    facts = [fact for commit in model_history(seed, steps=60, rest=False).log.commits for fact in commit.facts]
    low, high = sorted(rng.choices(range(len(facts) + 1), k=2))
    columns = FactColumns.of(facts[:low]) + FactColumns.of(facts[low:high]) + FactColumns.of(facts[high:])
    assert list(columns) == facts
    assert list(columns[low:high]) == facts[low:high]
    assert list(columns[::-3]) == facts[::-3]
    assert [columns[0], columns[-1], columns[low - 1]] == [facts[0], facts[-1], facts[low - 1]]
    assert to_table(columns, OPERATION).equals(to_table(facts, OPERATION))
    assert to_table(columns, OPERATION).schema.equals(SCHEMA)


def test_no_facts_are_no_rows():
    assert (len(FactColumns.of([])), list(FactColumns.of([])), bool(FactColumns.of([]))) == (0, [], False)
    assert to_table(FactColumns.of([]), OPERATION).equals(to_table([], OPERATION))
    with pytest.raises(IndexError):
        FactColumns.of([])[0]


@pytest.mark.parametrize(
    "wrong", [{"job_id": "j"}, {"job_id": "j", "run_id": "r", "path": "p"}, {"job_id": "j", "run_id": "r", "seq": "1"}]
)
def test_columns_that_a_kind_does_not_have_are_refused(wrong):
    with pytest.raises(ValueError, match="are not those of facts of kind 'gone'"):
        FactColumns.of_kind("gone", file_id=pa.array(["f1"]), **wrong)


def test_a_field_that_a_kind_has_to_have_is_not_empty():
    """As a reader of the ledger would find, too late."""
    with pytest.raises(ValueError, match="is empty that they have to have"):
        FactColumns.of_kind("gone", file_id=pa.array(["f1", None]), job_id="j", run_id="r")


@pytest.mark.parametrize("where", ["on disk", "in memory"])
def test_a_ledger_takes_columns_as_it_takes_objects(tmp_path, where):
    columns = FactColumns.of_kind("condemned", file_id=pa.array(["f1", "f2"]), job_id="j", run_id="r") + FactColumns.of([RUN])
    objects = [f.Condemned(job_id="j", file_id=each, run_id="r") for each in ("f1", "f2")]
    ledger = DeltaLedger.create(tmp_path / "ledger", catalog_id="c") if where == "on disk" else MemoryLedger(MemoryLog())
    ledger.append(columns, keys={}, operation=OPERATION)
    (commit,) = ledger.refresh()
    assert list(commit.facts()) == ledger.scan() == [*objects, RUN]
    assert {row.operation for row in ledger.rows()} == {OPERATION}
