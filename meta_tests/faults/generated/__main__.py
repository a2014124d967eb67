"""Looks for the claims that notice the generated faults: `python -m meta_tests.faults.generated [WORD ...]`.

One run of pytest notes which operators each claim's test calls. A second one runs each test once more for each fault of
an operator that it calls, with the fault planted, until a claim has noticed that fault: those of claims about
values first. A test notices a fault where it is red, and green with a stand-in that changes nothing. Prints the lines
for `recorded/generated_faults.txt`: of the faults with one of the words in their names, or else of those without one.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pkgutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.runner import runtestprotocol

from meta_tests.faults.__main__ import ROOT, register_hypothesis_profile
from meta_tests.faults.generated import CELLS, operators, optimizers, recorded
from prooflops.suite.run import evidence_of

ENOUGH, MOST_TESTS, MOST_S, LONGEST_S = 1, 30, 6.0, 20  # claims; of a fault the tests and seconds, and of a test
# The topics whose claims compare values; the others' speak more of FLOPs, bytes and time.
VALUES = "module grad optim quant rand init matmul storage tensor dtype accum loop amp data".split()
Known = dict[str, dict[str, Any]]


class Calls:
    """A pytest plugin that notes which operators each test calls, and its time."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self.tests: Known = {}
        targets = {name: names.split() for name, (_, names) in operators.OPERATORS.items()}
        targets |= {name: [f"torch.optim.{name}.step"] for name in optimizers.OPTIMIZERS}
        for name, paths in targets.items():
            for path in paths:
                owner = pkgutil.resolve_name(path.rpartition(".")[0])
                attribute = path.rpartition(".")[2]
                setattr(owner, attribute, self.noting(name, getattr(owner, attribute)))

    def noting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.called.add(name)
            return original(*args, **kwargs)

        return call

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.called.clear()
        start = time.process_time()
        result = yield
        self.tests[item.nodeid] = {"time": time.process_time() - start, "calls": sorted(self.called)}
        return result


class Search:
    """A pytest plugin that runs each test under the faults of the operators that it calls."""

    def __init__(self, known: Known, wanted: list[str], file: Path) -> None:
        self.known, self.wanted, self.file = known, wanted, file
        self.noticed: dict[str, list[str]] = {name: [] for name in wanted}
        self.tried: defaultdict[str, set[str]] = defaultdict(set)
        self.spent_s: defaultdict[str, float] = defaultdict(float)

    def cost(self, item: pytest.Item) -> float:
        facts = self.known[item.nodeid]
        topic = item.path.stem.removeprefix("test_")
        return facts["time"] + 0.03 * (VALUES.index(topic) if topic in VALUES else 2 * len(VALUES))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        called = {name.partition(" ")[0] for name in self.wanted}
        items[:] = [item for item in items if called & set(self.known.get(item.nodeid, {"calls": ()})["calls"])]
        items.sort(key=self.cost)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        facts, controls = self.known[item.nodeid], {}
        for name in [name for name in self.wanted if name.partition(" ")[0] in facts["calls"]]:
            if len(self.noticed[name]) >= ENOUGH or len(self.tried[name]) >= MOST_TESTS or self.spent_s[name] > MOST_S:
                continue
            if (function := item.nodeid.partition("[")[0]) in self.tried[name]:
                continue  # with other parameters it would hardly notice more
            self.tried[name].add(function)
            start = time.process_time()
            if claims := self.red(item, CELLS[name]):
                kind = (
                    name.partition(" ")[0],
                    name.endswith("gradient"),
                    name.partition(" ")[2] in ("value", "element"),
                )
                if kind not in controls:
                    controls[kind] = self.red(item, functools.partial(CELLS[name], control=True))
                if not controls[kind]:
                    self.noticed[name] += [claim for claim in claims if claim not in self.noticed[name]]
                    with open(self.file, "a", encoding="utf-8") as found:
                        found.write(json.dumps([name, claims, item.nodeid]) + "\n")
            self.spent_s[name] += time.process_time() - start
        return True

    def red(self, item: pytest.Item, plant: Callable[[pytest.MonkeyPatch], None]) -> list[str]:
        """The claims of this test, if it is red with something planted."""
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            item._initrequest()  # type: ignore[attr-defined]
            signal.alarm(LONGEST_S)
            try:
                reports = runtestprotocol(item, log=False, nextitem=item.session)  # type: ignore[arg-type]
            finally:
                signal.alarm(0)
        return [claim for report in reports if report.failed for claim in evidence_of(report).claims]


def run(plugin: object, folder: str) -> None:
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "--hypothesis-seed=0"]
    options += ["--hypothesis-profile=faults", "--report", folder, "-o", f"gate_history={folder}"]
    pytest.main([*options, str(ROOT / "test_claims")], plugins=[plugin])


def in_fork(act: Callable[[], None]) -> None:
    """Runs something in a fork, silent, from which a crash of torch does not spread."""
    if not (child := os.fork()):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        signal.signal(signal.SIGALRM, too_long)
        act()
        os._exit(0)
    os.waitpid(child, 0)


def too_long(*_: object) -> None:
    pytest.skip(f"the test takes more than {LONGEST_S} s, which says nothing about the fault")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m meta_tests.faults.generated", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="of the names of faults to look up again")
    parser.add_argument("--map", type=Path, help="keep here which operators each test calls, or take it from here")
    options = parser.parse_args()
    register_hypothesis_profile()
    wanted = [name for name in CELLS if not options.words and name not in recorded()]
    wanted += [name for name in CELLS if any(word in name for word in options.words)]
    with tempfile.TemporaryDirectory() as folder:
        calls = options.map or Path(folder, "calls.json")
        found = Path(folder, "found.jsonl")

        def note() -> None:
            plugin = Calls()
            run(plugin, folder)
            calls.write_text(json.dumps(plugin.tests))

        if not calls.exists():
            in_fork(note)
        found.touch()
        in_fork(lambda: run(Search(json.loads(calls.read_text()), wanted, found), folder))
        noticed: defaultdict[str, list[str]] = defaultdict(list)
        for name, claims, _test in map(json.loads, found.read_text().splitlines()):
            noticed[name] += [claim for claim in claims if claim not in noticed[name]]
    for name in wanted:
        print(f"{name}: {' '.join(noticed[name])}")
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
