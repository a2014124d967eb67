"""Finds what a page of a run or a model concludes against its own figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
NOT_KNOWN = "not known"
# A kernel is held back by a roof of which it reaches this share.
LEAST_SHARE_OF_A_ROOF = 50.0


class Page(HTMLParser):
    """The conclusions of a page, its tables as dicts by the heads below the id of their section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.conclusions: list[str] = []
        self.tables: dict[str, list[dict[str, str]]] = {}
        self.bars: list[dict[str, str]] = []
        self._section = ""
        self._conclusion = ""
        self._head = [""]
        self._row: list[str] | None = None
        self._bar = ""
        # Where a line may break says nothing.
        self.feed(text.replace("\N{NO-BREAK SPACE}", " "))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
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

    def handle_endtag(self, tag: str) -> None:
        if tag == self._conclusion:
            self._conclusion = self._bar = ""
        elif tag == "thead" and self._row is not None:
            self._head = self._row
            self._row = None
        elif tag == "tr" and self._row and self._row != self._head:
            self._end_row(self._row)

    def _end_row(self, row: list[str]) -> None:
        if len(row) == len(self._head):
            cells = dict(zip(self._head, row, strict=True))
            self.tables.setdefault(self._section, []).append(cells)
            if self._section == SHORT:
                self.conclusions.append(" ".join(row))

    def handle_data(self, data: str) -> None:
        if self._conclusion:
            self.conclusions[-1] += data
        if self._bar:
            self.bars[-1][self._bar] = self.bars[-1].get(self._bar, "") + data
        if self._row:
            self._row[-1] += data.strip()

    def rows(self) -> Iterator[dict[str, str]]:
        """The rows of all tables."""
        for table in self.tables.values():
            yield from table


def rate(text: str) -> float:
    """FLOP/s, OP/s or bytes per second of "1.51 TFLOP/s"; 0 for another text."""
    found = re.match(r"([\d.]+) ([kMGTP]?)(?:FLOP|OP|B)/s", text)
    return float(found[1]) * PREFIX[found[2]] if found else 0.0


def percent(text: str) -> float | None:
    """The first share of a text; None without one."""
    found = re.search(r"([\d.]+) ?%", text)
    return float(found[1]) if found else None


def contradictions(text: str) -> list[str]:
    """What a page concludes against its own figures."""
    page = Page(text)
    checks = (_shares, _best_rates, _delivery, _ceilings, _roofs)
    return [found for check in checks for found in check(page)]


def _shares(page: Page) -> Iterable[str]:
    for text in page.conclusions:
        over = [each for each in re.findall(r"([\d.]+) ?%", text) if float(each) > 100]
        if over and NOT_KNOWN not in text and "slower" not in text:
            yield f"a share over 100 %: {text.strip()}"


def _best_rates(page: Page) -> Iterable[str]:
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


def _delivery(page: Page) -> Iterable[str]:
    """One figure, one row, one floor; and the verdict that follows from them."""
    rates = {row["benchmark"]: row["rate"] for row in page.tables.get("benchmarks", [])}
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


def _ceilings(page: Page) -> Iterable[str]:
    """The share of the own ceiling has one denominator a dtype, which no product exceeds."""
    ceilings: dict[str, list[float]] = {}
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


def _roofs(page: Page) -> Iterable[str]:
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
