"""A decoder in the manner of Hugging Face.

It has keyword inputs, its output has a loss and logits, and the factory returns it in eval mode.
"""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, POSITIONS, LAYERS, WIDTH, HEADS = 101, 64, 2, 32, 4
BATCH, LENGTH = 2, 24


class ModelOutput(OrderedDict):
    """An ordered dict whose entries are attributes too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.c_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, _ = x.shape
        query, key, value = (
            self.c_attn(self.ln_1(x))
            .view(batch, length, 3, HEADS, WIDTH // HEADS)
            .permute(2, 0, 3, 1, 4)
        )
        scores = query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(mask, float("-inf")).softmax(-1) @ value
        x = x + self.dropout(self.c_proj(mixed.transpose(1, 2).reshape(batch, length, WIDTH)))
        return x + self.dropout(self.c_out(functional.gelu(self.c_fc(self.ln_2(x)))))


class LMHeadModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids, labels=None, use_cache=False):
        x = self.wte(input_ids) + self.wpe(
            torch.arange(input_ids.shape[1], device=input_ids.device)
        )
        for block in self.h:
            x = block(x)
        output = ModelOutput(logits=self.lm_head(self.ln_f(x)))
        if labels is not None:
            output["loss"] = functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
        return output


def factory():
    ids = torch.randint(VOCABULARY, (BATCH, LENGTH))
    return LMHeadModel().eval(), {"input_ids": ids, "labels": ids, "use_cache": False}


def in_bf16():
    model, inputs = factory()
    return model.to(torch.bfloat16), inputs
