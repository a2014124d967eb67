"""A user's own model, as its factory builds it: validated, and on the device under test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from accounting.checks import at_least_one
from accounting.formats import FORMATS
from prooflops.memory.copies import why_not_taken_apart
from prooflops.memory.without_compiler import without_compiler
from prooflops.model.factory import RETURNS, ModelError, user_code

SEED = 0
FORMAT_NAMES = {
    each.torch_name: name for name, each in FORMATS.items() if each.torch_name and name != "tf32"
}


@dataclass(frozen=True)
class Instance:
    """One model fresh from the factory, on the device under test, ready for a training step.

    `notes` are choices made for the user. `stated_tokens` is D, if the factory states it.
    """

    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    optimizer: torch.optim.Optimizer
    loss: Callable[[Any], Tensor]
    notes: tuple[str, ...]
    stated_tokens: tuple[int, str] | None = None

    def forward(self) -> Tensor:
        """The scalar that is differentiated."""
        return self.loss(self.module(*self.arguments, **self.keywords))

    def step(self) -> None:
        """One training step: gradients dropped, forward, backward, update."""
        self.optimizer.zero_grad(set_to_none=True)
        self.forward().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Each parameter once, under its first name."""
        return dict(self.module.named_parameters())

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs of the module by name, `input_ids` first, without numbers and text."""
        named = {f"input {place}": value for place, value in enumerate(self.arguments)}
        named |= self.keywords
        order = sorted(named, key=lambda name: name != "input_ids")
        return {name: named[name] for name in order if tensors_of(named[name])}

    @property
    def main_input(self) -> tuple[str, Tensor]:
        """The name of the first input, and its first tensor."""
        name, given = next(iter(self.inputs.items()))
        return name, tensors_of(given)[0]


@dataclass(frozen=True)
class UserModel:
    """The factory that `--model` names, or one that copies a module, and the device under test.

    Errors begin with `option` and `spec`. Whether it is compiled is known after its first step.
    """

    spec: str
    factory: Callable[[], Any]
    device: torch.device
    option: str = "--model"
    is_compiled: bool = False

    def build(self) -> Instance:
        """A model fresh from the factory, under the same seed each time."""
        return _on_device(self._built(), self.device)

    def build_without_values(self) -> Instance:
        """A model on the meta device, which needs neither memory nor time."""
        with torch.device("meta"), without_compiler():
            return _on_device(self._built(allow_meta=True), torch.device("meta"))

    def _built(self, *, allow_meta: bool = False) -> Instance:
        torch.manual_seed(SEED)
        with user_code("the factory"):
            returned = self.factory()
        return validated_instance(returned, allow_meta=allow_meta)


def refuse_sparse_gradients(instance: Instance) -> None:
    sparse = [
        name
        for name, each in instance.parameters.items()
        if each.grad is not None and each.grad.layout != torch.strided
    ]
    if sparse:
        raise ModelError(
            f"the gradients of {', '.join(sparse[:5])} are sparse, and their bytes follow from the "
            "values of the inputs; use dense gradients (sparse=False)"
        )


def has_compiled_parts(module: nn.Module) -> bool:
    return any(
        "_orig_mod" in each._modules or each.__dict__.get("_compiled_call_impl")
        for each in module.modules()
    )


def compiled_frames() -> int:
    """The number of functions that torch.compile has compiled in this process."""
    # torch.compile imports it, which takes a second.
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["frames"]["ok"]) if dynamo else 0


def validated_instance(returned: object, *, allow_meta: bool = False) -> Instance:
    """The result of a factory as a model.

    Raises ModelError that names the fault and the valid forms.
    """
    if not isinstance(returned, (tuple, list)) or not 2 <= len(returned) <= 5:
        raise ModelError(f"the factory must return {RETURNS}, got a {type(returned).__name__}")
    module, inputs, optimizer, loss, tokens = [*returned, None, None, None][:5]
    check_parameters(module, allow_meta=allow_meta)
    arguments, keywords = _inputs(inputs)
    notes = []
    if not module.training:
        # Parts that are frozen in eval mode stay so; a whole module in eval mode is put in train
        # mode.
        module.train()
        notes.append("the module was in eval mode: put in train mode for the step")
    if optimizer is None:
        optimizer = torch.optim.AdamW(each for each in module.parameters() if each.requires_grad)
        notes.append("no optimizer given: AdamW with torch's defaults")
    if loss is None:
        notes.append("no loss given: the sum of the output, unless it has .loss or .logits")
    instance = Instance(
        module,
        arguments,
        keywords,
        optimizer,
        loss or default_loss,
        tuple(notes),
        _stated_tokens(tokens),
    )
    name, tensor = instance.main_input
    if not tensor.numel():
        raise ModelError(
            f"{name} of shape {tuple(tensor.shape)} is an empty batch; give at least one example"
        )
    return instance


def check_parameters(module: nn.Module, *, allow_meta: bool = False) -> None:
    """Refuses parameters that torch would step without an error, or with an unclear one."""
    if why_not := why_not_taken_apart(module):
        raise ModelError(why_not)
    parameters = dict(module.named_parameters())
    if not any(each.requires_grad for each in parameters.values()):
        raise ModelError(f"the {_name(module)} has no parameter that requires a gradient")
    meta = [name for name, each in parameters.items() if each.is_meta]
    if meta and not allow_meta:
        raise ModelError(
            f"parameters on the meta device hold no values: {', '.join(meta[:5])}; "
            "build on a real device"
        )


def _stated_tokens(stated: Any) -> tuple[int, str] | None:
    """D as the factory states it: a number of tokens, or a number and its unit."""
    if stated is None:
        return None
    number, unit = stated if isinstance(stated, (tuple, list)) else (stated, "tokens")
    return at_least_one("D", number), str(unit)


def _inputs(inputs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the forward pass."""
    if not tensors_of(inputs):
        raise ModelError(
            "inputs must be a tensor, a tuple of arguments or a dict of keyword arguments "
            f"with at least one tensor in it, got a {type(inputs).__name__}"
        )
    if isinstance(inputs, Mapping):
        return (), {str(name): value for name, value in inputs.items()}
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def _on_device(instance: Instance, device: torch.device) -> Instance:
    """The same model with its module, its inputs and its optimizer's state on `device`."""
    here = {each.device for each in (*instance.module.parameters(), *instance.module.buffers())}
    if any((each.type, each.index or 0) != (device.type, device.index or 0) for each in here):
        instance.module.to(device)
    if instance.optimizer.state:
        # A state moves to its parameters' device where it is loaded.
        instance.optimizer.load_state_dict(instance.optimizer.state_dict())
    arguments, keywords = tree_map_only(
        Tensor, lambda each: each.to(device), (instance.arguments, instance.keywords)
    )
    return replace(instance, arguments=arguments, keywords=keywords)


def default_loss(output: Any) -> Tensor:
    """The output's own loss if it has one, else a sum.

    The sum is that of its logits, else that of all its floating tensors: of complex ones, the real
    parts.
    """
    for name in ("loss", "logits"):
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, Tensor):
            return found.real.sum()
    sums = [tensor.real.sum() for tensor in tensors_of(output) if tensor.requires_grad]
    if not sums:
        raise ModelError(
            f"the forward pass returned a {type(output).__name__} without any tensor that depends "
            "on a parameter; "
            "valid: a tensor, a collection of tensors, or an object with .loss or .logits"
        )
    return sum(sums[1:], sums[0])


def tensors_of(tree: object) -> list[Tensor]:
    """The tensors in nested tuples, lists, dicts and dataclasses of outputs."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in tensors_of(value)]
    if isinstance(tree, Sequence) and not isinstance(tree, (str, bytes)):
        return [leaf for value in tree for leaf in tensors_of(value)]
    if hasattr(tree, "__dataclass_fields__"):
        return [
            leaf
            for name in tree.__dataclass_fields__
            for leaf in tensors_of(getattr(tree, name, None))
        ]
    return []


def format_name(dtype: torch.dtype) -> str:
    """`fp32` of torch.float32; torch's own name where it is none of our formats."""
    name = str(dtype).removeprefix("torch.")
    return FORMAT_NAMES.get(name, name)


def _name(module: nn.Module) -> str:
    return type(module).__name__
