"""The question of a comparison: which two sides, by which tests, under which settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from prooflops_gate import git
from prooflops_gate.instruments.time_rule import TimeRule, plan_for
from prooflops_gate.options import Settings
from prooflops_gate.process import Processes
from prooflops_gate.selection import Selection
from prooflops_gate.statistics.decision_rule import LOOKS
from prooflops_gate.task import Replicate, Side

# Shorter benchmarks run to their end, however small the budget.
SHORT_S = 20.0


@dataclass(frozen=True)
class Question:
    """This side beside another, by the tests that were selected.

    `asked` is the option that names the other side; empty where both are this one. `say` takes a
    line of progress, `heard` each process of this side. `targets` are the paths in which the other
    side is searched for benchmarks. `smallest` overrides the smallest change of a benchmark.
    """

    here: Side
    other: Side
    asked: str
    selection: Selection
    settings: Settings
    processes: Processes
    say: Callable[[str], None]
    heard: Callable[[Replicate], None]
    began: float
    targets: tuple[str, ...] = ()
    smallest: Mapping[str, float] = field(default_factory=dict)

    @property
    def ends(self) -> float:
        """When the budget ends, by the clock of `time.monotonic`."""
        return self.began + self.settings.budget_s

    @property
    def longest_s(self) -> float:
        """Seconds of a benchmark's calls beyond which its pairs up to the first look do not fit."""
        return max(SHORT_S, self.settings.budget_s / (2 * LOOKS[0]))

    @property
    def title(self) -> str:
        """The two sides, in words."""
        this = f"this side ({git.commit_of(self.here.root)})"
        if not self.asked:
            return f"{this} beside itself"
        return f"{self.other.label} (before) beside {this} (after)"

    def rule(self, benchmarks: int) -> TimeRule:
        """The rule that decides this number of benchmarks by their times."""
        settings, selection = self.settings, self.selection
        plan = plan_for(benchmarks, most=settings.replicates, all_pairs=settings.noise_floor)
        return TimeRule(
            plan,
            settings.min_effect,
            {**selection.smallest, **self.smallest},
            settings.replicates,
            settings.noise_floor,
            most_slower=selection.config.option.maxfail or 0,
        )


def refuse_without_benchmarks(selection: Selection) -> None:
    """Raises UsageError where nothing that is measured was selected."""
    if not selection.benchmarks:
        raise pytest.UsageError(
            "the gate found no test with the fixture or the marker `benchmark` among those selected"
        )
