"""The page about one collection of evidence, and the index that compares the machines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from prooflops.console.tables import engineering, markdown_table
from prooflops.history.records import write_atomically
from prooflops.suite.evidence.folder import Folder
from prooflops.suite.registry import Registry, load_registry
from prooflops.suite.verdicts import RED, VERDICTS, Outcome, Verdict, verdict_of

ROOT = Path(__file__).resolve().parents[3]
RED_STATUS = ("failed", "error", "timed out", "crashed")
STATUSES = ("passed", *RED_STATUS, "skipped", "unmet")
INDEX_DTYPES = ("fp32", "bf16", "fp8_e4m3")
Rows = Sequence[Mapping[str, Any]]


def write(folder: Folder, results: Path) -> list[dict[str, Any]]:
    """Writes a folder's page and summary, and the index. Returns the ended tests."""
    rows = [*folder.ended().values()]
    verdicts = verdicts_of(folder, load_registry(ROOT / "test_claims" / "registry"))
    write_atomically(folder.path / "README.md", "\n".join(page_lines(folder, rows, verdicts)) + "\n")
    write_atomically(folder.path / "summary.json", json.dumps(summary(folder, rows, verdicts), indent=1) + "\n")
    write_index(results)
    return rows


def verdicts_of(folder: Folder, registry: Registry) -> list[Verdict]:
    """A verdict for each claim that has a test in the plan."""
    plan, ended = folder.plan, folder.ended()
    outcomes: dict[str, list[Outcome]] = {}
    for test, claims in plan.get("claims", {}).items():
        for claim in claims:
            outcomes.setdefault(claim, []).extend(outcomes_of(test, ended.get(test)))
    rows = registry.claims.items()
    return [verdict_of(claim, outcomes.get(name, [])) for name, claim in rows if name in outcomes or claim.on_record]


def outcomes_of(test: str, row: Mapping[str, Any] | None) -> list[Outcome]:
    """One test's outcomes. Without a report it is an error; never reached, it is unrun."""
    if row is None:
        return [Outcome(test, "unrun", "never reached", cases=0)]
    found = [Outcome(**{**outcome, "figures": tuple(outcome["figures"])}) for outcome in row["outcomes"]]
    return found or [Outcome(test, "error", row["reason"], cases=0)]


def page_lines(folder: Folder, rows: Rows, verdicts: Sequence[Verdict]) -> list[str]:
    """The page: failures, slices, claims, benchmarks, slowest tests, and tests never reached."""
    plan, left = folder.plan, folder.remaining()
    count = Counter(row["status"] for row in rows)
    lines = [f"# {folder.path.name}", "", *(f"- {line}" for line in plan["headline"])]
    lines += [
        f"- commit {plan['commit'] or 'unknown'}, pace {plan['pace']}, arguments: `{' '.join(plan['arguments'])}`"
    ]
    lines += [f"- {len(plan['tests']) - len(left)} of {len(plan['tests'])} tests ran: "
              + ", ".join(f"{count[status]} {status}" for status in STATUSES if count[status])]  # fmt: skip
    lines += ["", "## Red", ""]
    red = [[f"`{row['test']}`", row["status"], row["reason"]] for row in rows if row["status"] in RED_STATUS]
    lines += markdown_table([["test", "", "reason"], *red]) if red else ["Nothing."]
    lines += ["", "Their whole logs are in `tests.jsonl`.", "", "## Slices", ""]
    lines += markdown_table(slice_table(folder))
    lines += ["", "## Claims", "", *markdown_table([["", *VERDICTS], counted(verdicts)]), ""]
    shown = [each for each in verdicts if each.verdict in (*RED, "not checked")]
    lines += markdown_table([["claim", "verdict", "reason"], *([f"`{v.id}`", v.verdict, v.reason] for v in shown)])
    if benchmarks := [bench for row in rows for bench in row.get("benchmarks", ())]:
        from prooflops.suite.report.tables import evidence_table  # brings torch

        lines += ["", "## Benchmarks", "", *markdown_table(evidence_table(benchmarks, plan["peaks"]))]
    slow = sorted(rows, key=lambda row: -row.get("seconds", 0))[:10]
    lines += ["", "## The longest tests", ""]
    lines += markdown_table(
        [["test", "seconds"], *([f"`{row['test']}`", f"{row.get('seconds', 0):.1f}"] for row in slow)]
    )
    lines += ["", "## Never reached", "", *([f"- `{test}`" for test in left] or ["Nothing."])]
    return lines


def slice_table(folder: Folder) -> list[list[str]]:
    """One row per slice. A killed slice counts until its last test's end."""
    began = {row["slice"]: row for row in folder.rows("slices.jsonl") if row["event"] == "start"}
    ended = {row["slice"]: row for row in folder.rows("slices.jsonl") if row["event"] == "end"}
    tests = [row for row in folder.rows("tests.jsonl") if row["event"] == "end"]
    table = [["slice", "began", "seconds", "tests", ""]]
    for number, start in began.items():
        own = [row["at"] for row in tests if row.get("slice") == number]
        seconds = ended[number]["seconds"] if number in ended else max(own, default=start["at"]) - start["at"]
        moment = datetime.fromtimestamp(start["at"], timezone.utc).strftime("%Y-%m-%d %H:%M")
        table.append([str(number), moment, f"{seconds:.0f}", str(len(own)), "" if number in ended else "killed"])
    return table


def counted(verdicts: Sequence[Verdict]) -> list[str]:
    count = Counter(each.verdict for each in verdicts)
    return [f"{len(verdicts)} claims", *(str(count[word] or "·") for word in VERDICTS)]


# ---- the index ---------------------------------------------------------------------------------------------------


def summary(folder: Folder, rows: Rows, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """One folder's row of the index, as JSON."""
    plan, count = folder.plan, Counter(row["status"] for row in rows)
    best: dict[str, float] = {}
    for extra in (bench["extra_info"] for row in rows for bench in row.get("benchmarks", ())):
        if extra.get("flop_per_s") and extra.get("dtype"):
            best[extra["dtype"]] = max(float(extra["flop_per_s"]), best.get(extra["dtype"], 0.0))
        if extra.get("memory_level") in ("memory", "dram") and extra.get("bytes_per_s"):
            best["copy"] = max(float(extra["bytes_per_s"]), best.get("copy", 0.0))
    facts = plan["fingerprint"]
    return {
        **{key: facts.get(key) for key in ("name", "driver", "torch", "python")},
        "pace": plan["pace"],
        "tests": len(plan["tests"]),
        "ended": len(plan["tests"]) - len(folder.remaining()),
        "red": sum(count[status] for status in RED_STATUS),
        "verdicts": dict(Counter(each.verdict for each in verdicts)),
        "best": best,
    }


def write_index(results: Path) -> None:
    """Writes results/README.md: one row per folder with a summary."""
    head = ["evidence", "device", "driver", "torch", "python", "pace", "tests run", "red", *VERDICTS]
    rows = [[*head, *(f"best {dtype}" for dtype in INDEX_DTYPES), "best copy"]]
    for file in sorted(results.glob("*/summary.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        best = found["best"]
        rows.append([
            f"[{file.parent.name}]({file.parent.name}/README.md)",
            *(str(found[key] or "-") for key in ("name", "driver", "torch", "python", "pace")),
            f"{found['ended']} of {found['tests']}",
            str(found["red"]),
            *(str(found["verdicts"].get(word, "·")) for word in VERDICTS),
            *(engineering(best[dtype], "FLOP/s") if dtype in best else "-" for dtype in INDEX_DTYPES),
            engineering(best["copy"], "B/s") if "copy" in best else "-",
        ])  # fmt: skip
    text = ["# Evidence", "", "What `make evidence` found on each machine; written by it.", "", *markdown_table(rows)]
    write_atomically(results / "README.md", "\n".join(text) + "\n")
