"""Any JSON in place of any part of a record: it is compared, or refused by name; nothing else comes of it."""

from __future__ import annotations

import copy
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meta_tests.prooflops.outcomes import outcome
from prooflops.history import records, rows, trend
from prooflops.history.comparison import NotComparable, compare
from prooflops.history.resources import resource_rows
from prooflops.statistics.noise import noise_floor

EXACT = ("flops",)
PATH = Path("a.json")
EXTRA = {
    "flops": 24, "mfu": 0.5, "method": 3, "contention": {"contended": True, "why": "other processes"},
    "gate": {"min_effect": 0.05}, "gate_resources": {"memory": 12_600},
}  # fmt: skip
RECORD: dict[str, Any] = {
    "benchmarks": [
        {"fullname": "a", "stats": {"min": 1.0}, "extra_info": EXTRA},
        {"fullname": "b[bf16]", "stats": {"min": 2.0}, "extra_info": {}},
        {"fullname": "b[fp32]", "stats": {"min": 4.0}, "extra_info": None},
    ],
    "commit_info": {"id": "1a2b3c", "dirty": False},
    "datetime": "2026-11-22T00:00:00",
    "prooflops": {
        "fingerprint": {"name": "Some CPU", "packages": {"torch": "2.13.0"}},
        "verdicts": [{"id": "x.a", "verdict": "holds"}],
        "partial": "",
        "pace": {"": {"max_time": 0.02, "min_rounds": 3}},
    },
}
NUMBERS = [0, -1, 1, 10**400, 10**25, 1e308, 5e-324, -0.0, math.nan, math.inf, -math.inf, True, False]
LEAVES = st.none() | st.sampled_from(NUMBERS) | st.text(max_size=3) | st.sampled_from(["nan", "1e999", "holds", "2.0"])
VALUES = st.recursive(
    LEAVES,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(["id", "name", "min", "a"]), each),
    max_leaves=5,
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of a record but itself."""
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [found for key in keys for found in [(*path, key), *places(tree[key], (*path, key))]]


@st.composite
def changed(draw: st.DrawFn, tree: dict[str, Any]) -> Any:
    """The tree with one to three of its parts gone, or something else."""
    found = copy.deepcopy(tree)
    for *path, last in draw(st.lists(st.sampled_from(places(tree)), min_size=1, max_size=3)):
        part: Any = found
        try:
            for key in path:
                part = part[key]
            if draw(st.booleans()):
                part[last] = draw(VALUES)
            else:
                del part[last]
        except (LookupError, TypeError):  # gone, or something else, by an earlier change
            continue
    return found


def any_record_is_compared_or_refused(record: Any) -> None:
    found, refusal = outcome(records.UnreadableRecord, lambda: records.summary_of(record, PATH, EXACT))
    if not found:
        assert str(PATH) in refusal
        return
    good = records.summary_of(RECORD, PATH, EXACT)
    for before, after in ([good] * 9, [found] * 9), ([found] * 9, [good] * 9), ([found], [found]):
        for portable in (True, False):
            compared = outcome(NotComparable, partial(compare, before, after, portable=portable))[0] or []
            ratios = [row.effect.ratio for row in compared if row.effect]
            assert all(0 < ratio < math.inf for ratio in ratios), ratios
            assert len(rows.table(compared, every=True)) == len(compared) + 1
        both = {name: ([timed] * 9, [found.benchmarks.get(name, timed)] * 9) for name, timed in good.benchmarks.items()}
        rows.table(resource_rows(both, 0.05, 0.03))
    trend.table(trend.trends([found, good]))


unhurried = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None)
test_any_record_is_compared_or_refused = unhurried(given(changed(RECORD))(any_record_is_compared_or_refused))
test_many_records_are_compared_or_refused = pytest.mark.prove(
    settings(unhurried, max_examples=3000)(given(changed(RECORD))(any_record_is_compared_or_refused))
)


def test_a_good_record_is_read_whole() -> None:
    found = records.summary_of(RECORD, PATH, EXACT)
    assert list(found.benchmarks) == ["a", "b[bf16]", "b[fp32]"]
    assert (found.pace, found.verdicts) == (RECORD["prooflops"]["pace"], {"x.a": "holds"})
    assert found.benchmarks["a"].portable == {"mfu": 0.5}
    suite = {**RECORD, "prooflops": {**RECORD["prooflops"], "pace": "quick"}}
    assert records.summary_of(suite, PATH, EXACT).pace is None, "the suite's own word is no pace of the gate"


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("benchmarks", 0, "stats", "min"), 10**400, "int too large to convert to float"),
        (("benchmarks", 0, "extra_info", "gate", "min_effect"), "large", "could not convert string to float: 'large'"),
        (("benchmarks", 0, "extra_info", "gate", "min_effect"), math.nan, "between 0 and 1, but is nan"),
        (("prooflops", "pace"), {"": {"max_time": "long", "min_rounds": 3}}, "convert string to float: 'long'"),
    ],
)
def test_an_impossible_figure_is_refused_with_its_value(path: tuple[Any, ...], value: Any, why: str) -> None:
    record: Any = copy.deepcopy(RECORD)
    part = record
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(records.UnreadableRecord, match=f"not a record of this suite.*{why}"):
        records.summary_of(record, PATH, EXACT)


@unhurried
@given(data=st.data())
def test_a_file_cut_short_or_damaged_anywhere_is_a_record_or_refused_by_name(
    tmp_path: Path, data: st.DataObject
) -> None:
    text = records.as_text(RECORD).encode()
    cut = data.draw(st.integers(0, len(text)))
    (file := tmp_path / "1" / "a.json").parent.mkdir(exist_ok=True)
    file.write_bytes(text[:cut] + data.draw(st.binary(max_size=3)) + text[cut + data.draw(st.integers(0, 99)) :])
    found, refusal = outcome(records.UnreadableRecord, lambda: records.read_summary(file, EXACT))
    assert found or str(file) in refusal


FLOORS = {"stored": "2026", "benchmarks": {"a": {"noise": 0.01, "sessions_s": [1.0, 1.1], "floor": 0.02}}}
BASELINE = {"name": "main", "stored": "2026", "records": ["a.json"]}


@unhurried
@given(floors=changed(FLOORS), baseline=changed(BASELINE))
def test_any_noise_floor_and_any_baseline_is_read_or_refused(tmp_path: Path, floors: Any, baseline: Any) -> None:
    folder = tmp_path / "mine"
    (folder / "baselines").mkdir(parents=True, exist_ok=True)
    (folder / "noise-floor.json").write_text(json.dumps(floors))
    for row in records.noise_floors(tmp_path, "mine").values():
        assert 0 <= float(row.get("floor") or 0.0) < math.inf
        noise_floor([[time_s] for time_s in [*row.get("sessions_s", []), 1.0]])
    (folder / "a.json").write_text(records.as_text(RECORD))
    (folder / "baselines" / "main.json").write_text(json.dumps(baseline))
    found, refusal = outcome(records.UnreadableRecord, lambda: records.baseline(tmp_path, "main", "mine", EXACT))
    assert found or "main.json" in refusal
