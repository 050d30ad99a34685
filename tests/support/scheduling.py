"""Which worker runs which tests: one has the Spark session, and the others help it only once everything else is done.

A session is a JVM, which takes seconds to start and minutes to become fast. Shared out evenly, each worker would pay for one.
"""

from typing import Any

import pytest
from _pytest.nodeid import NodeId
from xdist.scheduler import LoadGroupScheduling

SPARK = "spark in "


def mark_tests_of_spark(items: list[pytest.Item]) -> None:
    """Append to the id of each test that uses the fixture `spark` what tells it apart: its unit, which is its module.

    `xdist_group` would do so. But pytest-xdist 3.8 writes to where pytest 9.2 no longer looks, and no worker knows of any group.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item._id = NodeId.parse(f"{item.nodeid}@{SPARK}{item.path.name}")
            assert item.nodeid.endswith(item.path.name)


class OneSession(LoadGroupScheduling):
    """The first worker prefers modules of Spark, the others what needs none."""

    def _assign_work_unit(self, node: Any) -> None:
        is_first = node is self.nodes[0]
        for unit in self.workqueue:
            if unit.startswith(SPARK) == is_first:
                self.workqueue.move_to_end(unit, last=False)
                break
        super()._assign_work_unit(node)
