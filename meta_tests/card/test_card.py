"""The simulated card behaves as a card where that differs from a CPU."""

import json

import pytest
import torch

from bench import products
from meta_tests.card.api import simulated
from meta_tests.card.caching import MIB
from meta_tests.card.card import SHORTEST_KERNEL_S, Card
from meta_tests.conftest import ROOT
from prooflops import timing
from test_claims.oracles.scalars import Operations

# One NVIDIA H200 recorded this with torch 2.11 on 26 November 2026.
RECORD = json.loads((ROOT / "meta_tests/recorded/h200.json").read_text("utf-8"))


@pytest.fixture
def card():
    made = Card(memory_bytes=256 * MIB)
    with simulated(made):
        yield made


@pytest.mark.parametrize(
    ("act", "waits"),
    [
        (lambda x: x.T.reshape(-1), 0),
        (lambda x: x.sum().item(), 1),
        (lambda x: x.tolist(), 1),
        # The claims' oracles take all elements in one transfer.
        (lambda x: Operations().array(x), 1),
        (lambda x: torch.allclose(x, x + 1), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: torch.tensor([1.0], device="cuda"), 1),
    ],
)
def test_the_host_waits_where_it_reads(act, waits, card):
    x = torch.ones(4, 4, device="cuda")
    before = card.counts.synchronisations
    act(x)
    assert card.counts.synchronisations - before == waits


def test_a_copy_to_pinned_memory_arrives_late(card):
    source = torch.ones(4, device="cuda")
    target = torch.zeros(4).pin_memory()
    torch.cuda._sleep(10**9)
    target.copy_(source, non_blocking=True)
    early = target.tolist()
    torch.cuda.synchronize()
    assert early == [0] * 4
    assert target.tolist() == [1] * 4


def test_products_take_the_workspaces_that_a_card_took(card):
    def taken(act):
        before = card.memory.requested_bytes
        out = act()
        grown = card.memory.requested_bytes - before
        del out
        return grown - 64 * 64 * 4

    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    bias = torch.ones(64, device="cuda")
    recorded = RECORD["workspaces"]
    assert taken(lambda: x.detach() @ x.detach()) == recorded["torch.float32"]
    linear = torch.nn.functional.linear
    assert taken(lambda: linear(x.detach(), x.detach(), bias)) == recorded["torch.float32 linear"]
    assert taken(lambda: x.detach() @ x.detach()) == 0
    out = (x @ x).sum()
    before = card.memory.requested_bytes
    out.backward()
    grown = card.memory.requested_bytes - before
    assert grown >= recorded["torch.float32"], "autograd's thread has a handle of its own"


def test_int8_is_multiplied_at_full_rate(card):
    card.only_timed = True
    case = products.product("int8", 1024, 1024, 1024, card.device)
    seconds = timing.time(case.multiply, "cuda", warmup=1, rounds=3).median_s
    share = case.work.flops / (seconds - 2 * SHORTEST_KERNEL_S) / card.rates.flop_per_s["int8"]
    assert share > 0.5, "does the second operand lie by columns?"
