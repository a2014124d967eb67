"""The nets whose memory was recorded on an H200, as they were built there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from prooflops.memory import TrainingStep

WIDTH, HEADS, VOCABULARY = 512, 8, 8192


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.o = nn.Linear(WIDTH, WIDTH)
        self.n2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, sequence, width = x.shape
        heads = self.qkv(self.n1(x)).view(batch, sequence, 3, HEADS, width // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, sequence, width))
        return x + self.down(functional.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.e = nn.Embedding(VOCABULARY, WIDTH)
        self.b = nn.Sequential(*[Block() for _ in range(layers)])
        self.f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        return self.head(self.f(self.b(self.e(tokens))))


def deep():
    layers = []
    for _ in range(6):
        layers += [nn.Linear(1024, 1024), nn.ReLU()]
    return nn.Sequential(*layers)


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def encoder():
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.1)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def next_token_loss(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Net(NamedTuple):
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    loss: Callable[..., Tensor]
    # Shape of the classes that are the targets.
    targets: tuple[int, ...] | None = None
    optimizer: Any = torch.optim.AdamW
    autocast: torch.dtype | None = None

    def step(self, micro_batches=1):
        is_tokens = self.build is GPT
        dtype = torch.long if is_tokens else torch.float32
        inputs = torch.empty(self.shape, dtype=dtype, device="meta")
        targets = None
        if self.targets is not None:
            targets = torch.empty(self.targets, dtype=torch.long, device="meta")
        return TrainingStep(
            self.build,
            inputs,
            self.loss,
            targets,
            self.optimizer,
            micro_batches,
            self.autocast,
            "cuda",
        )


TOKENS = (4, 512)
gpt = partial(Net, GPT, TOKENS, next_token_loss, TOKENS)
NETS = {
    "gpt-fp32": gpt(),
    "gpt-bf16": gpt(autocast=torch.bfloat16),
    "mlp-gelu-sum": Net(
        lambda: nn.Sequential(nn.Linear(512, 2048), nn.GELU()),
        (256, 512),
        torch.sum,
        optimizer=partial(torch.optim.SGD, lr=0.1),
    ),
    # Recorded in one batch where the process was warm, in four where it was cold.
    "mlp-adam-micro": Net(deep, (512, 1024), torch.mean),
    "conv": Net(convolutions, (16, 3, 128, 128), functional.cross_entropy, (16,)),
    "encoder-dropout": Net(encoder, (8, 256, 256), torch.mean),
}
