"""The project's own benchmarks, which `.github/workflows/checks.yml` gates on each pull request.

They time what a user waits for: formulas, a plan, a page. None measures the machine.
"""

import random
from pathlib import Path

import pytest

from accounting.models import LLAMA3_70B, step_flops
from prooflops.__main__ import main
from prooflops_gate.history.page import page
from prooflops_gate.history.records import Summary, Timed
from prooflops_gate.history.trend import trends
from prooflops_gate.page.html import html
from prooflops_gate.statistics.change_points import change_points

# A collection of garbage would fall into some rounds and not into others.
pytestmark = pytest.mark.benchmark(max_time=0.1, disable_gc=True)
TIMES_S = [random.Random(number).gauss(1.0 + (number > 50), 0.02) for number in range(100)]


@pytest.fixture
def warm(benchmark):
    """The fixture `benchmark`, for a function whose first call fills caches."""

    def measured(function, *arguments):
        function(*arguments)
        return benchmark(function, *arguments)

    return measured


def test_step_flops(warm):
    assert warm(step_flops, LLAMA3_70B, 8, 8192).model > 8 * 8192 * 70e9


def test_plan(warm, capsys):
    assert warm(main, ["plan", "llama-3-70b", "--devices", "1024"]) == 0


def test_change_points(warm):
    assert len(warm(change_points, TIMES_S)) == 1


def test_history_page(warm):
    records = [
        Summary(Path(f"{number}"), f"2026-11-01T{number:03}", "a", "a", "", "", {"a": timed}, {})
        for number, timed in enumerate(Timed(time_s, {}) for time_s in TIMES_S)
    ]
    found = trends(records)
    assert "</html>" in warm(lambda: html(page("history", [found], "")))
