"""Compares `model_report` with torchinfo, fvcore, calflops and accelerate on eight small nets.

Prints a row of Markdown for each net: FLOPs of a forward pass by hand and by each tool, and the CPU
milliseconds of a call in brackets, the median of ten. `python -m examples.model_tools`; the tools
come by `pip install torchinfo fvcore calflops accelerate transformers`.
"""

import contextlib
import io
import statistics
import time
import warnings

import torch
from torch import nn

import prooflops

ROUNDS = 10


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(101, 32)
        self.head = nn.Linear(32, 101, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.table(ids))


class LowRank(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(256, 256).requires_grad_(False)
        self.down, self.up = nn.Linear(256, 8, bias=False), nn.Linear(8, 256, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Recurrent(nn.GRU):
    def forward(self, x):
        return super().forward(x)[0]


@torch.library.custom_op("examples::product", mutates_args=())
def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight


@product.register_fake
def _(x, weight):
    return x.new_empty(len(x), weight.shape[1])


def keep(ctx, inputs, output):  # noqa: ARG001
    ctx.weight = inputs[1]


product.register_autograd(
    lambda ctx, gradient: (gradient @ ctx.weight.t(), None), setup_context=keep
)


class Custom(nn.Linear):
    def forward(self, x):
        return product(super().forward(x), self.weight.detach())


def shared():
    layer = nn.Linear(64, 64)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer)


def channels_last():
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, padding=1))
    return net.to(memory_format=torch.channels_last)


def perceptron():
    return nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))


def bert():
    from transformers import AutoModel, BertConfig

    sizes = {"hidden_size": 64, "intermediate_size": 256, "vocab_size": 100}
    return AutoModel.from_config(
        BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=4)
    ).eval()


IMAGES = torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last)
BERT_LAYER = 4 * 2 * 32 * 64 * 64 + 2 * 2 * 32 * 64 * 256 + 2 * 2 * 2 * 16 * 16 * 64
# How a net is made, its input, and the FLOPs of its products, by hand.
NETS = {
    "a layer used three times": (shared, torch.randn(32, 64), 3 * 2 * 32 * 64 * 64),
    "a tied head": (Tied, torch.zeros(2, 24).long(), 2 * 48 * 32 * 101),
    "channels last": (
        channels_last,
        IMAGES,
        2 * 4 * 32**2 * 16 * 3 * 9 + 2 * 4 * 16**2 * 32 * 16 * 9,
    ),
    "LoRA": (LowRank, torch.randn(64, 256), 2 * 64 * (256 * 256 + 2 * 256 * 8)),
    "a GRU": (
        lambda: Recurrent(32, 64, batch_first=True),
        torch.randn(8, 10, 32),
        2 * 80 * 3 * 64 * (32 + 64),
    ),
    "compiled": (
        lambda: torch.compile(perceptron(), backend="eager"),
        torch.randn(16, 128),
        2 * 2 * 16 * 128 * 512,
    ),
    "a custom operator": (lambda: Custom(64, 64), torch.randn(16, 64), 2 * 2 * 16 * 64 * 64),
    "BERT of a config": (bert, torch.zeros(2, 16).long(), 2 * BERT_LAYER + 2 * 2 * 64 * 64),
}


def of_prooflops(net, x):
    return prooflops.model_report(net, x).flops_forward


def of_torchinfo(net, x):
    from torchinfo import summary

    return 2 * summary(net, input_data=x, verbose=0).total_mult_adds


def of_fvcore(net, x):
    from fvcore.nn import FlopCountAnalysis

    counted = FlopCountAnalysis(net, x)
    return 2 * counted.unsupported_ops_warnings(False).uncalled_modules_warnings(False).total()


def of_calflops(net, x):
    from calflops import calculate_flops

    options = {"print_results": False, "output_as_string": False}
    return 2 * calculate_flops(net, args=[x], **options)[1]


def of_accelerate(net, _):
    """The bytes of the parameters; it counts no FLOPs."""
    from accelerate.utils import calculate_maximum_sizes

    return f"{calculate_maximum_sizes(net)[0]:,} B"


TOOLS = (of_prooflops, of_torchinfo, of_fvcore, of_calflops, of_accelerate)


def cell_of(tool, make, x):
    """The figure of a tool and its CPU time, or the error that it raises."""
    times = []
    try:
        for _ in range(ROUNDS):
            net = make()
            start = time.process_time()
            with contextlib.redirect_stdout(io.StringIO()):
                figure = tool(net, x)
            times.append(time.process_time() - start)
    except Exception as error:  # each tool has its own
        return type(error).__name__
    text = figure if isinstance(figure, str) else f"{figure:,}"
    return f"{text} ({1e3 * statistics.median(times):.0f} ms)"


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name, (make, x, by_hand) in NETS.items():
        cells = [cell_of(tool, make, x) for tool in TOOLS]
        print("|", " | ".join([name, f"{by_hand:,}", *cells]), "|", flush=True)


if __name__ == "__main__":
    main()
