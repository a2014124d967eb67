"""Training steps as a performance engineer writes them: what a card should reach with a real net.

They compute in bf16 by autocast over weights in fp32, and compile forward pass and loss as one.
Attention and AdamW are torch's fused ones, and one product makes queries, keys and values. The
vocabulary fills whole tiles. The batch is the largest power of two that fits by prediction, without
gradient accumulation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from accounting import models
from accounting.models import GPT2_SMALL, Transformer
from bench.models import build, inputs
from prooflops.memory import TrainingStep

VOCABULARY_OF_WHOLE_TILES = 50_304
# The shape of TinyLlama, with 1.1 billion parameters.
LLAMA_1B = Transformer(
    vocab_size=32_000, layers=22, dim=2048, heads=32, kv_heads=4, hidden=5632,
    gated=True, norm="rmsnorm",
)  # fmt: skip
GPT2_124M = replace(GPT2_SMALL, vocab_size=VOCABULARY_OF_WHOLE_TILES)
# Each net with the length of its sequences.
NETS = {"gpt2-124m": (GPT2_124M, 1024), "llama-1b": (LLAMA_1B, 2048)}
# More gains nothing on a card of today, and takes longer.
MOST_BATCH = 64
LEARNING_RATE = 3e-4


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in fp32, whatever autocast makes of the logits."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@dataclass(frozen=True)
class Batch:
    """Sequences of a net, and the FLOPs of a step on them."""

    model: Transformer
    size: int
    sequence: int

    @property
    def tokens(self) -> int:
        return self.size * self.sequence

    @property
    def model_flops(self) -> int:
        """FLOPs for MFU: forward and backward pass, attention at the causal mask's pairs.

        Recomputed attention is not counted.
        """
        return models.step_flops(self.model, self.size, self.sequence, pairs="causal").model


def predicted_peak_bytes(model: Transformer, size: int, sequence: int, device: torch.device) -> int:
    """The bytes of two eager steps, by fake tensors: a compiled step keeps no more."""
    tokens = torch.empty(size, sequence, dtype=torch.long, device="meta")
    step = TrainingStep(
        partial(build, model, fused_qkv=True),
        tokens,
        loss=loss_of,
        targets=tokens,
        optimizer=partial(torch.optim.AdamW, fused=True),
        autocast=torch.bfloat16,
        device=device,
    )
    return step.predict().peak_bytes


def largest_batch(room_bytes: float, peak_bytes: Callable[[int], float]) -> int:
    """The largest power of two that fits; 0 where not even 1 does.

    A step's memory is weights and optimizer state, plus a part in proportion to the batch. So two
    predictions determine it.

    >>> largest_batch(68e9, lambda batch: 20e9 + 3e9 * batch)
    16
    """
    one, two = peak_bytes(1), peak_bytes(2)
    batch = MOST_BATCH
    while batch and one + (batch - 1) * (two - one) > room_bytes:
        batch //= 2
    return batch


class WellWrittenStep:
    """One step on one fixed batch of random tokens; a call returns its loss."""

    recipe = "bf16"

    def __init__(self, batch: Batch, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.module = build(batch.model, device=device, fused_qkv=True)
        self.tokens = inputs(batch.model, batch.size, batch.sequence, device=device)
        self.targets = torch.randint_like(self.tokens, batch.model.vocab_size)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=LEARNING_RATE, fused=True)
        self._loss = torch.compile(partial(forward_loss, self.module))

    def __call__(self) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self._loss(self.tokens, self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def forward_loss(module: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return loss_of(module(tokens), targets)
