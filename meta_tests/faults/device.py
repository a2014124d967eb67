"""Faults of the topic device: torch puts tensors elsewhere than it says, and a formula of their bytes is off."""

import torch

from meta_tests.faults import fault, faults, replaced, stand_in

ON_CARD = "-p meta_tests.simulated_card.plugin --device cuda --quick"


@fault("device.model-to-params-only", instead_of="torch.nn.Module._apply")
def a_model_forgets_its_buffers(move, self, function, recurse=True):
    kept = [
        (module, dict(module._buffers)) for module in [*self.modules()][2:]
    ]  # of modules within its modules
    moved = move(self, function, recurse)
    for module, buffers in kept:
        module._buffers.update(buffers)
    return moved


@fault("device.move-forms", instead_of="torch.Tensor.to")
def a_copy_loses_the_last_byte(move, self, *arguments, **options):
    moved = move(self, *arguments, **options)
    if options.get("copy") and moved.numel() and moved.device.type != "meta":
        moved.view(-1).view(torch.uint8)[-1] = 0
    return moved


@fault("device.not-magic", options=ON_CARD)
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


# fmt: off
faults(
    ("a_link_is_as_fast_as_memory", "device.transfer-costs", stand_in("meta_tests.simulated_card.card.Card.copy",
        lambda copy, card, nbytes, *how: copy(card, nbytes // 64, *how))),
    ("pageable_memory_is_copied_as_fast_as_pinned", "device.pinned-faster",
     stand_in("meta_tests.simulated_card.card.Card.copy",
        lambda copy, card, nbytes, pinned, to_host: copy(card, nbytes, True, to_host))),
    ("a_copy_from_pinned_memory_holds_the_host", "device.nonblocking-overlap data.pin-memory-flag",
     stand_in("torch.Tensor.copy_", lambda copy, target, source, non_blocking=False: copy(target, source))),
    ("a_card_takes_a_thousand_times_as_long", "device.cpu-too-slow",
     stand_in("meta_tests.simulated_card.card.Card.kernel_s", lambda kernel_s, *what: 1000 * kernel_s(*what))),
    ("the_memory_tools_count_bytes_and_no_blocks", "device.memory-tools", stand_in("torch.cuda.memory_allocated",
        lambda _, device=None: torch.cuda.memory_stats(device)["requested_bytes.all.current"])),
    ("empty_cache_keeps_the_cache", "device.empty-cache", replaced("torch.cuda.empty_cache", lambda: None)),
    ("a_copy_is_never_launched", "device.batch-once", stand_in("meta_tests.simulated_card.card.Card.copy",
        lambda copy, card, nbytes, *how: card.stream.ready_s)),
    options=ON_CARD,
)
faults(
    ("zeros_are_made_on_another_device", "device.default-cpu",
     stand_in("torch.zeros", lambda zeros, *shape, device="meta", **options: zeros(*shape, device=device, **options))),
    ("creating_on_a_device_goes_through_the_host", "device.create-direct device.zeros-to-is-direct",
     stand_in("torch.zeros", lambda zeros, *shape, device="cpu", **options: zeros(*shape, **options).to(device))),
    ("a_move_makes_a_new_tensor_and_copies_nothing", "device.zeros-to-is-direct",
     stand_in("torch.Tensor.to", lambda _original, self, device, **_: torch.empty_like(self, device=device))),
    ("a_tensor_is_thought_to_take_half_its_bytes", "device.allocated-8192", stand_in("accounting.memory.tensor_bytes",
        lambda tensor_bytes, shape, dtype="fp32": tensor_bytes(shape, dtype) // 2)),
    ("the_result_of_an_operation_lands_on_the_cpu", "device.intermediates-by-hand",
     stand_in("torch.zeros_like", lambda _original, x, **_: torch.zeros(x.shape, dtype=x.dtype))),
    ("every_layer_fetches_its_bias_from_the_host", "device.parameters-resident", stand_in("torch.nn.Linear.forward",
        lambda forward, self, x: forward(self, x) + torch.zeros(self.out_features).to(x.device))),
    ("a_product_is_copied_to_another_device_and_stays_there_too", "device.all-on-gpu",
     stand_in("torch.Tensor.__matmul__", lambda matmul, a, b: (a.to("meta"), matmul(a, b))[1])),
    ("devices_are_mixed_in_silence", "device.assert-location", stand_in("torch.Tensor.__add__",
        lambda add, a, b: torch.empty_like(a) if isinstance(b, torch.Tensor) and b.is_meta and not b.dim()
            else add(a, b))),
)
# fmt: on
