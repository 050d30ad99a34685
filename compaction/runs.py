"""A maintenance run as a fact: what ran, when, how it ended, and its figures."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from holdfast.catalog.environment import Environment
from holdfast.catalog.facts import RunEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRun:
    """A run that has begun."""

    run_id: str
    what: str
    started_at: datetime

    @classmethod
    def begin(cls, what: str, environment: Environment) -> "MaintenanceRun":
        return cls(run_id=environment.new_id(), what=what, started_at=environment.now())

    def ended(self, environment: Environment, outcome: str, figures: Mapping[str, int]) -> RunEnded:
        """The fact that ends it: outcome in a word, figures as numbers."""
        return RunEnded(
            run_id=self.run_id,
            what=self.what,
            started_at=self.started_at,
            ended_at=environment.now(),
            outcome=outcome,
            figures=json.dumps(figures, sort_keys=True),
        )
