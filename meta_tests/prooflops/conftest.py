"""A repository that knows nothing of this suite."""

from pathlib import Path

import pytest

from meta_tests.prooflops.foreign import Foreign


@pytest.fixture
def plain_repo(tmp_path: Path) -> Foreign:
    """A repository with one benchmark, for runs with the plugin."""
    return Foreign(tmp_path)
