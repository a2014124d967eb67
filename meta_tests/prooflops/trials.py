"""Kills runs at random moments, and has them run where little works: what was measured is there afterwards.

    python -m meta_tests.prooflops.trials [--kills N] [--record] [claims | baseline | gate | evidence | conditions |
        machine ...]

Of each kind of run (of the claims, of the gate, a collection of evidence) one ends undisturbed and is kept; then others
get SIGINT or SIGKILL at a random moment. Afterwards every record is whole or says that it is a part, the report is that
of a whole run, and no claim holds of which a test had not ended. `machine` kills `make evidence` of this machine, of
which only the running test is lost, and lets one more call end it. `--record` keeps in recorded/trials.txt what each
trial showed when it ends, in place of what it showed before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from meta_tests.conftest import ROOT, child_environment, new_house
from meta_tests.prooflops.gate.foreign_repo import INI, PLUGINS, QUICK, import_path, run_git, worktrees
from prooflops.history import records
from prooflops.suite.evidence.folder import Folder
from prooflops.suite.evidence.page import RED_STATUS

RECORDED = ROOT / "meta_tests" / "recorded" / "trials.txt"
CLAIMS, PARTS = 4, 3
TEST = """
@pytest.mark.claim("demo.c{n}")
@pytest.mark.parametrize("part", range({parts}))
def test_c{n}(part):
    import pathlib, time
    time.sleep(0.05)
    pathlib.Path("ended", "c{n}-" + str(part)).touch()
"""
# What it decides is not the question here, on a machine however busy.
GATE = ("--gate", "--gate-versus=HEAD", "--gate-min-effect=90%", "--gate-allow-inconclusive")
SPACED = "a folder with ümlauts"
GIB = 2**30
KINDS = ("claims", "baseline", "gate", "evidence")
MACHINE = "make evidence"
AT_WORK_S = (30, 120)  # a kill of it comes after so long, whatever is running
Say = Callable[[str], object]
UNHARMED = "nothing lost, broken or called whole"


def limited(kind: int, most: int) -> Callable[[], None]:
    """For a child: a limit on what it may have of one resource."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(kind, (most, most))

    return limit


# Where little works: variables, a limit, and what the run says besides its verdicts; and its exit code.
CONDITIONS: dict[str, tuple[Mapping[str, str], Callable[[], None] | None, str, int]] = {
    "undisturbed": ({}, None, "", 0),
    "no HOME": ({"HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent", "USER": ""}, None, "", 0),
    "another locale": ({"LC_ALL": "C", "LANG": "tr_TR.UTF-8", "PYTHONUTF8": "0"}, None, "", 0),
    "another time zone": ({"TZ": "Asia/Kathmandu"}, None, "", 0),
    "2 GiB of data": ({}, limited(resource.RLIMIT_DATA, 2 * GIB), "", 0),
    "no file above 2 kB": ({}, limited(resource.RLIMIT_FSIZE, 2000), "could not be", 1),
    "a report folder that cannot be written": ({"REPORT": "/dev/null/reports"}, None, "could not be written", 1),
}


class Trials:
    """The claims of a small house, a foreign repository with the gate, and evidence of the house, in one folder."""

    def __init__(self, root: Path, seed: str) -> None:
        (root / SPACED).mkdir()
        self.house = new_house(root / SPACED / "house")
        for n in range(CLAIMS):
            self.house.claim(f"demo.c{n}")
            self.house.test(TEST.format(n=n, parts=PARTS))
        self.ended = self.house.root / "ended"
        self.ended.mkdir()
        self.repo = root / SPACED / "repo"
        shutil.copytree(ROOT / "meta_tests" / "foreign", self.repo, ignore=shutil.ignore_patterns("__pycache__"))
        (self.repo / "pytest.ini").write_text(INI)
        (self.repo / ".gitignore").write_text("__pycache__\n.prooflops\n")
        (self.repo.parent / "path").mkdir()
        (self.repo.parent / "path" / "quick_plan.py").write_text(QUICK)
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
            run_git(self.repo, *words)
        work = self.repo / "work.py"
        work.write_text(f"{work.read_text(encoding='utf-8')}# one side of two\n", encoding="utf-8")
        self.chance = random.Random(seed)

    def start(self, kind: str, limit: Callable[[], None] | None = None, **variables: str) -> subprocess.Popen[str]:
        """A run of this kind, on its way."""
        report, evidence = variables.pop("REPORT", "reports"), str(self.house.root / "results" / "here")
        quiet = ["-m", "pytest", "-p", "no:cacheprovider", "-q"]
        path = import_path(self.repo)
        folder, path, words = {
            "claims": (self.house.root, "", [*quiet, f"--report={report}", "--gate-record=main"]),
            "gate": (self.repo, path, [*quiet, *PLUGINS, *GATE]),
            "baseline": (self.repo, path, [*quiet, *PLUGINS, "--gate-record=main", "--gate-replicates=3"]),
            "evidence": (self.house.root, "", ["-m", "prooflops.suite.evidence", "--into", evidence, "--device=cpu"]),
        }[kind]  # fmt: skip

        def before() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a shell has its jobs ignore
            if limit:
                limit()

        return subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=child_environment(path, **variables), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=before,  # noqa: PLW1509  # no other threads
        )  # fmt: skip

    def whole(
        self, kind: str, code: int = 0, limit: Callable[[], None] | None = None, **variables: str
    ) -> tuple[str, float]:
        """A run of this kind that is left alone: its output, and how long it took."""
        self.forget()
        began = time.monotonic()
        run = self.start(kind, limit, **variables)
        output = run.communicate(timeout=600)[0]
        assert run.returncode == code, f"{kind} ended with {run.returncode}, but should with {code}:\n{output}"
        assert "INTERNALERROR" not in output, output
        return output, time.monotonic() - began

    def killed(self, kind: str, number: signal.Signals, took_s: float) -> bool:
        """Whether a run of this kind was still at work when it got the signal."""
        self.forget()
        if self.every_test() <= self.evidence().keys():  # one call more would have nothing to do
            shutil.rmtree(self.house.root / "results")
        before = set(self.evidence())
        run = self.start(kind)
        time.sleep(self.chance.uniform(0.0, took_s))
        at_work = run.poll() is None
        run.send_signal(number)
        output = run.communicate(timeout=600)[0]
        if at_work and number == signal.SIGINT and run.returncode == 0:
            at_work = False  # all had been measured and stored by then
        assert "INTERNALERROR" not in output, output
        assert before <= set(self.evidence()), "evidence of tests that had ended is gone"
        self.check()
        return at_work

    def forget(self) -> None:
        """Forgets which tests have ended."""
        for file in self.ended.iterdir():
            file.unlink()
        shutil.rmtree(self.house.root / "reports" / "partial", ignore_errors=True)

    def evidence(self) -> Mapping[str, Any]:
        return Folder(self.house.root / "results" / "here").ended()

    def every_test(self) -> set[str]:
        return {f"test_claims/test_demo.py::test_c{n}[{part}]" for n in range(CLAIMS) for part in range(PARTS)}

    def check(self) -> None:
        """Raises AssertionError for what is lost, broken, or said to be whole and is not."""
        whole = {f"demo.c{n}": "holds" for n in range(CLAIMS)}
        reports = self.house.root / "reports"
        assert verdicts(reports / "verdicts.json") == whole, "the report is not that of a whole run"
        if (partial := reports / "partial" / "verdicts.json").exists():
            for claim, verdict in verdicts(partial).items():
                ended = len(list(self.ended.glob(f"{claim.removeprefix('demo.')}-*")))
                assert (verdict == "holds") <= (ended == PARTS), f"{claim} {verdict}, but {ended} of its tests ended"
        for root in (self.house.root, self.repo):
            folder = root / ".prooflops" / "history"
            found = records.summaries(folder, ())
            assert all(isinstance(each, records.Summary) for each in found), found
            if root == self.house.root:
                wrong = [each for each in found if not each.partial and dict(each.verdicts) != whole]  # type: ignore[union-attr]
                assert not wrong, f"records that are said to be whole and are not: {wrong}"
            for name in records.baselines(folder):
                assert records.baseline(folder, name, "", ())
        until = time.monotonic() + 20
        while worktrees(self.repo) > 1 and time.monotonic() < until:
            time.sleep(0.1)
        assert worktrees(self.repo) == 1, "the worktree of a killed gate is still there"


def verdicts(file: Path) -> dict[str, str]:
    return {row["id"]: row["verdict"] for row in json.loads(file.read_text(encoding="utf-8"))["claims"]}


def kill_runs(root: Path, kills: int, seed: str, kinds: Iterable[str] = KINDS, say: Say = print) -> dict[str, str]:
    """Kills so many runs of each kind. Returns by kind and signal how many were, of how many tries."""
    trials, found = Trials(root, seed), {}
    trials.whole("claims")
    for kind in kinds:
        took_s = trials.whole(kind)[1]
        for number in (signal.SIGINT, signal.SIGKILL):
            hit = sum(trials.killed(kind, number, took_s) for _ in range(kills))
            assert hit, f"none of {kills} {kind} was at work when it got {number.name}: nothing is shown"
            found[f"{number.name} {kind}"] = f"{hit} of {kills} while at work; {UNHARMED}"
            say(f"{number.name} {kind}: {found[f'{number.name} {kind}']}")
    if "evidence" not in kinds:
        return found
    trials.whole("evidence")
    assert trials.evidence().keys() >= trials.every_test()
    return found


def kill_evidence_of_this_machine(folder: Folder, kills: int, words: str = "--quick", say: Say = print) -> None:
    """Kills `make evidence` with all its processes so many times, then lets one more call end it."""
    line = ["make", "evidence", f"PYTHON={sys.executable}", f"ARGS=--all --into {folder.path} {words}"]
    chance, found, complete = random.Random(os.getpid()), [], False
    while not complete:
        before, after_s = folder.ended(), chance.uniform(*AT_WORK_S)
        run = subprocess.Popen(line, cwd=ROOT, env=child_environment(), start_new_session=True)
        try:
            run.wait(after_s if len(found) < kills else None)
            complete = True
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            time.sleep(5)  # its pytest, which a process of its own cleans up, ends
        ended, lost = folder.ended(), folder.unended()
        assert all(ended.get(test) == row for test, row in before.items()), "a test that had ended is gone, or differs"
        assert len(lost) <= 1, f"more than the running test is lost: {[*lost]}"
        kept = len(ended) - len(before)
        found.append("" if complete else f"killed after {after_s:.0f} s: {kept:,} tests kept, {len(lost)} lost with it")
    tests, red = folder.plan["tests"], sum(row["status"] in RED_STATUS for row in ended.values())
    assert ended.keys() == set(tests), f"{len(set(tests) - ended.keys())} tests were not reached"
    found[-1] = f"one more call ran the other {kept:,} of {len(tests):,}, {red} red"
    say(f"{MACHINE} {words}: {'; '.join(found)}")


def run_where_little_works(root: Path, say: Say = print) -> dict[str, str]:
    """One run of the claims under each condition, and two at once. Returns what was there afterwards."""
    trials, found = Trials(root, "conditions"), {}
    for name, (variables, limit, said, code) in CONDITIONS.items():
        output, _ = trials.whole("claims", code, limit, **variables)
        assert f"{CLAIMS * PARTS} passed" in output, f"{name}:\n{output}"
        assert said in output, f"{name}: nothing says {said!r}:\n{output}"
        trials.check()
        found[name] = "all verdicts printed" + (f"; it says what {said}, exit {code}" if said else "")
        say(f"{name}: {found[name]}")
    before = len(records.summaries(trials.house.root / ".prooflops" / "history", ()))
    both = [trials.start("claims") for _ in range(2)]
    outputs = [run.communicate(timeout=600)[0] for run in both]
    assert [run.returncode for run in both] == [0, 0], outputs
    trials.check()
    assert len(records.summaries(trials.house.root / ".prooflops" / "history", ())) == before + 2
    found["two runs at once"] = "both records and a whole report"
    say(f"two runs at once: {found['two runs at once']}")
    return found


def keep(line: str) -> None:
    """Puts a line in place of that of the same trial in recorded/trials.txt."""
    print(line, flush=True)
    head, *lines = RECORDED.read_text(encoding="utf-8").splitlines()
    kept = dict(each.split(": ", 1) for each in lines) | dict([line.split(": ", 1)])
    RECORDED.write_text("\n".join([head, *(f"{name}: {text}" for name, text in kept.items()), ""]), encoding="utf-8")


def summary(lines: list[str]) -> str:
    """What the kept lines show: of the small runs that were killed the sum, of the conditions the names."""
    kills = [re.fullmatch(rf"SIG\w+ \w+: (\d+) of (\d+) while at work; {UNHARMED}", line) for line in lines]
    hit, tries = (sum(int(kill[group]) for kill in kills if kill) for group in (1, 2))
    whole = [line for line in lines if line.startswith(MACHINE)]
    names = [line.partition(":")[0] for line, kill in zip(lines, kills, strict=True) if not kill and line not in whole]
    tried = f"of {tries} signals {hit} met a run at work: {UNHARMED}; tried: {', '.join(names)}"
    return "; ".join([tried, *whole])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m meta_tests.prooflops.trials", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of each kind of run by each signal")
    parser.add_argument("--seed", default=str(os.getpid()))
    parser.add_argument("--record", action="store_true", help="keep the counts in recorded/trials.txt")
    choices = [*KINDS, "conditions", "machine", []]
    parser.add_argument("trials", nargs="*", choices=choices, metavar="TRIAL", help="default: all")
    options = parser.parse_args()
    say = keep if options.record else print
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        if not options.trials or "conditions" in options.trials:
            run_where_little_works(Path(one), say)
        if kinds := [kind for kind in KINDS if not options.trials or kind in options.trials]:
            kill_runs(Path(other), options.kills, options.seed, kinds, say)
        if not options.trials or "machine" in options.trials:
            kill_evidence_of_this_machine(Folder(Path(other, "here")), options.kills, say=say)


if __name__ == "__main__":
    main()
