"""Finds what a page of a run, a model, a comparison or a history concludes against its own
figures.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

CONCLUSIONS = {"lead", "answer", "verdict"}
# Sections whose items are conclusions.
LISTS = {"delivers", "limits", "unusual"}
BAR_PARTS = {"name", "drawn", "figure", "share", "mark", "note"}
# The section whose rows are conclusions.
SHORT = "short"
PRODUCTS = ("matmul[", "ceiling[", "fast_accumulation[", "layer[")
PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
# Three digits are printed.
ROUNDED = 1.006
# A bar gives whole percents.
WHOLE_PERCENT = 0.6
NOT_KNOWN = "not known"
# What a history says of a benchmark without a change of level.
UNCHANGED = ("none found", "too few records")
# These follow from the ceiling.
OF_CEILING = ("ridge point", "compute alone")
# A kernel is held back by a roof of which it reaches this share.
LEAST_SHARE_OF_A_ROOF = 50.0
# Calls of a cache's stream that take fewer launches than this are launches.
LAUNCHES = 3.0
# Phases are timed apart from their step; beyond this they do not make up the step.
WIDEST_GAP = 0.25
DRAWING_WIDTH = 640.0
HALF_A_CHARACTER = 3.0


class Page(HTMLParser):
    """The conclusions of a page, its tables as dicts by the heads below the id of their section."""

    def __init__(self, text):
        super().__init__()
        self.conclusions = []
        self.tables = {}
        self.bars = []
        # Each has its class, its x and its text.
        self.drawn = []
        self._section = ""
        self._conclusion = ""
        self._head = [""]
        self._row = None
        self._bar = self._text = ""
        self._at = 0.0
        self.is_compiled = "timed uncompiled" in text
        # Where a line may break says nothing.
        self.feed(text.replace("\N{NO-BREAK SPACE}", " "))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        classes = {*(found.get("class") or "").split()}
        if tag == "section":
            self._section = found.get("id") or self._section
        elif tag in ("p", "li") and (
            classes & CONCLUSIONS or (tag == "li" and self._section in LISTS)
        ):
            self._conclusion = tag
            self.conclusions.append("")
            if tag == "li" and self._section == "delivers":
                self.bars.append({})
        elif tag == "span" and self.bars and self._section == "delivers":
            self._bar = next(iter(classes & BAR_PARTS), self._bar)
        elif tag == "thead":
            self._head = []
        elif tag == "tr":
            self._row = []
        elif tag in ("td", "th") and self._row is not None:
            self._row.append("")
        elif tag == "text":
            self._text = found.get("class") or ""
            self._at = float(found.get("x") or 0)

    def handle_endtag(self, tag):
        if tag == self._conclusion:
            self._conclusion = self._bar = ""
        elif tag == "text":
            self._text = ""
        elif tag == "thead" and self._row is not None:
            self._head = self._row
            self._row = None
        elif tag == "tr" and self._row and self._row != self._head:
            self._end_row(self._row)

    def _end_row(self, row):
        if len(row) == len(self._head):
            cells = dict(zip(self._head, row, strict=True))
            self.tables.setdefault(self._section, []).append(cells)
            if self._section == SHORT:
                self.conclusions.append(" ".join(row))

    def handle_data(self, data):
        if self._conclusion:
            self.conclusions[-1] += data
        if self._bar:
            self.bars[-1][self._bar] = self.bars[-1].get(self._bar, "") + data
        if self._row:
            self._row[-1] += data.strip()
        if self._text:
            self.drawn.append((self._text, self._at, data))

    def rows(self):
        """The rows of all tables."""
        for table in self.tables.values():
            yield from table


def rate(text):
    """FLOP/s, OP/s or bytes per second of "1.51 TFLOP/s"; 0 for another text."""
    found = re.match(r"([\d.]+) ([kMGTP]?)(?:FLOP|OP|B)/s", text)
    return float(found[1]) * PREFIX[found[2]] if found else 0.0


def seconds(text):
    """Seconds of "9.73 ms"; 0 for another text."""
    found = re.fullmatch(r"([\d.]+) (m|µ|n|)s", text)
    return float(found[1]) * {"": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}[found[2]] if found else 0.0


def percent(text):
    """The first share of a text; None without one."""
    found = re.search(r"([\d.]+) ?%", text)
    return float(found[1]) if found else None


def contradictions(text):
    """What a page concludes against its own figures."""
    page = Page(text)
    checks = (
        _shares,
        _best_rates,
        _bandwidths,
        _operators,
        _delivery,
        _ceilings,
        _roofs,
        _slower_dtypes,
        _launches,
        _throttled,
        _phases,
        _labels,
        _compared,
        _side_by_side,
        _levels,
    )
    return [found for check in checks for found in check(page)]


def _shares(page):
    for text in page.conclusions:
        over = [each for each in re.findall(r"([\d.]+) ?%", text) if float(each) > 100]
        if over and NOT_KNOWN not in text and "slower" not in text:
            yield f"a share over 100 %: {text.strip()}"


def _best_rates(page):
    rows = {
        (row.get("benchmark") or row.get("product") or "", row.get("rate", ""))
        for row in page.rows()
    }
    for best in page.tables.get("rates", []):
        dtype = best["dtype"]
        for name, found in rows:
            is_product = name.startswith(PRODUCTS) and f"[{dtype}-" in name
            if is_product and rate(found) > ROUNDED * rate(best["rate"]):
                yield f"the best rate of {dtype} is {best['rate']}, but {name} has {found}"
        if not best["in"].startswith(PRODUCTS):
            yield f"the best rate of {dtype} is that of {best['in']}, which is no product"


def _bandwidths(page):
    given = set()
    for text in page.conclusions:
        given.update(re.findall(r"memory(?: gives|,)? ([\d.]+ [kMGT]?B/s)", text))
    if len(given) > 1 and not page.bars:
        yield f"the memory has several bandwidths: {', '.join(sorted(given))}"
    for row in page.tables.get("benchmarks", []):
        if "launch-bound" in row.get("notes", "") and row["rate"].endswith("B/s"):
            yield f"{row['benchmark']} is launch-bound, but has {row['rate']}"
    caches = sorted(
        (row["benchmark"], rate(row["rate"]))
        for row in page.tables.get("benchmarks", [])
        if row["benchmark"].startswith("stream[L")
    )
    for name, found in caches:
        farther = max((other for far, other in caches if far[:9] > name[:9]), default=0.0)
        if 0 < ROUNDED * found < farther:
            yield f"{name} has {found:.3g} B/s, but a farther cache {farther:.3g}"


def _operators(page):
    rows = [*page.rows()]
    ceilings = []
    for row in rows:
        if row.get("time") == "MFU of own ceiling":
            ceilings += map(rate, re.findall(r"[\d.]+ [kMGTP]?FLOP/s", row["note"]))
    lead = next(iter(page.conclusions), "")
    for row in rows:
        if seconds(row.get("in operators", "")) > ROUNDED * seconds(row.get("time", "")):
            yield f"{row['phase']} takes {row['time']}, but its operators {row['in operators']}"
        if ceilings and "operator" in row and rate(row["rate"]) > ROUNDED * max(ceilings):
            given = [
                each["time"]
                for each in rows
                if each.get("time") in OF_CEILING and each["figure"] != NOT_KNOWN
            ]
            if given or NOT_KNOWN not in lead:
                named = ", ".join(given) or lead
                yield f"{row['operator']} runs at {row['rate']}, above the ceiling: {named}"


def _delivery(page):
    """One figure, one row, one floor; and the verdict that follows from them."""
    benchmarks = page.tables.get("benchmarks", [])
    rates = {row["benchmark"]: row["rate"] for row in benchmarks}
    shares = {row["benchmark"]: percent(row.get("of vendor peak", "")) for row in benchmarks}
    names = [bar.get("name", "") for bar in page.bars]
    for name in {name for name in names if names.count(name) > 1}:
        yield f"{name} stands {names.count(name)} times among the figures"
    below = [bar["name"] for bar in page.bars if "BELOW FLOOR" in bar.get("mark", "")]
    for bar in page.bars:
        share = percent(bar.get("share", ""))
        note = bar.get("note", "")
        floor = re.search(r"at least ([\d.]+) %", note)
        if share is not None and floor and share < float(floor[1]) and bar["name"] not in below:
            yield f"{bar['name']} has {share:g} %, its floor is {floor[1]} %, but it delivers"
        row = re.search(r"in (\w+\[[^\]]+\])", note)
        of_row = shares.get(row[1]) if row else None
        is_peak = "peak" in bar.get("share", "")
        if is_peak and share and of_row and abs(share - of_row) > WHOLE_PERCENT:
            yield f"{bar['name']} is at {share:g} % of its peak, its row {of_row:g} %"
        given = rate(bar.get("figure", ""))
        found = rate(rates.get(row[1], "")) if row else 0.0
        if (
            given
            and found
            and not 1 / ROUNDED < given / found < ROUNDED
            and "MFU" not in bar["name"]
        ):
            yield f"{bar['name']} is {bar['figure']}, but its row {row and row[1]} has {found:.3g}"
    lead = next(iter(page.conclusions), "")
    if "DELIVERS" in lead and below:
        yield f"the verdict is {lead.strip()}, but below their floors are {', '.join(below)}"
    for name in below:
        if name.removeprefix("memory ") not in lead:
            yield f"{name} is below its floor, but the verdict is {lead.strip()}"


def _ceilings(page):
    """The share of the own ceiling has one denominator a dtype, which no product exceeds."""
    ceilings = {}
    for row in page.tables.get("benchmarks", []):
        name = row["benchmark"]
        share = percent(row.get("of own ceiling", ""))
        found = rate(row["rate"])
        if share is None or not found or not name.startswith(PRODUCTS):
            continue
        # One that spreads too widely to conclude anything is no ceiling.
        if share > 100 and "wide" not in row["spread"]:
            yield f"{name} is at {share:g} % of the own ceiling, which is no ceiling then"
        if share >= 20 and "wide" not in row["spread"]:
            dtype = name.partition("[")[2].partition("-")[0].rstrip("]")
            ceilings.setdefault(dtype, []).append(100 * found / share)
    for dtype, group in ceilings.items():
        if max(group) > (ROUNDED + 0.005) * min(group):
            yield (
                f"the own ceiling of {dtype} has several values: {min(group):.3g} and "
                f"{max(group):.3g}"
            )


def _roofs(page):
    free = " ".join(text for text in page.conclusions if text.startswith("neither memory"))
    for row in page.rows():
        held = row.get("held by") or row.get("held back by") or ""
        share = percent(row.get("of its roof") or row.get("share") or "")
        if share is None or held.partition("-")[0] not in ("memory", "compute"):
            continue
        if share < LEAST_SHARE_OF_A_ROOF:
            yield f"{row['kernel']} is held back by {held} at {share:g} % of its roof"
        if row["kernel"] in free:
            yield f"{row['kernel']} is {held}, but limited by neither memory nor arithmetic"


def _slower_dtypes(page):
    """Nobody wonders that a dtype is slower whose peak is no higher."""
    peaks = {}
    for row in page.tables.get("rates", []):
        share = percent(row.get("of vendor peak", ""))
        if share:
            peaks[row["dtype"]] = rate(row["rate"]) / share
    for text in page.conclusions:
        found = re.search(r"(\w+) is multiplied slower than (\w+)", text)
        both = [peaks.get(dtype, 0.0) for dtype in found.groups()] if found else [0.0]
        if all(both) and both[0] < ROUNDED * both[1]:
            yield f"unusual, but the peaks say the same: {text.strip()}"


def _launches(page):
    rows = page.tables.get("benchmarks", [])
    launches = [seconds(row["median"]) for row in rows if row["benchmark"] == "launch"]
    launch = max(launches, default=0.0)
    for row in rows:
        is_cache = row["benchmark"].startswith("stream[L")
        time_s = seconds(row.get("median", ""))
        if is_cache and rate(row["rate"]) and time_s < LAUNCHES * launch:
            yield f"{row['benchmark']} takes {row['median']}, few launches, but has {row['rate']}"


def _throttled(page):
    """Work at the power limit is normal: it alone makes no benchmark throttled."""
    noted = [row.get("notes", "") for row in page.tables.get("benchmarks", [])]
    throttled = [text for text in noted if "throttled" in text]
    for text in page.conclusions:
        if "were throttled" in text and text.split()[0] != str(len(throttled)):
            yield f"{text.strip()}, but so many rows say it: {len(throttled)}"
        if "throttled: power cap" in text:
            yield f"the power limit alone is called throttling: {text.strip()}"


def _phases(page):
    """The phases of a step add up to it, or neither is known."""
    phases = [seconds(row["time"]) for row in page.rows() if "in operators" in row]
    steps = [row for row in page.rows() if row.get("time") == "step"]
    whole = [seconds(row["figure"]) for row in steps]
    spread = max((percent(row.get("note", "")) or 0.0 for row in steps), default=0.0) / 100
    is_known = bool(phases and whole and all(phases) and whole[0])
    is_apart = is_known and abs(sum(phases) / whole[0] - 1) > max(WIDEST_GAP, spread) + 0.02
    if is_apart and not page.is_compiled:
        yield f"the phases take {sum(phases):.3g} s, but the step {whole[0]:.3g} s"
    for row in page.rows():
        over = row.get("parts over step")
        if over and abs(float(over) - 1) > WIDEST_GAP and NOT_KNOWN not in row["whole step"]:
            yield f"the parts of {row['step']} are {over} of the whole, but both are given"


def _labels(page):
    """No label of an axis is cut off at the edge of its drawing."""
    for kind, at, text in page.drawn:
        half = HALF_A_CHARACTER * len(text)
        left, right = {"x": (at - half, at + half), "y": (at - 2 * half, at)}.get(kind, (at, at))
        if left < -1 or right > DRAWING_WIDTH + 1:
            yield f"the label {text!r} is cut off"


def _compared(page):
    """How many benchmarks got slower and faster, against the column of ratios."""
    for text in page.conclusions:
        found = re.match(r"(.+), against .+?: of \d+ benchmarks? (.+?); median", text.strip())
        if found is None:
            continue
        cells = [row[found[1]] for row in page.rows() if "benchmark" in row and found[1] in row]
        beyond = [float(cell[:-1]) for cell in cells if re.fullmatch(r"[\d.]+x", cell)]
        counted = {
            "slower": sum(ratio > 1 for ratio in beyond),
            "faster": sum(ratio < 1 for ratio in beyond),
            "within": sum(cell.startswith("~") for cell in cells),
        }
        for word, count in counted.items():
            said = re.search(rf"(\d+) {word}", found[2])
            if (int(said[1]) if said else 0) != count:
                yield f"so many rows are {word}: {count}; but: {text.strip()}"


def _side_by_side(page):
    """A run delivers if no figure of it is below its floor."""
    rows = [row for row in page.rows() if "figure" in row and len(row) > 1]
    verdicts = next((row for row in rows if row["figure"] == "verdict"), {})
    for title, verdict in verdicts.items():
        below = [row["figure"] for row in rows if "BELOW FLOOR" in row.get(title, "")]
        if verdict == "DELIVERS" and below:
            yield f"{title} delivers, but below their floors are {', '.join(below)}"


def _levels(page):
    """How many benchmarks changed their level, against what each one says."""
    said = [re.search(r"(\d+) benchmarks?, of which (\d+) changed", t) for t in page.conclusions]
    each = [text.partition("changes of level: ")[2] for text in page.conclusions]
    changes = [text for text in each if text]
    changed = sum(not text.startswith(UNCHANGED) for text in changes)
    for found in filter(None, said):
        if (int(found[1]), int(found[2])) != (len(changes), changed):
            yield f"{changed} of {len(changes)} changed their level, but: {found[0]}"
