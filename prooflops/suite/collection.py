"""Prepares collected tests: their claims, required hardware, timer and example counter."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from prooflops import timing
from prooflops.machine import device as machine
from prooflops.suite.registry import Registry, file_of
from prooflops.suite.run import EVIDENCE, Run

EXAMPLE_COUNTER = pytest.StashKey[list[int]]()
# Tests with these fixtures measure time, or use a share of the device's free memory.
NEEDS_THE_MACHINE = frozenset({"benchmark", "sizing", "speed"})


def claims_of(item: pytest.Item) -> list[str]:
    """The distinct claim ids in a test's markers."""
    return list(dict.fromkeys(claim for each in item.iter_markers("claim") for claim in each.args))


def runs_alone(item: pytest.Item) -> bool:
    """True if a test needs the machine for itself: by its fixtures, or by the marker `timed`."""
    fixtures = NEEDS_THE_MACHINE.intersection(getattr(item, "fixturenames", ()))
    return bool(fixtures) or item.get_closest_marker("timed") is not None


def check_claims_exist(registry: Registry, items: Iterable[pytest.Item]) -> None:
    """Stops the run if a marker names an unregistered claim."""
    named = {claim: item.nodeid for item in items for claim in claims_of(item)}
    unknown = [claim for claim in named if claim not in registry.claims]
    if unknown:
        rows = "".join(
            f"\n  {claim!r} in {named[claim]}, expected in {file_of(claim)}" for claim in unknown
        )
        raise pytest.UsageError(
            f"markers name claims that are not in the registry: add a row, or correct the id{rows}"
        )


def check_claims_have_tests(
    config: pytest.Config, registry: Registry, items: Iterable[pytest.Item]
) -> None:
    """Stops a run of all of test_claims if a claim has no test."""
    if not _runs_all_claims(config):
        return
    tested = {claim for item in items for claim in claims_of(item)}
    selected = registry.selected(config.option.claim or registry.topics)
    expected = [claim.id for claim in registry.claims.values() if not claim.on_record]
    missing = [claim for claim in expected if claim in selected - tested]
    if missing:
        rows = "".join(f"\n  {claim!r} of {file_of(claim)}" for claim in missing)
        raise pytest.UsageError(
            "claims that no test settles: mark a test in test_claims/ with "
            f"@pytest.mark.claim(id){rows}"
        )


def quoting(file: Path) -> str:
    """The text of a test file, and of the table of that name beside it."""
    table = file.with_suffix(".toml")
    text = file.read_text(encoding="utf-8")
    return text + table.read_text(encoding="utf-8") if table.exists() else text


def names_no_claim(file: Path, claims: Iterable[str]) -> bool:
    """True if this test file quotes none of these claim ids."""
    if not (file.name.startswith("test_") and file.suffix == ".py"):
        return False
    text = quoting(file)
    return not any(f'"{claim}"' in text or f"'{claim}'" in text for claim in claims)


def _runs_all_claims(config: pytest.Config) -> bool:
    wanted = config.rootpath / "test_claims"
    given = [
        (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        for argument in config.args
    ]
    whole = any(path == wanted or path in wanted.parents for path in given)
    return whole and not _narrowing(config)


def _narrowing(config: pytest.Config) -> list[str]:
    """The options that leave out tests of the given files."""
    option = config.option
    narrowing = {
        "-k": [option.keyword] if option.keyword else [],
        "-m": [option.markexpr] if option.markexpr else [],
        "--deselect": config.getoption("deselect", None) or [],
        "--ignore": [*(option.ignore or []), *(option.ignore_glob or [])],
        "--last-failed": [""] if config.getoption("lf", False) else [],
    }
    return [f"{name} {value}".strip() for name, values in narrowing.items() for value in values]


def selection_of(config: pytest.Config) -> str:
    """Describes the command line's selection of tests; empty for the whole suite."""
    root = config.rootpath
    given = {(config.invocation_params.dir / each).resolve() for each in config.args}
    whole = {(root / path).resolve() for path in config.getini("testpaths")}
    words: list[str] = []
    if not whole <= given and root.resolve() not in given:
        words += config.args
    words += [f"--claim {claim}" for claim in config.option.claim]
    words += _narrowing(config)
    return f"only {' '.join(words)}" if words else ""


def note_all_tests(config: pytest.Config, run: Run, items: Iterable[pytest.Item]) -> None:
    """Records every test of each collected claim.

    `items` are the collected tests, before deselection. Tests that the command line left out are
    looked up, because a claim has a verdict only if all of its tests ran.
    """
    items = [*items]
    for item in items:
        for claim in claims_of(item):
            run.tests[claim].add(item.nodeid)
    if any("::" in argument for argument in config.args):
        _note_tests_not_named(run, items)
    if run.tests:
        _note_files_not_collected(config, run, items)


def _note_tests_not_named(run: Run, items: Iterable[pytest.Item]) -> None:
    """Records the other tests in the modules of these tests."""
    modules = dict.fromkeys(item.getparent(pytest.Module) for item in items)
    for module in modules:
        if module is None:
            continue
        for test in _tests_in(module):
            for claim in claims_of(test):
                run.tests[claim].add(test.nodeid)


def _note_files_not_collected(
    config: pytest.Config, run: Run, items: Iterable[pytest.Item]
) -> None:
    """Records the files in test_claims that quote one of the claims and were not collected."""
    collected = {item.path for item in items}
    for file in sorted(config.rootpath.glob("test_claims/test_*.py")):
        if file in collected:
            continue
        text = quoting(file)
        for claim, tests in run.tests.items():
            if f'"{claim}"' in text:
                tests.add(file.name)


def _tests_in(collector: pytest.Collector) -> Iterator[pytest.Item]:
    for child in collector.collect():
        if isinstance(child, pytest.Item):
            yield child
        elif isinstance(child, pytest.Collector):
            yield from _tests_in(child)


def skip_without_hardware(item: pytest.Item, run: Run) -> None:
    """Skips a test without the hardware that its marker `needs`, or each of its claims, requires.

    Hardware that only some of its claims require does not skip it.
    """
    needs_of_claims = [set(run.registry.claims[claim].needs) for claim in claims_of(item)]
    shared = set.intersection(*needs_of_claims) if needs_of_claims else set()
    own = {need for marker in item.iter_markers("needs") for need in marker.args}
    for need in sorted(own.union(*needs_of_claims)):
        try:
            why = machine.unmet(need, run.device)
        except ValueError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from error
        if why and need in own | shared:
            item.stash[EVIDENCE].unmet = why
            item.add_marker(pytest.mark.skip(reason=why))


def use_device_clock(item: pytest.Item, device: torch.device) -> None:
    """Makes pytest-benchmark use the device's clock, overriding the benchmark's own marker."""
    if "benchmark" not in getattr(item, "fixturenames", ()):
        return
    own = item.get_closest_marker("benchmark")
    options = {**(own.kwargs if own else {}), "timer": timing.clock(device)}
    # pytest-benchmark reads the closest marker only.
    item.add_marker(pytest.mark.benchmark(**options), append=False)


def count_examples(item: pytest.Item) -> None:
    """Counts completed examples by wrapping `inner_test`, hypothesis's documented hook."""
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    if handle is None or not isinstance(item, pytest.Function):
        return
    counter = getattr(handle.inner_test, "_examples", None)
    if counter is None:
        inner, counter = handle.inner_test, [0]

        @functools.wraps(inner)
        def counting(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            counter[0] += 1
            return result

        counting._examples = counter  # type: ignore[attr-defined]
        handle.inner_test = counting
    item.stash[EXAMPLE_COUNTER] = counter
