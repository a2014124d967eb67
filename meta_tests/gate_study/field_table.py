"""The table of the field trials."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from statistics import fmean, median
from typing import Any

from meta_tests.gate_study.tables import markdown

QUIET = 0.03  # paired noise up to which a planted 5 % should be found
PLANTED = 1.05
HEAD = (
    "project", "trial", "runs", "benchmarks", "a run took: median (most)", "SLOWER", "FASTER", "SAME", "INCONCLUSIVE",
    "runs that alarm where nothing changed", "planted ones found", "of those of +5 % or more and 3 % noise or less",
    "exit codes",
)  # fmt: skip

Key = tuple[str, str, bool]


def table(results: Sequence[Mapping[str, Any]], touched: Mapping[tuple[str, str], Set[str]]) -> str:
    """A row for each project, trial and load, as Markdown. `touched`: the benchmarks that a trial makes slower."""
    groups: dict[Key, list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["project"], result["trial"], result["busy"]), []).append(result)
    rows = [row(key, runs, touched.get(key[:2], frozenset())) for key, runs in sorted(groups.items())]
    plain = [run for (_, trial, _), runs in groups.items() if trial == "unchanged" for run in runs]
    alarms = sum(alarmed(run, frozenset()) for run in plain)
    same = Counter(each["verdict"] for run in plain for each in run["rows"].values())
    sentence = (
        f"Unchanged: {alarms} of {len(plain)} runs alarm; {same['SAME'] / max(same.total(), 1):.1%} of "
        f"{same.total()} benchmarks SAME."
    )
    return f"{markdown(HEAD, rows)}\n\n{sentence}"


def row(key: Key, runs: Sequence[Mapping[str, Any]], touched: Set[str]) -> list[str]:
    name, trial, busy = key
    counts = Counter(each["verdict"] for run in runs for each in run["rows"].values())
    total = max(counts.total(), 1)
    times = [run["wall_s"] for run in runs]
    planted = [(each, run["rows"][each]) for run in runs for each in sorted(touched & run["rows"].keys())]
    true = effects(planted)
    clear = [r for each, r in planted if true[each] >= PLANTED and r.get("noise", math.inf) <= QUIET]
    return [
        name,
        trial + (", one core busy" if busy else ""),
        f"{len(runs)}",
        f"{max(len(run['rows']) for run in runs)}",
        f"{median(times):.0f} s ({max(times):.0f} s)",
        *(
            f"{counts[verdict]} ({counts[verdict] / total:.1%})"
            for verdict in ("SLOWER", "FASTER", "SAME", "INCONCLUSIVE")
        ),
        f"{sum(alarmed(run, touched) for run in runs)}",
        found([r for _, r in planted]),
        found(clear),
        ", ".join(f"{code}: {count}" for code, count in sorted(Counter(run["exit"] for run in runs).items())),
    ]


def effects(planted: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, float]:
    """How much slower each benchmark got: the geometric mean over its runs, more exact than any of them."""
    logs: dict[str, list[float]] = {}
    for name, each in planted:
        logs.setdefault(name, []).append(math.log(each.get("ratio", 1.0)))
    return {name: math.exp(fmean(group)) for name, group in logs.items()}


def found(rows: Sequence[Mapping[str, Any]]) -> str:
    return f"{sum(each['verdict'] == 'SLOWER' for each in rows)} of {len(rows)}" if rows else "-"


def alarmed(run: Mapping[str, Any], touched: Set[str]) -> bool:
    """Whether a benchmark that is not touched was called slower."""
    return any(each["verdict"] == "SLOWER" for name, each in run["rows"].items() if name not in touched)
