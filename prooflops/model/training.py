"""Changes of a user's training that make it fit: recomputed layers, bf16, 8-bit AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from prooflops.memory import TrainingStep, fake_copy
from prooflops.model.user_model import Instance

# bitsandbytes keeps the state of smaller tensors in fp32 (min_8bit_size).
LEAST_IN_8_BITS = 4096
ELEMENTS_PER_SCALE = 256
CODES_PER_MAP = 256


@dataclass(frozen=True)
class Training:
    """A training as its factory returns it, except for these changes."""

    name: str = "as it is"
    recomputes: bool = False
    dtype: torch.dtype | None = None
    is_8bit: bool = False

    def step(self, instance: Instance, device: str | torch.device = "cuda") -> TrainingStep:
        """The training step on a device, on copies; the instance stays as it is.

        Raises ValueError where no layers are found to recompute.
        """
        module = instance.module
        given: Any = instance.arguments, instance.keywords
        optimizer = optimizer_like(instance.optimizer, module)
        if self.recomputes or self.dtype is not None:
            module = fake_copy(module, "meta")
        if self.dtype is not None:
            module.to(self.dtype)
            given = tree_map_only(Tensor, partial(_cast, self.dtype), given)
        if self.recomputes:
            recompute_layers(module)
        if self.is_8bit:
            optimizer = AdamW8bit
        called = _CalledWith(module)
        return TrainingStep(called, given, instance.loss, optimizer=optimizer, device=device)


def trainings_of(instance: Instance) -> tuple[Training, ...]:
    """The training as it is, with each change that saves memory, and with all of them."""
    is_wide = next(instance.module.parameters()).dtype.itemsize > torch.bfloat16.itemsize
    # Others have no two moments that 8 bits could hold.
    is_adam = isinstance(instance.optimizer, torch.optim.Adam)
    every = "bf16, 8-bit AdamW, layers recomputed" if is_adam else "bf16, layers recomputed"
    changes = [Training(), Training("layers recomputed", recomputes=True)]
    if is_wide:
        changes.append(Training("in bf16", dtype=torch.bfloat16))
    if is_adam:
        changes.append(Training("8-bit AdamW", is_8bit=True))
    all_of_them = Training(every, recomputes=True, dtype=torch.bfloat16, is_8bit=is_adam)
    return (*changes, all_of_them)


def recompute_layers(module: nn.Module) -> None:
    """Has the layers of a transformers model, or those of `repeated_layers`, recomputed."""
    # The second is the first's name before transformers 5.23, which warns of it.
    for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):
        enable = getattr(module, name, None)
        if enable is not None:
            enable({"use_reentrant": False})
            return
    for layer in repeated_layers(module):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def repeated_layers(module: nn.Module) -> list[nn.Module]:
    """The children of one type, two or more in a list, that have the most parameters in all."""
    found: list[nn.Module] = []
    most = 0
    for each in module.modules():
        if not isinstance(each, nn.ModuleList | nn.Sequential):
            continue
        for kind in {type(child) for child in each}:
            layers = [child for child in each if type(child) is kind]
            size = sum(tensor.numel() for child in layers for tensor in child.parameters())
            if len(layers) > 1 and size > most:
                found, most = layers, size
    if not found:
        raise ValueError("no layers to recompute: no ModuleList or Sequential repeats a type")
    return found


class AdamW8bit(torch.optim.Optimizer):
    """The tensors of bitsandbytes.optim.AdamW8bit, without their values.

    It has two states of one byte per element, with an fp32 scale for each 256, and two maps of 256
    codes in all. A tensor below 4,096 elements has both states in fp32. Its kernels work in place.
    Source: Optimizer2State.init_state in bitsandbytes/optim/optimizer.py, whose blocks were of
    2,048 elements before 0.44. Not compared with a card.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.maps: list[Tensor] = []

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is not None and not self.state[tensor]:
                    self._init_state(tensor)

    def _init_state(self, tensor: Tensor) -> None:
        state = self.state[tensor]
        if tensor.numel() < LEAST_IN_8_BITS:
            for name in ("state1", "state2"):
                state[name] = torch.zeros_like(tensor, dtype=torch.float32)
            return
        if not self.maps:
            self.maps = [torch.empty(CODES_PER_MAP, device=tensor.device) for _ in range(2)]
        for number in (1, 2):
            blocks = -(-tensor.numel() // ELEMENTS_PER_SCALE)
            state[f"state{number}"] = torch.zeros_like(tensor, dtype=torch.uint8)
            state[f"absmax{number}"] = torch.zeros(blocks, device=tensor.device)


def optimizer_like(
    optimizer: torch.optim.Optimizer, module: nn.Module
) -> Callable[..., torch.optim.Optimizer]:
    """Makes an optimizer of the same class, options and groups over a copy's parameters."""
    kind = type(optimizer)
    known = signature(kind).parameters
    options = {name: value for name, value in optimizer.defaults.items() if name in known}
    numbers = {id(each): number for number, each in enumerate(module.parameters())}
    groups = [
        ([numbers[id(each)] for each in group["params"]], _options_of(group))
        for group in optimizer.param_groups
    ]

    def made(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        copies = list(parameters)
        if len(groups) == 1:
            return kind([copies[number] for number in groups[0][0]], **options)
        chosen = [
            {**of_group, "params": [copies[number] for number in members]}
            for members, of_group in groups
        ]
        return kind(chosen, **options)

    return made


def _options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


class _CalledWith(nn.Module):
    """The module, called with positional and keyword arguments given as two inputs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return self.module(*arguments, **keywords)


def _cast(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return torch.empty_like(tensor, dtype=dtype, device="meta")
