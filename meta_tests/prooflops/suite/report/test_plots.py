"""The plot of the roofline."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from unittest.mock import MagicMock

import pytest

from meta_tests.prooflops.suite.report.test_tables import PRODUCT, bench
from prooflops.suite.report import highlights, plots, tables
from prooflops.suite.report.html import benchmark_table, tiles
from prooflops.suite.report.measurement import Measurement
from prooflops.suite.report.run_report import RunReport

CAST = bench("test_cast", bytes_per_s=1.0)


def report_of(*benches: dict) -> RunReport:
    return RunReport({"name": "a machine"}, (), benchmarks=tuple(map(Measurement.of, benches)))


def test_the_plot_shows_each_dtype_and_its_ceiling_and_is_the_same_every_time() -> None:
    report = report_of(PRODUCT, CAST)
    plot = plots.roofline(report)
    assert plot is not None
    ET.fromstring(plot.svg)
    assert "bf16" in plot.svg
    assert "Roofline measured on a machine" in plot.svg
    assert "<dc:date>" not in plot.svg, "a date would make equal plots differ"


def test_nothing_is_drawn_where_no_product_ran() -> None:
    assert plots.roofline(report_of(CAST)) is None
    assert plots.plots_of(report_of(CAST)) == []


def test_a_figure_that_a_benchmark_lacks_breaks_nothing(report: RunReport, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an older method, of another suite's benchmark, or of a run that did not get so far."""
    monkeypatch.setattr(plots, "Drawing", stand_in := MagicMock())
    axes = stand_in.return_value.__enter__.return_value.axes
    axes.barh.return_value = [MagicMock()]
    axes.bar.side_effect = lambda places, *_, **__: [MagicMock() for _ in places]
    monkeypatch.setattr(plots, "log_axes", MagicMock())
    kinds = {each.family: each for each in report.benchmarks}.values()
    for key in sorted({key for each in kinds for key in each.info}):
        without = [replace(each, info={k: v for k, v in each.info.items() if k != key}) for each in kinds]
        nothing = [replace(each, info={**each.info, key: None}) for each in kinds]
        for benchmarks in (without, nothing):
            made = replace(report, benchmarks=tuple(benchmarks))
            try:
                plots.plots_of(made)
                highlights.unusual(made)
                highlights.limits(made)
                tiles(made)
                benchmark_table(made)
                tables.roofline_table(made.benchmarks)
            except Exception as error:
                pytest.fail(f"without {key}: {type(error).__name__}: {error}")
