"""A training step to be measured: its model, its recipe of dtypes, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from accounting import models
from accounting.activations import activation_bytes
from accounting.flops import StepFlops
from accounting.memory import element_bytes, training_bytes
from accounting.models import GPT2_SMALL, DeepLinear, Transformer
from bench.models import build, inputs, reduced
from prooflops.precision import Float32Products

# `fitting(wanted, bytes_of, least)`: the size, halved until its bytes fit the memory, see
# `prooflops.suite.sizing`.
Fitting = Callable[[int, Callable[[int], float], int], int]
# A batch is split into this many micro-batches.
LEAST_BATCH = 4
RECIPES = ("fp32", "tf32", "bf16", "fp16")
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The learning rate is this divided by the model's width, and by the layers of a deep linear net.
CHANGE_PER_STEP = 0.5
PARTS = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Workload:
    """A model and the batch of one step."""

    model: DeepLinear | Transformer
    batch: int
    sequence: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of a step; of a deep linear net, examples."""
        return self.batch * self.sequence

    def flops(self, checkpoint_every: int = 0) -> StepFlops:
        """FLOPs of a step as torch runs it.

        Fused attention computes its scores again in the backward pass.
        """
        convention = "flash" if isinstance(self.model, Transformer) else "math"
        return models.step_flops(
            self.model,
            self.batch,
            self.sequence,
            convention=convention,
            checkpoint_every=checkpoint_every,
            early_stop=True,
        )


# Steps of some 10 to 50 ms on two CPU cores, and at three quarters of an H100's peak.
ON_CPU = {
    "deep-linear": Workload(DeepLinear(dim=512, layers=8), batch=256),
    "transformer": Workload(reduced(GPT2_SMALL, layers=2, head_dim=64), batch=4, sequence=128),
}
ON_ACCELERATOR = {
    "deep-linear": Workload(DeepLinear(dim=4096, layers=16), batch=8192),
    "transformer": Workload(GPT2_SMALL, batch=16, sequence=1024),
}
# An accelerator does a seventh of the FLOP/s in fp32, and less.
IN_FP32_ON_ACCELERATOR = {
    "deep-linear": Workload(DeepLinear(dim=4096, layers=16), batch=1024),
    "transformer": Workload(GPT2_SMALL, batch=4, sequence=512),
}


def workload(
    name: str, recipe: str, device: torch.device, fitting: Fitting = lambda wanted, *_: wanted
) -> Workload:
    """The workload of that name for `device`, its batch halved until a step is `fitting`."""
    accelerated = IN_FP32_ON_ACCELERATOR if recipe == "fp32" else ON_ACCELERATOR
    work = (ON_CPU if device.type == "cpu" else accelerated)[name]
    batch = fitting(work.batch, lambda batch: step_bytes(replace(work, batch=batch)), LEAST_BATCH)
    return replace(work, batch=batch)


def usual_recipe(device: torch.device, bound_flop_per_s: Callable[[str], float | None]) -> str:
    """The usual recipe for training: bf16, but fp32 on a CPU without bf16 units.

    Such a CPU emulates bf16 at 1/100 to 1/5 of its fp32 rate, and no bound is on record for it.
    """
    is_emulated = device.type == "cpu" and bound_flop_per_s("bf16") is None
    return "fp32" if is_emulated else "bf16"


def step_bytes(work: Workload) -> int:
    """The approximate peak bytes of two fp32 steps at once.

    It sums activations, three times the logits, and two states.
    """
    saved = activation_bytes(work.model, work.batch, work.sequence)
    if isinstance(work.model, Transformer):
        saved += 3 * element_bytes(work.tokens * work.model.vocab_size)
    return 2 * training_bytes(models.parameter_count(work.model), 0) + saved


def keep_variance(net: nn.Module) -> None:
    """Draws the weights of linear layers so that each output has the variance of its input."""
    for weight in net.parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


class Step:
    """A whole training step on one fixed batch of random data; a call returns its loss.

    It uses AdamW as torch chooses to run it, sets gradients to None after the update, and scales
    the loss for fp16. AdamW changes each weight by about the learning rate, so a layer's output
    changes by that times its width. Changes of directly stacked layers multiply. A deep linear net
    starts from layers that preserve the variance of their input. torch's default layers shrink it
    by 3 each, so 16 of them would pass on almost no signal.
    """

    def __init__(
        self,
        work: Workload,
        recipe: str,
        device: torch.device,
        *,
        checkpoint_every: int = 0,
        micro_batches: int = 1,
        compiled: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.device, self.recipe, self.micro_batches = device, recipe, micro_batches
        self.module = build(work.model, device=device, checkpoint_every=checkpoint_every)
        self.net: Callable[[Tensor], Tensor] = (
            torch.compile(self.module) if compiled else self.module
        )
        self.data = inputs(work.model, work.batch, work.sequence, device=device)
        if isinstance(work.model, DeepLinear):
            self.targets = torch.randn(work.batch, work.model.outputs, device=device)
        else:
            self.targets = torch.randint(work.model.vocab_size, self.data.shape, device=device)
        rate = CHANGE_PER_STEP / work.model.dim
        if isinstance(work.model, DeepLinear):
            keep_variance(self.module)
            rate /= work.model.layers
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=rate)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe == "fp16")

    def __call__(self) -> Tensor:
        loss = None
        for data, targets in self._micro_batches():
            part = self.forward(data, targets)
            self.backward(part)
            loss = part.detach() if loss is None else loss + part.detach()
        self.update()
        assert loss is not None
        return loss

    def forward(self, data: Tensor, targets: Tensor) -> Tensor:
        """The loss of one micro-batch, as a share of the batch's loss."""
        with self._precision():
            out = self.net(data)
            if targets.is_floating_point():
                loss = functional.mse_loss(out.float(), targets)
            else:
                loss = functional.cross_entropy(out.flatten(0, 1).float(), targets.flatten())
            return loss / self.micro_batches

    def backward(self, loss: Tensor) -> None:
        with Float32Products(self.recipe):
            self.scaler.scale(loss).backward()

    def update(self) -> None:
        """The optimizer's step."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> list[Tensor]:
        """The gradients of the whole batch, not scaled, with no update made."""
        for data, targets in self._micro_batches():
            self.forward(data, targets).backward()
        found = [
            parameter.grad.clone()
            for parameter in self.module.parameters()
            if parameter.grad is not None
        ]
        self.optimizer.zero_grad(set_to_none=True)
        return found

    def part_times_s(self, timer: Callable[[], Any], steps: int) -> dict[str, float]:
        """Median seconds of each part of a step, by a clock that the device itself reads."""
        moments = []
        for _ in range(steps):
            start = timer()
            loss = self.forward(self.data, self.targets)
            forward = timer()
            self.backward(loss)
            backward = timer()
            self.update()
            moments.append((start, forward, backward, timer()))
        return {
            part: median(row[index + 1] - row[index] for row in moments)
            for index, part in enumerate(PARTS)
        }

    def _micro_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(
            self.data.chunk(self.micro_batches), self.targets.chunk(self.micro_batches), strict=True
        )

    @contextmanager
    def _precision(self) -> Iterator[None]:
        dtype = AUTOCAST.get(self.recipe)
        cast: AbstractContextManager[Any] = (
            torch.autocast(self.device.type, dtype) if dtype else nullcontext()
        )
        with cast, Float32Products(self.recipe):
            yield
