"""A transformer that generates token by token from a cache, with the modules of `bench.models`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass
class Decoder:
    """Feeds `net`, of learned positions, one token per sequence at a time.

    Keeps the keys and values of each layer.
    """

    net: nn.Module
    layers: list[list[Tensor]] = field(default_factory=list)

    @torch.no_grad()
    def step(self, tokens):
        """The logits that follow `tokens`, one for each sequence."""
        self.layers = self.layers or [[] for _ in self.net.layers]
        place = self.layers[0][0].shape[2] if self.layers[0] else 0
        x = self.net.embedding(tokens) + self.net.positions.weight[place]
        for block, kept in zip(self.net.layers, self.layers, strict=True):
            x = x + self.attended(block.attention, block.attention_norm(x), kept)
            x = x + block.mlp(block.mlp_norm(x)[:, None])[:, 0]
        return self.net.head(self.net.norm(x))

    def attended(self, attention, x, kept):
        query, *new = (
            project(x).view(len(x), -1, 1, attention.width)
            for project in (attention.query, attention.key, attention.value)
        )
        if kept:
            kept[:] = [torch.cat(pair, dim=2) for pair in zip(kept, new, strict=True)]
        else:
            kept[:] = new
        query_heads_of_a_key = query.shape[1] // kept[0].shape[1]
        with sdpa_kernel(SDPBackend.MATH):
            mixed = nn.functional.scaled_dot_product_attention(
                query.view(len(x), -1, query_heads_of_a_key, attention.width), *kept
            )
        return attention.out(mixed.reshape(len(x), -1))

    def bytes_among(self, recorded):
        """Bytes of parameters and caches that recorded operations read, each once.

        Tables do not count, because only a row of each is read, unless the head multiplies by one.
        """
        # An expert that no token chose multiplies no rows; its weight is transposed all the same.
        used = [
            x
            for operation, operands, _ in recorded.calls
            if operation != torch.ops.aten.t and all(map(torch.numel, operands))
            for x in operands
        ]
        read = {x.untyped_storage()._cdata for x in used}
        tables = {id(self.net.embedding.weight), id(self.net.positions.weight)}
        tables -= {id(self.net.head.weight)}
        held = [x for x in self.net.parameters() if id(x) not in tables]
        for layer in self.layers:
            held += layer
        return sum(x.nbytes for x in held if x.untyped_storage()._cdata in read)
