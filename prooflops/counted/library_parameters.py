"""The parameters of a net of transformers as parts of a model: linear maps, experts, others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from accounting.parts import LinearMaps, OtherParameters, Parts

# A parameter belongs to the first part whose pattern its path matches.
PARTS = {
    "vision": r"vision|visual|image_", "audio": r"audio|speech|feature_extractor",
    "router": r"router|gate\.(weight|$)", "shared expert": r"shared_expert", "experts": r"experts",
    "attention": r"att", "head": r"head|classifier|score|logits",
    "mlp": r"mlp|ffn|fc\d|dense|intermediate|feed_forward|output|layers?\.|blocks?\.|\bh\.",
}  # fmt: skip
# Keys under which configs say how many experts a token is sent to.
CHOSEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
    "top_k",
)


def parts_of(net: Any, *, untied: bool) -> Parts:
    """The parts of each module; a matrix that is also stored elsewhere has no copies.

    An `untied` head has: T5 ties its head until weights are loaded, whatever the config says.
    """
    chosen = _experts_per_token(net.config)
    head = net.get_output_embeddings() if untied else None
    seen: set[int] = set()
    found: list[LinearMaps | OtherParameters] = []
    for path, module in net.named_modules():
        own = dict(module.named_parameters(recurse=False))
        new = {name for name, each in own.items() if id(each) not in seen or module is head}
        seen |= {id(each) for each in own.values()}
        found += _of_module(f"{path}.", module, own, new, chosen)
    corrections = [each.numel() for name, each in net.named_buffers() if "correction" in name]
    found += [OtherParameters("corrections", elements) for elements in corrections]
    maps = tuple(each for each in found if isinstance(each, LinearMaps))
    others = tuple(each for each in found if isinstance(each, OtherParameters))
    return Parts(maps, (), others)


def _experts_per_token(config: Any) -> int:
    text = config.get_text_config()
    stated = (getattr(text, name, None) for name in CHOSEN)
    return next((number for number in stated if isinstance(number, int)), 0)


def _of_module(
    path: str, module: nn.Module, own: dict[str, Any], new: set[str], chosen: int
) -> Iterator[LinearMaps | OtherParameters]:
    """The parts of a module's own parameters; `new` are the ones not stored before."""
    weight = own.get("weight")
    if weight is not None and isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
        bias = {"weight", "bias"} <= new
        inputs, outputs = weight.shape[1:].numel(), len(weight)
        yield LinearMaps(_part(path), inputs, outputs, bias=bias, copies=int("weight" in new))
        new = new - {"weight"} - ({"bias"} if bias else set())
    stacked = {name for name in new if own[name].dim() == 3 and _part(path + name) == "experts"}
    for name in sorted(new - {f"{name}_bias" for name in stacked}):
        each, part = own[name], _part(path + name)
        is_gpt2_linear_map = type(module).__name__ == "Conv1D" and name == "weight"
        if name in stacked:
            biases = own.get(f"{name}_bias")
            outputs = each.shape[2] if biases is None else len(biases[0])
            inputs, experts = each[0].numel() // outputs, len(each)
            uses, bias = chosen or experts, biases is not None
            yield LinearMaps(part, inputs, outputs, copies=experts, uses=uses, bias=bias)
        elif is_gpt2_linear_map:
            yield LinearMaps(part, *each.shape)
        elif isinstance(module, nn.Embedding):
            yield _table(path, module)
        else:
            part = "norms" if "norm" in type(module).__name__.lower() else part
            yield OtherParameters(part, each.numel())


def _table(path: str, module: nn.Embedding) -> OtherParameters:
    """A table of tokens, or of the positions behind those kept for padding."""
    elements = module.weight.numel()
    if "position" not in path or _part(path) in ("vision", "audio"):
        return OtherParameters("embedding", elements, looked_up=True)
    padding = 0 if module.padding_idx is None else module.padding_idx + 1
    longest = module.num_embeddings - int(getattr(module, "offset", padding))
    return OtherParameters("positions", elements, looked_up=True, longest=longest)


def _part(path: str) -> str:
    matching = (part for part, pattern in PARTS.items() if re.search(pattern, path.lower()))
    return next(matching, path.partition(".")[0])
