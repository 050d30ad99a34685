"""References lead somewhere: sections of the design that code and documents cite, invariants by number, files by name."""

import ast
import re
from pathlib import Path

import pytest

from tests.support import invariants
from tests.support.places import ROOT

DOCS = ROOT / "docs"
DESIGN = (DOCS / "design.md").read_text()
PAGES = [*(ROOT.glob("*.md")), *DOCS.rglob("*.md")]
FOLDERS = ("benchmarks", "catalog", "compaction", "holdfast", "tests", "writers")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
SECTION = re.compile(r"^## (\d[a-z]?)\. ", re.MULTILINE)
STEP = re.compile(r"^(\d+)\. \*\*", re.MULTILINE)
CITED = re.compile(r"\bdesign(?:'s)?,? \(?sections? (\d[a-z]?)((?:(?:, | and | or )(?:section )?\d[a-z]?)*)(?:, step (\d+))?")
MODULE = re.compile(r"`((?:\w+/)*\w+\.py)`")
CHANGED = "CHANGELOG.md"  # what was called so then


def cited() -> list[tuple[str, str, str]]:
    """Where, which section, and which of its steps, if it says so."""
    found = []
    for path in [*FILES, *PAGES]:
        for first, more, step in CITED.findall(path.read_text()):
            found += [(str(path.relative_to(ROOT)), number, step) for number in re.findall(r"\d[a-z]?", f"{first} {more}")]
    return found


def test_every_section_of_the_design_that_is_cited_is_there() -> None:
    sections, steps = SECTION.findall(DESIGN), STEP.findall(DESIGN)
    assert sections == ["1", "2", "3", "4", "4b", "4c", "5", "6", "7", "8"], "a number is never given to another section"
    assert [each for each in cited() if each[1] not in sections or (each[2] and each[2] not in steps)] == []
    assert {number for _, number, _ in cited()} >= {"1", "2", "3", "4", "4c", "5"}, "the citations are found"


def test_no_citation_escapes_the_one_above() -> None:
    """In another form it would lead nowhere and nobody would see it."""
    loose = re.compile(r"\bdesign\b.{0,20}\bsections?\b", re.IGNORECASE)
    for path in FILES:
        if path != Path(__file__).resolve():
            text = path.read_text()
            assert len(loose.findall(text)) == len(CITED.findall(text)), path


def test_the_invariants_have_one_number_everywhere() -> None:
    numbers = [f"I{n}" for n in range(1, 10)]
    assert re.findall(r"^\| (I\d) \|", DESIGN, re.MULTILINE) == numbers
    assert re.findall(r"^\| (I\d) \|", (DOCS / "guarantees.md").read_text(), re.MULTILINE) == numbers
    assert sorted({name[:2].upper() for name in vars(invariants) if re.match(r"i\d_", name)}) == numbers


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != CHANGED], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_modules_that_a_page_names_are_there(page: Path) -> None:
    there = {str(path.relative_to(ROOT)) for path in FILES}
    assert [name for name in MODULE.findall(page.read_text()) if name not in there] == []


def test_the_map_of_contributing_has_every_module_and_no_other() -> None:
    mapped = re.findall(r"^\| `(\S+\.py)` \| .", (ROOT / "CONTRIBUTING.md").read_text().split("\n## The map\n")[1], re.MULTILINE)
    installed = ("catalog", "compaction", "holdfast", "writers")
    modules = (path.relative_to(ROOT) for folder in installed for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py")
    assert sorted(mapped) == sorted({str(path) for path in modules})


def test_names_of_tests_have_at_most_70_characters() -> None:
    """The subject in the name, the circumstance in the docstring."""
    functions = [
        node.name
        for path in FILES
        if "tests" in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    assert [name for name in functions if name.startswith("test_") and len(name) > 70] == []
