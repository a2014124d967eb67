"""The page and the badge of `--gate-history --report=DIR`.

Each record is a point, and no text of it is markup.
"""

import json
import re
from dataclasses import replace

from meta_tests.prooflops_gate.history.test_trend import summary
from meta_tests.prooflops_gate.statistics.simulated import times
from prooflops_gate.history.page import write_page

HOSTILE = "test_a.py::test_a[<script>alert(1)</script>&\"'{}]"
ADDRESS = "https://example.org/o/r"


def written(folder, *levels, name="test_b.py::test_b", address=ADDRESS):
    """The page and the badge's message of a benchmark with 12 records on each of these levels,
    beside a hostile one.
    """
    series = times(*((level, 12) for level in levels))
    summaries = []
    for index, time_s in enumerate(series):
        plain = summary(index, time_s, name=name)
        benchmarks = {**plain.benchmarks, HOSTILE: plain.benchmarks[name]}
        summaries.append(replace(plain, benchmarks=benchmarks, commit=f"{index:040x}"))
    page, badge = write_page(folder, "a <b> project", summaries, address)
    content = json.loads(badge.read_text())
    assert {**content, "message": ""} == {
        "schemaVersion": 1, "label": "benchmarks", "message": "", "color": content["color"],
    }  # fmt: skip
    return page.read_text().partition("<main")[2], f"{content['message']}: {content['color']}"


def test_each_record_is_a_linked_point_and_each_change_of_level_a_line(
    tmp_path,
):
    text, badge = written(tmp_path, 1.0, 1.3)
    assert badge == "2 of 2 slower: red"
    assert text.count('class="point') == 2 * 24
    assert re.findall(rf'href="{ADDRESS}/commit/(\w+)"', text)[:24] == [
        f"{index:040x}" for index in range(24)
    ]
    assert text.count('<path class="rule bad"') == 2
    assert len(re.findall(r">\+(29|30|31)\.\d%</text>", text)) == 2
    assert written(tmp_path, 1.3, 1.0)[1] == "2 of 2 faster: brightgreen"
    text, badge = written(tmp_path, 1.0, address="")
    assert badge == "2 steady: brightgreen"
    assert 'class="rule' not in text
    assert "<a href" not in text


def test_a_history_says_how_many_benchmarks_changed(tmp_path):
    written(tmp_path, 1.0, 1.3)
    text = (tmp_path / "history.html").read_text()
    assert "2 benchmarks, of which 2 changed their level." in text


def test_nothing_in_a_record_is_markup(tmp_path):
    text, _ = written(tmp_path, 1.0, address='https://e.org/"onload="x')
    assert "<script" not in text
    assert "<b>" not in text
    assert '"onload=' not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#x27;{}]" in text


def test_a_command_writes_them_and_refuses_a_folder_it_cannot_write(
    plain_repo,
):
    for _ in range(2):
        plain_repo.run("--gate-record", "a")
    done = plain_repo.run("--gate-history", "--report=site")
    assert done.code == 0
    assert "2 records in" in done.output
    page = (plain_repo.root / "site" / "history.html").read_text()
    assert page.count('class="point') == 2
    assert "test_it.py::test_sum" in page
    assert (
        json.loads((plain_repo.root / "site" / "badge.json").read_text())["message"]
        == "too few records: 2 of 8"
    )
    done = plain_repo.run("--gate-history", "--report", "/proc/none")
    assert done.code == 4
    assert "--report cannot be written to /proc/none" in done.output
