"""The plot of the roofline."""

import xml.etree.ElementTree as ET

from meta_tests.prooflops.suite.test_report import PRODUCT, bench
from prooflops.suite import plots


def test_the_plot_shows_each_dtype_and_its_ceiling_and_is_the_same_every_time() -> None:
    drawing = plots.roofline_svg([PRODUCT, bench("test_cast", bytes_per_s=1.0)], "Products on a machine")
    assert drawing is not None
    ET.fromstring(drawing)
    assert "bf16" in drawing
    assert "Products on a machine" in drawing
    assert "<dc:date>" not in drawing, "a date would make equal plots differ"


def test_nothing_is_drawn_where_no_product_ran() -> None:
    assert plots.roofline_svg([bench("test_cast", bytes_per_s=1.0)], "nothing") is None
