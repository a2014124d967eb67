"""A training step: its bytes predicted, without running it, or measured, by the same code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from accounting.checks import validated_int
from prooflops.memory.allocations import MeasuredMemory, measured_memory
from prooflops.memory.captured import CapturedTensors
from prooflops.memory.copies import Copies, copy_of
from prooflops.memory.prediction import PredictedMemory, predicted_memory
from prooflops.memory.repetition import Steps, take_two_steps
from prooflops.memory.without_compiler import without_compiler

# The class of the bytes that each phase of a training step leaves allocated.
CLASSES = {
    "built": "parameters",
    "inputs": "inputs",
    "optimizer": "optimizer state",
    "forward": "activations",
    "backward": "gradients",
    "step": "optimizer state",
    "zero_grad": "optimizer state",
}


@dataclass(frozen=True)
class TrainingStep:
    """The first two training steps of a model, to be predicted or measured phase by phase.

    `predict` calls `build()` on the meta device. It uses shapes, dtypes and strides of `inputs` (a
    tensor or several, for the model) and `targets`, and values of whole numbers alone. The steps:

        updates = optimizer(model.parameters())                         once
        loss(model(inputs), targets).backward()                         for each micro-batch
        updates.step()
        updates.zero_grad()

    Autocast covers the forward pass up to the loss. The first phases are "built" (without
    temporaries of initialisation), "inputs" and "optimizer" (its constructor). Then come "forward",
    "backward" ("forward 1" and so on with several micro-batches), "step" and "zero_grad". The same
    follow again with "second" before the name. The first step allocates the optimizer's state, the
    second is like all later ones. `live_by_class` and `peak_by_class` of a phase name parameters,
    buffers, inputs, activations, gradients, optimizer state, recomputed and temporaries.
    Activations are everything that the forward pass leaves, the loss included. Optimizer state
    includes master copies of the parameters.

    `optimizer` gets the parameters: `partial(torch.optim.AdamW, foreach=True)`, or one of your own
    that keeps master weights in fp32.

    >>> net = lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    >>> batch = torch.empty(8, 64)
    >>> step = TrainingStep(net, batch, loss=torch.mean, optimizer=torch.optim.AdamW).predict()
    >>> step.phases["built"].live_bytes, step.phases["inputs"].live_bytes
    (16900, 18948)
    >>> step.phases["second forward"].live_bytes, step.phases["second backward"].live_bytes
    (54816, 69664)
    >>> step.phases["second step"].live_by_class
    {'parameters': 16900, 'inputs': 2048, 'optimizer state': 33816, 'gradients': 16900}
    """

    build: Callable[[], nn.Module] | nn.Module
    inputs: Any
    loss: Callable[..., Tensor]
    targets: Any = None
    optimizer: Callable[..., torch.optim.Optimizer] | None = None
    micro_batches: int = 1
    autocast: torch.dtype | None = None
    device: str | torch.device = "cpu"

    def predict(self, **options: Any) -> PredictedMemory:
        """The bytes of both steps without running them.

        The second passes are taken to repeat the events of the first, if these leave the module
        unchanged. A closure that counts its calls is not noticed.

        The options and the domain of validity are those of `predicted_memory`. Raises ValueError
        for a batch that cannot be split into the micro-batches, and as `predicted_memory`.
        """
        model = self.build if isinstance(self.build, nn.Module) else _on("meta", self.build)
        copies = Copies(self.device)
        with predicted_memory(self.device, classes=CLASSES, copies=copies, **options) as held:
            fake = copies.module(model)
            held.name("buffers", fake.buffers())
            held.mark("built")
            batch = copies.tree((self.inputs, self.targets))
            copies.release()
            with CapturedTensors(copies, lambda tensor: held.name("inputs", [tensor])):
                held.enter_two_steps(self._steps(fake, batch, held.mark))
        return held

    def measure(self) -> MeasuredMemory:
        """The bytes of both steps, run and measured by `measured_memory`.

        A `build` that is a module already is not copied, so its parameters are not among the bytes,
        and it is trained.
        """
        with measured_memory(self.device) as held:
            model = (
                self.build if isinstance(self.build, nn.Module) else _on(self.device, self.build)
            )
            held.mark("built")
            batch = copy_of((self.inputs, self.targets), self.device)
            take_two_steps(self._steps(model, batch, held.mark))
        return held

    def _steps(self, model: nn.Module, batch: Any, mark: Callable[[str], object]) -> Steps:
        """The steps of a module that is built, on a batch of its device."""
        mark("inputs")
        optimizer = None if self.optimizer is None else self.optimizer(model.parameters())
        mark("optimizer")
        forwards = [partial(self._loss, model, *each) for each in _split(batch, self.micro_batches)]
        return Steps(model, forwards, optimizer, mark)

    def _loss(self, model: nn.Module, inputs: Any, targets: Any) -> Tensor:
        kind = torch.device(self.device).type
        with torch.autocast(kind, self.autocast) if self.autocast else nullcontext():
            output = model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
            return self.loss(output) if targets is None else self.loss(output, targets)


def _on(device: str | torch.device, build: Callable[[], nn.Module]) -> nn.Module:
    # The initialisation of a module on meta imports the compiler, which takes seconds.
    with torch.device(device), without_compiler():
        return build()


def _split(batch: Any, micro_batches: int) -> list[Any]:
    """The batch split into `micro_batches` views along the first dimension of its tensors."""
    validated_int("micro_batches", micro_batches, minimum=1)
    leaves, structure = tree_flatten(batch)
    sizes = {leaf.shape[0] if leaf.dim() else 0 for leaf in leaves if isinstance(leaf, Tensor)}
    if micro_batches > 1 and (len(sizes) != 1 or min(sizes) < micro_batches):
        raise ValueError(
            f"inputs must have a first dimension of at least {micro_batches=} in common, "
            f"got {sizes}"
        )
    if micro_batches == 1:
        return [batch]
    copies = [
        leaf.tensor_split(micro_batches) if isinstance(leaf, Tensor) else (leaf,) * micro_batches
        for leaf in leaves
    ]
    return [tree_unflatten(list(each), structure) for each in zip(*copies, strict=True)]
