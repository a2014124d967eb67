"""What holds for any model, tried on the one that `--model` names. Without that option these tests are not there."""

import copy

import pytest

from accounting import measured


def registered(module):
    """Every parameter and buffer as often as a module has it."""
    return [
        tensor
        for each in module.modules()
        for tensor in (*each._parameters.values(), *each._buffers.values())
        if tensor is not None
    ]


def test_parameters_and_buffers_have_the_bytes_that_a_copy_of_them_takes(user_model, allocator):
    tensors = registered(user_model.fresh().module)
    with measured.memory(allocator) as held:
        copies = copy.deepcopy(tensors)  # copies a tensor once, wherever it is tied to
    assert user_model.inventory.bytes == held.live_bytes, (
        f"parameters and buffers are counted as {user_model.inventory.bytes} B, but should be {held.live_bytes} B "
        f"[{len(copies)} tensors, tied ones included]"
    )


@pytest.mark.parametrize("phase", ["forward", "backward", "step"])
def test_every_flop_off_the_rule_has_a_reason(user_model, phase):
    flops = user_model.flops
    explained = sum(getattr(part, phase) for part in flops.parts)
    assert explained == flops.rule(phase) - flops.counted(phase), (
        f"the parts sum to {explained}, but should sum to rule less counted = "
        f"{flops.rule(phase)} - {flops.counted(phase)} = {flops.difference(phase)}"
    )


def test_all_that_is_recomputed_has_a_reason(user_model):
    flops = user_model.flops
    explained = -sum(part.step for part in flops.parts if part.name.startswith("recomputed"))
    assert explained == flops.recomputed, f"the parts have {explained} recomputed FLOPs, but counted={flops.recomputed}"


@pytest.mark.parametrize("what", ["gradients", "optimizer state"])
def test_memory_is_what_its_tensors_say(user_model, allocator, what):
    row = user_model.memory.row(what)
    assert row.measured_bytes == row.predicted_bytes, (
        f"{what}: the allocator was asked for {row.measured_bytes} B, but should have been for {row.predicted_bytes} B"
    )


@pytest.mark.parametrize("what", ["held for the backward pass", "peak of a step"])
def test_memory_is_predicted_to_within_a_percent(user_model, allocator, what):
    memory = user_model.memory
    row = memory.row(what)
    if row.predicted_bytes is None:
        pytest.skip("; ".join(memory.remarks))
    if allocator.type != "cpu" or memory.is_lower_bound:
        pytest.skip("scratch inside kernels is not known for all of these operators: the page shows both figures")
    assert row.measured_bytes == pytest.approx(row.predicted_bytes, rel=0.01), (
        f"{what}: predicted {row.predicted_bytes} B, but measured {row.measured_bytes} B, more than 1 % apart"
    )
