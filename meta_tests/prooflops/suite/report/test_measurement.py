"""What may be concluded from a benchmark depends on its spread, and on where it lies under the roofs."""

import pytest

from meta_tests.prooflops.suite.report.test_tables import bench
from prooflops.suite.report.measurement import WIDE, Measurement


def measured(iqr_share: float = 0.1, **info: object) -> Measurement:
    row = bench("test_kernel[relu]", 1e-3, flop_per_s=1e9, bytes_per_s=2e9, **info)
    return Measurement.of({**row, "stats": {"median": 1e-3, "iqr": 1e-3 * iqr_share}})


@pytest.mark.parametrize(
    ("each", "bound"),
    [
        (measured(bound="memory", share_of_attainable=0.9), "memory-bound"),
        (measured(bound="memory", share_of_attainable=1.2), "above the memory roof"),
        (measured(bound="compute", share_of_attainable=1.2), "compute-bound"),
        (measured(0.82, bound="memory", share_of_attainable=0.9), WIDE),
        (measured(bound="memory", ci_low=0.9e-3, ci_high=1.2e-3), WIDE),
        (measured(bound="memory", ci_low=0.95e-3, ci_high=1.15e-3), "memory-bound"),
        (measured(), ""),
    ],
)
def test_what_limits_it_is_said_only_where_its_spread_and_its_place_allow_it(each: Measurement, bound: str) -> None:
    assert each.bound == bound, f"spread {each.spread:.0%}, {dict(each.info)}"


def test_a_kernel_is_named_by_itself_and_others_by_their_test() -> None:
    names = ("test_kernel[relu]", "test_layer[bf16-batch-4]", "test_sum")
    assert [Measurement.of(bench(name)).short_name for name in names] == ["relu", "layer bf16-batch-4", "sum"]


def test_a_wide_row_says_so_in_its_notes() -> None:
    assert measured(0.82, cache="cold").notes == f"cold, {WIDE}"
    assert measured(cache="hot", label="arrays of 2 caches").notes == "hot, arrays of 2 caches"


def test_a_stream_has_the_bandwidth_as_its_rate_and_others_their_arithmetic() -> None:
    assert measured(memory_level="L2").rate == (2e9, "B/s")
    assert measured().rate == (1e9, "FLOP/s")
    assert measured(memory_level="L2").arithmetic_rate is None
