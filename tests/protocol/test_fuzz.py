"""Some seconds of `make fuzz`: whatever the input, a right answer or an error of the right class."""

from pathlib import Path

import pytest

from tests.protocol.fuzz import TARGETS, fuzz

EXAMPLES = 60


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_input_gives_a_right_answer_or_the_right_error(name: str, tmp_path: Path) -> None:
    fuzz(name, tmp_path, EXAMPLES, 11)
