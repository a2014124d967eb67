"""Models of any config that transformers knows: built without memory on fake tensors, and counted
as they run.

Parameters are those of the library's modules, FLOPs those of a counted step: exact for its code, in
seconds instead of a millisecond. Remote code is never run. `from_config` asks the formulas of
`accounting.families` first, which read decoders.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from inspect import Parameter, signature
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from accounting import models
from accounting.checks import validated_choice
from accounting.families.config import content_of
from accounting.families.config import from_config as decoder_from_config
from accounting.families.decoders import MODEL_TYPES, WITHOUT_SIZE, UnreadError
from accounting.flops import StepFlops
from accounting.parts import Lengths, LinearMaps, OtherParameters, Part, Parts, length
from prooflops.counted.counter import flops
from prooflops.counted.repeated import each_kind_once

OLDEST_TRANSFORMERS_MAJOR = 5
# What transformers is to call for attention that keeps one number per query, or every score.
ATTENTION = {"flash": "kept by flash attention", "unfused": "eager"}
DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Tokens of the two runs from which a cache of any length follows.
SHORT_CONTEXTS = (8, 16)
# Nets that loop over tokens, for seconds a token: what they keep is a polynomial of the tokens, of
# degree 2.
LOOPS, FEW = ("mamba", "falcon_mamba", "jamba"), 4
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
# Tasks of which a model is built where its config names no architecture that transformers has.
TASKS = (
    "ImageTextToText", "MaskedLM", "CausalLM", "Seq2SeqLM", "SpeechSeq2Seq", "CTC",
    "ImageClassification", "AudioClassification", "VideoClassification", "ObjectDetection",
    "SemanticSegmentation", "DepthEstimation", "",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class CountedModel(Parts):
    """The parts of a model that a library builds. `source` names its class and the library's
    version.

    Attention and experts run as plain products, each token with the experts chosen for it, over all
    pairs of query and key. A model of text and images runs on its text alone, unless it compares
    the two. `ignored` are the keys of the config that the library does not know. Corrections of a
    router, buffers there, are the part "corrections": published counts include them.
    """

    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    source: str = ""
    ignored: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.source}>"


class Run:
    """Steps of a net on tensors without values; `parts` are its parameters."""

    def __init__(self, net: Any, name: str, *, untied: bool) -> None:
        self.net, self.name, stored = net, name, list(_stored(net, untied))
        maps, others = (
            [each for each in stored if isinstance(each, of)]
            for of in (LinearMaps, OtherParameters)
        )
        self.parts = Parts(tuple(maps), (), tuple(others))  # type: ignore[arg-type]
        self._counts: dict[Any, StepFlops] = {}
        self._saved_bytes: dict[Any, int] = {}
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        with self._fake:
            net.to_empty(device="cpu")

    def step(self, batch: int, sequence: Lengths) -> StepFlops:
        """FLOPs of the products of a step, forward and backward, from the model's outputs on."""
        key = batch, sequence if isinstance(sequence, int) else tuple(sorted(sequence.items()))
        if key not in self._counts:
            try:
                self._counts[key] = self._counted(batch, sequence, each_kind_once)
            except Exception:  # layers that hand on more than their results
                self._counts[key] = self._counted(batch, sequence, lambda *_: nullcontext(()))
        return self._counts[key]

    def _counted(self, batch: int, sequence: Lengths, runs: Callable[..., Any]) -> StepFlops:
        with self._running(), flops() as count, runs(self.net, flops) as skipped:
            outputs = [
                each for each in _tensors(self._outputs(batch, sequence)) if each.requires_grad
            ]
            torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
        steps = [count.step, *(each.step for each in skipped)]
        return StepFlops(
            sum(each.forward for each in steps), sum(each.backward for each in steps), 0
        )

    def saved_bytes(self, batch: int, sequence: int, attention: str) -> int:
        """Bytes that autograd keeps of a forward pass, each storage once, without parameters,
        inputs and logits.
        """
        if (key := (batch, sequence, attention)) not in self._saved_bytes:
            try:
                self._use(
                    ATTENTION[validated_choice("attention", attention, ATTENTION)], "grouped_mm"
                )
                # A net of diffusers has no model_type.
                loops = getattr(self.net.config, "model_type", "") in LOOPS and sequence > 3 * FEW
                few = (FEW, 2 * FEW, 3 * FEW) if loops else (sequence,)
                at = [
                    self._saved(batch, {"source": each, "tokens": each}, each_kind_once)
                    for each in few
                ]
                self._saved_bytes[key] = _extrapolated(at, sequence) if loops else at[0]
            finally:
                self._use()
        return self._saved_bytes[key]

    def _use(self, attention: str = "eager", experts: str = "batched_mm") -> None:
        """Chooses how attention and experts run: by default as plain products, which all are
        counted.
        """
        for config in (getattr(module, "config", None) for module in self.net.modules()):
            if config is not None and hasattr(config, "_attn_implementation"):
                config._attn_implementation, config._experts_implementation = attention, experts

    def _saved(self, batch: int, sequence: Lengths, runs: Callable[..., Any]) -> int:
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: Tensor) -> Tensor:
            if (storage := tensor.untyped_storage())._cdata not in held:
                kept.setdefault(storage._cdata, storage)
            return tensor

        @contextmanager
        def of_a_layer() -> Iterator[list[int]]:
            figures, before = [0], {*kept}
            yield figures
            figures[0] = sum(storage.nbytes() for key, storage in kept.items() if key not in before)

        with self._running(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            given = _inputs(self.net, batch, sequence)
            others = (*self.net.parameters(), *self.net.buffers(), *given.values())
            held = {each.untyped_storage()._cdata for each in others}
            with runs(self.net, of_a_layer) as skipped:
                first = next(_tensors(self._outputs(batch, sequence, **given)))
        kept.pop(first.untyped_storage()._cdata, None)
        return sum(storage.nbytes() for storage in kept.values()) + sum(
            int(figures[0]) for figures in skipped
        )

    def cached(self, context: Lengths) -> int:
        """Elements that the library's own cache keeps of one sequence.

        Of a long one they follow from two short runs: each tensor of the cache is constant, or
        grows with the tokens, up to its window.
        """
        tokens, source = (
            length("tokens", context),
            length("source", {"source": 0} | _mapping(context)),
        )
        short, longer = SHORT_CONTEXTS
        if max(tokens, source) <= longer:
            return sum(size for size, _ in self._cached(tokens, source))
        at_short = self._cached(short, short)
        by_tokens, by_source = self._cached(longer, short), at_short
        if getattr(self.net.config, "is_encoder_decoder", False):
            by_source = self._cached(short, longer)
        total = 0
        for (size, window), (more, _), (sourced, _) in zip(
            at_short, by_tokens, by_source, strict=True
        ):
            if window and more > size:
                total += size // min(short, window) * min(tokens, window)
                continue
            total += size + (more - size) // (longer - short) * (tokens - short)
            total += (sourced - size) // (longer - short) * (source - short)
        return total

    def _cached(self, tokens: int, source: int) -> list[tuple[int, int]]:
        """Elements of each tensor of the cache after so many tokens, and its window's tokens."""
        with self._running(), torch.no_grad():
            out = self._outputs(1, {"source": source, "tokens": tokens}, use_cache=True)
        found = []
        for layer in _cache_layers(out.get("past_key_values", out.get("cache_params"))):
            window = getattr(layer, "sliding_window", None) or 0
            found += [(each.numel(), max(window - 1, 0)) for each in _tensors(layer)]
        return found

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Fake tensors, and errors that say which model does not run on them."""
        # Would read values.
        packed = "transformers.masking_utils.find_packed_sequence_indices"
        try:
            with (
                mock.patch(packed, return_value=None, create=True),
                self._fake,
                torch.device("cpu"),
                silenced(),
            ):
                yield
        except Exception as error:
            raise ValueError(
                "FLOPs and activations of this model are unknown: "
                f"{self.name} does not run on tensors without values, "
                f"{type(error).__name__}: {error}; its parameters are known"
            ) from error
        finally:
            self.net.zero_grad()

    def _outputs(self, batch: int, sequence: Lengths, **options: Any) -> Any:
        text: Any = getattr(self.net.config, "get_text_config", lambda: self.net.config)()
        caching = {"use_cache": False} if hasattr(text, "use_cache") else {}
        return self.net(**_inputs(self.net, batch, sequence) | caching | options)


def _mapping(context: Lengths) -> dict[str, int]:
    return dict(context) if isinstance(context, Mapping) else {"tokens": context}


def _cache_layers(cache: Any) -> list[Any]:
    """The layers of a cache of transformers, those of both caches of an encoder and a decoder."""
    if hasattr(cache, "cross_attention_cache"):
        return [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
    return list(getattr(cache, "layers", [cache]))


def _extrapolated(at: list[int], tokens: int) -> int:
    """The polynomial of degree 2 through the values at FEW, 2 FEW and 3 FEW, by Newton's
    differences, in integers.

    >>> _extrapolated([3 * n * n + n for n in (FEW, 2 * FEW, 3 * FEW)], 1000)
    3001000
    """
    first, second = at[1] - at[0], at[2] - 2 * at[1] + at[0]
    return (
        at[0]
        + (tokens - FEW) * first // FEW
        + (tokens - FEW) * (tokens - 2 * FEW) * second // (2 * FEW**2)
    )


@dataclass(frozen=True)
class CountedProducts(Part):
    """The FLOPs of a counted model beyond those of its linear maps, so that both add up to the
    count.
    """

    run: Run

    def forward_flops(self, batch: int, sequence: Lengths, pairs: str) -> int:
        return self._step(batch, sequence, pairs).forward - models.forward_flops(
            self.run.parts, batch, sequence
        )

    def backward_flops(
        self,
        batch: int,
        sequence: Lengths,
        pairs: str,
        _convention: str,
    ) -> int:
        return self._step(batch, sequence, pairs).backward - models.backward_flops(
            self.run.parts, batch, sequence
        )

    def decoding_flops(self, *_: Any) -> int:
        raise ValueError(f"the FLOPs of one further token are unknown of {self.run.name}")

    def cached_elements(self, context: Lengths, _latents: bool) -> int:
        return self.run.cached(context)

    def _step(self, batch: int, sequence: Lengths, pairs: str) -> StepFlops:
        if pairs != "full":
            raise ValueError(
                f"pairs must be 'full' for {self.run.name}, whose masks are not read, got {pairs!r}"
            )
        return self.run.step(batch, sequence)


class FlashAttention(torch.autograd.Function):
    """Keeps what flash attention keeps, on any device: queries, keys, values, results, and a number
    per query.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, rows, _ = query.shape
        out = query.new_empty(batch, rows, heads, value.shape[-1])
        wide = torch.promote_types(query.dtype, torch.float32)
        ctx.save_for_backward(
            query, key, value, out, query.new_empty(batch, heads, rows, dtype=wide)
        )
        return out

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        return tuple(torch.zeros_like(each) for each in ctx.saved_tensors[:3])


def _flash(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    return FlashAttention.apply(query, key, value), None  # type: ignore[no-untyped-call]


# --- inputs ---------------------------------------------------------------------------------------


def _inputs(net: Any, batch: int, sequence: Lengths) -> dict[str, Tensor]:
    """One input of each shape that the config states, by the name of the model's main input; text
    where it has text.
    """
    names, config = signature(net.forward).parameters, net.config
    takes_a_sample_as_diffusers_do = "sample" in names
    if takes_a_sample_as_diffusers_do:
        side, width = (config.get(key) or 0 for key in ("sample_size", "cross_attention_dim"))
        shapes = {"sample": (batch, config["in_channels"], side, side), "timestep": ()}
        shapes["encoder_hidden_states"] = batch, length("tokens", sequence), width
        return {
            name: torch.zeros(shape, dtype=net.dtype)
            for name, shape in shapes.items()
            if name in names
        }
    main = str(getattr(net, "main_input_name", "input_ids"))
    if "input_ids" in names and main.startswith("pixel_values"):
        main = "input_ids"
    given = {}
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
        given["decoder_input_ids"] = torch.zeros(
            batch, length("tokens", sequence), dtype=torch.long
        )
    if main == "input_ids":
        rows = length("source" if given else "tokens", sequence)
        image = names.get("pixel_values")
        compares_texts_with_images = hasattr(net, "logit_scale")
        if image and (compares_texts_with_images or image.default is Parameter.empty):
            given["pixel_values"] = torch.zeros(
                batch, *_shape(config, "pixel_values", 0), dtype=net.dtype
            )
        return {"input_ids": torch.zeros(batch, rows, dtype=torch.long), **given}
    tokens = (
        0
        if given and isinstance(sequence, int)
        else length("source" if given else "tokens", sequence)
    )
    return {main: torch.zeros(batch, *_shape(config, main, tokens), dtype=net.dtype), **given}


def _shape(config: Any, name: str, tokens: int) -> tuple[int, ...]:
    """The shape of one image, clip or recording."""

    def size(*names: str, default: int = 0) -> Any:
        found = (
            getattr(each, key, None)
            for each in (
                config,
                *(getattr(config, part, None) for part in ("backbone_config", "vision_config")),
            )
            for key in names
        )
        return next((each for each in found if each), default)

    if name.startswith("pixel_values"):
        side = size("image_size", "input_size", "crop_size", default=224)
        sides = tuple(side)[-2:] if isinstance(side, (list, tuple)) else (side, side)
        frames = (
            size("num_frames")
            if "video" in f"{name}{config.model_type}" or hasattr(config, "tubelet_size")
            else 0
        )
        return (
            *((frames,) if frames else ()),
            size("num_channels", "in_channels", "in_chans", default=3),
            *sides,
        )
    mels = size("num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim", default=80)
    if positions := size("max_source_positions") if config.model_type == "whisper" else 0:
        return (mels, 2 * positions)
    if name == "input_features" or hasattr(config, "num_mel_bins"):
        return (size("max_length", default=tokens), mels)
    return (tokens,)


def _tensors(found: Any) -> Iterator[Tensor]:
    """The numbers in an output or a cache, of whatever classes it is made."""
    if isinstance(found, Tensor) and found.is_floating_point():
        yield found
    elif isinstance(found, (list, tuple, dict)) or type(found).__module__.startswith(
        "transformers.cache"
    ):
        found = found if isinstance(found, (list, tuple, dict)) else vars(found)
        for each in found.values() if isinstance(found, dict) else found:
            yield from _tensors(each)


# --- parameters -----------------------------------------------------------------------------------


def _stored(net: Any, untied: bool) -> Iterator[LinearMaps | OtherParameters]:
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


# --- building -------------------------------------------------------------------------------------


def from_config(config: Any, *, text_only: bool = False, ignore: Collection[str] = ()) -> Parts:
    """The model of any config that the formulas or else transformers or diffusers know.

    Arguments are those of `accounting.families.from_config`. Warns of keys that the library
    ignores. Raises ValueError for what neither reads, and where the library that would be asked is
    missing.
    """
    content = content_of(config, text_only, ignore)
    try:
        return decoder_from_config(content)
    except UnreadError as unread:
        try:
            return from_library(content)
        except ImportError as error:
            package = "diffusers" if "_class_name" in content else "transformers 5 or later"
            raise ValueError(
                f"{unread}. With {package} installed it would be asked ({error})"
            ) from None
        except ValueError as error:
            raise ValueError(f"{unread}; {error}") from error


def cached_config(name: str) -> Mapping[str, Any]:
    """The config.json of a model's name, from the local cache of transformers.

    Raises OSError where it is not there.
    """
    import transformers

    found, _ = transformers.PretrainedConfig.get_config_dict(name, local_files_only=True)
    if not found:
        raise OSError(f"no config.json of {name!r} is in the local cache")
    return content_of(found, text_only=True)


def from_library(values: Mapping[str, Any]) -> CountedModel:
    """The model of a config's values as transformers, or diffusers, builds it.

    Raises ValueError for a type that the library does not know, for values that it refuses, and for
    keys of a decoder that neither the formulas nor the library read; ImportError without it. Warns
    of other keys that the library ignores.
    """
    if "_class_name" in values:
        return _of_diffusers(values)
    import transformers

    version = f"transformers {transformers.__version__}"
    transformers.AttentionInterface.register(ATTENTION["flash"], _flash)
    if int(transformers.__version__.split(".")[0]) < OLDEST_TRANSFORMERS_MAJOR:
        raise ImportError(f"{version} is older than {OLDEST_TRANSFORMERS_MAJOR}")
    name = str(values.get("model_type"))
    if name not in transformers.CONFIG_MAPPING:
        raise ValueError(f"{version} does not know it")
    with _errors_named(version):
        kind = transformers.CONFIG_MAPPING[name]
        config, strange = _config(kind, values)
        read, before = set[str](), kind.__getattribute__

        def reading(self: Any, name: str) -> Any:
            read.add(name)
            return before(self, name)  # type: ignore[no-untyped-call]

        with mock.patch.object(kind, "__getattribute__", reading), torch.device("meta"):
            net = _maker(transformers, config, values)(config).eval()
        ignored = tuple(key for key in strange if key not in read)
        if name in MODEL_TYPES and ignored:
            raise LookupError(
                f"it reads no {', '.join(ignored)}; "
                f"ignore={ignored} passes over what changes no size"
            )
    if ignored:
        named = ", ".join(f"{key}={_value_at(values, key)!r}" for key in ignored)
        warnings.warn(f"{type(net).__name__} of {version} ignores {named}", stacklevel=3)
    return _counted_model(net, version, values, ignored)


def net_of(values: Mapping[str, Any]) -> nn.Module:
    """The net that transformers builds of a config, on the meta device, as it trains.

    Attention is torch's fused one, and experts are multiplied in groups.
    """
    import transformers

    name = str(values.get("model_type"))
    version = f"transformers {transformers.__version__}"
    if name not in transformers.CONFIG_MAPPING:
        raise ValueError(f"{version} does not know model_type {name!r}")
    with _errors_named(version):
        config, _ = _config(transformers.CONFIG_MAPPING[name], values)
        config.use_cache = False
        config._attn_implementation = "sdpa"
        with torch.device("meta"):
            net = _maker(transformers, config, values)(config)
    for module in net.modules():
        config = getattr(module, "config", None)
        if config is not None:
            config._experts_implementation = "grouped_mm"
    return net


def _of_diffusers(values: Mapping[str, Any]) -> CountedModel:
    """The net of a config of diffusers, which runs if its inputs are a sample, a time and tokens of
    a condition.
    """
    diffusers: Any = import_module("diffusers")
    version, kind = (
        f"diffusers {diffusers.__version__}",
        getattr(diffusers, values["_class_name"], None),
    )
    if kind is None or not issubclass(kind, nn.Module):
        raise ValueError(f"{version} has no net {values['_class_name']!r}")
    with _errors_named(version), torch.device("meta"):
        net = kind.from_config(
            {key: value for key, value in values.items() if key != "dtype"}
        ).eval()
        nn.Module.to(net, getattr(torch, values.get("dtype", "float32")))
    return _counted_model(net, version, values, ())


def _counted_model(
    net: nn.Module, version: str, values: Mapping[str, Any], ignored: tuple[str, ...]
) -> CountedModel:
    source = f"counted: {type(net).__name__} of {version}"
    run = Run(net, source, untied=values.get("tie_word_embeddings") is False)
    beyond: Any = CountedProducts(
        "attention", run, place=run.parts.places, block_end=run.parts.places
    )
    lists = (run.parts.linear_maps, (beyond,), run.parts.other_parameters)
    return CountedModel(*lists, config=values, source=source, ignored=ignored)


def activation_bytes(
    config: Any, batch: int, sequence: int, dtype: str = "fp32", attention: str = "flash"
) -> int:
    """Bytes that the library's model of this config keeps for the backward pass, on the CPU.

    `attention` is "flash" or "unfused" (the library's "eager"). See `Run.saved_bytes`.
    """
    read = content_of(config)
    values = {key: value for key, value in read.items() if key != "torch_dtype"}
    values["dtype"] = DTYPES[validated_choice("dtype", dtype, DTYPES)]
    run = _run_of(json.dumps(values, sort_keys=True, default=str))
    return run.saved_bytes(batch, sequence, attention)


@lru_cache(maxsize=1)
def _run_of(config: str) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        beyond: Any = from_library(json.loads(config)).attentions[0]
    run: Run = beyond.run
    return run


def _config(kind: Any, values: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """The library's config, and the keys that may change a size and that it only keeps."""
    read = {
        key: value
        for key, value in values.items()
        if key not in ("auto_map", "quantization_config")
    }
    config = kind.from_dict(read)
    # The library goes through them, and stops at None.
    config.architectures = config.architectures or []
    _validate_heads(config)
    strange = [*_unknown(kind, read, config)]
    for each in (config, *(getattr(config, part, None) for part in kind.sub_configs)):
        if each is not None:
            each._attn_implementation = "eager"
            # Multiplies a token by the matrices of its experts alone.
            each._experts_implementation = "batched_mm"
    return config, tuple(sorted(strange))


def _validate_heads(config: Any) -> None:
    """Refuses heads that do not divide the width, unless their own width is stated."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    width, heads = getattr(text, "hidden_size", 0), getattr(text, "num_attention_heads", 0)
    stated = [
        name for name in vars(text) if re.search(r"head_dim|d_kv|head_size|kv_channels", name)
    ]
    if not stated and isinstance(width, int) and isinstance(heads, int) and heads and width % heads:
        raise ValueError(f"num_attention_heads must divide hidden_size={width}, got {heads}")


def _unknown(kind: Any, values: Mapping[str, Any], config: Any) -> Iterator[str]:
    """Keys of a config and of its parts on which nothing in the library's config depends."""
    known = {*kind().to_dict(), *kind.attribute_map}
    for key in vars(config).keys() & values.keys() - known:
        sized = values[key] not in (None, [], {}) and not WITHOUT_SIZE.fullmatch(key)
        if sized and not _depends(kind, values, key):
            yield key
    for name in kind.sub_configs:
        inner, own = values.get(name), getattr(config, name, None)
        if isinstance(inner, Mapping) and own is not None and hasattr(own, "attribute_map"):
            for key in _unknown(type(own), inner, own):
                yield f"{name}.{key}"


def _depends(kind: Any, values: Mapping[str, Any], key: str) -> bool:
    """Whether another entry of the library's config changes with this one, or without it."""

    def others(of: Mapping[str, Any]) -> dict[str, Any]:
        entries: dict[str, Any] = kind.from_dict(dict(of)).to_dict()
        entries.pop(key, None)
        return entries

    value = values[key]
    changes = [{name: each for name, each in values.items() if name != key}]
    if isinstance(value, bool):
        changes.append({**values, key: not value})
    elif isinstance(value, int):
        changes.append({**values, key: value + 1})
    before = others(values)
    try:
        return any(others(changed) != before for changed in changes)
    except Exception:
        # What is refused with another value is read.
        return True


def _value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value of a key, or of a key of a part: "text_config.key"."""
    for name in key.split("."):
        values = values[name]
    return values


def _maker(transformers: Any, config: Any, values: Mapping[str, Any]) -> Callable[[Any], nn.Module]:
    """What builds the architecture that the config names, or else the first task's that the type
    has.
    """
    for architecture in values.get("architectures") or ():
        own: Any = getattr(transformers, str(architecture), None)
        if own is not None and getattr(own, "config_class", None) is type(config):
            return own._from_config  # type: ignore[no-any-return]
    paired = getattr(config, "is_encoder_decoder", False)
    for task in sorted(
        TASKS, key=lambda task: paired and "Seq2Seq" not in task
    ):  # those of pairs before the others
        auto = getattr(transformers, f"AutoModelFor{task}" if task else "AutoModel")
        if type(config) in auto._model_mapping:
            return auto.from_config  # type: ignore[no-any-return]
    raise ValueError(f"it has no model of type {config.model_type!r}")


@contextmanager
def silenced() -> Iterator[None]:
    """Within, transformers says nothing of its own."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _errors_named(version: str) -> Iterator[None]:
    """What the library raises says who refuses the config."""
    try:
        with silenced():
            yield
    except Exception as error:
        raise ValueError(
            f"{version} refuses this config, {type(error).__name__}: {error}"
        ) from error
