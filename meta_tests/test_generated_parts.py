"""README's sample and picture and the table of evidence are what their command writes."""

from meta_tests.conftest import ROOT
from meta_tests.generated_parts import (
    CLAIMS_PAGE,
    COMMAND,
    MOST_BYTES,
    PICTURE,
    README,
    evidence,
    mutants,
    sample,
    sample_report,
)
from meta_tests.page_tables import part_of


def test_the_sample_in_the_readme_is_from_the_evidence_in_results() -> None:
    held = part_of((ROOT / README).read_text(encoding="utf-8"), "sample", COMMAND)
    assert held == sample(sample_report()), f"{README} has another sample: run {COMMAND}"


def test_the_table_of_evidence_counts_what_is_in_the_repository() -> None:
    held = part_of((ROOT / CLAIMS_PAGE).read_text(encoding="utf-8"), "evidence", COMMAND)
    assert held == evidence(), f"{CLAIMS_PAGE} has another table: run {COMMAND}"
    assert mutants()


def test_the_picture_is_small_and_the_readme_shows_it() -> None:
    assert (ROOT / PICTURE).stat().st_size <= MOST_BYTES
    assert f"]({PICTURE})" in (ROOT / README).read_text(encoding="utf-8")
