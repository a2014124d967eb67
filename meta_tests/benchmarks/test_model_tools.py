"""Times `model_report` beside the tools that count a model's FLOPs, all in one process.

docs/reference/model-tools.md has the figures and the command. Times are CPU seconds, the median of
ten calls; they are compared and never asserted. Two threads would count twice: OMP_NUM_THREADS=1.
"""

import time
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchinfo import summary
from transformers import (
    AutoModel,
    BertConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
)

import prooflops


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(101, 32)
        self.head = nn.Linear(32, 101, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.table(ids))


class LowRank(nn.Module):
    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@torch.library.custom_op("benchmarks::product", mutates_args=())
def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight


@product.register_fake
def _(x, weight):
    return x.new_empty(len(x), weight.shape[1])


class Custom(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        # No gradient flows through it, so it needs no backward pass.
        return y + product(y.detach(), self.weight.detach())


def shared():
    layer = nn.Linear(64, 64)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer)


def channels_last():
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, padding=1))
    return net.to(memory_format=torch.channels_last)


def compiled():
    net = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
    return torch.compile(net, backend="eager")


def bert():
    sizes = {"hidden_size": 64, "intermediate_size": 256, "vocab_size": 100}
    config = BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=4)
    return AutoModel.from_config(config).eval()


def llama():
    """LoRA of Llama 3.2 with 1 B parameters."""
    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        net = LlamaForCausalLM(config).requires_grad_(False)
        for layer in net.model.layers:
            attention = layer.self_attn
            attention.q_proj = LowRank(attention.q_proj)
            attention.v_proj = LowRank(attention.v_proj)
    return net.to(torch.bfloat16)


ids = partial(torch.zeros, dtype=torch.long)
IMAGES = torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last)
BERT_LAYER = 4 * 2 * 32 * 64 * 64 + 2 * 2 * 32 * 64 * 256 + 2 * 2 * 2 * 16 * 16 * 64
# How a net is made, its input, and the FLOPs of its products in a forward pass, by hand.
SMALL = {
    "a layer used three times": (shared, torch.randn(32, 64), 3 * 2 * 32 * 64 * 64),
    "a tied head": (Tied, ids(2, 24), 2 * 48 * 32 * 101),
    "channels last": (
        channels_last,
        IMAGES,
        2 * 4 * 32**2 * 16 * 3 * 9 + 2 * 4 * 16**2 * 32 * 16 * 9,
    ),
    "LoRA": (
        lambda: LowRank(nn.Linear(256, 256)),
        torch.randn(64, 256),
        2 * 64 * (256 * 256 + 2 * 256 * 8),
    ),
    "a GRU": (
        lambda: nn.GRU(32, 64, batch_first=True),
        torch.randn(8, 10, 32),
        2 * 80 * 3 * 64 * (32 + 64),
    ),
    "compiled": (compiled, torch.randn(16, 128), 2 * 2 * 16 * 128 * 512),
    # The operator's own product has no formula.
    "a custom operator": (lambda: Custom(64, 64), torch.randn(16, 64), 2 * 16 * 64 * 64),
    "BERT of a config": (bert, ids(2, 16), 2 * BERT_LAYER + 2 * 2 * 64 * 64),
}
LARGE = {
    "ResNet-50": (
        lambda: ResNetForImageClassification(ResNetConfig(num_labels=1000)),
        torch.randn(1, 3, 224, 224),
        None,
    ),
    "GPT-2": (lambda: GPT2LMHeadModel(GPT2Config()), ids(1, 128), None),
    "LoRA of Llama 1B on meta": (llama, ids(1, 512, device="meta"), None),
}


def of_prooflops(net, x):
    return prooflops.model_report(net, x).flops_forward


def of_torchinfo(net, x):
    return 2 * summary(net, input_data=x, verbose=0, device=x.device).total_mult_adds


def of_flop_counter(net, x):
    """Torch's own counter, of a forward and a backward pass."""
    with FlopCounterMode(display=False) as counter:
        out = net(x)
        getattr(out, "logits", out).sum().backward()
    return counter.get_total_flops()


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

    return calculate_maximum_sizes(net)[0]


OF_ALL = (of_prooflops, of_torchinfo, of_fvcore, of_calflops, of_accelerate)
OF_LARGE = (of_prooflops, of_torchinfo, of_flop_counter)
PAIRS = [
    *((name, tool) for name in SMALL for tool in OF_ALL),
    *((name, tool) for name in LARGE for tool in OF_LARGE),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize(("name", "tool"), PAIRS)
def test_model_tools(benchmark, name, tool):
    make, x, by_hand = (SMALL | LARGE)[name]
    benchmark.group = name
    net = make()
    try:
        figure = benchmark.pedantic(tool, (net, x), rounds=10, warmup_rounds=1)
    except Exception as error:
        pytest.skip(f"{type(error).__name__}: {error}")
    benchmark.extra_info["figure"] = figure
    if tool is of_prooflops and by_hand:
        assert figure == by_hand
