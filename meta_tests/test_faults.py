"""Every planted fault turns the claims it names red. They run in a process of their own while other tests go on."""

import importlib
import signal
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.conftest import ROOT, pytest_collection_modifyitems
from meta_tests.faults import FAULTS, TOPICS, Fault, generated
from meta_tests.faults import __main__ as running
from prooflops.suite.registry import load_registry

for topic in [*TOPICS, "generated"]:
    importlib.import_module(f"meta_tests.faults.{topic}")


@pytest.mark.prove(sample=40)
@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: f"{planted.topic}-{planted.name}")
def test_a_planted_fault_turns_the_claims_it_names_red(
    planted: Fault, result_of_fault: Callable[[Fault], dict[str, Any]]
) -> None:
    result = result_of_fault(planted)
    if result["hidden"]:
        why = result.get("lacking") or "this machine's noise hid it"
        pytest.skip(f"{planted.name} cannot turn {', '.join(result['unnoticed'])} red here: {why}")
    assert not result["unnoticed"], f"{planted.name} went unnoticed by {result['unnoticed']}:\n{result['output']}"
    assert result["exit"] == 1, result["output"]


def test_a_test_that_loops_under_a_fault_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LONGEST_S", 0.05)
    limited = running.Shortcuts().pytest_runtest_call()
    next(limited)
    with pytest.raises(TimeoutError, match=r"takes more than 0\.05 s"):
        time.sleep(60)
    limited.close()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("quick", [True, False])
def test_a_quick_run_takes_a_sample_of_what_is_marked_and_any_other_all(quick: bool) -> None:
    deselected: list[object] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    config = SimpleNamespace(option=SimpleNamespace(quick=quick), hook=hook)

    def cases(test: str, many: int, mark: pytest.MarkDecorator | None) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(nodeid=f"{test}[{number}]", get_closest_marker=lambda _: mark and mark.mark)
            for number in range(many)
        ]

    plain, sampled = cases("plain", 3, None), cases("sampled", 266, pytest.mark.prove(sample=40))
    few, none = cases("few", 2, pytest.mark.prove(sample=3)), cases("none", 5, pytest.mark.prove)
    every = [*plain, *sampled, *few, *none]
    items = list(every)
    pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    ran = Counter(each.nodeid.partition("[")[0] for each in items)
    assert ran == {"plain": 3, "few": 2, **({"sampled": 40} if quick else {"sampled": 266, "none": 5})}
    assert all((each in items) is not (each in deselected) for each in every)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_has_at_least_two_faults(topic: str) -> None:
    assert len([planted for planted in FAULTS if planted.topic == topic]) >= 2


def test_every_topic_of_the_registry_has_faults_and_every_fault_names_claims_that_exist() -> None:
    registry = load_registry(ROOT / "test_claims" / "registry")
    assert set(registry.topics) == set(TOPICS)
    named = {claim for planted in FAULTS for claim in planted.turns_red}
    unknown = {claim for claim in named if "::" not in claim} - registry.claims.keys()
    assert not unknown, f"faults name claims that the registry lacks: {sorted(unknown)}"
    tests = [claim.split("::") for claim in named if "::" in claim]
    gone = [test for file, test in tests if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")]
    assert not gone, f"faults name tests that there are not: {gone}"


def test_each_cell_of_the_tables_is_noticed_or_said_to_be_outside_the_registry() -> None:
    listed, cells = generated.recorded(), generated.CELLS
    missing, stale = cells.keys() - listed.keys(), listed.keys() - cells.keys()
    assert not missing | stale, f"generated_faults.txt lacks {sorted(missing)}, and lists {sorted(stale)} too much"
    noticed = [name for name, by in listed.items() if not by.startswith(generated.OUTSIDE)]
    assert len(noticed) >= 200
    unexplained = [name for name, by in listed.items() if by.strip() in ("", generated.OUTSIDE)]
    assert not unexplained, f"say why nothing in the registry speaks of {unexplained}"
