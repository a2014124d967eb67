"""Small nets drawn by a seed from a grammar of layers, losses, precisions and optimizers."""

from __future__ import annotations

from functools import partial
from random import Random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from meta_tests.prooflops.memory.predicting import OPTIMIZERS, MasterWeights
from meta_tests.prooflops.memory.random_layers import Apply, table


def classes(x):
    return torch.zeros(len(x), dtype=torch.long)


def triplet(x):
    return functional.triplet_margin_loss(x, x.roll(1, 0), x.roll(2, 0))


LOSSES = {
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
    "smoothed and weighted": lambda x: functional.cross_entropy(
        x, classes(x), weight=torch.ones(x.shape[1], dtype=x.dtype), label_smoothing=0.1
    ),
    "each, then mean": lambda x: functional.cross_entropy(x, classes(x), reduction="none").mean(),
    "of probabilities": lambda x: functional.cross_entropy(x, torch.ones_like(x)),
    "with z loss": lambda x: (
        functional.cross_entropy(x, classes(x)) + 1e-4 * x.logsumexp(-1).square().mean()
    ),
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
    "weighted nll": lambda x: functional.nll_loss(
        x.log_softmax(-1), classes(x), weight=torch.ones(x.shape[1], dtype=x.dtype)
    ),
    "kl": lambda x: functional.kl_div(x.log_softmax(-1), torch.ones_like(x), reduction="batchmean"),
    "kl of logs": lambda x: functional.kl_div(
        x.log_softmax(-1), torch.zeros_like(x), reduction="batchmean", log_target=True
    ),
    "distilled": lambda x: functional.kl_div(
        (x / 2).log_softmax(-1), x.detach().softmax(-1), reduction="sum"
    ),
    "cosine": lambda x: functional.cosine_embedding_loss(x, x.flip(0), torch.ones(len(x))),
    "cosine similarity": lambda x: 1 - functional.cosine_similarity(x, x.roll(1, 0)).mean(),
    "triplet": triplet,
    "margin": lambda x: functional.multi_margin_loss(x.float(), classes(x)),
    "ranking": lambda x: functional.margin_ranking_loss(x, x.flip(0), torch.ones_like(x)),
    "several labels": lambda x: functional.multilabel_soft_margin_loss(x, torch.ones_like(x)),
    "several margins": lambda x: functional.multilabel_margin_loss(
        x.float(), torch.zeros(x.shape, dtype=torch.long)
    ),
    "hinge": lambda x: functional.hinge_embedding_loss(x, torch.ones_like(x)),
    "poisson": lambda x: functional.poisson_nll_loss(x, torch.ones_like(x)),
    "contrastive": lambda x: functional.cross_entropy(
        functional.normalize(x, dim=-1) @ functional.normalize(x, dim=-1).T, torch.arange(len(x))
    ),
    "with penalty": lambda x: x.square().mean() + 0.1 * x.abs().sum(),
}

RULES = {
    "nesterov": partial(torch.optim.SGD, lr=1e-3, momentum=0.9, nesterov=True, maximize=True),
    "amsgrad": partial(torch.optim.AdamW, amsgrad=True),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "centered rmsprop": partial(torch.optim.RMSprop, centered=True, momentum=0.9),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "rprop": torch.optim.Rprop,
}


class Clipped(torch.optim.AdamW):
    """Clips the gradients before its step, and keeps an average of the parameters after it."""

    def __init__(self, parameters, by_value=False, **options):
        super().__init__(parameters, **options)
        self.by_value = by_value
        self.own = [each for group in self.param_groups for each in group["params"]]
        self.averages = [each.detach().clone() for each in self.own]

    def step(self, closure=None):
        if self.by_value:
            nn.utils.clip_grad_value_(self.own, 1.0)
        else:
            nn.utils.clip_grad_norm_(self.own, 1.0)
        super().step(closure)
        with torch.no_grad():
            for average, each in zip(self.averages, self.own, strict=True):
                average.lerp_(each, 0.1)


def grouped(parameters):
    """Weights with decay, vectors without, as decoder-only nets are trained."""
    own = list(parameters)
    groups = [
        {"params": [each for each in own if each.dim() > 1], "weight_decay": 0.1},
        {"params": [each for each in own if each.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=torch.tensor(1e-3), foreach=False)


UPDATES = dict(OPTIMIZERS)
for name, rule in RULES.items():
    UPDATES[f"{name} for-loop"] = partial(rule, foreach=False)
    UPDATES[f"{name} foreach"] = partial(rule, foreach=True)
UPDATES["adagrad fused"] = partial(torch.optim.Adagrad, fused=True)
UPDATES["amsgrad fused"] = partial(torch.optim.AdamW, amsgrad=True, fused=True)
UPDATES["clipped"] = partial(Clipped, foreach=True)
UPDATES["clipped by value"] = partial(Clipped, by_value=True, foreach=False)
UPDATES["grouped"] = grouped


class RandomNet:
    """One net with its batch and its step, the same for the same seed."""

    def __init__(self, seed):
        draw = Random(seed)
        start = draw.choice(["rows", "sequence", "image", "volume", "tokens", "bags"])
        self.micro_batches = draw.choice([1, 1, 2])
        self.dtype = torch.bfloat16 if draw.random() < 0.2 else torch.float32
        self.autocast = (
            torch.bfloat16 if self.dtype == torch.float32 and draw.random() < 0.2 else None
        )
        width = 8 * draw.randint(4, 8)
        layout = draw.choice(["rows", "rows", "last", "expanded", "turned", "needs gradient"])
        self.batch = batch(start, layout, draw.randint(16, 48), width, self.dtype)
        self.layers = [first_layer(draw, start, width)]
        self.names = [f"{start} {layout}"]
        formats = [torch.preserve_format, torch.channels_last]
        self.memory_format = formats[0] if start == "volume" else draw.choice(formats)
        with torch.device("meta"):
            like = self.batch.to("meta").tensor_split(self.micro_batches)[0]
            self._add_layers(draw, self.layers[0]().to(self.dtype)(like).float())
        self.loss_name = draw.choice(sorted(LOSSES))
        self.optimizer_name = draw.choice(sorted(UPDATES))
        masters = self.dtype == torch.bfloat16 and draw.random() < 0.3
        self.optimizer = MasterWeights if masters else UPDATES[self.optimizer_name]

    def _add_layers(self, draw, x):
        while len(self.layers) < draw.randint(3, 9):
            layers = table(draw, x.shape)
            name = draw.choice(sorted(layers))
            how = draw.choice(["", "", "", "residual", "checkpoint", "reentrant"])
            try:
                out = layers[name]()(x)
            except (RuntimeError, ValueError):
                # Its window is larger than the input.
                continue
            if not 2_000 < out.numel() < 120_000 or min(out.shape) < 4:
                continue
            how = "" if how == "residual" and out.shape != x.shape else how
            self.layers.append(partial(wrapped, how, layers[name]))
            self.names.append(f"{name} {how}".strip())
            x = out
        # Something to learn, where all else is frozen or without parameters.
        self.layers.append(partial(nn.Linear, x.shape[-1], 32))

    def build(self):
        net = nn.Sequential(*(layer() for layer in self.layers)).to(self.dtype)
        return net.to(memory_format=self.memory_format)

    def loss(self, x):
        return LOSSES[self.loss_name](x.flatten(0, -2))

    def __repr__(self):
        precision = f"{self.dtype}, autocast={self.autocast}"
        return f"{', '.join(self.names)}; {self.loss_name}; {self.optimizer}; {precision}"


LAST = {"image": torch.channels_last, "volume": torch.channels_last_3d}


def batch(start, layout, rows, width, dtype):
    """The first micro-batch is half of it, and still has four rows."""
    shapes = {
        "rows": (4 * rows, width),
        "sequence": (8, rows, width),
        "image": (8, 8, 24, 24),
        "volume": (8, 4, 8, 12, 12),
        "tokens": (8, rows),
        "bags": (4 * rows, 5),
    }
    is_tokens = start in ("tokens", "bags")
    x = torch.zeros(shapes[start], dtype=torch.long if is_tokens else dtype)
    if layout == "last" and start in LAST:
        return x.contiguous(memory_format=LAST[start])
    if layout == "expanded":
        return x[:1].expand(x.shape)
    if layout == "turned":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    return x.requires_grad_(layout == "needs gradient" and not is_tokens)


def first_layer(draw, start, width):
    padding = draw.choice([None, 0])
    mode = draw.choice(["sum", "mean", "max"])
    firsts = {
        "rows": partial(nn.Linear, width, width),
        "sequence": partial(nn.Linear, width, width),
        "image": draw.choice([nn.Identity, partial(nn.Conv2d, 8, 8, 3, padding=1)]),
        "volume": draw.choice([nn.Identity, partial(nn.Conv3d, 4, 4, 3, padding=1)]),
        "tokens": partial(nn.Embedding, 40, width, padding_idx=padding),
        "bags": partial(nn.EmbeddingBag, 40, width, mode=mode, padding_idx=padding),
    }
    return firsts[start]


def wrapped(how, layer):
    """The layer, with its input added or as a segment of a checkpoint."""
    if how in ("checkpoint", "reentrant"):
        reentrant = how == "reentrant"
        return Apply(lambda x, inner: checkpoint(inner, x, use_reentrant=reentrant), layer())
    return Apply(lambda x, inner: x + inner(x), layer()) if how == "residual" else layer()
