"""The analysts' notebook runs as it is committed, against a small catalog of the demo's shape that needed no Spark."""

import io
import re
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nbclient import NotebookClient

from holdfast.opening import open_catalog
from holdfast.writers.coordinator import Coordinator
from tests.protocol.soak_workers import coordinate
from tests.support.places import ROOT

NOTEBOOK = ROOT / "notebooks" / "01-what-is-in-my-catalog.ipynb"


def per_aircraft(week: int) -> bytes:
    """A state file as a uploader writes it."""
    last_seen = {"airport": "LAX"}
    rows = [
        {
            "tailnum": f"N{i}",
            "flights": i * week,
            "distance": 100,
            "arrivals": 2,
            "delay_minutes": 5,
            "last_seen": last_seen,
            "_key_group": i,
        }
        for i in range(1, 13)
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def write_week(job: Coordinator, week: int) -> None:
    with job.checkpoint(progress={"week": week}) as checkpoint:
        checkpoint.write("per_aircraft", [per_aircraft(week)])
        if week == 1:
            checkpoint.write_bytes("airports", b"x" * 40_000)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four weeks, one aborted attempt, one vacuum."""
    place = tmp_path / "catalog"
    with coordinate(place, keep=2, name="flights") as job:
        for week in (1, 2):
            write_week(job, week)
        with pytest.raises(ZeroDivisionError), job.checkpoint() as checkpoint:
            checkpoint.write_bytes("per_route", bytes(1 // 0))
        for week in (3, 4):
            write_week(job, week)
    with open_catalog(place) as catalog:
        assert catalog.vacuum().deleted_files > 0
    return place


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_it_answers_five_questions_with_two_plots(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CATALOG", str(root))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(root.parent)}}).execute()
    assert sum(cell.cell_type == "markdown" and cell.source.startswith("## ") for cell in notebook.cells) == 5
    shown = [output.data for output in outputs(notebook) if "data" in output]
    assert sum("image/png" in data for data in shown) == 2
    tables = [data["text/plain"] for data in shown if "text/html" in data]
    assert len(tables) == 4
    assert '{"week": 4}' in tables[0]
    assert "ZeroDivisionError" in tables[1]
    assert "vacuum" in tables[2]
    assert "N12" in tables[3]


def test_it_is_committed_with_a_whole_runs_outputs_and_no_machines_path() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    found = outputs(notebook)
    assert sum("image/png" in output.get("data", {}) for output in found) == 2
    assert not [output for output in found if output.output_type in ("error", "stream")]
    texts = [str(text) for output in found for kind, text in output.get("data", {}).items() if kind.startswith("text/")]
    assert not [text for text in texts if re.search(r"(?<![\w.:</])/\w+/\w+", text)], "a place of the machine that ran it"


def test_its_stored_outputs_are_those_of_a_whole_demo() -> None:
    """All 53 weeks, and the three attempts that the kills ended: each start after a kill ended one, and counts one epoch up."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    tables = [output.data["text/plain"] for output in outputs(notebook) if "text/html" in output.get("data", {})]
    job, attempts, runs, _ = tables
    assert '{"week": 53}' in job
    assert re.search(r"^0 +flights +4 ", job, re.MULTILINE), "started once, and again after each kill"
    assert len(re.findall(r"^\d+ +\d+ +killed ", attempts, re.MULTILINE)) == 3
    assert [f"epoch {n} started" in attempts for n in (2, 3, 4)] == [True] * 3
    assert "vacuum" in runs
    assert "scrub" in runs
