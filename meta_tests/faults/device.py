"""Faults of the topic device: torch puts tensors elsewhere than it says, and a formula of their bytes is off."""

import torch

from meta_tests.faults import fault


@fault("device.model-to-params-only", instead_of="torch.nn.Module._apply")
def a_model_forgets_its_buffers(move, self, function, recurse=True):
    kept = [(module, dict(module._buffers)) for module in self.modules()]
    moved = move(self, function, recurse)
    for module, buffers in kept:
        module._buffers.update(buffers)
    return moved


@fault("device.default-cpu", instead_of="torch.zeros")
def zeros_are_made_on_another_device(zeros, *shape, device="meta", **options):
    return zeros(*shape, device=device, **options)


@fault("device.create-direct device.zeros-to-is-direct", instead_of="torch.zeros")
def creating_on_a_device_goes_through_the_host(zeros, *shape, device="cpu", **options):
    return zeros(*shape, **options).to(device)


@fault("device.zeros-to-is-direct", instead_of="torch.Tensor.to")
def a_move_makes_a_new_tensor_and_copies_nothing(_original, self, device, **_):
    return torch.empty_like(self, device=device)


@fault("device.move-forms", instead_of="torch.Tensor.to")
def a_copy_loses_the_last_byte(move, self, *arguments, **options):
    moved = move(self, *arguments, **options)
    if options.get("copy") and moved.numel() and moved.device.type != "meta":
        moved.view(-1).view(torch.uint8)[-1] = 0
    return moved


@fault("device.allocated-8192", instead_of="accounting.memory.tensor_bytes")
def a_tensor_is_thought_to_take_half_its_bytes(tensor_bytes, shape, dtype="fp32"):
    return tensor_bytes(shape, dtype) // 2


@fault("device.intermediates-by-hand", instead_of="torch.zeros_like")
def the_result_of_an_operation_lands_on_the_cpu(_original, x, **_):
    return torch.zeros(x.shape, dtype=x.dtype)


@fault("device.assert-location", instead_of="torch.Tensor.__add__")
def devices_are_mixed_in_silence(add, a, b):
    mixed = isinstance(b, torch.Tensor) and b.device != a.device
    return torch.empty_like(a) if mixed else add(a, b)


@fault("device.memory-tools", instead_of="torch.cuda.memory_reserved")
def the_memory_tools_count_what_no_gpu_holds(reserved, device=None):
    return reserved(device) + 2**21


@fault("device.all-on-gpu", instead_of="torch.optim.SGD.step")
def a_step_forgets_to_update(_original, self, closure=None):
    return None
