"""Runs the faults of the topics given: `python -m meta_tests.faults TOPIC [--json FILE]`; exit 1 if one goes unnoticed.

All faults of a run share one process (importing torch once): the claims' test modules are dropped from `sys.modules`
between runs, so that each run imports them again, over the patched modules.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import importlib
import io
import json
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import accounting
from meta_tests.faults import FAULTS, TOPICS, Fault
from prooflops.suite import plugin
from prooflops.suite.collection import claims_of
from prooflops.suite.registry import load_registry
from prooflops.suite.run import evidence_of
from prooflops.suite.verdicts import RED

ROOT = Path(__file__).resolve().parents[2]
TRIES = 3  # for a fault that a claim about speed must notice: on a busy machine noise can hide it
NOISE = "noise"
# A fault may have a test loop for ever: after the first time it ends with an error, which whoever catches that meets
# again after each of the second. A run that even this does not end takes all with it after the third.
LONGEST_S, AGAIN_S, LONGEST_RUN_S = 120.0, 5.0, 1200.0
NO_FAULT = Fault(topic="", name="nothing is planted", turns_red=(), plant=lambda patch: None)


registry_once = functools.cache(load_registry)  # reading it takes longer than most of the claims under a fault


class Shortcuts:
    """A pytest plugin that leaves out of a run under a fault what says nothing about the fault."""

    def __init__(self) -> None:
        self.red: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.red.update(evidence_of(report).claims)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        claims = set(claims_of(item))
        if claims and claims <= self.red:
            pytest.skip("each claim of this test is red already")

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


class RedTests:
    """A pytest plugin that gathers the tests that fail, as rows like those of claims."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.rows.append({"id": report.nodeid.partition("[")[0], "verdict": "FAILS", "reason": ""})


def forget_tests() -> None:
    """Has the next run import the tests again, over what is patched then."""
    rooms = ("meta_tests.accounting", "meta_tests.bench", "meta_tests.prooflops")
    for name in [*sys.modules]:
        if name.partition(".")[0] == "test_claims" or name.startswith(rooms):
            del sys.modules[name]


def verdicts_under(planted: Fault, claims: tuple[str, ...], traceback: str) -> dict[str, Any]:
    """The verdict of each of `claims` (which may be tests instead) under the fault, and what the run printed."""
    forget_tests()
    tests, red = [claim for claim in claims if "::" in claim], RedTests()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin, "load_registry", registry_once)
        planted.plant(patch)
        arguments = [*(tests or [str(ROOT / "test_claims")]), "-q", f"--tb={traceback}", "--hypothesis-profile=faults"]
        arguments += ["--hypothesis-seed=0"]  # so that whether a fault is noticed does not depend on chance
        arguments += [f"--claim={claim}" for claim in claims if not tests]
        arguments += ["--report", folder, "-o", f"gate_history={folder}/history"]
        # The second one collects garbage for half a second at the end of each run.
        arguments += ["-p", "no:cacheprovider", "-p", "no:unraisableexception"]
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            faulthandler.dump_traceback_later(LONGEST_RUN_S, exit=True, file=sys.__stderr__)
            code = pytest.main(arguments, plugins=[Shortcuts(), red])
            faulthandler.cancel_dump_traceback_later()
        file = Path(folder) / "partial" / "verdicts.json"
        rows = json.loads(file.read_text())["claims"] if file.exists() and not tests else red.rows
    return {"exit": int(code), "rows": {row["id"]: row for row in rows}, "output": output.getvalue()}


def lacking_here(run: dict[str, Any], unnoticed: list[str]) -> str:
    """Why none of these claims can be checked here, with or without the fault; empty where a healthy run checks one."""
    if any(run["rows"].get(claim, {}).get("verdict") != "not checked" for claim in unnoticed):
        return ""
    healthy = verdicts_under(NO_FAULT, tuple(unnoticed), "line")["rows"]
    reasons = {claim: run["rows"][claim]["reason"] for claim in unnoticed}
    same = all(healthy.get(claim, {}).get("reason") == reason for claim, reason in reasons.items())
    return "; ".join(dict.fromkeys(reasons.values())) if same else ""


def result_of(planted: Fault, traceback: str) -> dict[str, Any]:
    """The run with a fault planted, again where noise hides it: which claims did not notice, and what excuses them."""
    for _ in range(TRIES):
        run = verdicts_under(planted, planted.turns_red, traceback)
        unnoticed = [claim for claim in planted.turns_red if run["rows"].get(claim, {}).get("verdict") not in RED]
        noisy = bool(unnoticed) and all(NOISE in run["rows"].get(claim, {}).get("reason", "") for claim in unnoticed)
        if not noisy:
            break
    lacking = lacking_here(run, unnoticed) if unnoticed and not noisy else ""
    hidden = noisy or bool(lacking)
    return {"topic": planted.topic, "fault": planted.name, "unnoticed": unnoticed, "hidden": hidden, **run} | (
        {"lacking": lacking} if lacking else {}
    )


def register_hypothesis_profile() -> None:
    """Few examples, neither shrunk nor stored: a failure under a fault is no failure of the suite."""
    hypothesis.settings.register_profile(
        "faults",
        max_examples=plugin.EXAMPLES["quick"],
        deadline=None,
        database=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m meta_tests.faults", description=__doc__)
    topics = [*TOPICS, "generated"]
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"one of {', '.join(topics)}; default: all")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME", help="only this fault; may be repeated")
    parser.add_argument("--json", type=Path, help="append the result of each fault here, one line each")
    parser.add_argument("-v", action="store_true", help="show what each run under a fault printed")
    options = parser.parse_args()
    for topic in options.topics or topics:
        if topic not in topics:
            parser.error(f"TOPIC must be one of {', '.join(topics)}, got {topic!r}")
        importlib.import_module(f"meta_tests.faults.{topic}")
    if unknown := set(options.fault) - {planted.name for planted in FAULTS}:
        parser.error(f"--fault: no fault of {', '.join(options.topics or ['any topic'])} is named {sorted(unknown)}")
    for module in (*(f"accounting.{name}" for name in accounting.__all__), "bench.models"):
        importlib.import_module(module)  # one first imported while a fault is planted would keep it
    register_hypothesis_profile()
    failed = False
    for planted in FAULTS:
        if options.fault and planted.name not in options.fault:
            continue
        result = result_of(planted, "short" if options.v else "line")
        unnoticed = result["unnoticed"] and not result["hidden"]
        failed = failed or bool(unnoticed)
        excuse = "lacking here" if result.get("lacking") else "hidden by noise"
        word = "UNNOTICED" if unnoticed else excuse if result["unnoticed"] else "noticed"
        print(f"{word:<15} {planted.topic}: {planted.name} {result['unnoticed'] or ''}", flush=True)
        if options.v or unnoticed:
            print(result["output"])
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
