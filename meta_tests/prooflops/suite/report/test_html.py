"""report.html of a whole run: complete, self-contained, small, and of hostile text."""

import re
from dataclasses import replace
from html.parser import HTMLParser

from meta_tests.prooflops.suite.report.test_plots import report_of
from meta_tests.prooflops.suite.report.test_tables import bench
from prooflops.suite.report.html import html, machine_facts, tiles, trend_row
from prooflops.suite.report.run_report import RunReport
from prooflops.suite.report.tables import best_rates

HOSTILE = '</style></script><script>alert("1")</script><img src=x onerror=alert(1)>\u202e\u0000&amp; {{ 7*7 }}'


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_whole_page_is_small_and_fetches_nothing(page: str) -> None:
    assert len(page.encode()) < 2_000_000
    for tag, attributes in Tags(page).tags:
        assert tag not in ("img", "iframe", "object", "embed", "video", "audio"), tag
        assert not {"src", "srcset", "data", "action"} & attributes.keys(), (tag, attributes)
        if tag == "link":
            assert attributes["href"] == "data:,"
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_what_is_in_the_run_is_on_the_page(report: RunReport, page: str) -> None:
    text = Tags(page).text
    for claim in report.claims:
        assert claim.statement in text
        assert all(figure in text for figure in claim.figures)
    for each in report.benchmarks:
        assert each.name in text
    for name, value in machine_facts(report):
        assert value in text, f"{name}: {value} is missing"


def test_hostile_text_is_shown_as_text_wherever_it_comes_from(report: RunReport, page: str) -> None:
    usual = Tags(page)
    claim = replace(report.claims[0], id=HOSTILE, topic=HOSTILE, statement=HOSTILE, verdict=HOSTILE, reason=HOSTILE,
                    condition=HOSTILE, note=HOSTILE, figures=(HOSTILE,), tests=(HOSTILE,),
                    sources=({"title": HOSTILE, "locator": HOSTILE, "url": f"javascript:{HOSTILE}"},))  # fmt: skip
    benches = [replace(each, name=HOSTILE, fullname=HOSTILE, info={**each.info, "label": HOSTILE, "dtype": HOSTILE})
               for each in {each.family: each for each in report.benchmarks}.values()]  # fmt: skip
    hostile = replace(
        report, machine={**report.machine, "name": HOSTILE}, claims=(claim, *report.claims[1:]),
        benchmarks=tuple(benches), headline=(HOSTILE,), arguments=(HOSTILE,), revision=HOSTILE, partial=HOSTILE,
    )  # fmt: skip
    page = html(hostile)
    found = Tags(page)
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert {tag for tag, _ in found.tags} <= {tag for tag, _ in usual.tags} | {"strong"}
    for _, attributes in found.tags:
        assert not any(name.startswith("on") for name in attributes), attributes
        assert not (attributes.get("href") or "").startswith("javascript"), attributes
    assert "\u202e" not in page
    assert "\u0000" not in page
    assert "<U+202E>" in found.text
    assert "{{ 7*7 }}" in found.text


def test_a_run_without_claims_or_benchmarks_has_a_page(report: RunReport) -> None:
    bare = replace(report, claims=(), peaks={}, caches={}, benchmarks=report.benchmarks[:1])
    assert "no claim was checked" in html(bare)
    assert "0 claims" not in html(replace(bare, benchmarks=()))


def test_the_history_of_a_benchmark_names_its_change_of_level(report: RunReport, page: str) -> None:
    row = trend_row(report.trends[0])
    assert len(row["marks"]) == 1
    assert "1 of 1 benchmarks changed their level" in page
    assert row["changes"] in Tags(page).text


def test_the_best_rate_on_top_is_of_a_product_that_was_neither_contended_nor_spread_too_widely() -> None:
    def product(name: str, rate: float, iqr: float = 0.0, *labels: str) -> dict:
        made = bench(f"test_matmul[{name}]", dtype=name, flop_per_s=rate, ceiling_flop_per_s=1e9,
                     conditions={"labels": labels})  # fmt: skip
        return {**made, "stats": {"median": 1.0, "iqr": iqr}}

    contended = product("int8", 9e9, 0.01, "contended: other processes kept 1.8 cores busy")
    wide, settled = product("bf16", 5e9, 0.5), product("fp32", 1e9, 0.01)
    (tile,) = tiles(report_of(contended, wide, settled))
    assert (tile.value, tile.label) == ("1.00 GFLOP/s", "best rate, fp32")
    (tile,) = tiles(report_of(contended, wide))
    assert (tile.value, tile.more) == ("–", "every product was contended, or its spread too wide")
    assert [cells[-1] for *_, cells in best_rates(report_of(contended, wide, settled).benchmarks)] == [
        "1.0%",
        "1.0%: contended",
        "50.0%: too wide",
    ]
