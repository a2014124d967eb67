"""report.md: the result first, what is long folded, no text taken for markup."""

from dataclasses import replace

from prooflops.suite.report import highlights
from prooflops.suite.report.markdown import markdown
from prooflops.suite.report.run_report import ClaimResult, RunReport


def test_the_result_comes_first_and_what_is_long_is_folded(report: RunReport) -> None:
    text = markdown(report)
    assert text.splitlines()[2] == highlights.sentence(report)
    unfolded = text
    while "<details>" in unfolded:
        before, _, rest = unfolded.partition("<details>")
        unfolded = before + rest.partition("</details>")[2]
    assert len(unfolded.splitlines()) < 160, "a pull request shows what is not folded"
    assert text == markdown(report)


def test_a_failure_stands_above_everything_else_and_its_text_is_no_markup(report: RunReport) -> None:
    claim = ClaimResult("a.x", "a", "<b>1 | 2</b>", "FAILS", "got\n<script>")
    text = markdown(replace(report, claims=(claim,), partial="only a.x"))
    assert "| `a.x` | &lt;b>1 \\| 2&lt;/b> | FAILS: got &lt;script> |" in text
    assert "**A part of a run:** only a.x." in text
    assert text.index("What fails here") < text.index("Best rates")
