"""A repository that knows nothing of this suite, and the one browser of all tests of pages."""

from pathlib import Path

import pytest

from meta_tests.browser import browser  # once: playwright does not start twice in a process
from meta_tests.prooflops_gate.foreign import Foreign


@pytest.fixture
def plain_repo(tmp_path: Path) -> Foreign:
    """A repository with one benchmark, for runs with the plugin."""
    return Foreign(tmp_path)
