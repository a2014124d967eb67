"""No page concludes what contradicts its own figures: a run's record in, its pages out."""

import json
from dataclasses import replace

import pytest

from accounting.devices.floors import floor_of
from meta_tests.contradictions import Page, contradictions
from prooflops.suite.page.highlights import sentence, unusual
from prooflops.suite.page.measurement import Measurement
from prooflops.suite.page.page import LARGEST_SHORT_PAGE_BYTES, page_of
from prooflops.suite.page.reconciled import reconciled
from prooflops.suite.page.run_report import verdicts_json
from prooflops_gate.page.html import html
from prooflops_gate.page.markdown import markdown


def short(report):
    """Its report.md."""
    return markdown(page_of(report), largest_bytes=LARGEST_SHORT_PAGE_BYTES)


STEP = "step[deep-linear-bf16-eager]"
ROW = "stream[L1-copy]"
BUSY = {"labels": ["contended: other work"]}


def busy(name, info, stats):
    """Work beside bf16's products, none beside a step counted too fast; launch-bound caches."""
    if name.startswith(("matmul[bf16", "ceiling[bf16", "layer[bf16", "matmul[fp8", "ceiling[fp8")):
        info["conditions"] = BUSY
    if name == STEP:
        info |= {
            "flop_per_s": 5e12,
            "share_of_ceiling": 3.27,
            "conditions": {},
            "ci_low": 1.0,
            "ci_high": 1.0,
        }
        stats["iqr"] = 0.0
    if name == ROW:
        info |= {"bound": "launch", "launch_share": 0.98}


def test_the_checker_sees_each_contradiction():
    """In words of pages that were printed once."""
    tile = (
        '<section id="short"><table><thead><tr><th>figure</th><th>value</th></tr></thead>'
        "<tr><td>MFU of own ceiling</td><td>324%</td></tr></table></section>"
    )
    rates = (
        '<section id="rates"><table><thead><tr><th>dtype</th><th>rate</th><th>in</th></tr></thead>'
        "<tr><td>bf16</td><td>246 GFLOP/s</td><td>step[deep-linear-bf16-eager]</td></tr>"
        '</table></section><section id="benchmarks"><table>'
        "<thead><tr><th>benchmark</th><th>rate</th><th>notes</th></tr></thead>"
        "<tr><td>matmul[bf16-square-1024]</td><td>992 GFLOP/s</td><td></td></tr>"
        "<tr><td>stream[L1-copy]</td><td>32.4 GB/s</td><td>launch-bound</td></tr></table></section>"
    )
    memory = (
        '<p class="answer">At most: memory 103 GB/s (sum).</p>'
        '<p class="answer">memory, 59.7 GB/s</p>'
    )
    operators = (
        '<p class="lead">compute-bound</p><table><thead><tr><th>time</th><th>note</th></tr></thead>'
        "<tr><td>MFU of own ceiling</td><td>own: fp32 12.6 GFLOP/s</td></tr></table>"
        "<table><thead><tr><th>operator</th><th>rate</th></tr></thead>"
        "<tr><td>aten.mm</td><td>183 GFLOP/s</td></tr></table>"
    )
    phases = (
        "<table><thead><tr><th>phase</th><th>time</th><th>in operators</th></tr></thead>"
        "<tr><td>backward</td><td>9.73 ms</td><td>11.9 ms</td></tr></table>"
    )
    farther = "<tr><td>stream[L2-copy]</td><td>59.5 GB/s</td><td></td></tr><tr><td>stream[L1"
    caches = rates.replace("launch-bound", "").replace("<tr><td>stream[L1", farther)
    texts = (tile, rates, memory, operators, phases, caches)
    assert [len(contradictions(text)) for text in texts] == [1, 3, 1, 1, 1, 3]
    not_known = operators.replace("compute-bound", "not known: ...")
    assert contradictions(not_known + tile.replace("324%", "–")) == []


def test_a_busy_machine_leads_to_no_conclusion_against_the_figures(report_of):
    report = report_of(busy)
    page = html(page_of(report))
    assert contradictions(page) == []
    rates = {row["dtype"]: row for row in Page(page).tables["rates"]}
    assert "contended" in rates["bf16"]["spread"]
    assert f"{STEP.removeprefix('step[').removesuffix(']')}): not known: above its ceiling" in page
    row = next(row for row in Page(page).tables["benchmarks"] if row["benchmark"] == ROW)
    assert row["rate"] == "-"
    assert "launch-bound" in row["notes"]


def test_a_cache_whose_calls_take_few_launches_has_no_rate():
    info = {"memory_level": "L2", "bytes_per_s": 1e12}
    launch = Measurement("launch", "bench/test_launch.py::test_launch", 1e-6, 0.0, {})
    for median_s, is_known in ((2.9e-6, False), (3.1e-6, True)):
        stream = Measurement("stream[L2-copy]", "bench/test_bandwidth.py", median_s, 0.0, info)
        seen, _ = reconciled([stream, launch])
        assert bool(seen.rate) == is_known


def test_a_run_beside_other_work_says_so_first(report_of):
    def contended(_name, info, _stats):
        info["conditions"] = BUSY

    said = "Other work took part: "
    assert said not in sentence(report_of())
    assert said in sentence(report_of(contended))
    assert "benchmarks: contended (the first: other work)" in " ".join(
        unusual(report_of(contended))
    )


def test_a_step_gives_examples_per_second_and_energy_beside_mfu(
    report_of,
):
    def trained(name, info, stats):
        if name == STEP:
            info |= {"share_of_ceiling": 0.5, "conditions": {}, "ci_low": 1.0, "ci_high": 1.0}
            info |= {"mfu": 0.41, "tokens_per_s": 12345.6, "joules_per_token": 0.0123}
            stats["iqr"] = 0.0

    conclusions = Page(html(page_of(report_of(trained)))).conclusions
    step = next(each for each in conclusions if "(deep-linear-bf16-eager)" in each)
    assert step.endswith(", MFU 41%, 12,346 examples/s, 12.3 mJ per example"), step
    assert any(
        each.startswith("for comparison, published MFU: ") and "Llama 3" in each
        for each in conclusions
    )


def test_a_well_written_step_says_where_its_time_goes(report):
    kinds = {"products": 0.022, "casts": 0.014}
    figures = {"mfu": 0.331, "tokens_per_s": 414_000.0, "idle_s": 0.003}
    info = {**figures, "dtype": "bf16", "seconds_by_kind": kinds}
    step = Measurement("mfu[gpt2-124m]", "bench/test_mfu.py::test_mfu[gpt2-124m]", 0.079, 0, info)
    conclusions = Page(html(page_of(replace(report, benchmarks=(step,))))).conclusions
    assert (
        "a training step (gpt2-124m) takes 79.0 ms, MFU 33%, 414,000 tokens/s, "
        "of it products 22.0 ms, casts 14.0 ms, no kernel 3.00 ms"
    ) in conclusions


def test_a_wide_spread_leads_to_no_conclusion(report_of):
    def wide(name, info, stats):
        stats["iqr"] = 1.08 * stats["median"]

    page = html(page_of(report_of(wide)))
    assert contradictions(page) == []
    assert "fp16 is multiplied slower" not in page, "a CPU without its unit: that is expected"
    assert "too noisy to compare the rates of fp32 and fp64" in page
    assert not [
        text
        for text in Page(page).conclusions
        if "-bound" in text or "% of the own ceiling" in text
    ]


@pytest.fixture(scope="module")
def delivering(report_of):
    """Of an H100: bf16 reaches its floor, copy does not, and none is known of the launch."""

    def delivers(name, info, stats):
        bf16 = floor_of("H100 SXM", "bf16")
        memory = floor_of("H100 SXM", "copy")
        assert bf16
        assert memory
        if name == "matmul[bf16-square-1024]":
            info["delivers"] = {
                "figure": "bf16",
                "value": 780e12,
                "unit": "FLOP/s",
                "share": 0.79,
                "nominal": 989e12,
                "floor": bf16._asdict(),
                "met": True,
                "causes": [],
            }
        if name == "stream[memory-copy]":
            info["delivers"] = {
                "figure": "copy",
                "value": 1e12,
                "unit": "B/s",
                "share": 0.3,
                "nominal": 3.35e12,
                "floor": memory._asdict(),
                "met": False,
                "causes": ["throttled: heat"],
            }
        if name == "stream[memory-add]":
            info["delivers"] = {
                "figure": "add",
                "value": 1e12,
                "unit": "B/s",
                "unknown": "no floor is known",
            }

    return report_of(delivers)


def test_the_page_begins_with_whether_the_machine_delivers(delivering):
    page = html(page_of(delivering))
    text = short(delivering)
    conclusions = Page(page).conclusions
    answer = "BELOW FLOOR: copy (throttled: heat); 1 of 2 figures with a known floor is below it"
    assert conclusions[0] == f"✕{answer}"
    met, below, unknown = Page(page).bars
    assert met["name"] == "bf16"
    assert met["mark"] == "✓delivers"
    assert below["figure"] == "1.00 TB/s"
    assert below["mark"] == "✕BELOW FLOOR"
    assert below["note"].startswith("throttled: heat; at least ")
    assert "in stream[memory-copy]" in below["note"]
    assert unknown["note"] == "no floor is known; in stream[memory-add]"
    assert text.splitlines()[2] == f"**BELOW FLOOR**: {answer.partition(': ')[2]}"
    parts = ("| bf16 |", "| memory copy |", "## What limits", "## Claims")
    order = [text.index(part) for part in parts]
    assert order == sorted(order)
    rows = {row["figure"]: row for row in json.loads(verdicts_json(delivering))["delivers"]}
    assert {name: row["met"] for name, row in rows.items()} == {
        "bf16": True,
        "copy": False,
        "add": None,
    }
    assert rows["copy"]["causes"] == ["throttled: heat"]


def test_a_figure_has_the_history_of_this_machine_beside_it(delivering, report):
    row = next(each for each in delivering.benchmarks if each.name == "matmul[bf16-square-1024]")
    trend = replace(report.trends[0], name=row.fullname)
    assert '<svg class="spark"' not in html(page_of(delivering))
    assert html(page_of(replace(delivering, trends=(trend,)))).count('<svg class="spark"') == 1


def test_the_short_page_fits_a_comment_whatever_fails(report, report_of):
    assert len(short(report).encode()) <= LARGEST_SHORT_PAGE_BYTES
    failing = tuple(
        replace(each, verdict="FAILS", reason="2·m·n·k " * 120) for each in report.claims
    )
    few = short(replace(report, claims=(*failing[:40], *report.claims[40:])))
    text = short(replace(report, claims=failing))
    assert len(few.encode()) <= LARGEST_SHORT_PAGE_BYTES
    assert len(text.encode()) <= LARGEST_SHORT_PAGE_BYTES
    assert "Cut here" in text
    assert all(f"| `{each.id}` |" in few for each in failing[:40])
    assert "## The machine and the run" in few, "40 failing claims leave room for the rest"
