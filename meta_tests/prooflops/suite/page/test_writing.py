"""A run leaves three files that say the same."""

import json

from prooflops.suite.page.writing import write_pages


def test_the_files_of_a_run_agree_and_the_same_run_gives_the_same_bytes(report, page, tmp_path):
    write_pages(report, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.html",
        "report.md",
        "verdicts.json",
    }
    assert (tmp_path / "report.html").read_text() == page
    markdown = (tmp_path / "report.md").read_text()
    for red in report.red_tests:
        assert red.test in page
        assert red.test in markdown
    for claim in json.loads((tmp_path / "verdicts.json").read_text())["claims"]:
        assert f'id="{claim["id"]}"' in page
        assert (
            claim["verdict"] not in ("FAILS", "error", "not checked")
            or f"{claim['id']}" in markdown
        )
