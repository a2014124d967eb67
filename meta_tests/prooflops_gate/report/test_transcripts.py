"""What the gate prints of made-up comparisons, as golden transcripts."""

import math
import re
from dataclasses import replace

import pytest

from meta_tests.golden import FOLDER
from meta_tests.prooflops_gate.foreign_repo import config_in
from meta_tests.prooflops_gate.statistics.simulated import effect_of
from prooflops_gate.comparison import Comparison
from prooflops_gate.console.tables import TerminalLine
from prooflops_gate.history.records import Timed
from prooflops_gate.instruments.counts import MORE
from prooflops_gate.instruments.instructions import BLIND
from prooflops_gate.instruments.pace import TOO_LONG, Cost, PacePlan
from prooflops_gate.instruments.time_rule import BUDGET, NOISE, TimeRule, look_at, plan_for
from prooflops_gate.options import settings
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown
from prooflops_gate.page.section import Page, Section
from prooflops_gate.report import github
from prooflops_gate.report.files import comment
from prooflops_gate.report.noise_table import noise_table
from prooflops_gate.report.result import BROKEN, INTERRUPTED, Judge
from prooflops_gate.report.sentences import reason, sentence
from prooflops_gate.report.terminal import below_the_box, box
from prooflops_gate.rows import INSTRUCTIONS, TIME, Row
from prooflops_gate.where import NO_PYTHON, risen

WHERE = risen(
    {"work.py:busy": 10, "work.py:f": 1}, {"work.py:busy": 40, "work.py:f": 2}, "bytecodes"
)


def timed(name, verdict, ratio, spread=0.02, **rest):
    """A row of a benchmark's time, of 32 pairs."""
    effect = effect_of(ratio, spread)
    return Row(f"t.py::test_{name}", "time", 0.001, 0.001 * ratio, verdict, effect, **rest)


MIXED = (
    timed("same", "SAME", 1.0),
    timed("counted", "SAME", 1.02, by=INSTRUCTIONS, note="+0.01% instructions in 3 pairs"),
    timed("slow", "SLOWER", 1.26, fresh=18, where=WHERE, by=TIME, instructions=2.0),
    timed("twice", "SLOWER", 4.1, fresh=5, by=TIME, instructions=1.0),
    timed("against", "SLOWER", 1.1, by=TIME, instructions=0.9),
    timed("opposed", "SLOWER", 0.979, 0.1, by=INSTRUCTIONS, instructions=1.137, where=WHERE),
    timed("table", "SLOWER", 1.1, where=NO_PYTHON),
    timed("still", "SAME", 1.0),
    timed("alike", "SAME", 1.02, by=INSTRUCTIONS),
    timed("fast", "FASTER", 0.8, fresh=8),
    timed("open", "INCONCLUSIVE", 1.02, 0.3, note=f"noise 17%; {NOISE}"),
    Row("t.py::test_skipped", "time", 0.001, None, "INCONCLUSIVE", note="skipped this time: later"),
    Row("t.py::test_gone", "time", 0.001, None, "GONE", note="its test was removed"),
    Row("t.py::test_missing", "time", 0.001, None, "MISSING", note="it did not run"),
    Row("t.py::test_new", "time", None, 0.001, "NEW"),
    Row("t.py::test_same", "flops", 600, 3000, "CHANGED"),
    Row("t.py::test_same", "bytes", 600, 600, "SAME"),
    Row("t.py::test_slow", "memory", 12_600, 25_200, "MORE MEMORY"),
    Row("t.py::test_fast", "CUDA memory", 25_200, 12_600, "LESS MEMORY"),
    Row("t.py::test_slow", INSTRUCTIONS, 1000, 2000, MORE, where=WHERE),
    Row("t.py::test_counted", INSTRUCTIONS, 1000, 1010, MORE, where=WHERE),
)


@pytest.fixture
def judge(tmp_path):
    """Judges by these options of a run."""

    def judging(*words):
        config = config_in(tmp_path, "-p", "prooflops_gate.plugin", *words)
        return Judge(settings(config))

    return judging


@pytest.fixture
def gate(judge):
    return judge("--gate", "--gate-versus", "HEAD")


def compared(*rows, **rest):
    return Comparison("before beside after", rows, effort="32 pairs in 2 min", **rest)


def printed(result, *, is_verbose=False):
    parts = (part(result, is_verbose=is_verbose) for part in (box, below_the_box))
    return "\n".join(line.text for part in parts for line in [*part, TerminalLine("")])


@pytest.mark.parametrize("is_verbose", [False, True])
def test_rows_of_every_verdict(gate, golden, is_verbose):
    found = compared(*MIXED, notes=("a note",), details=(BLIND,))
    result = gate.result(found, ["t.py::test_that_fails"])
    name = "gate_verdicts_verbose" if is_verbose else "gate_verdicts"
    golden(name, printed(result, is_verbose=is_verbose))


LONGEST_SENTENCE = 25


def test_no_sentence_is_long():
    """In any transcript of the gate; a word has a letter or digit."""
    texts = [file.read_text(encoding="utf-8") for file in FOLDER.glob("gate_*.txt")]
    lines = [line for text in texts for line in text.splitlines() if not line.startswith("|")]
    for part in (each for line in lines for each in re.split(r"[.;:] ", line)):
        words = [word for word in part.split() if re.search(r"[a-z0-9]", word, re.IGNORECASE)]
        assert len(words) <= LONGEST_SENTENCE, part


def test_the_comment_for_a_pull_request(gate, golden):
    golden("gate_comment", comment(gate.result(compared(*MIXED), [])))


HEAD = ("name", "value")


def test_a_table_of_a_head_alone_is_empty():
    page = Page("page", "gate", [Section("Figures", rows=[HEAD], absent="None.")])
    for text in (html(page), markdown(page)):
        assert "None." in text


def test_why_a_test_fails_and_where_github_shows_it(gate, golden, tmp_path, monkeypatch):
    failing = gate.failing(MIXED)
    (tmp_path / "work.py").write_text("\n\ndef busy():\n    pass\n")
    places = {"t.py::test_twice": (tmp_path / "t.py", 7)}
    assert github.commands(failing, "open", places, tmp_path) == []
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    lines = github.commands(failing, "10% is open", places, tmp_path)
    golden("gate_failures", "\n".join([*map(reason, failing), *lines]))
    assert lines[1].startswith(f"::error file={tmp_path}/work.py,line=3,title=gate::SLOWER: ")


def test_of_many_open_benchmarks_the_widest_are_named(gate, golden):
    rows = []
    for number in range(1, 8):
        row = timed(number, "INCONCLUSIVE", 1.0, number / 5)
        whys = (NOISE, BUDGET, TOO_LONG)
        rows += [
            replace(row, name=f"{row.name}_{why[:2]}", note=f"noise 9%; {why}") for why in whys
        ]
    result = gate.result(compared(timed("same", "SAME", 1.0), *rows), [])
    golden("gate_open", printed(result))
    assert result.warning.startswith("21 undecided, of which 18 could hide a slowdown of 10%")


def test_why_a_benchmark_is_open(golden):
    """By how far the ratios scatter, and how many pairs there are."""
    said = []
    for pairs, most in ((1, None), (3, 3), (32, None)):
        ratios = [1.03 * math.exp(0.1 * math.sin(number)) for number in range(pairs)]
        sides = [Timed(1.0, {}) for _ in ratios], [Timed(each, {}) for each in ratios]
        (row,), _ = look_at({"a": sides}, TimeRule(plan_for(20, most=most), most=most))
        said += [sentence(row), f"  {row.note}"]
    golden("gate_advice", "\n".join(said))


def test_the_last_line_of_each_kind_of_run(judge, gate, golden):
    same = compared(timed("same", "SAME", 1.0))
    wide = compared(timed("open", "INCONCLUSIVE", 1.0, 0.9))
    ended = [
        gate.result(same, []),
        gate.result(same, ["t.py::test_that_fails"]),
        gate.result(wide, []),
        gate.result(compared(), []),
        gate.result(same, [], INTERRUPTED, "stopped by the user"),
        gate.result(same, [], BROKEN, "a process crashed"),
        judge("--gate-versus", "HEAD").result(same, []),
        judge("--gate-noise-floor").result(same, []),
    ]
    golden("gate_endings", "\n\n".join(map(printed, ended)))


def test_the_noise_of_a_machine(judge, golden):
    rows = [timed("steady", "SAME", 1.0), timed("noisy", "INCONCLUSIVE", 1.0, 0.3)]
    table = noise_table(rows, plan_for(2), 0.03, {"t.py::test_noisy": 0.2})
    found = compared(*rows, table=tuple(table))
    golden("gate_noise_floor", printed(judge("--gate-noise-floor").result(found, [])))


def test_the_plan_of_a_run(golden):
    costs = {"a": Cost(1.0), "long": Cost(60.0, round_s=12.0)}
    plan = PacePlan(costs, 1.0, 8, 34, budget_s=600.0, left_s=600.0)
    plans = [
        plan,
        replace(plan, costs={}),
        replace(plan, decides=False),
        replace(plan, budget_s=5.0),
        replace(plan, costs={"a": Cost(1.0)}),
    ]
    lines = [*map(str, plans), plan.detail, plan.given_up["long"]]
    golden("gate_plan", "\n".join(lines))
