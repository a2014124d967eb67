"""The same two steps predicted and measured, and nets to take them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import Phase, settings
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from prooflops.memory import TrainingStep
from prooflops.memory.cuda.fake import can_fake_cuda
from prooflops.timing import one_thread

# A device, or a torch that fakes one, makes the kernels' choices itself. A torch for the CPU alone
# never does.
unless_torch_fakes_cuda = pytest.mark.skipif(
    torch.backends.cuda.is_built() and can_fake_cuda(),
    reason="there is a CUDA device, or this torch fakes one itself",
)

# Every failure is printed as drawn: to shrink one would take minutes of profiler sessions.
few = settings(
    max_examples=max(5, settings.default.max_examples // 4),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
fewer = settings(few, max_examples=max(2, few.max_examples // 3))

RULES = {
    "sgd": partial(torch.optim.SGD, lr=1e-3),
    "momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9, weight_decay=0.1),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "adafactor": torch.optim.Adafactor,
}
OPTIMIZERS = {}
for name, made in RULES.items():
    OPTIMIZERS[f"{name} for-loop"] = partial(made, foreach=False)
    OPTIMIZERS[f"{name} foreach"] = partial(made, foreach=True)
    # There is no fused adafactor.
    if name != "adafactor":
        OPTIMIZERS[f"{name} fused"] = partial(made, fused=True)
# Those whose steps need no scratch.
PLAIN = sorted(name for name in OPTIMIZERS if "adafactor" not in name)


class MasterWeights(torch.optim.Optimizer):
    """Trains narrow parameters by a copy of them in fp32, as users write it."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.narrow = [tensor for group in self.param_groups for tensor in group["params"]]
        self.master = [tensor.detach().float().requires_grad_() for tensor in self.narrow]
        self.inner = torch.optim.AdamW(self.master, foreach=True)

    @torch.no_grad()
    def step(self):
        for narrow, master in zip(self.narrow, self.master, strict=True):
            # A net may leave a parameter unused.
            master.grad = None if narrow.grad is None else narrow.grad.float()
        self.inner.step()
        for narrow, master in zip(self.narrow, self.master, strict=True):
            narrow.copy_(master)
            master.grad = None


@one_thread()
def both(
    build,
    batch,
    *,
    optimizer="adamw fused",
    loss=torch.mean,
    micro_batches=1,
    autocast=None,
):
    """The same two steps predicted, and run and measured."""
    chosen = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    step = TrainingStep(build, batch, loss, None, chosen, micro_batches, autocast)
    return step.predict(), step.measure()


def assert_alike(guess, held, *, least_share):
    """Live bytes are equal at every phase, and no peak is higher than measured, or far lower."""
    assert list(guess.phases) == list(held.phases)
    for name, real in held.phases.items():
        ours = guess.phases[name]
        assert ours.live_bytes == real.live_bytes, f"{name}: {ours.live_bytes=}, but {real}"
        # Initialisation has temporaries of its own.
        if name != "built":
            assert least_share * real.peak_bytes <= ours.peak_bytes <= real.peak_bytes, (
                f"{name}: {ours.peak_bytes=}, but {real}"
            )


class Apply(nn.Module):
    """A function of a tensor, and of a module if there is one."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function = function
        self.modules_used = nn.ModuleList(modules)

    def forward(self, x):
        return self.function(x, *self.modules_used)


def wrapped(how, layer):
    """A new layer, with its input added or as a segment of a checkpoint."""
    if how in ("checkpoint", "reentrant"):
        reentrant = how == "reentrant"
        return Apply(lambda x, inner: checkpoint(inner, x, use_reentrant=reentrant), layer())
    return Apply(lambda x, inner: x + inner(x), layer()) if how == "residual" else layer()


# --- four long nets -------------------------------------------------------------------------------


class Grouped(nn.Linear):
    """Causal attention with two heads of keys for eight of queries, composed on the CPU too."""

    def forward(self, x):
        heads = super().forward(x).unflatten(-1, (-1, 16)).transpose(1, 2)
        query, key, value = heads.split([8, 2, 2], 1)
        with sdpa_kernel(SDPBackend.MATH) if x.device.type == "cpu" else nullcontext():
            return functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )


class LongNet(NamedTuple):
    layers: Callable[[], list[nn.Module]]
    shape: tuple[int, ...]
    options: dict[str, Any]
    dtype: torch.dtype = torch.float32

    def build(self):
        return nn.Sequential(*self.layers()).to(self.dtype)

    def batch(self):
        is_tokens = isinstance(self.layers()[0], nn.Embedding | nn.EmbeddingBag)
        return torch.zeros(self.shape, dtype=torch.long if is_tokens else self.dtype)


def classes(x):
    return torch.zeros(len(x), dtype=torch.long, device=x.device)


def attended(x):
    heads = x.view(len(x), -1, 4, 16).transpose(1, 2)
    out = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return out.transpose(1, 2).flatten(2)


def gathered(y):
    """Its backward formulas scatter and accumulate in place for a plain tensor."""
    rows = torch.arange(0, len(y), 2, device=y.device)
    return y[rows] + y.gather(0, rows[:, None].expand(-1, 64)) + y.topk(len(rows), dim=0).values


def selected(y):
    """Its backward formulas add to rows, and put, in place for a plain tensor."""
    order = torch.arange(y.numel(), device=y.device)
    return y.index_select(0, order[: len(y)]).take(order.view(y.shape))


def halves(y):
    """Its numbers are kept by the graph."""
    return (y * 0.5 + y / 2).masked_fill(y < 0, 0.0)


class Clipped(torch.optim.AdamW):
    """Clips the gradients before its step, and keeps an average of the parameters after it."""

    def __init__(self, parameters):
        super().__init__(parameters, foreach=True)
        self.own = [each for group in self.param_groups for each in group["params"]]
        self.averages = [each.detach().clone() for each in self.own]

    def step(self, closure=None):
        nn.utils.clip_grad_norm_(self.own, 1.0)
        super().step(closure)
        with torch.no_grad():
            for average, each in zip(self.averages, self.own, strict=True):
                average.lerp_(each, 0.1)


def of_images():
    return [
        nn.Conv2d(8, 16, 3, padding=1).to(memory_format=torch.channels_last),
        nn.BatchNorm2d(16),
        nn.SiLU(),
        wrapped("residual", partial(nn.Conv2d, 16, 16, 3, padding=1)),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(16, 8, 2, stride=2),
        nn.GroupNorm(4, 8),
        nn.PReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 32),
    ]


def of_tokens():
    block = partial(nn.TransformerEncoderLayer, 64, 4, 128, batch_first=True)
    return [
        nn.Embedding(40, 64, padding_idx=0),
        wrapped("residual", partial(Apply, attended)),
        block(),
        wrapped("checkpoint", block),
        nn.LayerNorm(64),
        nn.Linear(64, 40),
        nn.Flatten(0, 1),
    ]


def of_rows():
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return [
        first,
        wrapped("residual", partial(Apply, halves)),
        second,
        Apply(selected),
        wrapped("reentrant", partial(Apply, lambda x: x.exp().cumsum(-1) * 2.0)),
        Apply(gathered),
        nn.LogSoftmax(-1),
    ]


def of_bags():
    return [
        nn.EmbeddingBag(40, 64, mode="mean"),
        nn.LayerNorm(64),
        wrapped("residual", partial(nn.Linear, 64, 64)),
        nn.GELU(),
        nn.Dropout(0.1),
        wrapped("checkpoint", partial(nn.Linear, 64, 64)),
        nn.Softmax(-1),
        nn.Linear(64, 32),
    ]


LONG_NETS = {
    "images": LongNet(
        of_images,
        (16, 8, 16, 16),
        {
            "optimizer": "momentum foreach",
            "loss": lambda x: functional.cross_entropy(x, classes(x), label_smoothing=0.1),
            "micro_batches": 2,
        },
    ),
    "tokens": LongNet(
        of_tokens,
        (8, 32),
        {
            "optimizer": Clipped,
            "loss": lambda x: functional.cross_entropy(x.float(), classes(x)),
            "autocast": torch.bfloat16,
        },
    ),
    "rows": LongNet(
        of_rows,
        (256, 64),
        {
            "optimizer": "adafactor foreach",
            "loss": lambda x: functional.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
        },
    ),
    "bags": LongNet(
        of_bags,
        (64, 5),
        {
            "optimizer": MasterWeights,
            "loss": lambda x: functional.smooth_l1_loss(x, torch.ones_like(x)),
        },
        torch.bfloat16,
    ),
}


def next_token_loss(logits):
    rows = logits.flatten(0, 1).float()
    return functional.cross_entropy(rows, torch.zeros(len(rows), dtype=torch.long))


def built(workloads, model, checkpoint_every=0):
    """The workload on the device that is the default at the moment: meta where it is predicted."""
    return workloads.build(model, device=torch.empty(0).device, checkpoint_every=checkpoint_every)
