"""Small nets drawn by a seed from a grammar of layers, losses, precisions and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from meta_tests.prooflops.predicted.predicting import OPTIMIZERS, MasterWeights

ACTIVATIONS = (
    "CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish "
    "PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink"
).split()


class Apply(nn.Module):
    """A function of a tensor and of the modules that it uses."""

    def __init__(self, function: Callable[..., Tensor], *modules: nn.Module):
        super().__init__()
        self.function = function
        self.modules_used = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.modules_used)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda x: x[::2],
    "columns": lambda x: x[..., : x.shape[-1] // 16 * 8],
    "turn": lambda x: x.transpose(-1, -2).tanh().transpose(-1, -2),
    "expand": lambda x: x * x[:1].expand_as(x),
    "cat": lambda x: torch.cat([x, x * 2], -1),
    "split": lambda x: torch.cat(x.split((x.shape[-1] + 1) // 2, -1)[::-1], -1),
    "standardise": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1).sqrt(),
    "mask": lambda x: x.masked_fill(x < 0, 0.0),
    "cumulate": lambda x: x.cumsum(-1) / x.shape[-1],
    "normalise": lambda x: functional.normalize(x, dim=-1),
}
OF_ROWS = {"repeat": lambda x: x[:, None].expand(-1, 4, -1), "gram": lambda x: x @ x.T[:, :32]}
OF_SEQUENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "einsum": lambda x: torch.einsum("bni,bmi,bmj->bnj", x, x, x) / x.shape[1],
    "mean": lambda x: x.mean(1),
    "last": lambda x: x[:, -1],
    "flat": lambda x: x.flatten(0, 1),
    "largest": lambda x: x.amax(1),
}
OF_IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "patches": lambda x: x.flatten(2).transpose(1, 2),
    "upsample": lambda x: functional.interpolate(x, scale_factor=2.0),
    "unfold": lambda x: functional.unfold(x, 3, padding=1).transpose(1, 2),
    "pad": lambda x: functional.pad(x, (1, 1, 1, 1)),
}


def attend(x: Tensor, grouped: bool = False, **options: Any) -> Tensor:
    heads = x.unflatten(-1, (4, -1)).transpose(1, 2)
    keys = heads[:, ::2] if grouped else heads
    attended = functional.scaled_dot_product_attention(
        heads, keys, keys, enable_gqa=grouped, **options
    )
    return attended.transpose(1, 2).flatten(2)


def across(x: Tensor, module: nn.Module) -> Tensor:
    return module(x.transpose(1, 2)).transpose(1, 2)


def table(draw: Random, shape: torch.Size) -> dict[str, Callable[[], nn.Module]]:
    """How to build each layer that takes a tensor of this shape: rows, sequences or images."""
    width = shape[-1]
    wide = 8 * draw.randint(4, 10)
    kept = draw.choice([0.1, 0.5])
    flag = draw.random() < 0.5
    layers: dict[str, Callable[[], nn.Module]] = {
        name: getattr(nn, name) for name in draw.sample(ACTIVATIONS, 5)
    }
    layers |= {
        "tanh gelu": partial(nn.GELU, "tanh"),
        "softmax": partial(nn.Softmax, draw.randrange(-2, 0)),
        "log softmax": partial(nn.LogSoftmax, -1),
        "dropout": partial(nn.Dropout, kept),
        "layer norm": partial(nn.LayerNorm, width),
        "rms norm": partial(nn.RMSNorm, width),
        **({"glu": nn.GLU} if width % 2 == 0 else {}),
    }
    functions = dict(FUNCTIONS)
    if len(shape) < 4:
        layers["linear"] = partial(nn.Linear, width, wide)
        layers["wide"] = partial(nn.Linear, width, wide, bias=False)
    if len(shape) == 2:
        layers["batch norm"] = partial(nn.BatchNorm1d, width)
        functions |= OF_ROWS
    if len(shape) == 3:
        functions |= OF_SEQUENCES
        norm = draw.choice([nn.BatchNorm1d, nn.InstanceNorm1d, partial(nn.GroupNorm, 1)])
        window = draw.choice([partial(nn.Conv1d, width, wide), nn.MaxPool1d, nn.AvgPool1d])
        layers["linear across"] = lambda: Apply(across, nn.Linear(shape[1], wide))
        layers["norm across"] = lambda: Apply(across, norm(width))
        layers["window across"] = lambda: Apply(across, window(3, stride=2 if flag else 1))
        layers["lstm"] = lambda: Apply(
            lambda x, module: module(x)[0], nn.LSTM(width, wide, batch_first=True)
        )
        layers["gru"] = lambda: Apply(
            lambda x, module: module(x)[0], nn.GRU(width, wide, batch_first=True)
        )
    if len(shape) == 3 and width % 8 == 0:
        functions["attention"] = partial(attend, is_causal=flag, grouped=draw.random() < 0.3)
        functions["attention with dropout"] = partial(attend, dropout_p=kept)
        inner = partial(nn.MultiheadAttention, width, 4, kept if flag else 0.0, batch_first=True)
        layers["multihead"] = lambda: Apply(
            lambda x, module: module(x, x, x, need_weights=flag)[0], inner()
        )
        encoder = partial(
            nn.TransformerEncoderLayer, width, 4, wide, kept, batch_first=True, norm_first=flag
        )
        layers["encoder"] = partial(encoder, activation=draw.choice(["relu", "gelu"]))
    if len(shape) == 4:
        functions |= OF_IMAGES
        planes = shape[1]
        groups = 4 if flag and shape[1] % 4 == 0 else 1
        layers["convolution"] = partial(
            nn.Conv2d, planes, 16, 3, padding=1, stride=2 if flag else 1, groups=groups
        )
        layers["point"] = partial(nn.Conv2d, planes, 24, 1, bias=False)
        layers["transposed convolution"] = partial(nn.ConvTranspose2d, planes, 8, 2, stride=2)
        layers["batch norm"] = partial(nn.BatchNorm2d, planes)
        layers["group norm"] = partial(nn.GroupNorm, groups, planes)
        layers["instance norm"] = partial(nn.InstanceNorm2d, planes, affine=flag)
        layers["max pool"] = partial(nn.MaxPool2d, 2)
        layers["average pool"] = partial(nn.AvgPool2d, 2)
        layers["adaptive pool"] = partial(nn.AdaptiveAvgPool2d, 4)
        layers["planes dropped"] = partial(nn.Dropout2d, kept)
    return layers | {name: partial(Apply, function) for name, function in functions.items()}


def classes(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.long)


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "mse": lambda x: functional.mse_loss(x, torch.ones_like(x)),
    "sum of squares": lambda x: functional.mse_loss(x, torch.ones_like(x), reduction="sum"),
    "cross entropy": lambda x: functional.cross_entropy(x, classes(x)),
    "cross entropy in fp32": lambda x: functional.cross_entropy(
        x.float(), classes(x), reduction="sum"
    ),
    "smoothed": lambda x: functional.cross_entropy(
        x, classes(x), label_smoothing=0.1, ignore_index=3
    ),
    "weighted": lambda x: functional.cross_entropy(
        x, classes(x), weight=torch.ones(x.shape[1], dtype=x.dtype)
    ),
    "of probabilities": lambda x: functional.cross_entropy(x, torch.ones_like(x)),
    "binary": lambda x: functional.binary_cross_entropy(
        x.float().sigmoid(), torch.ones_like(x.float())
    ),
    "binary of logits": lambda x: functional.binary_cross_entropy_with_logits(
        x, torch.ones_like(x)
    ),
    "positive weights": lambda x: functional.binary_cross_entropy_with_logits(
        x, torch.ones_like(x), weight=torch.ones(x.shape[1]), pos_weight=torch.ones(x.shape[1])
    ),
    "soft margin": lambda x: functional.soft_margin_loss(x, torch.ones_like(x)),
    "smooth l1": lambda x: functional.smooth_l1_loss(x, torch.ones_like(x)),
    "l1": lambda x: functional.l1_loss(x, torch.ones_like(x)),
    "huber": lambda x: functional.huber_loss(x, torch.ones_like(x)),
    "nll": lambda x: functional.nll_loss(x.log_softmax(-1), classes(x)),
    "kl": lambda x: functional.kl_div(x.log_softmax(-1), torch.ones_like(x), reduction="batchmean"),
    "cosine": lambda x: functional.cosine_embedding_loss(x, x.flip(0), torch.ones(len(x))),
}


class RandomNet:
    """One net with its batch and its step, the same for the same seed."""

    def __init__(self, seed: int):
        draw = Random(seed)
        start = draw.choice(["rows", "sequence", "image", "tokens"])
        rows = draw.randint(16, 48)
        width = 8 * draw.randint(4, 8)
        shapes = {
            "rows": (4 * rows, width),
            "sequence": (8, rows, width),
            "image": (4, 8, 24, 24),
            "tokens": (6, rows),
        }
        self.dtype = torch.bfloat16 if draw.random() < 0.2 else torch.float32
        self.autocast = (
            torch.bfloat16 if self.dtype == torch.float32 and draw.random() < 0.2 else None
        )
        self.batch = torch.zeros(
            shapes[start], dtype=torch.long if start == "tokens" else self.dtype
        )
        embedding = partial(nn.Embedding, 40, width)
        linear = partial(nn.Linear, shapes[start][-1], width)
        self.layers: list[Callable[[], nn.Module]] = [embedding if start == "tokens" else linear]
        self.names = [start]
        with torch.device("meta"):
            like = torch.empty(shapes[start])
            x = self.layers[0]()(like.long() if start == "tokens" else like)
            while len(self.layers) < draw.randint(3, 9):
                layers = table(draw, x.shape)
                name = draw.choice(sorted(layers))
                how = draw.choice(["", "", "residual", "checkpoint"])
                out = layers[name]()(x)
                if not 2_000 < out.numel() < 120_000 or min(out.shape) < 4:
                    continue
                how = "" if how == "residual" and out.shape != x.shape else how
                self.layers.append(partial(wrapped, how, layers[name]))
                self.names.append(f"{name} {how}".strip())
                x = out
        self.loss_name = draw.choice(sorted(LOSSES))
        self.optimizer_name = draw.choice(sorted(OPTIMIZERS))
        self.micro_batches = draw.choice([1, 1, 2])
        masters = self.dtype == torch.bfloat16 and draw.random() < 0.3
        self.optimizer = MasterWeights if masters else OPTIMIZERS[self.optimizer_name]

    def build(self) -> nn.Module:
        return nn.Sequential(*(layer() for layer in self.layers)).to(self.dtype)

    def loss(self, x: Tensor) -> Tensor:
        return LOSSES[self.loss_name](x.flatten(0, -2))

    def __repr__(self) -> str:
        precision = f"{self.dtype}, autocast={self.autocast}"
        return f"{', '.join(self.names)}; {self.loss_name}; {self.optimizer}; {precision}"


def wrapped(how: str, layer: Callable[[], nn.Module]) -> nn.Module:
    """The layer, with its input added or as a segment of a checkpoint."""
    if how == "checkpoint":
        return Apply(lambda x, inner: checkpoint(inner, x, use_reentrant=False), layer())
    return Apply(lambda x, inner: x + inner(x), layer()) if how == "residual" else layer()
