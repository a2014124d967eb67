"""Runs the faults of the topics given; exit 1 if one goes unnoticed.

    python -m meta_tests.faults TOPIC [--json FILE]

All faults of a run share one process, which imports torch once: each run of the checks drops the
tests from `sys.modules`, so that they are imported again over what is patched then.
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
from pathlib import Path
from traceback import format_exc

import hypothesis
import pytest

from meta_tests.faults import FAULTS, PACKAGES, TOPICS, Fault, replace
from prooflops.suite import hooks
from prooflops.suite.registry import load_registry
from prooflops.suite.verdicts import RED

ROOT = Path(__file__).resolve().parents[2]
# Noise of a busy machine can hide a fault from a claim about speed, and few examples from a
# property.
TRIES = 3
NOISE = "noise"
# A test that loops for ever under a fault ends with an error, again and again where something
# catches that error.
LONGEST_TEST_S = 120.0
AGAIN_S = 5.0
LONGEST_RUN_S = 1200.0
CLOCK = time.perf_counter
# The last of these that a claim's tests have decides the claim.
OUTCOMES = {"skipped": "not checked", "passed": "holds", "failed": "FAILS"}
VERDICTS = [*OUTCOMES.values()]


@functools.cache
def registry():
    """Reading it takes longer than most of the claims under a fault."""
    return load_registry(ROOT / "test_claims" / "registry")


@dataclasses.dataclass
class Result:
    """Which checks did not notice a fault, what excuses them on this machine, what was printed."""

    topic: str
    fault: str
    unnoticed: list[str]
    hidden: str
    output: str


class Run:
    """A pytest plugin that plants a fault for one run and gathers the tests' outcomes."""

    def __init__(self, planted, checks):
        self.planted = planted
        self.checks = checks
        self.patch = pytest.MonkeyPatch()
        self.rows = {}

    def pytest_load_initial_conftests(self):
        """After the plugins of the options, and before conftest files and tests are imported."""
        self.patch.setattr(hooks, "load_registry", lambda _: registry())
        if time.perf_counter is not CLOCK:
            replace(self.patch, CLOCK, time.perf_counter)
        self.planted.plant(self.patch)

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self):
        self.patch.undo()

    def checks_of(self, item):
        """The checks asked for that a test belongs to: node ids, or claims that it settles."""
        names = {item.nodeid, item.nodeid.partition("[")[0]}
        claims = {claim for mark in item.iter_markers("claim") for claim in mark.args}
        return (names | claims).intersection(self.checks)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        report = yield
        if report.when == "call" or report.outcome != "passed":
            row = {"verdict": OUTCOMES[report.outcome], "reason": message_of(report)}
            for check in self.checks_of(item):
                before = self.rows.get(check, row)
                if VERDICTS.index(before["verdict"]) <= VERDICTS.index(row["verdict"]):
                    self.rows[check] = row
        return report

    def pytest_runtest_setup(self, item):
        rows = [self.rows.get(check, {}) for check in self.checks_of(item)]
        if rows and all(row.get("verdict") == "FAILS" for row in rows):
            pytest.skip("each check that this test is part of has failed already")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self):
        def end(*_):
            raise TimeoutError(f"under this fault the test takes more than {LONGEST_TEST_S:g} s")

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, LONGEST_TEST_S, AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @pytest.hookimpl(tryfirst=True)
    def pytest_benchmark_generate_machine_info(self):
        """pytest-benchmark's own starts a score of processes to describe the CPU."""
        return {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_benchmark_generate_commit_info(self):
        return {}


def message_of(report):
    """What a failure or a skip says, without the source around it."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr or "")


def is_test_module(name):
    package, _, module = name.rpartition(".")
    if package == "bench":
        return module == "conftest" or module.startswith("test_")
    is_of_faults = name.startswith("meta_tests.faults")
    return name.startswith(("test_claims", "meta_tests.")) and not is_of_faults


def forget_tests():
    """Has the next run import the tests again, over what is patched then."""
    for name in filter(is_test_module, [*sys.modules]):
        del sys.modules[name]
        package, _, module = name.rpartition(".")
        # `from package import module` looks here first.
        if package in sys.modules:
            vars(sys.modules[package]).pop(module, None)


def arguments_of(planted, checks, attempt):
    """The command line of the run of pytest that checks: tests, or claims."""
    selected = [*checks]
    if "::" not in selected[0]:
        selected = [str(ROOT / "test_claims"), *(f"--claim={claim}" for claim in checks)]
    # Few examples first; a user's run has as many as the later attempts. A seed repeats a run; yet
    # examples also depend on the modules loaded, from which hypothesis takes constants, and so on
    # the faults that ran before.
    profile = "faults-default" if attempt else "faults-quick"
    return [
        *selected,
        *shlex.split(planted.options),
        "-q",
        f"--hypothesis-profile={profile}",
        f"--hypothesis-seed={attempt}",
        "--disable-warnings",
        *("-p", "no:cacheprovider"),
        # It collects garbage for half a second at the end of each run.
        *("-p", "no:unraisableexception"),
    ]


def verdicts_under(planted, checks, traceback="line", attempt=0):
    """The verdict of each check under the fault, and what the run of pytest printed."""
    forget_tests()
    output = io.StringIO()
    run = Run(planted, checks)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        stack.callback(faulthandler.cancel_dump_traceback_later)
        stack.callback(run.patch.undo)
        faulthandler.dump_traceback_later(LONGEST_RUN_S, exit=True, file=sys.__stderr__)
        own = [f"--tb={traceback}", "--report", folder, "-o", f"gate_history={folder}/history"]
        try:
            pytest.main([*arguments_of(planted, checks, attempt), *own], plugins=[run])
        except Exception:
            # The fault cannot be planted, because it patches a name that is gone.
            output.write(format_exc())
        file = Path(folder) / "partial" / "verdicts.json"
        # Where tests ran, not all of a claim's did: their own outcomes count.
        if file.exists() and not any("::" in check for check in checks):
            run.rows = {row["id"]: row for row in json.loads(file.read_text())["claims"]}
    missing = {"verdict": "", "reason": ""}
    return {check: run.rows.get(check, missing) for check in checks}, output.getvalue()


@functools.cache
def healthy(checks, options):
    """The verdicts with nothing planted."""
    return verdicts_under(Fault("", "", (), lambda patch: None, options), checks)[0]


def is_noticed(row, saying):
    return row["verdict"] in RED and bool(re.search(saying, row["reason"]))


def why_hidden(planted, unnoticed):
    """Why this machine cannot tell whether these checks notice the fault; empty if it can."""
    reasons = dict.fromkeys(row["reason"] for row in unnoticed.values())
    if all(NOISE in reason for reason in reasons):
        return "this machine's noise"
    if any(row["verdict"] != "not checked" for row in unnoticed.values()):
        return ""
    unplanted = healthy(tuple(unnoticed), planted.options)
    if any(unplanted[check]["reason"] != row["reason"] for check, row in unnoticed.items()):
        return ""
    return "; ".join(reasons)


def result_of(planted, traceback):
    """Runs the checks of a fault, again where noise or few examples hide it."""
    unnoticed = {}
    output = ""
    for attempt in range(TRIES):
        rows, output = verdicts_under(planted, planted.noticed_by, traceback, attempt)
        unnoticed = {
            check: row for check, row in rows.items() if not is_noticed(row, planted.saying)
        }
        if not unnoticed:
            break
    hidden = why_hidden(planted, unnoticed) if unnoticed else ""
    return Result(planted.topic, planted.name, [*unnoticed], hidden, output)


def register_hypothesis_profiles():
    """Examples are neither shrunk nor stored: a failure under a fault is none of the suite."""
    for pace, examples in hooks.EXAMPLES.items():
        hypothesis.settings.register_profile(
            f"faults-{pace}",
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
            suppress_health_check=[hypothesis.HealthCheck.too_slow],
        )


def import_all_but_tests():
    """A module that is first imported while a fault is planted would keep it."""
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            name = module.name.rpartition(".")[2]
            if name not in ("__main__", "conftest") and not name.startswith("test_"):
                importlib.import_module(module.name)


def parsed():
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m meta_tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("topics", nargs="*", metavar="TOPIC", help=f"{', '.join(TOPICS)}; default: all")
    add("--fault", action="append", default=[], metavar="NAME", help="only this; may be repeated")
    add("--json", type=Path, help="append the result of each fault here, one line each")
    add("-v", action="store_true", help="show what each run under a fault printed")
    options = parser.parse_args()
    for topic in options.topics:
        if topic not in TOPICS:
            parser.error(f"TOPIC must be one of {', '.join(TOPICS)}, got {topic!r}")
    for topic in options.topics or TOPICS:
        importlib.import_module(f"meta_tests.faults.{topic}")
    if unknown := {*options.fault} - {planted.name for planted in FAULTS}:
        parser.error(f"--fault: no fault of these topics is named {sorted(unknown)}")
    return options


def main():
    options = parsed()
    faults = [each for each in FAULTS if not options.fault or each.name in options.fault]
    import_all_but_tests()
    register_hypothesis_profiles()
    failed = False
    for planted in faults:
        result = result_of(planted, "short" if options.v else "line")
        word = "noticed"
        if result.unnoticed:
            word = "hidden" if result.hidden else "UNNOTICED"
        failed = failed or word == "UNNOTICED"
        rest = result.hidden or " ".join(result.unnoticed)
        print(f"{word:<10} {planted.topic}: {planted.name} {rest}", flush=True)
        if options.v or word == "UNNOTICED":
            print(result.output)
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(result)) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
