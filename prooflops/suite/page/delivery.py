"""Does the device deliver? One verdict, and one row a figure: measured, share, floor, healthy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from accounting.devices.floors import GROUPS, NOMINAL, Floor, compared, shown
from prooflops.suite.commands import of_tests
from prooflops.suite.page.measurement import AGAIN, BURSTS, CONTENDED, Measurement
from prooflops.suite.page.tables import best_products
from prooflops_gate.console.tables import engineering, many
from prooflops_gate.page.section import BAD, GOOD, OPEN, Bar, Mark

# The name of each figure; what a buyer pays for first, first.
NAMES = {
    "memory": "memory bandwidth",
    "bf16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e4m3 fast": "fp8, fast sums",
    "fp32": "fp32",
    "tf32": "tf32",
    "mfu gpt2-124m": "MFU, GPT-2 124M",
    "mfu llama-1b": "MFU, Llama 1B",
    "mfu transformer": "transformer step",
    "mfu": "MFU of a step",
    "to-device": "host to device",
    "to-host": "device to host",
    "peer": "card to card",
    "all-reduce": "all-reduce",
    "launch": "kernel launch",
    "fp64": "fp64",
    "int8": "int8",
    "fp16": "fp16",
    "link": "link to the host",
}
GROUP_OF = {figure: group for group, figures in GROUPS.items() for figure in figures}
# What a buyer pays for besides products, and the benchmarks that measure it.
MEASURED_BY = {
    "memory": "bench/test_bandwidth.py::test_stream[memory",
    "mfu": "bench/test_mfu.py::",
    "link": "bench/test_transfer.py::",
    "all-reduce": "bench/test_collectives.py::",
}
MARKS = {
    True: Mark("delivers", GOOD, "✓"),
    False: Mark("BELOW FLOOR", BAD, "✕"),
    None: Mark("not known", OPEN, "?"),
}
REACHES = Mark("DELIVERS", GOOD, "✓")
REACHES_AT_LEAST = Mark("DELIVERS AT LEAST", OPEN, "≥")
MISSES = Mark("BELOW FLOOR", BAD, "✕")
UNKNOWN = Mark("NOT KNOWN", OPEN, "?")
UNFINISHED = Mark("NOT FINISHED", OPEN, "…")
# A figure without a nominal rate fills this share of its bar at its floor.
FLOOR_WITHOUT_NOMINAL = 0.75
SAME_FIGURE = 1e-3
NO_CAUSE = "no cause found"
NOT_COMPARED = "no figure has a known floor"
LOWER_BOUNDS = "rates are lower bounds"
GUEST = "another virtual machine"
REPEAT = "Repeat it"
STATE_FLOORS = "State a floor (--floor) or a dense peak (--peak), and repeat it"


@dataclass(frozen=True)
class Figure:
    """One figure of the device: of one row, compared with one floor; `met` None: not compared."""

    figure: str
    met: bool | None
    text: str
    row: Measurement | None = None
    floor: Floor | None = None
    causes: tuple[str, ...] = ()
    # Names the other work that kept the figure from being judged.
    beside: str = ""
    # This many rows measured it; the best one counts.
    rows: int = 1

    @property
    def name(self) -> str:
        return NAMES.get(self.figure, self.figure)

    @property
    def entry(self) -> Mapping[str, Any]:
        """The record of a row about the figure."""
        return self.row.info["delivers"] if self.row else {}

    @property
    def is_below_healthy(self) -> bool:
        """True if it reaches its floor, and less than what healthy devices do."""
        if not self.met or not self.floor or not self.floor.healthy:
            return False
        # As printed: 74.6 % is "75 %".
        return bool(round(self.entry.get("share", 1.0), 2) < self.floor.healthy[0])

    def as_dict(self) -> dict[str, Any]:
        """The figure for programs: see verdicts.schema.json."""
        found = {key: self.entry.get(key) for key in ("value", "unit", "share", "floor")}
        return {
            "figure": self.figure,
            "met": self.met,
            "text": self.text,
            **found,
            "causes": list(self.causes),
        }


def figures(benchmarks: Sequence[Measurement]) -> list[Figure]:
    """The figures of a run, the important ones first.

    A product's is that of the fastest product of its dtype, the memory's that of its fastest
    stream.
    """
    rows: dict[str, list[Measurement]] = {}
    for bench in benchmarks:
        entry = bench.info.get("delivers") or {}
        if "value" in entry:
            name = str(entry["figure"])
            name = "memory" if name in GROUPS["memory"] else name
            rows.setdefault(name, []).append(bench)
    products = best_products(benchmarks)
    found = []
    for name, group in rows.items():
        steady = [bench for bench in group if bench.info.get("regime") != BURSTS]
        rivals = steady + ([products[name]] if name in products else [])
        figure = _figure(name, group, rivals or group)
        found.append(replace(figure, rows=len(group) if name == "memory" else 1))
    return sorted(found, key=lambda each: [*NAMES, each.figure].index(each.figure))


def unmeasured_figures(found: Sequence[Figure], unmeasured: Mapping[str, str]) -> list[Figure]:
    """The figures that a buyer pays for and this run did not measure, each with the first reason.

    `unmeasured`: the reason of each benchmark without a figure.

    >>> skipped = {"bench/test_mfu.py::test_mfu[gpt2]": "too slow here"}
    >>> [(each.name, each.text) for each in unmeasured_figures([], skipped)]
    [('MFU of a step', 'too slow here')]
    """
    measured = {GROUP_OF.get(each.figure, each.figure) for each in found}
    missing = []
    for group, tests in MEASURED_BY.items():
        reasons = [why for test, why in unmeasured.items() if test.startswith(tests)]
        if reasons and group not in measured:
            missing.append(Figure(group, None, reasons[0]))
    return missing


def _figure(name: str, rows: Sequence[Measurement], rivals: Sequence[Measurement]) -> Figure:
    """The figure of the best rival, compared with the strictest floor of the rows.

    Where rows are below their floors, it is that of the one with the strictest.
    """
    below = [bench for bench in rows if bench.info["delivers"].get("met") is False]
    decisive = max(below or rows, key=_strictness)
    best = _at_the_best(decisive, rivals)
    if not below:
        decisive = best
    entry = decisive.info["delivers"]
    if entry.get("met") is None:
        return _open_figure(name, decisive)
    floor = Floor(**entry["floor"])
    text = f"{compared(entry['value'], entry['unit'], entry['share'], floor)} ({floor})"
    found = [str(cause) for bench in below for cause in bench.info["delivers"].get("causes", ())]
    causes = tuple(dict.fromkeys(found))
    if below:
        names = ", ".join(bench.name for bench in below)
        text += f"; below in {names}: {', '.join(causes) or NO_CAUSE}"
        if best.fullname != decisive.fullname:
            reached = shown(best.info["delivers"]["value"], entry["unit"])
            causes += (f"yet {best.name} reached {reached}",)
    return Figure(name, not below, text, decisive, floor, causes)


def _value(bench: Measurement) -> float:
    entry = bench.info.get("delivers") or {}
    return float(entry.get("value") or bench.arithmetic_rate or 0.0)


def _at_the_best(decisive: Measurement, rivals: Sequence[Measurement]) -> Measurement:
    """The best row of a figure, compared with the floor of the decisive row."""
    entry = decisive.info["delivers"]
    # The one figure in seconds has one row.
    best = max(rivals, key=_value)
    if best is decisive:
        return decisive
    at_clock = best.info.get("share_at_clock")
    again = (best.info.get("delivers") or {}).get("again", False)
    found = {**entry, "value": _value(best), "share_at_clock": at_clock, "again": again}
    if "share" in entry:
        found["share"] = entry["share"] * found["value"] / entry["value"]
        if Floor(**entry["floor"]).is_met(found["share"], at_clock):
            found["met"] = True
    return replace(best, info={**best.info, "delivers": found})


def _open_figure(name: str, row: Measurement) -> Figure:
    """A figure without a floor, or one that other work kept from being compared with it."""
    entry = row.info["delivers"]
    why = str(entry.get("unknown", ""))
    if not entry.get("floor"):
        return Figure(name, None, why, row)
    floor = Floor(**entry["floor"])
    if "share" not in entry:
        # Nothing kept it from being judged but a rate that is not on record.
        text = f"measured {shown(entry['value'], entry['unit'])} (floor: {floor}): {why}"
        return Figure(name, None, text, row, floor)
    measured = "at most" if entry["unit"] == "s" else "at least"
    reached = compared(entry["value"], entry["unit"], entry["share"], floor)
    bounds = f"measured {measured} {reached}, {_other_bound(entry, floor)}"
    return Figure(name, None, f"{bounds} (floor: {floor}): {why}", row, floor, beside=why)


def _other_bound(entry: Mapping[str, Any], floor: Floor) -> str:
    """The bound of a contended figure that it did not measure; competing processes leave none."""
    is_time = entry["unit"] == "s"
    if "most" not in entry:
        return f"no {'lower' if is_time else 'upper'} bound"
    bound = compared(entry["most"], entry["unit"], entry["most_share"], floor)
    return f"{'at least' if is_time else 'at most'} {bound}"


def _strictness(bench: Measurement) -> tuple[float, float]:
    """Orders rows by their floors; of equal floors by what was reached."""
    entry = bench.info["delivers"]
    limit = entry["floor"]["limit"] if entry.get("floor") else -inf
    return limit, entry["value"]


def answer(
    found: Sequence[Figure], benchmarks: Sequence[Measurement], unfinished: str
) -> tuple[Mark, str]:
    """The one answer of a run: a word, and the figures or the reason behind it.

    `unfinished` says which tests are left, if any.
    """
    return so_far(*verdict(found, disturbance(benchmarks)), unfinished)


def so_far(mark: Mark, text: str, unfinished: str) -> tuple[Mark, str]:
    """The answer of a run. If tests are left, it is NOT FINISHED, unless a floor is missed."""
    if unfinished and mark.tone == BAD:
        return mark, f"{text}; {unfinished}"
    if unfinished:
        return UNFINISHED, f"{unfinished}; so far {mark.word}: {text}"
    return mark, text


def next_step(
    mark: Mark,
    found: Sequence[Figure],
    disturbance: str,
    command: str,
    arguments: Sequence[str],
) -> tuple[str, str]:
    """The next step after this answer, and the command that does it.

    `command` began the run, and `arguments` are pytest's in it.
    """
    below = [each.row.fullname for each in found if each.met is False and each.row]
    beside = disturbance or next((each.beside for each in found if each.beside), "")
    if mark is REACHES:
        return REPEAT, command
    if below:
        return "Measure the figures below their floor again", of_tests(command, arguments, below)
    if (
        mark is UNKNOWN
        and not disturbance
        and 2 * sum(not each.floor for each in found) > len(found)
    ):
        return STATE_FLOORS, command
    if beside:
        where = "on a dedicated machine" if beside.startswith(GUEST) else "without the other work"
        return f"For full rates, repeat it {where}", command
    if found:
        return STATE_FLOORS, command
    return "Run all benchmarks", of_tests(command, arguments, ["bench"])


def verdict(found: Sequence[Figure], disturbance: str = "") -> tuple[Mark, str]:
    """The one answer of figures that were measured beside `disturbance`, if any.

    A floor that is reached beside other work is reached without it, so only what falls short stays
    open. Rates of a disturbed run are lower bounds, which the word says. The device delivers only
    if most of its figures could be judged.

    >>> slow = Figure("bf16", False, "", causes=("throttled: heat",))
    >>> verdict([slow, Figure("fp16", True, "")])[1]
    'bf16 (throttled: heat); floor missed by 1 of 2 figures'
    >>> verdict([Figure("fp16", True, "")], "another virtual machine runs")[1]
    'floor reached by 1 of 1 figure; another virtual machine runs: rates are lower bounds'
    """
    judged = [each for each in found if each.met is not None]
    below = [each for each in judged if not each.met]
    undecided = [each for each in found if each.met is None and each.floor]
    total = many(len(found), "figure")
    if below:
        named = [f"{each.name} ({why_short(each)})" for each in below]
        return MISSES, f"{', '.join(named)}; floor missed by {len(below)} of {total}"
    if not judged and not undecided:
        return UNKNOWN, NOT_COMPARED if found else "no benchmark with a floor ran"
    lower = sum(each.is_below_healthy for each in judged)
    without = len(found) - len(judged) - len(undecided)
    reached = f"floor reached by {len(judged)} of {total}"
    reached += f", {lower} of them below the healthy range" * bool(lower)
    clauses = [
        reached * bool(judged),
        f"{len(undecided)}{'' if judged else f' of {total}'} could not be judged" * bool(undecided),
        f"{without} without a known floor" * bool(without),
    ]
    seen = disturbance or next((each.beside for each in undecided), "")
    clauses.append(f"{seen}: {LOWER_BOUNDS}" * bool(seen))
    text = "; ".join(filter(None, clauses))
    if 2 * len(judged) <= len(found):
        return UNKNOWN, text
    return REACHES_AT_LEAST if undecided or disturbance else REACHES, text


def undecided_floors(found: Sequence[Figure], stated: Iterable[str] = ()) -> list[Figure]:
    """The figures whose floor somebody stated for this run, and which could not be judged.

    `stated`: the figures that --floor names. One that no benchmark measured is among them, or its
    group, such as "memory", where none of that was measured.

    >>> [each.figure for each in undecided_floors([], ["copy", "triad", "fp32"])]
    ['memory', 'fp32']
    """
    undecided = [each for each in found if each.met is None and each.floor and each.floor.is_stated]
    measured = {GROUP_OF.get(each.figure, each.figure) for each in found}
    named = dict.fromkeys(GROUP_OF.get(name, name) for name in stated)
    unmeasured = [name for name in named if name not in measured]
    return undecided + [Figure(name, None, "no benchmark measured it") for name in unmeasured]


def disturbance(benchmarks: Sequence[Measurement]) -> str:
    """The other work in most of the benchmarks, with the worst case; empty if there was none.

    The words are those of the contention that most of them have.
    """
    slowed = [bench for bench in benchmarks if bench.is_contended]
    if 2 * len(slowed) <= len(benchmarks):
        return ""
    of_guest = [bench for bench in slowed if bench.is_slowed_by_guest]
    if 2 * len(of_guest) > len(slowed):
        share = f"{1 / max(bench.slowness for bench in of_guest):.0%}"
        return f"{GUEST} shares these cores (the slowest core ran at {share} of its speed)"
    worst = max(slowed, key=lambda bench: bench.contention.get("others_cores") or 0.0)
    reasons = [label.partition(": ")[2].partition("; ")[0] for label in worst.labels]
    return f"other work was running (at worst: {next(filter(None, reasons), 'on this device')})"


def why_short(figure: Figure) -> str:
    """The reason why a figure falls short, as this machine shows it."""
    return ", ".join(figure.causes) or NO_CAUSE


def bars(found: Sequence[Figure]) -> list[Bar]:
    """A bar a figure; one that was not measured says why."""
    return [
        _bar(each, each.row) if each.row else Bar(each.name, "-", note=each.text, mark=MARKS[None])
        for each in found
    ]


def _bar(figure: Figure, row: Measurement) -> Bar:
    entry, floor = figure.entry, figure.floor
    of_peak = row.number("mfu") or row.number("mbu")
    length = of_peak or None
    share = shown(of_peak, "peak" if row.number("mfu") else "bandwidth") if of_peak else ""
    limit = healthy = None
    if floor is not None and entry.get("nominal"):
        length, limit, healthy = float(entry["share"]), floor.limit, floor.healthy
        share = shown(entry["share"], floor.of)
    elif floor is not None and floor.of not in NOMINAL:
        length = FLOOR_WITHOUT_NOMINAL * float(entry["value"]) / floor.limit
        limit = FLOOR_WITHOUT_NOMINAL
        end = engineering(floor.limit / FLOOR_WITHOUT_NOMINAL, entry["unit"])
        share = f"full bar: {end}" + ", lower is better" * (entry["unit"] == "s")
    return Bar(
        name=figure.name,
        value=value_text(figure),
        length=length,
        floor=limit,
        healthy=healthy,
        share=share,
        note="; ".join(_notes(figure, row)),
        mark=MARKS[figure.met],
    )


def _notes(figure: Figure, row: Measurement) -> Iterator[str]:
    """The notes beside a bar: causes, floor, clock and row."""
    floor, entry = figure.floor, figure.entry
    if figure.met is False:
        yield why_short(figure)
    if floor is None:
        yield figure.text or "no known floor"
    else:
        yield f"floor: {floor}"
        if figure.is_below_healthy:
            yield "below the healthy range"
    if figure.beside or (row.is_contended and figure.met is None):
        bound = "an upper" if entry["unit"] == "s" else "a lower"
        other = f", {_other_bound(entry, floor)}" if floor and figure.beside else ""
        yield f"{CONTENDED}: {bound} bound{other}"
    elif row.is_wide and not figure.met:
        yield f"spread {row.spread:.0%}: too wide for a conclusion"
    if entry.get("clock_mhz"):
        clock = engineering(1e6 * entry["clock_mhz"], "Hz")
        yield f"the dense peak is {engineering(entry['nominal'], 'FLOP/s')} at {clock}"
    number = f", the fastest of {figure.rows} streams" * (figure.rows > 1)
    yield f"measured by `{row.name}`{number}"
    if entry.get("again"):
        first = engineering(row.median_s, "s") if entry["unit"] == "s" else row.rate_text
        yield f"{AGAIN}, at first {first}"
    yield from row.facts


def value_text(figure: Figure) -> str:
    """The figure in the unit of its row's rate."""
    value, unit = float(figure.entry["value"]), str(figure.entry["unit"])
    rate = figure.row.rate if figure.row else None
    if unit != "s" and rate and abs(rate[0] / value - 1) < SAME_FIGURE:
        return engineering(*rate)
    return engineering(value, unit)
