"""The same two steps predicted and measured, and nets to take them."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial, reduce

import torch
from hypothesis import Phase, settings
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from prooflops.memory import TrainingStep, copy_of, measured_memory
from prooflops.timing import one_thread

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
# Those whose steps take no scratch.
PLAIN = sorted(name for name in OPTIMIZERS if "adafactor" not in name)


def trained(
    model,
    batch,
    optimizer,
    loss,
    micro_batches,
    autocast,
    mark,
):
    """Two plain training steps, marked as `TrainingStep` names its phases."""
    chosen = optimizer(model.parameters())
    mark("optimizer")
    for turn in ("", "second "):
        for number, part in enumerate(batch.tensor_split(micro_batches), start=1):
            tail = f" {number}" if micro_batches > 1 else ""
            with torch.autocast("cpu", autocast) if autocast else nullcontext():
                value = loss(model(part))
            mark(f"{turn}forward{tail}")
            value.backward()
            del value
            mark(f"{turn}backward{tail}")
        chosen.step()
        mark(f"{turn}step")
        chosen.zero_grad()
        mark(f"{turn}zero_grad")


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
    scratch=True,
):
    """The same two steps predicted, and run and measured."""
    chosen = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    step = TrainingStep(build, batch, loss, None, chosen, micro_batches, autocast)
    guess = step.predict(scratch=scratch)
    with measured_memory() as held:
        model = build()
        held.mark("built")
        own = copy_of(batch, "cpu")
        held.mark("inputs")
        trained(model, own, chosen, loss, micro_batches, autocast, held.mark)
    return guess, held


def assert_alike(
    guess,
    held,
    *,
    without_scratch,
    scratch_bytes=0,
    given="",
):
    """Live bytes to the byte and peaks to 1 %, at every phase; `scratch_bytes` may be missing from
    a peak besides.
    """
    assert list(guess.phases) == list(held.phases)
    for name, real in held.phases.items():
        ours = guess.phases[name]
        assert ours.live_bytes == real.live_bytes, (
            f"{name}: {ours.live_bytes=}, but should be {real} {given}"
        )
        # Initialisation has temporaries of its own.
        if name == "built":
            continue
        peak = ours.peak_bytes if without_scratch else ours.peak_bytes_with_scratch
        off = (peak + min(scratch_bytes, max(0, real.peak_bytes - peak))) / real.peak_bytes - 1
        assert abs(off) < 0.01, (
            f"{name}: peak {peak} is off by {off:.2%} from {real} {guess.scratch} {given}"
        )


def of_functions(*functions, width=64):
    """A linear layer, followed by functions of its output."""
    net = nn.Linear(width, width)
    net.register_forward_hook(
        lambda module, given, out: reduce(lambda x, function: function(x), functions, out)
    )
    return net


def attended(x):
    heads = x.view(len(x), -1, 4, 16).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def first(module):
    """The module with the first of its outputs alone."""
    module.register_forward_hook(lambda module, given, out: out[0])
    return module


class Turned(nn.Module):
    """Its input with the last two dimensions exchanged."""

    def forward(self, x):
        return x.mT


def doubled_twice(y):
    """Its numbers are kept by no graph in the forward pass."""
    return checkpoint(lambda x: x * 2.0 * 2.0, y, use_reentrant=True)


def tied():
    net = nn.Sequential(nn.Linear(48, 48), nn.Linear(48, 48))
    net[1].weight = net[0].weight
    return net


def gathered(y):
    """Its backward formulas scatter and accumulate in place for a plain tensor."""
    rows = torch.arange(0, len(y), 2)
    return y[rows] + y.gather(0, rows[:, None].expand(-1, 64)) + y.topk(len(rows), dim=0).values


def selected(y):
    """Its backward formula adds to rows in place for a plain tensor."""
    return y.index_select(0, torch.arange(len(y)))


def taken(y):
    """Its backward formula puts in place for a plain tensor."""
    return y.take(torch.arange(y.numel()).view(y.shape))


# How to build each, and the shape of its batch.
NETS = {
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3)),
        (4, 3, 32, 32),
    ),
    # The fused optimizer copies a gradient that is not in rows.
    "convolution with channels last": (
        lambda: nn.Conv2d(64, 64, 3).to(memory_format=torch.channels_last),
        (1, 64, 8, 8),
    ),
    "unfolded": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Unfold(3)), (4, 3, 24, 24)),
    # Its gradient arrives in the order of the function's own gradient, and is copied.
    "LSTM": (
        lambda: nn.Sequential(first(nn.LSTM(32, 64, batch_first=True)), nn.Hardsigmoid()),
        (4, 16, 32),
    ),
    "linear map of columns": (lambda: nn.Sequential(Turned(), nn.Linear(30, 400)), (8, 30, 48)),
    "norm of columns": (
        lambda: nn.Sequential(Turned(), nn.BatchNorm1d(48), Turned(), nn.Flatten(0, 1)),
        (8, 30, 48),
    ),
    "attention": (partial(of_functions, attended), (4, 128, 64)),
    "embedding bag": (partial(nn.EmbeddingBag, 1, 512), (8, 5)),
    "embedding bag of maxima": (partial(nn.EmbeddingBag, 4, 512, mode="max"), (256, 5)),
    "gathered": (partial(of_functions, gathered), (256, 64)),
    "selected": (partial(of_functions, selected), (256, 64)),
    "taken": (partial(of_functions, taken), (256, 64)),
    # A matrix is copied into rows through a block.
    "transposed": (partial(of_functions, lambda x: x.t().contiguous()), (256, 64)),
    "greatest of all": (partial(of_functions, torch.max), (256, 64)),
    "median of all in fp64": (partial(of_functions, Tensor.double, torch.median), (256, 64)),
    "reentrant": (partial(of_functions, doubled_twice), (256, 64)),
    "tied": (tied, (96, 48)),
}


def next_token_loss(logits):
    rows = logits.flatten(0, 1).float()
    return functional.cross_entropy(rows, torch.zeros(len(rows), dtype=torch.long))


def built(workloads, model, checkpoint_every=0, dtype=torch.float32):
    """The workload on the device that is the default at the moment: meta where it is predicted."""
    return workloads.build(
        model, device=torch.empty(0).device, dtype=dtype, checkpoint_every=checkpoint_every
    )
