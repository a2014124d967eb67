"""Runs the faults of the topics given; exit 1 if one goes unnoticed.

    python -m meta_tests.faults TOPIC

All faults of a run share one process, which imports torch once: each run of the checks drops the
tests from `sys.modules`, so that they are imported again over what is patched then.
"""

import argparse
import contextlib
import dataclasses
import faulthandler
import functools
import importlib
import io
import pkgutil
import re
import shlex
import signal
import sys
import time
from pathlib import Path
from traceback import format_exc

import hypothesis
import pytest

from meta_tests.faults import FAULTS, PACKAGES, TOPICS, replace
from prooflops.suite import hooks
from prooflops.suite.evidence import conclusion, results
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
TESTS = re.compile(r"test_claims|meta_tests\.(?!faults)|bench\.(conftest$|test_)")
# The last of these that a claim's tests have decides the claim.
OUTCOMES = {"skipped": "not checked", "passed": "holds", "failed": "FAILS"}
VERDICTS = [*OUTCOMES.values()]
# The verdict and the reason of a check that had none.
MISSING = "", ""


@functools.cache
def registry():
    """Reading it takes longer than most of the claims under a fault."""
    return load_registry(ROOT / "test_claims" / "registry")


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
        self.patch.setattr(conclusion, "conclude", self.conclude)
        if time.perf_counter is not CLOCK:
            replace(self.patch, CLOCK, time.perf_counter)
        self.planted.plant(self.patch)

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self):
        self.patch.undo()

    def conclude(self, _session, rows, registry):
        """Keeps the verdicts of claims, where a run writes its record and pages."""
        # Where checks are tests, not all of a claim's run: their own outcomes count.
        if not any("::" in check for check in self.checks):
            found = results.verdicts(rows, registry)
            self.rows = {each.id: (each.verdict, each.reason) for each in found}

    def checks_of(self, item):
        """The checks asked for that a test belongs to: node ids, or claims that it settles."""
        names = {item.nodeid, item.nodeid.partition("[")[0]}
        claims = {claim for mark in item.iter_markers("claim") for claim in mark.args}
        return (names | claims).intersection(self.checks)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        report = yield
        if report.when == "call" or report.outcome != "passed":
            row = OUTCOMES[report.outcome], message_of(report)
            for check in self.checks_of(item):
                self.rows[check] = max(row, self.rows.get(check, row), key=rank_of)
        return report

    def pytest_runtest_setup(self, item):
        rows = [self.rows.get(check, MISSING) for check in self.checks_of(item)]
        if rows and all(verdict == "FAILS" for verdict, _ in rows):
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


def rank_of(row):
    return VERDICTS.index(row[0])


def message_of(report):
    """What a failure or a skip says, without the source around it."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr or "")


def forget_tests():
    """Has the next run import the tests again, over what is patched then."""
    for name in filter(TESTS.match, [*sys.modules]):
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
        "--tb=short",
        "--disable-warnings",
        *("-p", "no:cacheprovider"),
        # It collects garbage for half a second at the end of each run.
        *("-p", "no:unraisableexception"),
    ]


def verdicts_under(planted, checks, attempt=0):
    """The verdict and reason of each check under the fault, and what pytest printed."""
    forget_tests()
    output = io.StringIO()
    run = Run(planted, checks)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        stack.callback(faulthandler.cancel_dump_traceback_later)
        stack.callback(run.patch.undo)
        faulthandler.dump_traceback_later(LONGEST_RUN_S, exit=True, file=sys.__stderr__)
        try:
            pytest.main(arguments_of(planted, checks, attempt), plugins=[run])
        except Exception:
            # The fault cannot be planted, because it patches a name that is gone.
            output.write(format_exc())
    return {check: run.rows.get(check, MISSING) for check in checks}, output.getvalue()


def why_hidden(planted, unnoticed):
    """Why this machine cannot tell whether these checks notice the fault; empty if it can."""
    verdicts, reasons = zip(*unnoticed.values(), strict=True)
    if all(NOISE in reason for reason in reasons):
        return "this machine's noise"
    if {*verdicts} != {"not checked"}:
        return ""
    nothing = dataclasses.replace(planted, plant=lambda patch: None)
    without_it, _ = verdicts_under(nothing, unnoticed)
    return "; ".join(dict.fromkeys(reasons)) if without_it == unnoticed else ""


def result_of(planted):
    """The verdict on a fault, and why.

    Its checks run again where noise or few examples hide it.
    """
    for attempt in range(TRIES):
        rows, output = verdicts_under(planted, planted.noticed_by, attempt)
        unnoticed = {
            check: (verdict, reason)
            for check, (verdict, reason) in rows.items()
            if verdict not in RED or not re.search(planted.saying, reason)
        }
        if not unnoticed:
            return "noticed", ""
    if hidden := why_hidden(planted, unnoticed):
        return "hidden", f"by {hidden} from {' '.join(unnoticed)}"
    return "UNNOTICED", f"by {' '.join(unnoticed)}\n{output}"


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


def chosen():
    """The faults that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m meta_tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    topics = f"{', '.join(TOPICS)}; default: all"
    parser.add_argument("topics", nargs="*", default=TOPICS, metavar="TOPIC", help=topics)
    parser.add_argument("--fault", action="append", metavar="NAME", help="only this; repeatable")
    options = parser.parse_args()
    for topic in options.topics:
        importlib.import_module(f"meta_tests.faults.{topic}")
    if options.fault is None:
        return FAULTS
    if unknown := {*options.fault} - {planted.name for planted in FAULTS}:
        parser.error(f"--fault: no fault of these topics is named {sorted(unknown)}")
    return [planted for planted in FAULTS if planted.name in options.fault]


def main():
    faults = chosen()
    import_all_but_tests()
    register_hypothesis_profiles()
    failed = False
    for planted in faults:
        word, why = result_of(planted)
        failed = failed or word == "UNNOTICED"
        print(f"{word} {planted.topic} {planted.name} {why}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
