"""The page of `--gate-history --report=DIR`.

Each record is a point.
"""

import re
from dataclasses import replace

from meta_tests.prooflops_gate.foreign_repo import run
from meta_tests.prooflops_gate.history.test_trend import summary
from meta_tests.prooflops_gate.statistics.simulated import times
from prooflops_gate.history.page import page, plot, write_page
from prooflops_gate.history.trend import trends
from prooflops_gate.page.drawing import svg

ADDRESS = "https://example.org/o/r"


def written(folder, *levels, address=ADDRESS):
    """The page of a benchmark with 12 records on each of these levels, all but one of a commit."""
    series = times(*((level, 12) for level in levels))
    summaries = [
        replace(summary(index, time_s), commit=f"{index:040x}" * bool(index))
        for index, time_s in enumerate(series)
    ]
    return write_page(folder, "a project", summaries, address).read_text().partition("<main")[2]


def test_each_record_is_a_linked_point_and_each_change_of_level_a_line(
    tmp_path,
):
    text = written(tmp_path, 1.0, 1.3)
    assert text.count('class="point') == 24
    assert re.findall(rf'href="{ADDRESS}/commit/(\w*)"><path', text) == [
        f"{index:040x}" for index in range(1, 24)
    ]
    assert text.count('<path class="rule bad"') == 1
    named = rf'<a href="{ADDRESS}/commit/0*c"><text [^>]*>0000000 \+(29|30|31)\.\d%</text></a>'
    assert len(re.findall(named, text)) == 1
    text = written(tmp_path, 1.0, address="")
    assert 'class="rule' not in text
    assert "changes of level: none found" in text
    assert "<a href" not in text


def test_the_axis_names_commits_and_dates_and_is_marked_as_it_does_not_begin_at_0():
    series = times((1.0, 24), (1.3, 24))
    (steps,) = trends([summary(index, time_s) for index, time_s in enumerate(series)])
    drawn = plot(steps, "")
    assert list(drawn.x.ticks) == [0, 9, 19, 28, 38, 47]
    assert drawn.x.ticks[47] == "c000004\n2026-11-02"
    assert 0.9 < drawn.y.low < min(series)
    assert drawn.y.is_broken
    assert "Broken axis" in svg(drawn)
    assert [(rule.x, rule.label.split()[0]) for rule in drawn.rules] == [(23.5, "c000002")]
    assert drawn.points[24].title.endswith(" s at c000002 (2026-11-02 00:00)")
    assert drawn.title.endswith("% at c000002 (2026-11-02 00:00)")
    _, *levels = drawn.lines
    assert [place for line in levels for place, _ in line.spots] == [0, 23.5, 23.5, 47]


def test_the_benchmarks_whose_level_changed_come_first():
    moved = [summary(index, time_s) for index, time_s in enumerate(times((1.0, 12), (1.3, 12)))]
    steps, level = trends(moved) + trends(moved[:3])
    (section,) = page("", [[replace(level, name="a"), steps]], "").sections
    assert [part.title for part in section.parts] == [steps.name, "a"]


def test_a_benchmark_of_two_machines_and_paces_is_counted_once(tmp_path):
    newest = [summary(index, 1.0) for index in range(12, 24)]
    newest.append(replace(summary(24, 1.0), pace="quick"))
    earlier = [
        replace(summary(index, 1.0, device="cpu-0"), facts={"numpy": "1"}) for index in range(12)
    ]
    write_page(tmp_path, "a project", [*earlier, *newest], "")
    text = (tmp_path / "history.html").read_text()
    assert "1 benchmark, of which 0 changed their level." in text
    assert "Some CPU, torch 2.13.0, until 2026-11-01" in text
    assert "Other than on the newest machine: numpy 1." in text
    assert "a series of its own: pace quick, method 3" in text


def test_a_command_writes_it_and_refuses_a_folder_it_cannot_write(foreign):
    for _ in range(2):
        run(foreign, "test_foreign.py", "--gate-record", "a")
    done = run(foreign, "--gate-history", "--report=site")
    assert done.code == 0
    page = (foreign / "site" / "history.html").read_text()
    assert page.count('class="point') == 2
    assert "too few records: 2 of 8" in page
