"""The pytest plugin that puts the fake card under a run: `-p meta_tests.fake_card.plugin --fake-card "H100 SXM5 80GB"`.

A test that has the device under test, passes, and never touched the card has measured the CPU: it fails. The counts of
each test go to the file `--card-counts`, one JSON line a test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from accounting.devices import ACCELERATORS
from meta_tests.fake_card.api import plugged
from meta_tests.fake_card.caching import MIB
from meta_tests.fake_card.card import Card
from meta_tests.fake_card.kernels import Kernels

ON_THE_DEVICE = {"device", "cuda", "memory_device", "measure"}  # the fixtures by which a test says what it measures
NOT_ON_MPS = (torch.float64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2)
KERNELS = pytest.StashKey[Kernels]()
_PLUGGED = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fake card")
    group.addoption("--fake-card", metavar="LABEL", default="H100 SXM5 80GB", help="its row in the table of peaks")
    group.addoption("--card-kind", choices=["cuda", "mps"], default="cuda", help="mps: without fp64 and fp8")
    group.addoption("--card-memory", metavar="MIB", type=int, default=2048)
    group.addoption("--card-counts", metavar="FILE", type=Path, help="launches, synchronisations ... of each test")


def time_alone(card: Card) -> Any:
    """Has comparisons of times, which look at no value, leave large kernels uncomputed."""
    from prooflops.suite.speed import Speed

    seconds = Speed.seconds

    def without_values(self: Speed, function: Callable[[], Any], calls: int = 1) -> float:
        card.only_timed = True
        try:
            return seconds(self, function, calls)
        finally:
            card.only_timed = False

    return patch.object(Speed, "seconds", without_values)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before the suite is imported, which takes the host's clock when it is."""
    options = early_config.known_args_namespace
    if options.fake_card not in ACCELERATORS:
        raise pytest.UsageError(f"--fake-card {options.fake_card}: valid are {', '.join(ACCELERATORS)}")
    stack = early_config.stash[_PLUGGED] = ExitStack()
    refused = frozenset(NOT_ON_MPS) if options.card_kind == "mps" else frozenset()
    card = Card(options.fake_card, options.card_kind, options.card_memory * MIB, refused=refused)
    early_config.stash[KERNELS] = stack.enter_context(plugged(card))
    stack.enter_context(time_alone(card))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _PLUGGED in config.stash:
        config.stash[_PLUGGED].close()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    card = item.config.stash[KERNELS].card
    before = replace(card.counts)
    result = "failed"
    try:
        value = yield
        result = "passed"
    except pytest.skip.Exception:
        result = "skipped"
        raise
    finally:
        counts = card.counts.since(before)
        claims = [name for marker in item.iter_markers("claim") for name in marker.args]
        row = {"test": item.nodeid, "claims": claims, "result": result, **asdict(counts)}
        if file := item.config.option.card_counts:
            with open(file, "a", encoding="utf-8") as lines:
                print(json.dumps(row), file=lines)
    if ON_THE_DEVICE & {*getattr(item, "fixturenames", ())} and not (counts.launches or counts.allocations):
        pytest.fail("the test has the device under test, but never touched it: it measured the CPU", pytrace=False)
    return value
