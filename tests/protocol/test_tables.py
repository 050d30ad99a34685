"""Cases in a table fail by their names, and none hides another."""

import pytest

from tests.support.tables import table


def test_all_cases_that_fail_are_named_and_the_others_are_tried() -> None:
    tried = []
    with pytest.raises(BaseExceptionGroup, match=r"2 cases failed: odd 1, 3$") as raised:
        with table() as case:
            for name, fails in {"odd 1": True, "2": False, "3": True}.items():
                with case(name):
                    tried.append(name)
                    if name == "3":
                        pytest.fail("by itself")
                    assert not fails
    assert tried == ["odd 1", "2", "3"]
    assert [error.__notes__[-1] for error in raised.value.exceptions] == ["in case odd 1", "in case 3"]


def test_a_table_without_a_failure_is_silent_and_names_are_single() -> None:
    with table() as case, case("one"):
        pass
    with pytest.raises(AssertionError, match="two cases are named"):
        with table() as case:
            for _ in range(2):
                with case("one"):
                    pass
