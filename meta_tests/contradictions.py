"""Finds what a page of a run or a model concludes against its own figures."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html.parser import HTMLParser

CONCLUSIONS = {"lead", "answer", "tile"}
LISTS = {"delivers", "limits", "unusual"}  # sections whose items are conclusions
PRODUCTS = ("matmul[", "ceiling[", "fast_accumulation[", "layer[")
PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
ROUNDED = 1.006  # three digits are printed
NOT_KNOWN = "not known"
OF_CEILING = ("ridge point", "compute alone")  # follow from the ceiling


class Page(HTMLParser):
    """The conclusions of a page, and the rows of its tables as dicts by the heads, below the id of their section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.conclusions: list[str] = []
        self.tables: dict[str, list[dict[str, str]]] = {}
        self._section, self._conclusion, self._head = "", "", [""]
        self._row: list[str] | None = None
        self.feed(text)

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
        elif tag == "thead":
            self._head = []
        elif tag == "tr":
            self._row = []
        elif tag in ("td", "th") and self._row is not None:
            self._row.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._conclusion:
            self._conclusion = ""
        elif tag == "thead" and self._row is not None:
            self._head, self._row = self._row, None
        elif (
            tag == "tr"
            and self._row is not None
            and len(self._row) == len(self._head)
            and self._row != self._head
        ):
            self.tables.setdefault(self._section, []).append(
                dict(zip(self._head, self._row, strict=True))
            )

    def handle_data(self, data: str) -> None:
        if self._conclusion:
            self.conclusions[-1] += data
        if self._row:
            self._row[-1] += data.strip()


def rate(text: str) -> float:
    """FLOP/s, OP/s or bytes per second of "1.51 TFLOP/s"; 0 for another text."""
    found = re.match(r"([\d.]+) ([kMGTP]?)(?:FLOP|OP|B)/s", text)
    return float(found[1]) * PREFIX[found[2]] if found else 0.0


def seconds(text: str) -> float:
    """Seconds of "9.73 ms"; 0 for another text."""
    found = re.fullmatch(r"([\d.]+) (m|µ|n|)s", text)
    return float(found[1]) * {"": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}[found[2]] if found else 0.0


def contradictions(text: str) -> list[str]:
    """What a page concludes against its own figures."""
    page = Page(text)
    return [*_shares(page), *_best_rates(page), *_bandwidths(page), *_operators(page)]


def _shares(page: Page) -> Iterable[str]:
    for text in page.conclusions:
        over = [each for each in re.findall(r"([\d.]+) ?%", text) if float(each) > 100]
        if over and NOT_KNOWN not in text and "slower" not in text:
            yield f"a share over 100 %: {text.strip()}"


def _best_rates(page: Page) -> Iterable[str]:
    rows = {(row.get("benchmark") or row.get("product") or "", row.get("rate", "")) for rows in page.tables.values()
            for row in rows}  # fmt: skip
    for best in page.tables.get("rates", []):
        dtype = best["dtype"]
        for name, found in rows:
            if (
                name.startswith(PRODUCTS)
                and f"[{dtype}-" in name
                and rate(found) > ROUNDED * rate(best["rate"])
            ):
                yield f"the best rate of {dtype} is {best['rate']}, but {name} has {found}"
        if not best["in"].startswith(PRODUCTS):
            yield f"the best rate of {dtype} is that of {best['in']}, which is no product"


def _bandwidths(page: Page) -> Iterable[str]:
    given = {found for text in page.conclusions
             for found in re.findall(r"memory(?: gives|,)? ([\d.]+ [kMGT]?B/s)", text)}  # fmt: skip
    if len(given) > 1:
        yield f"the memory has several bandwidths: {', '.join(sorted(given))}"
    for row in page.tables.get("benchmarks", []):
        if "launch-bound" in row.get("notes", "") and row["rate"].endswith("B/s"):
            yield f"{row['benchmark']} is launch-bound, but has {row['rate']}"
    caches = sorted((row["benchmark"], rate(row["rate"])) for row in page.tables.get("benchmarks", [])
                    if row["benchmark"].startswith("stream[L"))  # fmt: skip
    for name, found in caches:
        farther = max((other for far, other in caches if far[:9] > name[:9]), default=0.0)
        if 0 < ROUNDED * found < farther:
            yield f"{name} has {found:.3g} B/s, but a farther cache {farther:.3g}"


def _operators(page: Page) -> Iterable[str]:
    rows = [row for table in page.tables.values() for row in table]
    ceilings = [rate(found) for row in rows if row.get("time") == "MFU of own ceiling"
                for found in re.findall(r"[\d.]+ [kMGTP]?FLOP/s", row["note"])]  # fmt: skip
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
                yield f"{row['operator']} runs at {row['rate']}, above the ceiling: {', '.join(given) or lead}"
