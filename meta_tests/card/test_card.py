"""The simulated card takes the workspaces that a card took."""

import torch

from meta_tests.card.api import simulated
from meta_tests.card.caching import MIB
from meta_tests.card.card import Card
from meta_tests.prooflops.memory.test_allocator import RECORD

CARD = Card(memory_bytes=256 * MIB)


@simulated(CARD)
def test_products_take_the_workspaces_that_a_card_took():
    def taken(act):
        before = CARD.memory.requested_bytes
        out = act()
        grown = CARD.memory.requested_bytes - before
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
    before = CARD.memory.requested_bytes
    out.backward()
    grown = CARD.memory.requested_bytes - before
    assert grown >= recorded["torch.float32"], "autograd's thread has a handle of its own"
