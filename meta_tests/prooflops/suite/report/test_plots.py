"""The plot of the roofline."""

import xml.etree.ElementTree as ET

from meta_tests.prooflops.suite.report.test_tables import PRODUCT, bench
from prooflops.suite.report import plots
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
    assert [each.svg for each in plots.plots_of(report)] == [each.svg for each in plots.plots_of(report)]


def test_nothing_is_drawn_where_no_product_ran() -> None:
    assert plots.roofline(report_of(CAST)) is None
    assert plots.plots_of(report_of(CAST)) == []
