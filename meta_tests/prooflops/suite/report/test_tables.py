"""The tables say what the records hold."""

from prooflops.suite.report import tables
from prooflops.suite.report.measurement import Measurement
from prooflops.suite.report.run_report import ClaimResult


def bench(name: str, median: float = 1e-3, **extra: object) -> dict:
    return {"name": name, "stats": {"median": median, "iqr": median / 10}, "extra_info": extra}


PRODUCT = bench(
    "test_matmul[bf16-square-1024]",
    dtype="bf16",
    flops=2 * 1024**3,
    bytes=6 * 1024**2,
    flop_per_s=2.1e12,
    mfu=None,
    share_of_ceiling=1.03,
    ceiling_flop_per_s=2.04e12,
)


def test_a_benchmark_row_has_time_spread_rate_and_both_shares() -> None:
    assert tables.benchmark_table([Measurement.of(PRODUCT)])[1] == [
        "matmul[bf16-square-1024]",
        "1.00 ms",
        "10.0%",
        "2.10 TFLOP/s",
        "no peak on record",
        "103.0% !",
    ]


def test_a_benchmark_that_multiplies_nothing_has_no_mfu_to_lack() -> None:
    assert tables.benchmark_table([Measurement.of(bench("test_cast", bytes_per_s=1.5e10))])[1][3:] == [
        "15.0 GB/s",
        "-",
        "-",
    ]


def test_topics_are_counted_by_verdict_and_their_cases_added() -> None:
    verdicts = [
        ClaimResult("a.x", "a", "", "holds", "", cases=100),
        ClaimResult("a.y", "a", "", "FAILS", "no", cases=3),
        ClaimResult("b.z", "b", "", "on record", "so it is"),
    ]
    head, *rows = tables.topic_table(verdicts)

    def row(topic: str, claims: str, cases: str, **counts: str) -> dict[str, str]:
        return {"topic": topic, "claims": claims, "cases": cases, **dict.fromkeys(tables.VERDICTS, "·"), **counts}

    assert [dict(zip(head, each, strict=True)) for each in rows] == [
        row("a", "2", "103", holds="1", FAILS="1"),
        row("b", "1", "0", **{"on record": "1"}),
        row("all", "3", "103", holds="1", FAILS="1", **{"on record": "1"}),
    ]
