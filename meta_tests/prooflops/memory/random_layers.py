"""Layers that take a tensor of a given shape: rows, sequences, images or volumes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

Function = Callable[[Tensor], Tensor]

ACTIVATIONS = (
    "CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish "
    "PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink"
).split()


class Apply(nn.Module):
    """A function of a tensor and of the modules that it uses."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function = function
        self.modules_used = nn.ModuleList(modules)

    def forward(self, x):
        return self.function(x, *self.modules_used)


# --- functions ------------------------------------------------------------------------------------


class Square(torch.autograd.Function):
    """A function with a backward pass of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        return grads[0] * 2 * x


def rotated(x):
    first, second = x.chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return x * torch.full_like(x, 0.6) + turned * torch.full_like(x, 0.8)


def scaled_without_grad(x):
    with torch.no_grad():
        scale = x.abs().amax(-1, keepdim=True)
    return x / (scale + 1)


def gathered(x):
    return x.gather(-1, torch.zeros(x.shape, dtype=torch.long)) + x


def added_at(x):
    return x.index_add(0, torch.zeros(len(x), dtype=torch.long), x)


def every_second(x):
    return torch.arange(0, len(x), 2)


def in_bf16(x):
    with torch.autocast("cpu", torch.bfloat16):
        out = x @ x.mT if x.shape[-2] < 64 else x.softmax(-1)
    return out.to(x.dtype)


FUNCTIONS = {
    "slice": lambda x: x[::2],
    "columns": lambda x: x[..., : x.shape[-1] // 16 * 8],
    "turn": lambda x: x.transpose(-1, -2).tanh().transpose(-1, -2),
    "swap": lambda x: x.transpose(0, -1).reshape(x.shape[0], -1),
    "move": lambda x: x.movedim(0, -1).contiguous(),
    "expand": lambda x: x * x[:1].expand_as(x),
    "cat": lambda x: torch.cat([x, x * 2], -1),
    "stack": lambda x: torch.stack([x, x * 2], -1).flatten(-2),
    "split": lambda x: torch.cat(x.split((x.shape[-1] + 1) // 2, -1)[::-1], -1),
    "unbind": lambda x: torch.stack(x.unbind(0)[::2]),
    "repeat": lambda x: x.repeat(2, *[1] * (x.dim() - 1)),
    "repeat each": lambda x: x.repeat_interleave(2, -1),
    "roll": lambda x: x.roll(1, -1) + x,
    "flip": lambda x: x.flip(-1) * x,
    "pad columns": lambda x: functional.pad(x, (2, 2)),
    "index": lambda x: x[every_second(x)],
    "index select": lambda x: x.index_select(0, every_second(x)),
    "index add": added_at,
    "gather": gathered,
    "sort": lambda x: x.sort(-1).values,
    "largest few": lambda x: x.topk(8, -1).values,
    "greatest": lambda x: x - x.max(-1, keepdim=True).values,
    "median": lambda x: x - x.median(-1, keepdim=True).values,
    "standardise": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1).sqrt(),
    "deviation": lambda x: x - x.std(-1, keepdim=True),
    "log of sums": lambda x: x - x.logsumexp(-1, keepdim=True),
    "norm": lambda x: x / (1 + torch.linalg.vector_norm(x, dim=-1, keepdim=True)),
    "normalise": lambda x: functional.normalize(x, dim=-1),
    "softmax over rows": lambda x: x.softmax(0),
    "cumulate": lambda x: x.cumsum(-1) / x.shape[-1],
    "differences": lambda x: x.diff(dim=-1),
    "mask": lambda x: x.masked_fill(x < 0, 0.0),
    "lower triangle": lambda x: x.tril(),
    "choose": lambda x: torch.where(x > 0, x, x.exp() - 1),
    "choose a number": lambda x: torch.where(x > 0, x, 0.0),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp above": lambda x: x.clamp(min=torch.zeros(x.shape[-1], dtype=x.dtype)),
    "larger": lambda x: torch.maximum(x, x.flip(0)),
    "powers": lambda x: x**2 + x**3,
    "root": lambda x: (x * x + 1).sqrt(),
    "reciprocal": lambda x: 1 / (x * x + 1),
    "log": lambda x: x.abs().log1p(),
    "waves": lambda x: torch.stack([x, x.sin(), x.cos()]).mean(0),
    "spectrum": lambda x: torch.fft.rfft(x.float()).abs().to(x.dtype),
    "interpolate": lambda x: torch.lerp(x, x.tanh(), 0.3),
    "add product": lambda x: torch.addcmul(x, x, x.tanh(), value=0.5),
    "relu in place": lambda x: (x * 2).relu_(),
    "silu in place": lambda x: functional.silu(x + 1, inplace=True),
    "leaky relu in place": lambda x: functional.leaky_relu(x * x, 0.1, inplace=True),
    "dropout in place": lambda x: functional.dropout(x + 1, 0.1, inplace=True),
    "add in place": lambda x: (x * 2).add_(x.tanh()),
    "multiply in place": lambda x: (x + 1).mul_(x),
    "mask in place": lambda x: (x + 1).masked_fill_(x > 0, 0.5),
    "noise": lambda x: x + torch.randn_like(x) * 0.1,
    "detach": lambda x: x + x.detach() * 2,
    "without gradient": scaled_without_grad,
    "own backward": Square.apply,
    "rotary": rotated,
    "in 64 bits": lambda x: x.double().softmax(-1).to(x.dtype),
    "in bf16": in_bf16,
}
OF_ROWS = {
    "as sequences": lambda x: x[:, None].expand(-1, 4, -1),
    "gram": lambda x: x @ x.T[:, :32],
    "distances": lambda x: torch.cdist(x.float(), x[:32].float()).to(x.dtype),
    "outer": lambda x: torch.einsum("bi,bj->bij", x, x[:, :8]),
}
OF_SEQUENCES = {
    "einsum": lambda x: torch.einsum("bni,bmi,bmj->bnj", x, x, x) / x.shape[1],
    "products": lambda x: torch.baddbmm(x @ x.mT, x, x.mT, alpha=0.1),
    "broadcast product": lambda x: x @ x[0].mT,
    "rows first": lambda x: x.transpose(0, 1),
    "as heads": lambda x: x.unflatten(-1, (4, -1)).transpose(1, 2),
    "mean": lambda x: x.mean(1),
    "last": lambda x: x[:, -1],
    "flat": lambda x: x.flatten(0, 1),
    "largest": lambda x: x.amax(1),
}
OF_IMAGES = {
    "patches": lambda x: x.flatten(2).transpose(1, 2),
    "mean of planes": lambda x: x.mean((2, 3)),
    "excite": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "channels first": lambda x: x.contiguous(),
    "upsample": lambda x: functional.interpolate(x, scale_factor=2.0),
    "upsample bilinear": lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "upsample bicubic": lambda x: functional.interpolate(
        x, size=(20, 20), mode="bicubic", antialias=True
    ),
    "grid": lambda x: functional.grid_sample(
        x, torch.zeros(len(x), 12, 12, 2, dtype=x.dtype), align_corners=False
    ),
    "unfold": lambda x: functional.unfold(x, 3, padding=1).transpose(1, 2),
    "fold": lambda x: functional.fold(functional.unfold(x, 2), x.shape[2:], 2),
    "pad": lambda x: functional.pad(x, (1, 1, 1, 1)),
    "pad by reflection": lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect"),
    "pad by copies": lambda x: functional.pad(x, (1, 1, 1, 1), mode="replicate"),
    "pad around": lambda x: functional.pad(x, (1, 1, 1, 1), mode="circular"),
}
OF_VOLUMES = {
    "frames": lambda x: x.transpose(1, 2).flatten(0, 1),
    "mean of frames": lambda x: x.mean(2),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last_3d),
    "upsample": lambda x: functional.interpolate(x, scale_factor=2.0),
    "upsample trilinear": lambda x: functional.interpolate(x, scale_factor=2.0, mode="trilinear"),
}


# --- functions of modules -------------------------------------------------------------------------


def attend(x, grouped=False, mask="", **options):
    heads = x.unflatten(-1, (4, -1)).transpose(1, 2)
    keys = heads[:, ::2] if grouped else heads
    steps = x.shape[1]
    if mask == "bool":
        options["attn_mask"] = torch.ones(steps, steps, dtype=torch.bool).tril()
    if mask == "float":
        options["attn_mask"] = torch.zeros(len(x), 1, steps, steps, dtype=heads.dtype)
    attended = functional.scaled_dot_product_attention(
        heads, keys, keys, enable_gqa=grouped, **options
    )
    return attended.transpose(1, 2).flatten(2)


def attend_by_hand(x):
    heads = x.unflatten(-1, (4, -1)).transpose(1, 2)
    scores = heads @ heads.mT / heads.shape[-1] ** 0.5
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return (functional.dropout(weights, 0.1) @ heads).transpose(1, 2).flatten(2)


def attend_with_masks(x, module):
    padding = torch.zeros(x.shape[:2], dtype=torch.bool)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return module(x, x, x, key_padding_mask=padding, attn_mask=future, need_weights=False)[0]


def encode_with_mask(x, module):
    return module(x, src_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))


def across(x, module):
    return module(x.transpose(1, 2)).transpose(1, 2)


def first_of(x, module):
    return module(x)[0]


def last_state(x, module):
    state = module(x)[1]
    return (state[0] if isinstance(state, tuple) else state)[-1]


def stepped(x, cell):
    state = cell(x, cell(x))
    return state[0] if isinstance(state, tuple) else state


def twice(x, module):
    return module(module(x))


def of_both(x, module):
    return module(x, x)


def unpooled(x, pool, unpool):
    return unpool(*pool(x), output_size=x.shape)


def autocast(x, module, enabled):
    given = x if enabled else x.to(next(module.parameters()).dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        out = module(given)
    return out.to(x.dtype)


def tied_head(x, module):
    """A linear layer and its own transpose, as tied embeddings are used."""
    return functional.linear(module(x), module.weight.T)


def gated(x, gate, up, down):
    return down(functional.silu(gate(x)) * up(x))


def mixed(x, router, *experts):
    """Every expert on every row, by the router's weights."""
    weights = router(x).softmax(-1)
    parts = [expert(x) * weights[..., n : n + 1] for n, expert in enumerate(experts)]
    return torch.stack(parts).sum(0)


def adapted(x, base, down, up):
    return base(x) + up(down(x)) * 0.5


def frozen(layer):
    return layer().requires_grad_(False)


# --- layers ---------------------------------------------------------------------------------------


class Drawn:
    """The shape that a layer takes, and the options that layers draw."""

    def __init__(self, draw, shape):
        self.choose = draw.choice
        self.shape = shape
        self.width = shape[-1]
        self.wide = 8 * draw.randint(4, 10)
        self.kept = draw.choice([0.1, 0.5])
        self.flag = draw.random() < 0.5
        self.activations = draw.sample(ACTIVATIONS, 5)


def of_any(drawn):
    width = drawn.width
    return {
        **{name: getattr(nn, name) for name in drawn.activations},
        "tanh gelu": partial(nn.GELU, "tanh"),
        "softmax": partial(nn.Softmax, drawn.choose([-2, -1])),
        "log softmax": partial(nn.LogSoftmax, -1),
        "dropout": partial(nn.Dropout, drawn.kept),
        "alpha dropout": partial(nn.AlphaDropout, drawn.kept),
        "threshold": partial(nn.Threshold, 0.1, 0.0),
        "layer norm": partial(nn.LayerNorm, width, elementwise_affine=drawn.flag),
        "rms norm": partial(nn.RMSNorm, width),
        **({"glu": nn.GLU} if width % 2 == 0 else {}),
    }


def of_vectors(drawn):
    width, wide = drawn.width, drawn.wide
    linear = partial(nn.Linear, width, wide)
    down, up = partial(nn.Linear, width, 4, False), partial(nn.Linear, 4, wide, False)
    return {
        "linear": linear,
        "wide": partial(linear, bias=False),
        "frozen": partial(frozen, linear),
        "weight norm": lambda: parametrizations.weight_norm(linear()),
        "spectral norm": lambda: parametrizations.spectral_norm(linear()),
        "bilinear": lambda: Apply(of_both, nn.Bilinear(width, width, 16)),
        "twice": lambda: Apply(twice, nn.Linear(width, width)),
        "tied head": lambda: Apply(tied_head, linear()),
        "adapted": lambda: Apply(adapted, frozen(linear), down(), up()),
        "gated": lambda: Apply(gated, linear(), linear(), nn.Linear(wide, width)),
        "mixture": lambda: Apply(mixed, nn.Linear(width, 3), linear(), linear(), linear()),
        "autocast": lambda: Apply(partial(autocast, enabled=drawn.flag), linear()),
    }


def of_rows(drawn):
    width, wide = drawn.width, drawn.wide
    return {
        "batch norm": partial(
            nn.BatchNorm1d, width, affine=drawn.flag, track_running_stats=drawn.choose([0, 1])
        ),
        "gru cell": lambda: Apply(stepped, nn.GRUCell(width, wide)),
        "lstm cell": lambda: Apply(stepped, nn.LSTMCell(width, wide)),
        "rnn cell": lambda: Apply(stepped, nn.RNNCell(width, wide)),
    }


def of_sequences(drawn):
    width, wide, steps = drawn.width, drawn.wide, drawn.shape[1]
    norm = drawn.choose([nn.BatchNorm1d, nn.InstanceNorm1d, partial(nn.GroupNorm, 1)])
    window = drawn.choose(
        [
            partial(nn.Conv1d, width, wide),
            partial(nn.Conv1d, width, wide, dilation=2),
            partial(nn.Conv1d, width, width, groups=width),
            partial(nn.ConvTranspose1d, width, wide),
            nn.MaxPool1d,
            nn.AvgPool1d,
        ]
    )
    kind = drawn.choose([nn.LSTM, nn.GRU, nn.RNN])
    recurrent = partial(kind, width, wide, batch_first=drawn.flag)
    return {
        "layer norm of two": partial(nn.LayerNorm, drawn.shape[-2:]),
        "linear across": lambda: Apply(across, nn.Linear(steps, wide)),
        "norm across": lambda: Apply(across, norm(width)),
        "window across": lambda: Apply(across, window(3, stride=2 if drawn.flag else 1)),
        "signal": partial(nn.Conv1d, steps, 16, 3, padding=1, padding_mode="circular"),
        "pooled": partial(nn.AdaptiveAvgPool1d, 16),
        "recurrent": lambda: Apply(first_of, recurrent()),
        "last state": lambda: Apply(last_state, recurrent()),
        "bidirectional": lambda: Apply(first_of, recurrent(bidirectional=True)),
        "two layers": lambda: Apply(first_of, recurrent(num_layers=2, dropout=drawn.kept)),
        "projected": lambda: Apply(first_of, nn.LSTM(width, wide, proj_size=16)),
    }


def of_heads(drawn):
    width, kept, flag = drawn.width, drawn.kept, drawn.flag
    options = {"batch_first": True, "norm_first": flag}
    inner = partial(nn.MultiheadAttention, width, 4, kept if flag else 0.0, batch_first=True)
    encoder = partial(nn.TransformerEncoderLayer, width, 4, drawn.wide, kept, **options)
    decoder = partial(nn.TransformerDecoderLayer, width, 4, drawn.wide, kept, **options)
    functions = {
        "attention": partial(attend, is_causal=flag, grouped=drawn.choose([True, False, False])),
        "attention with dropout": partial(attend, dropout_p=kept, is_causal=flag),
        "attention with mask": partial(
            attend, mask=drawn.choose(["bool", "float"]), dropout_p=drawn.choose([0.0, kept])
        ),
        "attention by hand": attend_by_hand,
    }
    return {
        **{name: partial(Apply, function) for name, function in functions.items()},
        "multihead": lambda: Apply(
            lambda x, module: module(x, x, x, need_weights=flag)[0], inner()
        ),
        "multihead of others": lambda: Apply(
            lambda x, module: module(x, x.tanh(), x.tanh())[0],
            inner(kdim=width, vdim=width, add_bias_kv=flag, add_zero_attn=not flag),
        ),
        "masked multihead": lambda: Apply(attend_with_masks, inner()),
        "encoder": partial(encoder, activation=drawn.choose(["relu", "gelu"])),
        "masked encoder": lambda: Apply(encode_with_mask, encoder()),
        "decoder": lambda: Apply(lambda x, module: module(x, x.tanh()), decoder()),
    }


def of_images(drawn):
    flag, planes = drawn.flag, drawn.shape[1]
    groups = 4 if flag and planes % 4 == 0 else 1
    mode = drawn.choose(["circular", "reflect", "replicate"])
    convolution = partial(nn.Conv2d, planes, 16, 3, padding=1)
    layers = {
        "convolution": partial(convolution, stride=2 if flag else 1, groups=groups),
        "padded convolution": partial(convolution, padding_mode=mode),
        "dilated": partial(convolution, dilation=2),
        "frozen": partial(frozen, convolution),
        "depthwise": partial(nn.Conv2d, planes, planes, 3, padding=1, groups=planes),
        "point": partial(nn.Conv2d, planes, 24, 1, bias=False),
        "transposed convolution": partial(nn.ConvTranspose2d, planes, 8, 2, stride=2),
        "overlapping transposed": partial(
            nn.ConvTranspose2d, planes, 8, 3, stride=2, padding=1, output_padding=1
        ),
        "batch norm": partial(
            nn.BatchNorm2d, planes, affine=flag, track_running_stats=drawn.choose([0, 1])
        ),
        "group norm": partial(nn.GroupNorm, groups, planes),
        "instance norm": partial(nn.InstanceNorm2d, planes, affine=flag),
        "local response": partial(nn.LocalResponseNorm, 3),
        "max pool": partial(nn.MaxPool2d, 2),
        "overlapping pool": partial(nn.MaxPool2d, 3, stride=1, padding=1),
        "average pool": partial(nn.AvgPool2d, 2),
        "power pool": partial(nn.LPPool2d, 2, 2),
        "adaptive pool": partial(nn.AdaptiveAvgPool2d, 4),
        "adaptive max pool": partial(nn.AdaptiveMaxPool2d, 4),
        "fractional pool": partial(nn.FractionalMaxPool2d, 2, output_size=8),
        "unpooled": lambda: Apply(
            unpooled, nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        ),
        "planes dropped": partial(nn.Dropout2d, drawn.kept),
        "prelu of planes": partial(nn.PReLU, planes),
    }
    if planes % 4 == 0:
        layers["pixel shuffle"] = partial(nn.PixelShuffle, 2)
        layers["channel shuffle"] = partial(nn.ChannelShuffle, 4)
    if not any(side % 2 for side in drawn.shape[2:]):
        layers["pixel unshuffle"] = partial(nn.PixelUnshuffle, 2)
    return layers


def of_volumes(drawn):
    planes = drawn.shape[1]
    return {
        "convolution": partial(nn.Conv3d, planes, 8, 3, padding=1, stride=2 if drawn.flag else 1),
        "depthwise": partial(nn.Conv3d, planes, planes, 3, padding=1, groups=planes),
        "transposed convolution": partial(nn.ConvTranspose3d, planes, 4, 2, stride=2),
        "batch norm": partial(nn.BatchNorm3d, planes),
        "group norm": partial(nn.GroupNorm, 1, planes),
        "instance norm": partial(nn.InstanceNorm3d, planes, affine=drawn.flag),
        "max pool": partial(nn.MaxPool3d, 2),
        "average pool": partial(nn.AvgPool3d, 2),
        "adaptive pool": partial(nn.AdaptiveAvgPool3d, 4),
        "planes dropped": partial(nn.Dropout3d, drawn.kept),
    }


# By the number of dimensions.
LAYERS = {2: of_rows, 3: of_sequences, 4: of_images, 5: of_volumes}
OWN_FUNCTIONS = {2: OF_ROWS, 3: OF_SEQUENCES, 4: OF_IMAGES, 5: OF_VOLUMES}


def table(draw, shape):
    """How to build each layer that takes a tensor of this shape."""
    drawn = Drawn(draw, shape)
    layers = of_any(drawn) | LAYERS[len(shape)](drawn)
    if len(shape) < 4:
        layers |= of_vectors(drawn)
    if len(shape) == 3 and drawn.width % 8 == 0:
        layers |= of_heads(drawn)
    functions = FUNCTIONS | OWN_FUNCTIONS[len(shape)]
    return layers | {name: partial(Apply, function) for name, function in functions.items()}
