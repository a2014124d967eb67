"""One benchmark as a report shows it: time, spread, rate, and conclusions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from prooflops_gate.console.tables import engineering
from prooflops_gate.machine.contention import label_contention

# Share of the median. A wider interquartile range or 95 % interval of the median allows no
# conclusion.
WIDEST_SPREAD = 0.25
# Prefix of a label: other work competed for the cores.
CONTENDED = "contended"
# A share that is above 1 by more than rounding.
EXCEEDS = 1 + 1e-6
# Families of matrix products.
PRODUCTS = ("matmul", "ceiling", "layer")
BURSTS = "achievable"
NOT_KNOWN = "not known"
AGAIN = "measured again after a pause"
# The figures that rise with the rate.
RATES = ("flop_per_s", "op_per_s", "bytes_per_s", "mfu", "mbu")
NO_RATE = "no rate: launch overhead"
NEITHER = "neither roof"
# The parts of a step are timed apart, each until the device has ended it; the whole overlaps them.
USUAL_OVERLAP = 1 / 6


@dataclass(frozen=True)
class Measurement:
    """One benchmark of a record; its name is without "test_"."""

    name: str
    fullname: str
    median_s: float
    iqr_s: float
    info: Mapping[str, Any]  # pytest-benchmark's extra_info, see docs/explanation/measuring.md

    @classmethod
    def of(cls, bench: Mapping[str, Any]) -> Measurement:
        """A benchmark in pytest-benchmark's JSON form."""
        stats = bench["stats"]
        name = str(bench["name"])
        return cls(
            name=name.removeprefix("test_"),
            fullname=str(bench.get("fullname", name)),
            median_s=float(stats["median"]),
            iqr_s=float(stats["iqr"]),
            info=bench.get("extra_info") or {},
        )

    def number(self, key: str) -> float:
        """A figure of `info`; 0 if absent."""
        value = self.info.get(key)
        return float(value) if isinstance(value, (int, float)) and isfinite(value) else 0.0

    def has(self, *keys: str) -> bool:
        """True if all of these figures are above 0."""
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
    def spread(self) -> float:
        """The wider of the interquartile range and the median's 95 % interval, of the median."""
        interval_s = self.number("ci_high") - self.number("ci_low")
        return max(self.iqr_s, interval_s) / self.median_s if self.median_s else 0.0

    @property
    def is_wide(self) -> bool:
        return self.spread > WIDEST_SPREAD

    @property
    def contention(self) -> Mapping[str, Any]:
        """The other work that was seen, see `prooflops_gate.machine.contention`."""
        conditions = self.info.get("conditions")
        found = conditions.get("contention") if isinstance(conditions, dict) else None
        return found or {}

    @property
    def slowness(self) -> float:
        """The slowest core's time over a lone core's time; 1 if that is not known."""
        return float(self.contention.get("slowness", 1.0))

    @property
    def is_slowed_by_guest(self) -> bool:
        """True if the core was slow and no process of this system explains that."""
        unseen = {"others_cores": None, "involuntary_switches_per_s": None}
        found = label_contention({**unseen, **self.contention, "steal": None})
        return self.slowness > 1 and not found["contended"]

    @property
    def is_contended(self) -> bool:
        """True if other work competed for the device during the rounds."""
        return any(label.startswith(CONTENDED) for label in self.labels)

    @property
    def is_product(self) -> bool:
        """True if it is one matrix product, in steady work."""
        is_one = self.family in PRODUCTS and self.info.get("regime") != BURSTS
        return is_one and self.arithmetic_rate is not None

    @property
    def unsettled(self) -> str:
        """Why it allows no conclusion, in a few words; empty if it does."""
        if self.is_wide:
            return "spread too wide"
        apart = abs(self.number("parts_over_step") - 1)
        if self.has("parts_over_step") and apart > max(self.spread, USUAL_OVERLAP):
            return "its parts do not add up"
        for key, bound in (("share_of_ceiling", "best rate"), ("share_of_attainable", "roof")):
            if self.number(key) > EXCEEDS:
                return f"above its {bound}"
        return CONTENDED * self.is_contended

    @property
    def rate(self) -> tuple[float, str] | None:
        """The declared rate and its unit: FLOP/s, OP/s or B/s; always B/s for a stream.

        A launch-bound row has no bandwidth: its time is that of the launch.
        """
        keys = [("flop_per_s", "FLOP/s"), ("op_per_s", "OP/s"), ("bytes_per_s", "B/s")]
        for key, unit in keys[2:] if self.level else keys:
            value = self.number(key)
            is_of_launch = unit == "B/s" and self.info.get("bound") == "launch"
            if value > 0 and not is_of_launch:
                return value, unit
        return None

    @property
    def arithmetic_rate(self) -> float | None:
        """FLOPs (for int8: operations) per second; None for streams and without arithmetic."""
        found = self.rate
        return found[0] if found and found[1] != "B/s" else None

    @property
    def faster_again(self) -> float:
        """The speedup of a second measurement, made after a pause; 0 without one."""
        entry = self.info.get("delivers") or {}
        if self.rate and entry.get("again") and entry["unit"] != "s":
            return float(entry["value"]) / self.rate[0]
        return 0.0

    def at_its_best(self) -> Measurement:
        """The benchmark with the rates of its second measurement, if there was one."""
        if not self.faster_again:
            return self
        rates = {key: self.faster_again * self.number(key) for key in RATES if self.has(key)}
        return replace(self, info={**self.info, **rates})

    @property
    def rate_text(self) -> str:
        return engineering(*self.rate) if self.rate else "-"

    @property
    def bound(self) -> str:
        """The limit, such as "memory-bound"; the reason where it is unknown; or empty."""
        bound = self.info.get("bound")
        if not bound:
            return ""
        if self.unsettled:
            return f"{NOT_KNOWN}: {self.unsettled}"
        return NEITHER if bound == NEITHER else f"{bound}-bound"

    @property
    def cache(self) -> str:
        """The cache state, hot or cold; empty if not declared."""
        cache = str(self.info.get("cache") or "")
        return "" if cache == "as-is" else cache

    def _conditions(self, key: str) -> list[str]:
        conditions = self.info.get("conditions")
        return list(conditions.get(key, ())) if isinstance(conditions, dict) else []

    @property
    def labels(self) -> list[str]:
        """Descriptions of competing work and slowdowns."""
        return self._conditions("labels")

    @property
    def facts(self) -> list[str]:
        """The state of the device meanwhile: "power-limited: 1.49 of 1.98 GHz"."""
        found = self._conditions("facts")
        if found and self.has("share_at_clock"):
            found.append(f"{self.number('share_at_clock'):.0%} of the peak at that clock")
        return found

    @property
    def notes(self) -> str:
        """A short note: cache state, limits, clock, and the start of each label, each once."""
        limit = self.bound
        if self.info.get("bound") == "launch" and not self.rate:
            limit = NO_RATE
        elif limit.startswith(NOT_KNOWN):
            limit = ""
        found = [self.cache, limit, self.unsettled, str(self.info.get("label") or "")]
        if "bottleneck" in self.info and not self.unsettled:
            found.append(f"bottleneck: {self.info['bottleneck']}")
        found += self.facts
        found += [label.partition(":")[0] for label in self.labels]
        if self.faster_again:
            found.append(f"{AGAIN}: {self.at_its_best().rate_text}")
        return ", ".join(filter(None, dict.fromkeys(found)))
