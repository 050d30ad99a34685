"""Every snippet in the README and in docs/ runs: Python top to bottom in one namespace for each page, SQL against a small catalog."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)")


def snippets(page: Path, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(page.read_text()) if found == language]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


CODE_PAGES = [p for p in PAGES if snippets(p, "python")]


@pytest.mark.parametrize("page", CODE_PAGES, ids=named)
def test_python_of_a_page_runs_from_top_to_bottom(page, spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"spark": spark, "__name__": "__page__"}
    for body in snippets(page, "python"):
        exec(compile(body, named(page), "exec"), names)  # noqa: S102 - that is the test
    assert os.listdir(tmp_path), "a page's code is expected to write something"


@pytest.mark.parametrize("page", [p for p in PAGES if snippets(p, "sql")], ids=named)
def test_sql_of_a_page_runs_on_a_catalog(page, tmp_path):
    import holdfast

    catalog = holdfast.open(tmp_path / "catalog", create=True)
    with catalog.coordinate("flights") as job, job.checkpoint() as cp:
        cp.write_bytes("offsets", b"42")
    with catalog.duckdb() as connection:
        for body in snippets(page, "sql"):
            for statement in filter(str.strip, body.split(";")):
                assert connection.execute(statement).description is not None, statement


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_of_a_page_lead_somewhere(page):
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert broken == []
