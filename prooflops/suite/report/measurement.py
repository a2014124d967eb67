"""One benchmark as a report shows it: time, spread, rate, and conclusions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from prooflops_gate.console.tables import engineering

# Share of the median. A wider interquartile range or 95 % interval of the median allows no conclusion.
WIDEST_SPREAD = 0.25
CONTENDED = "contended"  # prefix of a label: other work competed for the cores
EXCEEDS = 1 + 1e-6  # a share that is above 1 by more than rounding
PRODUCTS = ("matmul", "ceiling", "fast_accumulation", "layer")  # families of matrix products


@dataclass(frozen=True)
class Measurement:
    """One benchmark of a record."""

    name: str  # without "test_"
    fullname: str
    median_s: float
    iqr_s: float
    info: Mapping[str, Any]  # pytest-benchmark's extra_info, see docs/measuring.md

    @classmethod
    def of(cls, bench: Mapping[str, Any]) -> Measurement:
        """A benchmark in pytest-benchmark's JSON form."""
        stats = bench["stats"]
        name = str(bench["name"])
        return cls(
            name.removeprefix("test_"),
            str(bench.get("fullname", name)),
            float(stats["median"]),
            float(stats["iqr"]),
            bench.get("extra_info") or {},
        )

    def number(self, key: str) -> float:
        """A figure of `info`; 0 if absent."""
        value = self.info.get(key)
        return float(value) if isinstance(value, (int, float)) and isfinite(value) else 0.0

    def has(self, *keys: str) -> bool:
        """Whether all of these figures are above 0."""
        return all(self.number(key) > 0 for key in keys)

    @property
    def dtype(self) -> str:
        return str(self.info.get("dtype") or "")

    @property
    def level(self) -> str:
        """A stream's memory level: "memory", "L2"; empty for other benchmarks."""
        return str(self.info.get("memory_level") or "")

    @property
    def family(self) -> str:
        """The test's name without parameters: "matmul"."""
        return self.name.partition("[")[0]

    @property
    def case(self) -> str:
        """The test's parameters: "bf16-square-1024"; its name if it has none."""
        return self.name.partition("[")[2].removesuffix("]") or self.name

    @property
    def iqr_share(self) -> float | None:
        """The interquartile range of the rounds, as a share of the median."""
        return self.iqr_s / self.median_s if self.median_s else None

    @property
    def spread(self) -> float:
        """The wider of the interquartile range and the median's 95 % interval, as a share of the median."""
        low, high = self.info.get("ci_low"), self.info.get("ci_high")
        interval = (
            (high - low) / self.median_s
            if low is not None and high is not None and self.median_s
            else 0.0
        )
        return max(self.iqr_share or 0.0, interval)

    @property
    def is_wide(self) -> bool:
        return self.spread > WIDEST_SPREAD

    @property
    def is_product(self) -> bool:
        """Whether it is one matrix product."""
        return self.family in PRODUCTS and self.arithmetic_rate is not None

    @property
    def unsettled(self) -> str:
        """Why it allows no conclusion, in a few words; empty if it does."""
        if self.is_wide:
            return "spread too wide"
        for key, bound in (
            ("share_of_ceiling", "its ceiling"),
            ("share_of_attainable", "its roof"),
        ):
            if self.number(key) > EXCEEDS:
                return f"above {bound}"
        return CONTENDED * any(label.startswith(CONTENDED) for label in self.labels)

    @property
    def rate(self) -> tuple[float, str] | None:
        """The declared rate and its unit: FLOP/s, OP/s or B/s; always B/s for a stream.

        A launch-bound row has no bandwidth: its time is that of the launch.
        """
        keys = (("flop_per_s", "FLOP/s"), ("op_per_s", "OP/s"), ("bytes_per_s", "B/s"))
        for key, unit in keys[2:] if self.info.get("memory_level") else keys:
            if (value := self.number(key)) > 0 and not (
                unit == "B/s" and self.info.get("bound") == "launch"
            ):
                return value, unit
        return None

    @property
    def arithmetic_rate(self) -> float | None:
        """FLOPs (for int8: operations) per second; None for streams and without arithmetic."""
        found = self.rate
        return found[0] if found and found[1] != "B/s" else None

    @property
    def rate_text(self) -> str:
        return engineering(*self.rate) if self.rate else "-"

    @property
    def bound(self) -> str:
        """Its limit: "memory-bound", "compute-bound", "launch-bound"; else why that is unknown, or empty."""
        bound = self.info.get("bound")
        if not bound:
            return ""
        return f"not known: {self.unsettled}" if self.unsettled else f"{bound}-bound"

    @property
    def method(self) -> str:
        """The version of the method, the number of rounds, and the cache state."""
        method, rounds = self.info.get("method"), self.info.get("rounds")
        parts = [
            f"method {method}" if method else "",
            f"{rounds} rounds" if rounds else "",
            self.cache,
        ]
        return ", ".join(filter(None, parts))

    @property
    def cache(self) -> str:
        """The cache state, hot or cold; empty if not declared."""
        cache = str(self.info.get("cache") or "")
        return "" if cache == "as-is" else cache

    @property
    def labels(self) -> list[str]:
        """Descriptions of competing work and slowdowns."""
        conditions = self.info.get("conditions")
        return list(conditions.get("labels", ())) if isinstance(conditions, dict) else []

    @property
    def notes(self) -> str:
        """A short note: cache state, limit, and the start of each label."""
        found = [self.cache, self.bound or self.unsettled, str(self.info.get("label") or "")]
        return ", ".join(
            filter(
                None, dict.fromkeys([*found, *(label.partition(":")[0] for label in self.labels)])
            )
        )
