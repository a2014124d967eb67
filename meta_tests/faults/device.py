"""Faults of devices: torch puts tensors elsewhere than it says, a formula of bytes is off."""

from functools import partial

import torch

from meta_tests.faults import fault, stand_in

on_card = partial(fault, options="-p meta_tests.card.plugin --device cuda --quick")


@fault("device.model-to-params-only", instead_of="torch.nn.Module._apply")
def a_model_forgets_its_buffers(move, self, function, recurse=True):
    inner = [*self.modules()][2:]
    kept = [(module, dict(module._buffers)) for module in inner]
    moved = move(self, function, recurse)
    for module, buffers in kept:
        module._buffers.update(buffers)
    return moved


@on_card("device.not-magic")
def after_a_copy_from_pageable_memory_each_product_runs_twice(patch):
    """Pinning gains time whatever runs beside the copy."""
    sources = [torch.empty(0)]

    def copy(original, target, source, *args, **kwargs):
        sources.append(source)
        return original(target, source, *args, **kwargs)

    def product(mm, *args, **kwargs):
        sources[-1].is_pinned() or mm(*args, **kwargs)
        return mm(*args, **kwargs)

    stand_in("torch.Tensor.copy_", copy)(patch)
    stand_in("torch.mm", product)(patch)


@on_card("device.transfer-costs", instead_of="meta_tests.card.card.Card.copy")
def a_link_is_as_fast_as_memory(copy, card, nbytes, *how):
    return copy(card, nbytes // 64, *how)


@on_card("device.pinned-faster", instead_of="meta_tests.card.card.Card.copy")
def pageable_memory_is_copied_as_fast_as_pinned(copy, card, nbytes, pinned, to_host):
    return copy(card, nbytes, True, to_host)


@on_card(
    "device.nonblocking-overlap data.pin-memory-flag",
    instead_of="torch.Tensor.copy_",
)
def a_copy_from_pinned_memory_holds_the_host(copy, target, source, non_blocking=False):
    return copy(target, source)


@on_card(
    "device.cpu-too-slow mfu.lecture-product-here",
    instead_of="meta_tests.card.card.Card.kernel_s",
)
def a_card_takes_a_thousand_times_as_long(kernel_s, *what):
    return 1000 * kernel_s(*what)


@on_card("device.memory-tools", instead_of="torch.cuda.memory_allocated")
def the_memory_tools_count_bytes_and_no_blocks(_, device=None):
    return torch.cuda.memory_stats(device)["requested_bytes.all.current"]


@on_card("device.empty-cache", instead_of="torch.cuda.empty_cache")
def empty_cache_keeps_the_cache(_original):
    return None


@on_card("device.batch-once", instead_of="meta_tests.card.card.Card.copy")
def a_copy_is_never_launched(copy, card, nbytes, *how):
    return card.stream.ready_s


@fault("device.create-direct device.zeros-to-is-direct", instead_of="torch.zeros")
def creating_on_a_device_goes_through_the_host(zeros, *shape, device="cpu", **options):
    return zeros(*shape, **options).to(device)


@fault("device.intermediates-by-hand", instead_of="torch.zeros_like")
def the_result_of_an_operation_lands_on_the_cpu(_original, x, **_):
    return torch.zeros(x.shape, dtype=x.dtype)


@fault("device.parameters-resident", instead_of="torch.nn.Linear.forward")
def every_layer_fetches_its_bias_from_the_host(forward, self, x):
    return forward(self, x) + torch.zeros(self.out_features).to(x.device)


@fault("device.all-on-gpu", instead_of="torch.Tensor.__matmul__")
def a_product_is_copied_to_another_device_and_stays_there_too(matmul, a, b):
    return (a.to("meta"), matmul(a, b))[1]


@fault("device.assert-location", instead_of="torch.Tensor.__add__")
def devices_are_mixed_in_silence(add, a, b):
    return (
        torch.empty_like(a)
        if isinstance(b, torch.Tensor) and b.is_meta and (not b.dim())
        else add(a, b)
    )
