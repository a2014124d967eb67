"""No run concludes what contradicts its own figures: a record in, its conclusions out."""

import json
from dataclasses import replace

import pytest

from accounting.devices.floors import Floor, floor_of
from prooflops.suite.page.delivery import Figure, bars, figures, verdict
from prooflops.suite.page.highlights import unusual
from prooflops.suite.page.measurement import Measurement
from prooflops.suite.page.page import LARGEST_SHORT_PAGE_BYTES, page_of
from prooflops.suite.page.plots import roofline
from prooflops.suite.page.reconciled import reconciled
from prooflops.suite.page.run_report import RedTest, verdicts_json
from prooflops.suite.page.tables import (
    best_products,
    memory_stream,
    steps_table,
)
from prooflops.suite.peaks import share_of_peak
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


def test_a_busy_machine_leads_to_no_conclusion_against_the_figures(report_of):
    report = report_of(busy)
    assert best_products(report.benchmarks)["bf16"].unsettled == "contended"
    case = STEP.removeprefix("step[").removesuffix("]")
    row = next(row for row in steps_table(report.benchmarks) if row[0] == case)
    assert (row[1], row[-1]) == ("not known", "0.0%: above its best rate")
    row = next(each for each in report.benchmarks if each.name == ROW)
    assert row.rate is None
    assert row.notes == "hot, no rate: launch overhead"


def test_each_contended_row_says_so_once(report_of):
    def contended(name, info, _stats):
        info["conditions"] = BUSY
        if name in (ROW, "kernel[relu]"):
            info["bound"] = "launch"

    report = report_of(contended)
    notes = {each.name: each.notes for each in report.benchmarks}
    assert {said.count("contended") for said in notes.values()} == {1}
    assert notes[ROW] == "hot, no rate: launch overhead, contended"
    assert not any("not known" in said for said in notes.values())
    assert any("at most" in row[1] for row in steps_table(report.benchmarks)[1:])


def test_a_bar_has_an_end_that_is_known_and_names_a_second_measurement():
    floor = Floor("bf16", 0.75, "peak", None, "", "--floor")._asdict()
    entry = {"figure": "bf16", "value": 2e9, "unit": "FLOP/s", "floor": floor}
    again = {"share": 0.5, "nominal": 4e9, "at_clock": None, "again": True}
    rows = [
        Measurement("matmul[a]", "a", 1e-3, 0.0, {"flop_per_s": 1e9, "delivers": entry | more})
        for more in ({"unknown": "no peak"}, again)
    ]
    (unknown,), (known,) = (bars(figures([row])) for row in rows)
    assert (unknown.length, unknown.share) == (None, "")
    assert (known.length, known.share) == (0.5, "50 % of the dense peak")
    assert "measured again after a pause, at first 1.00 GFLOP/s" in known.note


def test_a_second_measurement_is_the_best_rate_and_each_row_names_both():
    """What other work slowed at first has one figure afterwards, a stream as well as a product."""
    entry = {"figure": "fp64", "value": 28.6e9, "unit": "FLOP/s", "again": True}
    info = {"dtype": "fp64", "ceiling_flop_per_s": 9e8}
    slowed = info | {"flop_per_s": 5.8e8, "share_of_ceiling": 0.64, "mfu": 0.006}
    product = info | {"flop_per_s": 9e8, "share_of_ceiling": 1.0}
    stream = level("memory", 3e9) | {"delivers": entry | {"value": 9e9, "unit": "B/s"}}
    rows = reconciled([
        Measurement("ceiling[fp64]", "c", 0.016, 0.02, slowed | {"delivers": entry}),
        Measurement("matmul[fp64]", "m", 0.036, 0.0, product),
        Measurement("stream[memory-copy]", "s", 0.1, 0.0, stream),
    ])  # fmt: skip
    best = best_products(rows)["fp64"].at_its_best()
    again = "measured again after a pause"
    assert (best.name, best.rate_text) == ("ceiling[fp64]", "28.6 GFLOP/s")
    shares = [each.number("share_of_ceiling") for each in rows[:2]]
    assert shares == pytest.approx([5.8e8 / 28.6e9, 9e8 / 28.6e9], rel=0.01)
    assert f"{again}: 28.6 GFLOP/s" in rows[0].notes
    assert memory_stream(rows).rate == (9e9, "B/s")


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"mfu": 0.5, "peak_flop_per_s": 1e12}, "50.0%"),
        ({"mfu": 0.5, "peak_flop_per_s": 2e12}, "50.0% (--peak)"),
        ({"mbu": 0.25}, "25.0%"),
        ({"mfu": None, "dtype": "bf16", "flop_per_s": 1e12}, "25.0%"),
        ({"mfu": None, "dtype": "fp16", "flop_per_s": 1e12}, "no peak on record"),
    ],
)
def test_a_share_names_the_peak_that_is_not_the_vendors(info, said):
    peaks = {"by --peak": {"bf16": 2e12}, "derived": {"bf16": 4e12}}
    assert share_of_peak(info, peaks) == said


@pytest.mark.parametrize(
    ("median_s", "farther_bytes_per_s", "is_known"),
    [(2.9e-6, 1e11, False), (3.1e-6, 1e11, True), (3.1e-6, 2e12, False)],
)
def test_a_cache_has_no_rate_where_its_calls_are_launches(median_s, farther_bytes_per_s, is_known):
    streams = [
        Measurement("stream[L2-copy]", "", median_s, 0.0, level("L2", 1e12)),
        Measurement("stream[L3-copy]", "", 1e-3, 0.0, level("L3", farther_bytes_per_s)),
        Measurement("stream[L3-dot]", "", 1e-3, 0.0, level("L3", 1e9)),
    ]
    launch = Measurement("launch", "", 1e-6, 0.0, {})
    seen, *_ = reconciled([*streams, launch])
    assert bool(seen.rate) is is_known


def level(name, bytes_per_s):
    return {"memory_level": name, "bytes_per_s": bytes_per_s}


FLOOR = floor_of("H100 SXM", "bf16")
REACHED = Figure("bf16", True, "", floor=FLOOR)
MISSED = Figure("bf16", False, "", floor=FLOOR)
OPEN = Figure("bf16", None, "", floor=FLOOR, beside="another process uses this GPU")
WITHOUT = Figure("int8", None, "no floor is known")


@pytest.mark.parametrize(("share", "met"), [(0.5, True), (0.32, None)])
def test_a_run_has_one_peak_a_dtype_at_its_highest_clock(report_of, share, met):
    """A row that ran at a lower clock refers to the same peak, and its floor is judged by it."""
    floor = floor_of(None, "fp32", "cpu")
    # The first clock was 2.8 GHz; a stream has one of two cores.
    derived = 2.8e9 * 64

    def clocked(name, info, _stats):
        if name.startswith(("matmul[fp32", "ceiling[fp32", "layer[fp32")):
            info |= {"flop_per_s": 1e9, "share_of_ceiling": None}
        if name == "stream[L1-copy]":
            info |= {"clock_mhz": 9000.0, "units_flop_per_s": 9e9 * 32}
        if name == "kernel[relu]":
            info |= {"clock_mhz": 3000.0, "units_flop_per_s": 3e9 * 64}
        if name == "matmul[fp32-square-1024]":
            units = 2.5e9 * 64
            info |= {"clock_mhz": 2500.0, "units_flop_per_s": units, "mfu": None}
            info |= {"flop_per_s": share * units, "share_of_ceiling": None}
            info["delivers"] = of_floor(floor, share * units, share, met=True)

    report = report_of(clocked, peaks={"derived": {"fp32": derived}})
    (figure,) = report.figures
    assert report.peaks["derived"] == {"fp32": pytest.approx(3e9 * 64)}
    assert report.clock_mhz == 3000.0
    assert (figure.entry["share"], figure.met) == (pytest.approx(share * 2.5 / 3), met)
    assert "the dense peak is 192 GFLOP/s at 3.00 GHz" in page_of(report).sections[0].bars[0].note
    assert not any("dense peak" in line for line in unusual(report))


@pytest.mark.parametrize(
    ("figures", "beside", "word"),
    [
        ([REACHED, REACHED, WITHOUT], "", "DELIVERS"),
        ([REACHED, REACHED, WITHOUT, WITHOUT], "", "NOT KNOWN"),
        ([REACHED, REACHED], "other work", "DELIVERS AT LEAST"),
        ([REACHED, REACHED, OPEN], "", "DELIVERS AT LEAST"),
        ([REACHED, OPEN, *[WITHOUT] * 5], "", "NOT KNOWN"),
        ([REACHED, OPEN, OPEN, MISSED], "other work", "BELOW FLOOR"),
        ([WITHOUT], "other work", "NOT KNOWN"),
        ([], "", "NOT KNOWN"),
    ],
)
def test_a_colour_says_no_more_than_was_judged(figures, beside, word):
    mark, text = verdict(figures, beside)
    assert mark.word == word
    assert ("(no cause found)" in text) is (word == "BELOW FLOOR")
    reached = sum(each.met is True for each in figures)
    if word.startswith("DELIVERS"):
        assert text.startswith(f"floor reached by {reached} of {len(figures)} figure")
        assert ("lower bounds" in text) is (word != "DELIVERS")


def test_a_figure_below_the_healthy_range_is_counted_in_the_answer():
    low, high = 0.7, 0.8
    floor = FLOOR._replace(healthy=(low, high))
    rows = [
        Measurement("x", "x", 1.0, 0.0, {"delivers": of_floor(floor, 1e14, share, met=True)})
        for share in (low - 0.01, low, high)
    ]
    figures = [replace(REACHED, floor=floor, row=row) for row in rows]
    assert [each.is_below_healthy for each in figures] == [True, False, False]
    assert (
        verdict(figures)[1] == "floor reached by 3 of 3 figures, 1 of them below the healthy range"
    )


NOMINAL = 200e9
RATES = {"ceiling[fp32-sustainable]": 85e9, "matmul[fp32]": 85e9, "ceiling[fp32-achievable]": 180e9}


@pytest.mark.parametrize(
    ("fastest", "met"),
    [
        ("matmul[fp32]", True),
        ("matmul[fp32]", None),
        ("matmul[fp32]", False),
        ("ceiling[fp32-sustainable]", True),
    ],
)
def test_the_figure_of_a_dtype_is_its_fastest_product_in_steady_work(fastest, met):
    """Whatever was found of the ceiling that another product passed."""
    rates = RATES | {fastest: 150e9}
    floor = floor_of(None, "fp32", "cpu")._replace(limit=0.5)
    rows = []
    for name, rate in rates.items():
        regime = name.partition("-")[2].rstrip("]")
        info = {"dtype": "fp32", "flop_per_s": rate, "ceiling_flop_per_s": 90e9, "regime": regime}
        rows.append(Measurement(name, name, 1.0, 0.0, info | {"share_of_ceiling": rate / 90e9}))
    of_ceiling = rates["ceiling[fp32-sustainable]"]
    found = of_floor(floor, of_ceiling, of_ceiling / NOMINAL, met=met, unknown="other work")
    rows[0].info["delivers"] = found
    (figure,) = figures(reconciled(rows))
    reached = next(each for each in reconciled(rows) if each.name == fastest)
    if met is False:
        assert (figure.met, figure.entry["value"]) == (False, of_ceiling)
        assert f"yet {fastest} reached 150 GFLOP/s" in figure.causes
    else:
        assert (figure.met, figure.row.name, figure.entry["value"]) == (True, fastest, 150e9)
        assert figure.entry["share"] == 150e9 / NOMINAL
    shares = [each.number("share_of_ceiling") for each in reconciled(rows)]
    assert max(shares) == reached.number("share_of_ceiling") == 1.0


def test_the_memory_has_one_figure_its_fastest_stream_by_the_strictest_floor(report_of):
    strict = floor_of("H100 SXM", "copy")
    wide = floor_of("H100 SXM", "dot")
    of = {"copy": (strict, 0.85), "dot": (wide, 0.95), "triad": (wide, 0.9)}

    def streams(low=""):
        return [
            Measurement(
                f"stream[memory-{name}]", name, 1.0, 0.0,
                level("memory", share * 1e12) | {"delivers": of_floor(
                    floor, share * 1e12, share, met=name != low) | {"unit": "B/s"}},
            )
            for name, (floor, share) in of.items()
        ]  # fmt: skip

    (figure,) = figures(streams())
    assert (figure.name, figure.row.name) == ("memory bandwidth", "stream[memory-dot]")
    assert (figure.met, figure.entry["share"], figure.floor) == (True, 0.95, strict)
    (bar,) = bars([figure])
    assert bar.note.endswith("measured by `stream[memory-dot]`, the fastest of 3 streams")
    (missed,) = figures(streams(low="triad"))
    assert (missed.met, missed.row.name) == (False, "stream[memory-triad]")


@pytest.mark.parametrize(
    ("flop_per_s", "spread", "share"), [(1.01e12, 0.02, 1.0), (1.05e12, 0.02, 1.05)]
)
def test_a_kernel_within_its_spread_of_its_roof_is_at_it(flop_per_s, spread, share):
    placed = {"dtype": "fp32", "ceiling_flop_per_s": 9e12, "roof_bytes_per_s": 1e12}
    info = placed | {"intensity": 1.0, "flop_per_s": flop_per_s}
    product = Measurement("matmul[x]", "p", 1.0, 0.9, {"dtype": "fp32", "flop_per_s": 9.9e12})
    kernel, product = reconciled([Measurement("kernel[x]", "k", 1.0, spread, info), product])
    assert kernel.number("share_of_attainable") == pytest.approx(share)
    assert kernel.number("ceiling_flop_per_s") == 9.9e12, "the fastest, however wide its spread"


def test_a_clock_is_referred_to_where_it_is_named():
    info = {"share_at_clock": 0.19}
    assert Measurement("x", "x", 1.0, 0.0, info).notes == ""
    limited = info | {"conditions": {"facts": ["power-limited: 1.49 of 1.98 GHz"]}}
    assert "19% of the peak at that clock" in Measurement("x", "x", 1.0, 0.0, limited).notes


def test_the_memory_roof_meets_every_ceiling_and_begins_left_of_every_kernel(report):
    plot = roofline(report).plot
    *ceilings, memory = (line.spots for line in plot.lines)
    (left, low), (right, high) = memory
    assert left < min(point.x for point in plot.points)
    assert high / right == pytest.approx(low / left)
    for (start, ceiling), _ in ceilings:
        assert ceiling / start == pytest.approx(high / right)
    assert right >= max(start for (start, _), _ in ceilings)


@pytest.mark.parametrize(
    ("verdicts", "tone", "said"),
    [
        (["holds", "holds", "corrected"], "good", "3 claims: 2 hold, 1 corrected, 0 FAIL"),
        (["holds", "FAILS"], "bad", "2 claims: 1 holds, 1 FAILS"),
        (["holds if", "error"], "open", "2 claims: 1 holds if, 0 FAIL, 1 error"),
        (["not checked"], "open", "1 claim: 0 FAIL, 1 not checked"),
    ],
)
def test_a_run_of_claims_alone_leads_with_their_verdicts(report, verdicts, tone, said):
    pairs = zip(report.claims, verdicts, strict=False)
    claims = tuple(replace(claim, verdict=verdict) for claim, verdict in pairs)
    headline = page_of(replace(report, benchmarks=(), claims=claims)).headline
    assert (headline.mark.tone, headline.sentence) == (tone, said)


def of_floor(floor, value, share, **found):
    """What a row records of a figure with a floor."""
    entry = {"figure": floor.figure, "value": value, "unit": "FLOP/s", "share": share}
    return entry | {"nominal": value / share, "floor": floor._asdict(), "causes": []} | found


PRODUCT = "matmul[bf16-square-1024]"
COPY = "stream[memory-copy]"
STATED = FLOOR._replace(limit=0.9, source="--floor")
HELD = of_floor(FLOOR, 780e12, 0.79, met=True)
BOUNDS = {"met": None, "unknown": "other work", "most": 950e12, "most_share": 0.96}
UNJUDGED = {"figure": "bf16", "value": 780e12, "unit": "FLOP/s", "unknown": "no peak"}
UNJUDGED["floor"] = STATED._asdict()
HOT = {"met": False, "causes": ["throttled: heat"], "unit": "B/s"}
SLOW = {"slowness": 1 / 0.54}
PROCESSES = {"labels": ["contended: other processes kept 1.92 cores busy; this core ran at 54%"]}
STRICT = {"floors": ("fp32",), "undecided_fails": True}
UNFINISHED = {"floors": ("fp32",), "unfinished": "162 of 2,376 tests not run yet"}
# What rows deliver, what each row saw of other work, and the answer of the run.
RUNS = {
    "a guest beside it": ({PRODUCT: HELD}, BUSY | {"contention": SLOW}, "DELIVERS AT LEAST"),
    "processes beside it": (
        {PRODUCT: HELD},
        PROCESSES | {"contention": SLOW | {"others_cores": 1.92}},
        "DELIVERS AT LEAST",
    ),
    "a floor between both bounds": (
        {PRODUCT: of_floor(STATED, 780e12, 0.79, **BOUNDS)},
        {},
        "NOT KNOWN",
    ),
    "a floor and no upper bound": (
        {PRODUCT: of_floor(STATED, 780e12, 0.79, met=None, unknown="other processes")},
        BUSY,
        "NOT KNOWN",
    ),
    "a floor of an unknown peak": (
        {PRODUCT: UNJUDGED},
        {},
        "NOT KNOWN",
    ),
    "heat": (
        {PRODUCT: HELD, COPY: of_floor(floor_of("H100 SXM", "copy"), 1e12, 0.3, **HOT)},
        {},
        "BELOW FLOOR",
    ),
}


def test_the_first_screen_answers_blames_what_was_seen_and_says_what_to_do(report_of, golden):
    said, words = [], {}
    for run, (delivers, conditions, _) in RUNS.items():

        def changed(name, info, _stats, delivers=delivers, conditions=conditions):
            info["conditions"] = conditions
            if name == ROW and "contention" in conditions:
                milder = {**conditions["contention"], "slowness": 1.25}
                info["conditions"] = conditions | {"contention": milder}
            if name in delivers:
                info["delivers"] = delivers[name]

        report = replace(report_of(changed), floors=("bf16", "fp32"))
        page = page_of(report)
        words[run] = page.headline.mark.word
        bars = [
            f"{bar.name}: {bar.mark.word}, {bar.value}, {bar.note}" for bar in page.sections[0].bars
        ]
        next_step = f"{page.headline.advice}: {page.headline.command}"
        said += [f"# {run}", page.headline.sentence, next_step, *page.lead[1:], *bars]
        said += unusual(report)
        met = [row["met"] for row in json.loads(verdicts_json(report))["delivers"]]
        assert {*met} == {entry.get("met") for entry in delivers.values()}
    assert words == {run: word for run, (*_, word) in RUNS.items()}
    golden("page_first_screens", "\n".join(said), figures=True)


@pytest.mark.parametrize(
    ("verdict", "crashed", "facts", "word", "tone"),
    [
        ("holds", 0, {}, "DELIVERS", "good"),
        ("FAILS", 0, {}, "DELIVERS, and 1 claim FAILS", "bad"),
        ("holds", 1, {}, "DELIVERS, and 1 test crashed", "open"),
        ("FAILS", 1, {}, "DELIVERS, and 1 claim FAILS and 1 test crashed", "bad"),
        ("holds", 0, STRICT, "DELIVERS, and 1 undecided floor failing the run", "bad"),
        ("holds", 0, UNFINISHED, "NOT FINISHED", "open"),
        ("FAILS", 0, UNFINISHED, "NOT FINISHED, and 1 claim FAILS", "bad"),
    ],
)
def test_a_run_that_fails_or_is_not_finished_is_not_green_though_the_machine_delivers(
    report_of, verdict, crashed, facts, word, tone
):
    def changed(name, info, _stats):
        info["conditions"] = {}
        if name == PRODUCT:
            info["delivers"] = HELD

    made = report_of(changed)
    claims = (replace(made.claims[0], verdict=verdict), *made.claims[1:])
    errors = (RedTest("test_x.py::test_x", "error", "it crashed"),) * crashed
    run = replace(made, claims=claims, red_tests=errors, **facts)
    assert json.loads(verdicts_json(run))["verdict"] == word.partition(",")[0]
    page = page_of(run)
    headline = page.headline
    assert (headline.mark.word, headline.mark.tone) == (word, tone)
    assert facts.get("unfinished", "") in headline.text
    assert ("which fails this run" in "".join(page.lead)) is (facts is STRICT)
    assert headline.command.endswith(f"--claim={claims[0].id}") is (verdict == "FAILS")


def test_the_lead_counts_the_benchmarks_that_were_too_slow(report):
    reasons = ("too slow here: one call takes about 2 s", "tf32 exists on CUDA devices only")
    unmeasured = {f"bench/test_a.py::test_a[{n}]": reason for n, reason in enumerate(reasons)}
    measured = len(report.benchmarks)
    lead = page_of(replace(report, unmeasured=unmeasured)).lead
    said = f"This run measured {measured} of {measured + 2} benchmarks. Of the rest, 1 would"
    assert any(line.startswith(said) for line in lead)


def test_a_wide_spread_leads_to_no_conclusion(report_of):
    def wide(name, info, stats):
        stats["iqr"] = 1.08 * stats["median"]

    report = report_of(wide)
    assert not any("-bound" in each.notes for each in report.benchmarks)
    assert {row[1] for row in steps_table(report.benchmarks)[1:]} == {"not known"}


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
