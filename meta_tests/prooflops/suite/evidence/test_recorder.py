"""What is written down of a test; the runs themselves are in test_command.py."""

from pathlib import Path

from prooflops.suite.evidence.recorder import LONGEST_LOG, shortened


def test_a_log_names_no_folder_of_this_machine_and_is_cut_in_its_middle() -> None:
    assert shortened(f"{Path.cwd()}/test_claims/test_a.py") == "./test_claims/test_a.py"
    assert shortened(f"{Path.home()}/data") == "~/data"
    text = "a" * LONGEST_LOG + "b" * 50 + "c" * LONGEST_LOG
    assert shortened(text) == "a" * LONGEST_LOG + "\n... 50 characters ...\n" + "c" * LONGEST_LOG
