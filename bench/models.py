"""The deep linear net and the decoder-only transformer of `accounting.models`, runnable.

Every shape that `accounting.models` can describe is built here as plain torch. So a formula can be
checked by counting on the meta device at full size, and by measuring on a real device at a reduced
size.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from accounting.checks import validated_int
from accounting.models import DeepLinear, Transformer

ROTARY_BASE = 10_000.0


class DeepLinearNet(nn.Module):
    """Linear layers, nothing between them: (batch, inputs) -> (batch, outputs)."""

    def __init__(self, model: DeepLinear, checkpoint_every: int = 0):
        super().__init__()
        widths = [model.inputs] + [model.dim] * model.layers
        self.layers = nn.ModuleList(nn.Linear(m, n, bias=model.bias) for m, n in pairwise(widths))
        self.head = nn.Linear(widths[-1], model.outputs, bias=model.bias)
        self.checkpoint_every = checkpoint_every

    def forward(self, x: Tensor) -> Tensor:
        return self.head(through(self.layers, x, self.checkpoint_every))


class RotaryEmbedding(nn.Module):
    """Rotates each pair (i, i + width/2) of a query or key by position · base^(−2i/width).

    It has no parameters and no matmul.
    """

    def forward(self, x: Tensor) -> Tensor:
        *_, tokens, width = x.shape
        frequencies = ROTARY_BASE ** -(
            torch.arange(0, width, 2, device=x.device, dtype=torch.float32) / width
        )
        positions = torch.arange(tokens, device=x.device, dtype=torch.float32)
        angles = repeat(positions[:, None] * frequencies, "token pair -> token (two pair)", two=2)
        first, second = x.chunk(2, dim=-1)
        return x * angles.cos().to(x.dtype) + torch.cat((-second, first), dim=-1) * angles.sin().to(
            x.dtype
        )


class Attention(nn.Module):
    """Causal attention; heads / kv_heads query heads share each key and value head.

    The product itself is torch's scaled_dot_product_attention. Under `sdpa_kernel(SDPBackend.MATH)`
    it runs as two bmm, which FlopCounterMode can count on any device. On the meta device it always
    runs so.
    """

    def __init__(self, model: Transformer, fused_qkv: bool = False):
        super().__init__()
        self.width = model.head_dim
        queries, keys = model.heads * self.width, model.kv_heads * self.width
        self.widths = [queries, keys, keys]
        if fused_qkv:
            self.query_key_value = nn.Linear(model.dim, sum(self.widths), bias=model.qkv_bias)
        else:
            self.query = nn.Linear(model.dim, queries, bias=model.qkv_bias)
            self.key = nn.Linear(model.dim, keys, bias=model.qkv_bias)
            self.value = nn.Linear(model.dim, keys, bias=model.qkv_bias)
        self.fused_qkv = fused_qkv
        self.out = nn.Linear(queries, model.dim, bias=model.out_bias)
        self.rotate = nn.Identity() if model.learned_positions else RotaryEmbedding()
        self.grouped = model.heads != model.kv_heads

    def forward(self, x: Tensor) -> Tensor:
        if self.fused_qkv:
            projected = self.query_key_value(x).split(self.widths, dim=-1)
        else:
            projected = self.query(x), self.key(x), self.value(x)
        query, key, value = (
            rearrange(each, "batch token (head width) -> batch head token width", width=self.width)
            for each in projected
        )
        mixed = functional.scaled_dot_product_attention(
            self.rotate(query), self.rotate(key), value, is_causal=True, enable_gqa=self.grouped
        )
        return self.out(rearrange(mixed, "batch head token width -> batch token (head width)"))


class MLP(nn.Module):
    """down(gelu(up(x))), or gated (SwiGLU): down(silu(gate(x)) · up(x))."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.gate = nn.Linear(model.dim, model.hidden, bias=model.mlp_bias) if model.gated else None
        self.up = nn.Linear(model.dim, model.hidden, bias=model.mlp_bias)
        self.down = nn.Linear(model.hidden, model.dim, bias=model.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(functional.gelu(self.up(x), approximate="tanh"))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class MixtureOfExperts(nn.Module):
    """Sums the outputs of a token's `active_experts` best experts, weighted by the router.

    The (token, expert) pairs are sorted by expert. Each expert multiplies exactly its own rows,
    without padding or dropping any. So the experts together process tokens · active_experts rows,
    however uneven the routing is. The number of rows per expert depends on
    values. Meta and fake tensors have none: there all get equal shares. Total FLOPs and the bytes
    kept for the backward pass do not depend on the shares.
    """

    def __init__(self, model: Transformer):
        super().__init__()
        self.active = model.active_experts
        self.router = nn.Linear(model.dim, model.experts, bias=False)
        self.experts = nn.ModuleList(MLP(model) for _ in range(model.experts))

    def forward(self, x: Tensor) -> Tensor:
        tokens = rearrange(x, "batch token dim -> (batch token) dim")
        scores, chosen = self.router(tokens).topk(self.active, dim=-1)
        weights = scores.softmax(dim=-1)

        expert_of_pair = rearrange(chosen, "token choice -> (token choice)")
        pairs_by_expert = expert_of_pair.argsort(stable=True)
        rows = tokens[pairs_by_expert // self.active].split(self.rows_per_expert(expert_of_pair))
        outputs = torch.cat([expert(part) for expert, part in zip(self.experts, rows, strict=True)])

        # The argsort of a permutation is its inverse: it restores the order of the (token, choice)
        # pairs.
        outputs = outputs[pairs_by_expert.argsort()]
        outputs = rearrange(outputs, "(token choice) dim -> token choice dim", choice=self.active)
        # A product and a sum, since torch would run an einsum as a batched matmul of width 1 and
        # count its FLOPs.
        weighted = outputs * rearrange(weights, "token choice -> token choice 1")
        return reduce(weighted, "token choice dim -> token dim", "sum").view_as(x)

    def rows_per_expert(self, expert_of_pair: Tensor) -> list[int]:
        pairs, experts = len(expert_of_pair), len(self.experts)
        if not has_values(expert_of_pair):
            return [pairs // experts + (expert < pairs % experts) for expert in range(experts)]
        return expert_of_pair.bincount(minlength=experts).tolist()


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, model: Transformer, fused_qkv: bool = False):
        super().__init__()
        self.attention_norm = norm(model)
        self.attention = Attention(model, fused_qkv)
        self.mlp_norm = norm(model)
        self.mlp = MixtureOfExperts(model) if model.experts > 1 else MLP(model)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class TransformerNet(nn.Module):
    """Decoder-only transformer: token ids (batch, token) -> logits (batch, token, vocabulary)."""

    def __init__(self, model: Transformer, checkpoint_every: int = 0, fused_qkv: bool = False):
        super().__init__()
        self.embedding = embedding(model.vocab_size, model.dim)
        self.positions = (
            embedding(model.learned_positions, model.dim) if model.learned_positions else None
        )
        self.layers = nn.ModuleList(Block(model, fused_qkv) for _ in range(model.layers))
        self.norm = norm(model)
        self.head = nn.Linear(model.dim, model.vocab_size, bias=False)
        if model.tied_embedding:
            self.head.weight = self.embedding.weight
        self.checkpoint_every = checkpoint_every

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(through(self.layers, x, self.checkpoint_every)))


def has_values(tensor: Tensor) -> bool:
    """True if the tensor has values.

    Meta and fake tensors have none: the storage of both is on the meta device.
    """
    return tensor.untyped_storage().device.type != "meta"


def embedding(rows: int, dim: int) -> nn.Embedding:
    """A look-up table with small entries.

    Torch's, of deviation 1, would saturate the softmax behind a tied head.
    """
    table = nn.Embedding(rows, dim)
    nn.init.normal_(table.weight, std=0.02)
    return table


def norm(model: Transformer) -> nn.Module:
    """The normalisation of one residual stream."""
    if model.norm == "rmsnorm":
        return nn.RMSNorm(model.dim, eps=1e-5)
    return nn.LayerNorm(model.dim, bias=model.norm_bias)


def through(layers: nn.ModuleList, x: Tensor, checkpoint_every: int = 0) -> Tensor:
    """x after all `layers`.

    With checkpointing, only the input of every `checkpoint_every` layers is kept.
    """
    if not checkpoint_every:
        for layer in layers:
            x = layer(x)
        return x
    for start in range(0, len(layers), checkpoint_every):
        x = checkpoint(through, layers[start : start + checkpoint_every], x, use_reentrant=False)
    return x


def build(
    model: DeepLinear | Transformer,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    checkpoint_every: int = 0,
    fused_qkv: bool = False,
) -> nn.Module:
    """`model` as a torch module with random weights; on "meta" any size fits.

    It is on `device` in `dtype`.

    With `checkpoint_every` = k the activations inside every k layers are dropped in the forward
    pass and recomputed in the backward pass (the non-reentrant form;
    `torch.utils.checkpoint.set_checkpoint_early_stop` applies to it). `fused_qkv`: a transformer's
    queries, keys and values come from one product, as fast nets have it.
    """
    every = validated_int("checkpoint_every", checkpoint_every)
    with torch.device(device):
        if isinstance(model, DeepLinear):
            return DeepLinearNet(model, every).to(dtype)
        return TransformerNet(model, every, fused_qkv).to(dtype)


def inputs(
    model: DeepLinear | Transformer,
    batch: int,
    sequence: int = 1,
    *,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Random features (batch, inputs) of a deep linear net, or token ids (batch, sequence)."""
    if isinstance(model, DeepLinear):
        return torch.randn(batch, model.inputs, device=device)
    return torch.randint(model.vocab_size, (batch, sequence), device=device)


def reduced(model: Transformer, *, layers: int = 2, head_dim: int = 16) -> Transformer:
    """`model` with the same proportions, but `layers` blocks and at most 2 key heads.

    Unchanged: query heads per key head, the ratios of hidden, vocabulary and learned positions to
    dim, experts, norms and biases.

    >>> from accounting.models import LLAMA3_70B
    >>> small = reduced(LLAMA3_70B)
    >>> small.heads, small.kv_heads, small.dim, small.hidden
    (16, 2, 256, 896)
    """
    kv_heads = min(model.kv_heads, 2)
    heads = kv_heads * model.heads // model.kv_heads
    scale = Fraction(heads * head_dim, model.heads * model.head_dim)
    return replace(
        model,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dim=round(model.dim * scale),
        hidden=round(model.hidden * scale),
        vocab_size=round(model.vocab_size * scale),
        learned_positions=round(model.learned_positions * scale),
    )
