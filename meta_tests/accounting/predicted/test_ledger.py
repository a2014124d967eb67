"""Storages are entered once, when they are allocated, and freed once, whoever refers to them."""

from __future__ import annotations

import pytest
import torch

from accounting.predicted import scratch
from accounting.predicted.ledger import CallMade, Ledger


def sizes_held(book: Ledger) -> list[int]:
    """The sizes of the storages that were allocated and not freed, by the events alone."""
    held: dict[int, int] = {}
    for event in book.events:
        if event.allocated:
            held[event.storage] = book.storages[event.storage].size
        else:
            del held[event.storage]
    return [*held.values()]


def test_a_storage_counts_once_and_until_the_last_view_of_it_is_gone():
    book, base = Ledger("cpu"), torch.empty(100)
    view = base[10:]
    assert book.see(base) == book.see(view) == book.number_of(view), "a view should have its base's storage"
    del base
    assert sizes_held(book) == [400]
    del view
    assert sizes_held(book) == []


def test_a_storage_at_the_address_of_a_freed_one_is_a_new_one():
    book = Ledger("cpu")
    for _ in range(3):
        book.see(torch.empty(100))
    assert [event.allocated for event in book.events] == [True, False] * 3


def test_a_resized_storage_is_a_new_one():
    book, tensor = Ledger("cpu"), torch.empty(100)
    first = book.see(tensor)
    tensor.resize_(300)
    assert book.see(tensor) != first
    assert sizes_held(book) == [1200]
    assert book.number_of(tensor) == 1
    book.mark("forward")
    book.mark(None)
    assert (book.names, book.ends) == (["forward"], [3, 3])


def test_tensors_of_another_device_and_unseen_ones_are_not_entered():
    book = Ledger("cuda")
    assert book.see(torch.empty(100)) is None
    assert book.number_of(torch.empty(100)) is None
    assert book.events == []


def test_a_lent_storage_is_freed_once():
    book = Ledger("cpu")
    end = book.lend(8)
    assert sizes_held(book) == [8]
    end()
    end()
    assert [event.allocated for event in book.events] == [True, False]


def test_a_kernel_whose_outputs_differ_from_the_fake_ones_is_refused():
    call = scratch.call_of(torch.ops.aten.relu.default, (torch.ones(4),), {})
    book = Ledger("cpu")
    out = torch.ones(4)
    book.calls.append(CallMade(call, phase=0, position=1, outputs=(book.see(out),)))
    book.measure_scratch()
    assert book.knows_scratch
    assert (book.scratch_at(0, 1), book.scratch_at(0, 2)) == (0, 0), "relu needs none"
    book.storages[0].size = 20
    with pytest.raises(RuntimeError, match=r"relu.default returns \(16,\) bytes, but its fake \(20,\)"):
        book.measure_scratch()
