"""Run records survive kills, two writers, full disks and foreign files.

Any JSON is compared or refused by name.
"""

import copy
import json
import math
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meta_tests.conftest import ROOT
from meta_tests.prooflops_gate.outcomes import outcome
from prooflops_gate import rows
from prooflops_gate.history import records, trend
from prooflops_gate.history.records import UnreadableRecord
from prooflops_gate.instruments.exact import exact_rows
from prooflops_gate.instruments.memory import memory_rows

EXACT = ("flops",)
PATH = Path("a.json")
FINGERPRINT = {"name": "Some GPU 80GB", "torch": "2.13.0"}
EXTRA = {
    "flops": 24,
    "bytes": 8,
    "mfu": 0.5,
    "method": 3,
    "contention": {"contended": True, "why": "other processes"},
    "gate": {"min_effect": 0.05},
    "gate_resources": {"memory": 12_600, "CUDA memory": 0, "slip": -1},
}
RECORD = {
    "benchmarks": [
        {"fullname": "a", "stats": {"min": 1.0}, "extra_info": EXTRA},
        {"fullname": "b[bf16]", "stats": {"min": 2.0}, "extra_info": {}},
        {"fullname": "b[fp32]", "stats": {"min": 4.0}, "extra_info": None},
    ],
    "commit_info": {"id": "1a2b3c", "dirty": False},
    "datetime": "2026-11-22T00:00:00",
    "prooflops": {
        "fingerprint": {"name": "Some CPU", "packages": {"torch": "2.13.0"}},
        "partial": "",
        "pace": {"": {"max_time": 0.02, "min_rounds": 3}},
    },
}


def test_comparing_reads_all_it_needs_of_a_record():
    found = records.summary_of(RECORD, PATH, EXACT)
    first = found.benchmarks["a"]
    assert (first.time_s, first.exact, first.method) == (1.0, {"flops": 24}, 3)
    assert first.contended == "other processes"
    assert first.resources == {"memory": 12_600.0, "CUDA memory": 0.0}
    assert (found.name, found.torch, found.commit, found.dirty) == (
        "Some CPU",
        "2.13.0",
        "1a2b3c",
        False,
    )
    assert found.contended
    assert json.loads(found.pace) == RECORD["prooflops"]["pace"]


@pytest.mark.parametrize("least", [0.0, 1e-18, math.nan, 1e18])
def test_a_time_without_a_ratio_is_left_out_of_every_comparison(least):
    bench = {"fullname": "none", "stats": {"min": least}}
    ignored = {
        "fullname": "ignored",
        "stats": {"min": 1.0},
        "extra_info": {"gate": {"ignore": True}},
    }
    record = {"benchmarks": [*RECORD["benchmarks"], bench, ignored], "prooflops": {}}
    assert list(records.summary_of(record, PATH, []).benchmarks) == ["a", "b[bf16]", "b[fp32]"]


def test_latest_is_the_newest_whole_run_of_a_commit(tmp_path):
    commits = ["1", "2", "", "4", "5"]
    for commit in commits:
        state = {"id": commit, "dirty": commit == "4"}
        ours = {"fingerprint": FINGERPRINT, "partial": "interrupted" * (commit == "5")}
        record = {"benchmarks": [], "prooflops": ours, "commit_info": state}
        records.append_record(tmp_path, record, FINGERPRINT)
    assert records.baseline(tmp_path, "latest") == "2"


def test_a_name_stands_for_the_commit_that_was_stored_last(tmp_path):
    for name in ("main", "latest"):
        with pytest.raises(records.UnknownBaseline, match=f"--gate-baseline {name}: "):
            records.baseline(tmp_path, name)
    for commit in ("1a2b", "3c4d"):
        assert records.store_baseline(tmp_path, "main", commit).stem == "main"
    assert records.baseline(tmp_path, "main") == "3c4d"
    with pytest.raises(records.UnknownBaseline, match=r"valid: latest, or a stored name \(main\)"):
        records.baseline(tmp_path, "other")


# It names each record once it is stored; the record is mostly text, so that storing it is mostly
# writing.
WRITER = """
import sys
from pathlib import Path
from prooflops_gate.history import records
folder = Path(sys.argv[1])
record = {"benchmarks": [], "padding": "x" * 4_000_000, "prooflops": {"fingerprint": {"name": "a"}}}
while True:
    path = records.append_record(folder, record, {"name": "a"})
    print(path.name, flush=True)
    records.store_baseline(folder, "main", path.stem)
"""


def test_all_that_killed_writers_had_stored_is_there_and_whole(tmp_path):
    moment, named = random.Random(0), set()
    for _ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=-1, text=True
        )
        assert writer.stdout
        named.add(writer.stdout.readline().strip())
        time.sleep(moment.uniform(0, 0.03))
        writer.kill()
        *lines, _cut_short = writer.communicate()[0].split("\n")
        named |= {*lines}
    found = {path.name: records.read(path) for path in records.record_files(tmp_path)}
    assert named <= found.keys()
    assert all(len(record["padding"]) == 4_000_000 for record in found.values())
    assert f"{records.baseline(tmp_path, 'main')}.json" in found


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from([10**400, "nan", "1e999", "holds", "2.0"])
)
VALUES = st.recursive(
    LEAVES,
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "name", "min", "a"]), each)
    ),
    max_leaves=5,
)
unhurried = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None
)


def places(tree, path=()):
    """The paths of all parts of a tree but itself."""
    keys = ()
    if isinstance(tree, dict):
        keys = tree
    elif isinstance(tree, list):
        keys = range(len(tree))
    found = []
    for key in keys:
        place = (*path, key)
        found += [place, *places(tree[key], place)]
    return found


@st.composite
def changed(draw, tree):
    """The tree with one to three of its parts deleted or replaced."""
    found = copy.deepcopy(tree)
    for *path, last in draw(st.lists(st.sampled_from(places(tree)), min_size=1, max_size=3)):
        part = found
        try:
            for key in path:
                part = part[key]
            if draw(st.booleans()):
                part[last] = draw(VALUES)
            else:
                del part[last]
        except (LookupError, TypeError):
            # An earlier change deleted or replaced it.
            continue
    return found


@unhurried
@given(changed(RECORD))
def test_any_record_is_compared_or_refused(record):
    found, refusal = outcome(UnreadableRecord, lambda: records.summary_of(record, PATH, EXACT))
    if not found:
        assert str(PATH) in refusal
        return
    good = records.summary_of(RECORD, PATH, EXACT)
    both = {
        name: ([timed] * 9, [found.benchmarks.get(name, timed)] * 9)
        for name, timed in good.benchmarks.items()
    }
    rows.table([*exact_rows(both), *memory_rows(both, 0.05)])
    trend.trends([found, good])
