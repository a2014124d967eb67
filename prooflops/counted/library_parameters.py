"""The parameters of a library's net as the parts of a model: linear maps, experts, embeddings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from accounting.parts import LinearMaps, OtherParameters

# A parameter's part: the first whose pattern its path has.
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


def parts_of(net: Any, untied: bool) -> Iterator[LinearMaps | OtherParameters]:
    """The parts of each module, in their order; a matrix that stands elsewhere already has no
    copies.

    But for an `untied` head: T5 ties it until weights are loaded, whatever the config says.
    """
    text = net.config.get_text_config() if hasattr(net.config, "get_text_config") else net.config
    chosen = next(
        (getattr(text, name) for name in CHOSEN if isinstance(getattr(text, name, None), int)), 0
    )
    experts = Counter(
        re.sub(r"(experts)\.\d+\.", r"\1.0.", path) for path, _ in net.named_modules()
    )
    seen: set[int] = set()
    head = net.get_output_embeddings() if untied else None
    place = 0
    for path, module in net.named_modules():
        own = dict(module.named_parameters(recurse=False))
        new = {name for name, each in own.items() if id(each) not in seen or module is head}
        seen |= {id(each) for each in own.values()}
        listed = re.search(r"experts\.\d+\.", path)
        if listed and path not in experts:
            continue  # counted with the first of its list
        at: dict[str, Any] = {
            "place": place,
            "block_end": place,
            "copies": experts[path] if listed else 1,
        }
        at["uses"] = (listed and chosen) or at["copies"]
        yield from _of_module(f"{path}.", module, own, new, chosen, at)
        place += bool(own)
    for path, buffer in net.named_buffers():
        if "correction" in path:
            yield OtherParameters("corrections", buffer.numel(), place=place)


def _of_module(
    path: str,
    module: nn.Module,
    own: dict[str, Any],
    new: set[str],
    chosen: int,
    options: dict[str, Any],
) -> Iterator[LinearMaps | OtherParameters]:
    """The parts of a module's own parameters, of which `new` are stored nowhere before."""
    at: dict[str, Any] = {"place": options["place"], "block_end": options["block_end"]}
    weight, linear = own.get("weight"), isinstance(module, (nn.Linear, nn.modules.conv._ConvNd))
    if weight is not None and linear:
        bias = {"weight", "bias"} <= new
        stored = options if "weight" in new else options | {"copies": 0}
        yield LinearMaps(_part(path), weight.shape[1:].numel(), len(weight), bias=bias, **stored)
        new = new - {"weight"} - ({"bias"} if bias else set())
    experts = {name for name in new if own[name].dim() == 3 and _part(path + name) == "experts"}
    biases = {f"{name}_bias" for name in experts}
    for name in sorted(new - biases):
        each, part = own[name], _part(path + name)
        if name in experts:
            copies = {"copies": len(each), "uses": chosen or len(each)}
            biased = f"{name}_bias" in own
            outputs = len(own[f"{name}_bias"][0]) if biased else each.shape[2]
            yield LinearMaps(part, each[0].numel() // outputs, outputs, bias=biased, **at | copies)
        elif type(module).__name__ == "Conv1D" and name == "weight":  # GPT-2's, a linear map
            yield LinearMaps(part, *each.shape, **at)
        elif isinstance(module, nn.Embedding):
            positions = "position" in path and part not in ("vision", "audio")
            first = getattr(
                module, "offset", 0 if module.padding_idx is None else module.padding_idx + 1
            )
            part, longest = ("positions", len(each) - first) if positions else ("embedding", 0)
            yield OtherParameters(part, each.numel(), looked_up=True, longest=longest, **at)
        else:
            part = "norms" if "norm" in type(module).__name__.lower() else part
            yield OtherParameters(part, options["copies"] * each.numel(), **at)


def _part(path: str) -> str:
    return next(
        (part for part, pattern in PARTS.items() if re.search(pattern, path.lower())),
        path.partition(".")[0],
    )
