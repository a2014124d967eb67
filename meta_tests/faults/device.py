"""Faults of the topic device: torch puts tensors elsewhere than it says, and a formula of their bytes is off."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import accounting.memory
from meta_tests.faults import fault, replace


@fault("device.model-to-params-only")
def a_model_forgets_its_buffers(patch: pytest.MonkeyPatch) -> None:
    move = torch.nn.Module._apply

    def without_buffers(self: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:
        kept = [(module, dict(module._buffers)) for module in self.modules()]
        moved = move(self, function, recurse)
        for module, buffers in kept:
            module._buffers.update(buffers)
        return moved

    patch.setattr(torch.nn.Module, "_apply", without_buffers)


@fault("device.default-cpu")
def zeros_are_made_on_another_device(patch: pytest.MonkeyPatch) -> None:
    zeros = torch.zeros
    patch.setattr(torch, "zeros", lambda *shape, device="meta", **options: zeros(*shape, device=device, **options))


@fault("device.create-direct", "device.zeros-to-is-direct")
def creating_on_a_device_goes_through_the_host(patch: pytest.MonkeyPatch) -> None:
    zeros = torch.zeros
    patch.setattr(torch, "zeros", lambda *shape, device="cpu", **options: zeros(*shape, **options).to(device))


@fault("device.zeros-to-is-direct")
def a_move_makes_a_new_tensor_and_copies_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.Tensor, "to", lambda self, device, **_: torch.empty_like(self, device=device))


@fault("device.move-forms")
def a_copy_loses_the_last_byte(patch: pytest.MonkeyPatch) -> None:
    move = torch.Tensor.to

    def careless(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        moved = move(self, *arguments, **options)
        if options.get("copy") and moved.numel() and moved.device.type != "meta":
            moved.view(-1).view(torch.uint8)[-1] = 0
        return moved

    patch.setattr(torch.Tensor, "to", careless)


@fault("device.allocated-8192")
def a_tensor_is_thought_to_take_half_its_bytes(patch: pytest.MonkeyPatch) -> None:
    tensor_bytes = accounting.memory.tensor_bytes
    replace(patch, tensor_bytes, lambda shape, dtype="fp32": tensor_bytes(shape, dtype) // 2)


@fault("device.intermediates-by-hand")
def the_result_of_an_operation_lands_on_the_cpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "zeros_like", lambda x, **_: torch.zeros(x.shape, dtype=x.dtype))


@fault("device.assert-location")
def devices_are_mixed_in_silence(patch: pytest.MonkeyPatch) -> None:
    add = torch.Tensor.__add__

    def careless(a: torch.Tensor, b: Any) -> torch.Tensor:
        mixed = isinstance(b, torch.Tensor) and b.device != a.device
        return torch.empty_like(a) if mixed else add(a, b)

    patch.setattr(torch.Tensor, "__add__", careless)


@fault("device.memory-tools")
def the_memory_tools_count_what_no_gpu_holds(patch: pytest.MonkeyPatch) -> None:
    reserved = torch.cuda.memory_reserved
    patch.setattr(torch.cuda, "memory_reserved", lambda device=None: reserved(device) + 2**21)


@fault("device.all-on-gpu")
def a_step_forgets_to_update(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.optim.SGD, "step", lambda self, closure=None: None)
