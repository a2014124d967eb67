"""A sample of the kills and conditions of `trials`, which says what they show."""

from pathlib import Path

import pytest

from meta_tests.prooflops.trials import CONDITIONS, kill_runs, run_where_little_works


@pytest.mark.prove
def test_killed_runs_lose_nothing_and_call_nothing_whole(tmp_path: Path) -> None:
    assert len(kill_runs(tmp_path, 2, "prove")) == 8


@pytest.mark.prove
def test_what_was_found_is_there_wherever_it_ran(tmp_path: Path) -> None:
    assert len(run_where_little_works(tmp_path)) == len(CONDITIONS) + 1
