"""Runs the faults of the topics given: `python -m meta_tests.faults TOPIC [--json FILE]`; exit 1 if one goes unnoticed.

With `--by-claim`, each claim of the topics is run alone under one of its faults after another until it turns red, and
`noticed.json` records which did. From it docs/claims.md gets the count of deep claims.

All faults of a run share one process, which imports torch once: each run of the checks drops the tests from
`sys.modules`, so that they are imported again over what is patched then.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import functools
import importlib
import io
import json
import pkgutil
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Generator
from pathlib import Path
from traceback import format_exc
from typing import Any

import hypothesis
import pytest

from meta_tests.faults import FAULTS, PACKAGES, TOPICS, Fault, replace
from prooflops.suite import hooks
from prooflops.suite.registry import load_registry
from prooflops.suite.verdicts import RED

ROOT = Path(__file__).resolve().parents[2]
NOTICED, PAGE = Path(__file__).with_name("noticed.json"), ROOT / "docs" / "claims.md"
TRIES = 3  # noise of a busy machine can hide a fault from a claim about speed, and few examples from a property
NOISE = "noise"
# A test that loops for ever under a fault ends with an error, again and again where something catches that error.
LONGEST_S, AGAIN_S, LONGEST_RUN_S = 120.0, 5.0, 1200.0
CLOCK = time.perf_counter
# Of a claim's several tests the outcome that stands last here decides.
OUTCOMES = {
    "skipped": "not checked",
    "passed": "holds",
    "failed": "FAILS",
}
VERDICTS = [*OUTCOMES.values()]

registry_once = functools.cache(
    load_registry
)  # reading it takes longer than most of the claims under a fault


class Run:
    """A pytest plugin that plants a fault for one run, gathers the tests' outcomes and saves time."""

    def __init__(self, planted: Fault, checks: Collection[str]) -> None:
        self.planted, self.checks, self.patch = planted, checks, pytest.MonkeyPatch()
        self.rows: dict[str, dict[str, str]] = {}

    def pytest_load_initial_conftests(self) -> None:
        """After the plugins named by options have started, and before conftest files and tests are imported."""
        self.patch.setattr(hooks, "load_registry", registry_once)
        if time.perf_counter is not CLOCK:
            replace(self.patch, CLOCK, time.perf_counter)
        self.planted.plant(self.patch)

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self) -> None:
        self.patch.undo()

    def checks_of(self, item: pytest.Item) -> set[str]:
        """The checks that a test belongs to: claims that it settles, or node ids."""
        claims = {claim for mark in item.iter_markers("claim") for claim in mark.args}
        names = {item.nodeid, item.nodeid.partition("[")[0]}
        return {check for check in self.checks if check in names} or claims

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed or report.when == "call" or report.skipped:
            row = {"verdict": OUTCOMES[report.outcome], "reason": message_of(report)}
            for check in self.checks_of(item):
                self.rows[check] = max(
                    self.rows.get(check, row), row, key=lambda row: VERDICTS.index(row["verdict"])
                )
        return report

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        checks = self.checks_of(item)
        if checks and all(self.rows.get(check, {}).get("verdict") == "FAILS" for check in checks):
            pytest.skip("each check that this test is part of has failed already")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        def end(*_: object) -> None:
            raise TimeoutError(f"with this fault planted the test takes more than {LONGEST_S:g} s")

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, LONGEST_S, AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @pytest.hookimpl(tryfirst=True)
    def pytest_benchmark_generate_machine_info(self) -> dict[str, Any]:
        return {}  # pytest-benchmark's own starts a score of processes to describe the CPU

    @pytest.hookimpl(tryfirst=True)
    def pytest_benchmark_generate_commit_info(self) -> dict[str, Any]:
        return {}


def message_of(report: pytest.TestReport) -> str:
    """What a failure or a skip says, without the source around it."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr or "")


def forget_tests() -> None:
    """Has the next run import the tests again, over what is patched then."""
    for name in [*sys.modules]:
        package, _, module = name.rpartition(".")
        of_bench = package == "bench" and (module == "conftest" or module.startswith("test_"))
        of_tests = name.startswith("meta_tests.") and not name.startswith("meta_tests.faults")
        if of_bench or of_tests or name.partition(".")[0] == "test_claims":
            del sys.modules[name]
            if package in sys.modules:  # `from package import module` looks here first
                vars(sys.modules[package]).pop(module, None)


def verdicts_under(
    planted: Fault, checks: Collection[str], traceback: str, attempt: int = 0
) -> dict[str, Any]:
    """The verdict of each of `checks` under the fault, and what the runs of pytest printed."""
    tests = [check for check in checks if "::" in check]
    claims = [check for check in checks if check not in tests]
    if tests and claims:
        one, other = (verdicts_under(planted, each, traceback, attempt) for each in (claims, tests))
        return {"rows": one["rows"] | other["rows"], "output": one["output"] + other["output"]}
    forget_tests()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*tests, *shlex.split(planted.options), "-q", f"--tb={traceback}"]
        arguments += (
            [str(ROOT / "test_claims"), *(f"--claim={claim}" for claim in claims)] if claims else []
        )
        # Few examples first; a user's run has as many as the later attempts. A seed repeats a run; yet examples also
        # depend on the modules loaded, from which hypothesis takes constants, and so on the faults that ran before.
        profile = "faults-default" if attempt else "faults-quick"
        arguments += [f"--hypothesis-profile={profile}", f"--hypothesis-seed={attempt}"]
        arguments += ["--report", folder, "-o", f"gate_history={folder}/history"]
        # The second one collects garbage for half a second at the end of each run.
        arguments += [
            "-p",
            "no:cacheprovider",
            "-p",
            "no:unraisableexception",
            "--disable-warnings",
        ]
        output, run = io.StringIO(), Run(planted, tests)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            faulthandler.dump_traceback_later(LONGEST_RUN_S, exit=True, file=sys.__stderr__)
            try:
                pytest.main(arguments, plugins=[run])
            except Exception:  # the fault cannot be planted, because it patches a name that is gone
                output.write(format_exc())
            finally:
                run.patch.undo()
                faulthandler.cancel_dump_traceback_later()
        file = Path(folder) / "partial" / "verdicts.json"
        if claims and file.exists():
            run.rows = {row["id"]: row for row in json.loads(file.read_text())["claims"]}
    return {
        "rows": {check: row for check, row in run.rows.items() if check in checks},
        "output": output.getvalue(),
    }


@functools.cache
def healthy(checks: tuple[str, ...], options: str) -> dict[str, Any]:
    """The verdicts with nothing planted."""
    return verdicts_under(Fault("", "", (), lambda patch: None, options), checks, "line")


def why_not_passed(planted: Fault) -> tuple[str, str]:
    """Of the tests that a fault names: what prevents them here with nothing planted, and what fails in them."""
    lacking, failing = [], []
    for test in [check for check in planted.noticed_by if "::" in check]:
        run = healthy((test,), planted.options)
        row = run["rows"].get(
            test, {"verdict": "FAILS", "reason": f"does not run:\n{run['output']}"}
        )
        if row["verdict"] != "holds":
            (lacking if row["verdict"] == "not checked" else failing).append(
                f"{test}: {row['reason']}"
            )
    return "; ".join(lacking), "; ".join(failing)


def lacking_here(planted: Fault, rows: dict[str, Any], unnoticed: list[str]) -> str:
    """Why none of these claims can be checked here, with or without the fault; empty where a healthy run checks one."""
    if any(rows.get(claim, {}).get("verdict") != "not checked" for claim in unnoticed):
        return ""
    unplanted = healthy(tuple(unnoticed), planted.options)["rows"]
    reasons = {claim: rows[claim]["reason"] for claim in unnoticed}
    same = all(
        unplanted.get(claim, {}).get("reason") == reason for claim, reason in reasons.items()
    )
    return "; ".join(dict.fromkeys(reasons.values())) if same else ""


def result_of(planted: Fault, traceback: str) -> dict[str, Any]:
    """Which checks did not notice a fault, and what excuses them; runs again where noise hides it."""
    result = {"topic": planted.topic, "fault": planted.name, "unnoticed": list(planted.noticed_by)}
    hidden, failing = why_not_passed(planted)
    if hidden or failing:
        return result | {
            "hidden": hidden,
            "output": f"with nothing planted: {failing}" if failing else "",
        }
    for attempt in range(TRIES):
        run = verdicts_under(planted, planted.noticed_by, traceback, attempt)
        rows = {
            check: run["rows"].get(check, {"verdict": "", "reason": ""})
            for check in planted.noticed_by
        }
        red = [check for check, row in rows.items() if row["verdict"] in RED]
        unnoticed = [
            check
            for check in rows
            if check not in red or not re.search(planted.saying, rows[check]["reason"])
        ]
        noisy = bool(unnoticed) and all(NOISE in rows[check]["reason"] for check in unnoticed)
        if not unnoticed:
            break
    hidden = (
        "this machine's noise"
        if noisy
        else lacking_here(planted, rows, unnoticed)
        if unnoticed
        else ""
    )
    return result | {"unnoticed": unnoticed, "hidden": hidden, "output": run["output"]}


def noticed_alone(claim: str, faults: list[Fault], traceback: str) -> tuple[str, str]:
    """Whether a claim turns red under one of its faults with only its tests selected, and which fault or why not."""
    missed, hidden = [], ""
    for planted in sorted(
        faults, key=lambda planted: len(planted.noticed_by)
    ):  # first what breaks little else
        result = result_of(dataclasses.replace(planted, noticed_by=(claim,)), traceback)
        if healthy((claim,), planted.options)["rows"].get(claim, {}).get("verdict") in RED:
            return "MISSED", "it is red with nothing planted"
        if not result["unnoticed"]:
            return "noticed", f"{planted.topic}: {planted.name}"
        hidden = hidden or result["hidden"]
        missed += [] if result["hidden"] else [planted.name]
    return (
        ("hidden", hidden)
        if hidden and not missed
        else ("MISSED", ", ".join(missed) or "no fault names it")
    )


def run_by_claim(faults: list[Fault], options: argparse.Namespace) -> bool:
    """Records the fault that each claim notices alone; where this machine cannot tell, an earlier record stays."""
    recorded = json.loads(NOTICED.read_text(encoding="utf-8"))
    missed = False
    for claim in registry_once(ROOT / "test_claims" / "registry").claims:
        # An operator that is broken wherever it is called turns red whatever claim's test happens to call it.
        of_claim = [
            planted
            for planted in faults
            if claim in planted.noticed_by and planted.topic != "operators"
        ]
        chosen = not options.topics or claim.partition(".")[0] in options.topics
        if not chosen or (options.fault and not of_claim):
            continue
        word, found = noticed_alone(claim, of_claim, "line")
        missed = missed or word == "MISSED"
        if word != "hidden":
            recorded.pop(claim, None)
        if word == "noticed":
            recorded[claim] = found
        print(f"{word:<10} {claim}: {found}", flush=True)
        NOTICED.write_text(json.dumps(recorded, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(with_counts(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return missed


def with_counts(page: str) -> str:
    """docs/claims.md with each count as registry, record and the page's own list of lesser claims make it."""
    recorded = json.loads(NOTICED.read_text(encoding="utf-8"))
    listed = set(re.findall(r"^\| `([\w.-]+)` \|", page, re.MULTILINE))
    rows, found = ("on record", "need a GPU", "less than deep", "not seen red", "deep"), []
    claims = registry_once(ROOT / "test_claims" / "registry").claims.values()
    for claim in claims:
        of_record, on_gpu = claim.on_record or claim.written == "slip", "cuda" in claim.needs
        reasons = (of_record, on_gpu, claim.id in listed, claim.id not in recorded, True)
        found.append(next(row for row, applies in zip(rows, reasons, strict=True) if applies))
    for row in rows:
        page = re.sub(
            rf"^(\| {row}\b[^|]*\|) \d+ \|", rf"\1 {found.count(row)} |", page, flags=re.MULTILINE
        )
    return re.sub(r"\bOf \d+ claims", f"Of {len(claims)} claims", page)


def register_hypothesis_profiles() -> None:
    """Examples are neither shrunk nor stored: a failure under a fault is no failure of the suite."""
    for pace, examples in hooks.EXAMPLES.items():
        hypothesis.settings.register_profile(
            f"faults-{pace}",
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
            suppress_health_check=[hypothesis.HealthCheck.too_slow],
        )


def import_all_but_tests() -> None:
    """A module that is first imported while a fault is planted would keep it."""
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            name = module.name.rpartition(".")[2]
            if name not in ("__main__", "conftest") and not name.startswith("test_"):
                importlib.import_module(module.name)


def chosen_faults() -> tuple[argparse.Namespace, list[Fault]]:
    """The options of the command line, and the faults that they choose."""
    parser = argparse.ArgumentParser(prog="python -m meta_tests.faults", description=__doc__)
    parser.add_argument(
        "topics", nargs="*", metavar="TOPIC", help=f"one of {', '.join(TOPICS)}; default: all"
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME",
        help="only this fault; may be repeated",
    )
    parser.add_argument(
        "--by-claim", action="store_true", help="run each claim of the topics alone; see above"
    )
    parser.add_argument(
        "--json", type=Path, help="append the result of each fault here, one line each"
    )
    parser.add_argument("-v", action="store_true", help="show what each run under a fault printed")
    options = parser.parse_args()
    for topic in options.topics or TOPICS:
        if topic not in TOPICS:
            parser.error(f"TOPIC must be one of {', '.join(TOPICS)}, got {topic!r}")
    for topic in (
        TOPICS if options.by_claim else options.topics or TOPICS
    ):  # faults of other topics break claims, too
        importlib.import_module(f"meta_tests.faults.{topic}")
    if unknown := set(options.fault) - {planted.name for planted in FAULTS}:
        parser.error(
            f"--fault: no fault of {', '.join(options.topics or ['any topic'])} is named {sorted(unknown)}"
        )
    return options, [
        planted for planted in FAULTS if not options.fault or planted.name in options.fault
    ]


def main() -> int:
    options, faults = chosen_faults()
    import_all_but_tests()
    register_hypothesis_profiles()
    if options.by_claim:
        return int(run_by_claim(faults, options))
    failed = False
    for planted in faults:
        result = result_of(planted, "short" if options.v else "line")
        unnoticed = result["unnoticed"] and not result["hidden"]
        failed = failed or bool(unnoticed)
        word = "UNNOTICED" if unnoticed else "hidden" if result["hidden"] else "noticed"
        print(
            f"{word:<10} {planted.topic}: {planted.name} {result['hidden'] or result['unnoticed'] or ''}",
            flush=True,
        )
        if options.v or unnoticed:
            print(result["output"])
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
