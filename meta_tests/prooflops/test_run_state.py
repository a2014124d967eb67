"""Whether a process is a replicate is read from the environment it was started with."""

import pytest

from prooflops.run_state import REPLICATE, is_replicate


@pytest.mark.parametrize(("value", "expected"), [(None, False), ("", False), ("/somewhere/record.json", True)])
def test_a_process_with_a_file_to_record_to_is_a_replicate(
    value: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(REPLICATE, raising=False)
    if value is not None:
        monkeypatch.setenv(REPLICATE, value)
    assert is_replicate() is expected
