"""Models of any config that transformers knows: built without memory on fake tensors, and counted
as they run.

Parameters are those of the library's modules, FLOPs those of a counted step: exact for its code, in
seconds instead of a millisecond. Remote code is never run. `from_config` asks the formulas of
`prooflops.families` first, which read decoders.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from inspect import getsource
from typing import Any

import torch
from torch import nn

from accounting.checks import validated_choice
from accounting.parts import Parts
from prooflops.counted.library_run import (
    ATTENTION,
    CountedProducts,
    Run,
    flash_attention,
    silenced,
)
from prooflops.families.config import EXPERTS, content_of, validate_sizes
from prooflops.families.config import from_config as decoder_from_config
from prooflops.families.decoders import MODEL_TYPES, WITHOUT_SIZE, UnreadError

OLDEST_TRANSFORMERS_MAJOR = 5
DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Tasks of which a model is built where its config names no architecture that transformers has.
TASKS = (
    "ImageTextToText", "MaskedLM", "CausalLM", "Seq2SeqLM", "SpeechSeq2Seq", "CTC",
    "ImageClassification", "AudioClassification", "VideoClassification", "ObjectDetection",
    "SemanticSegmentation", "DepthEstimation", "",
)  # fmt: skip
# Code of transformers that reads the configs of all its nets.
READERS = tuple(
    f"transformers.{name}"
    for name in ("cache_utils", "masking_utils", "modeling_rope_utils", "modeling_utils")
)


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


def from_config(config: Any, *, text_only: bool = False, ignore: Collection[str] = ()) -> Parts:
    """The model of any config that the formulas or else transformers or diffusers know.

    Arguments are those of `prooflops.families.from_config`. Warns of keys that the library
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
    transformers.AttentionInterface.register(ATTENTION["flash"], flash_attention)
    if int(transformers.__version__.split(".")[0]) < OLDEST_TRANSFORMERS_MAJOR:
        raise ImportError(f"{version} is older than {OLDEST_TRANSFORMERS_MAJOR}")
    name = str(values.get("model_type"))
    if name not in transformers.CONFIG_MAPPING:
        raise ValueError(f"{version} does not know it")
    with _errors_named(version):
        kind = transformers.CONFIG_MAPPING[name]
        config = _config(kind, values)
        with torch.device("meta"):
            net = _maker(transformers, config, values)(config).eval()
        ignored = tuple(sorted(_unread(kind, _own(values), config, _code_of(net))))
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
        config = _config(transformers.CONFIG_MAPPING[name], values)
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


def _config(kind: Any, values: Mapping[str, Any]) -> Any:
    """The library's config, whose net runs as plain products."""
    config = kind.from_dict(_own(values))
    # The library goes through them, and stops at None.
    config.architectures = config.architectures or []
    _validate_sizes(config)
    for each in (config, *(getattr(config, part, None) for part in kind.sub_configs)):
        if each is not None:
            each._attn_implementation = "eager"
            # Multiplies a token by the matrices of its experts alone.
            each._experts_implementation = "batched_mm"
    return config


def _own(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that need no code but the library's."""
    others = ("auto_map", "quantization_config")
    return {key: value for key, value in values.items() if key not in others}


def _validate_sizes(config: Any) -> None:
    """Refuses more chosen experts than there are, and heads that do not divide the width, unless
    their own width is stated.

    The library's config has every size, by each of its names.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    sizes = {name: getattr(text, name, None) for name in (*EXPERTS, "num_experts_per_tok")}
    validate_sizes({name: size for name, size in sizes.items() if size})
    width, heads = getattr(text, "hidden_size", 0), getattr(text, "num_attention_heads", 0)
    stated = [
        name for name in vars(text) if re.search(r"head_dim|d_kv|head_size|kv_channels", name)
    ]
    if not stated and isinstance(width, int) and isinstance(heads, int) and heads and width % heads:
        raise ValueError(f"num_attention_heads must divide hidden_size={width}, got {heads}")


def _unread(kind: Any, values: Mapping[str, Any], config: Any, code: str) -> Iterator[str]:
    """Keys of a config and of its parts that may change a size, and that nobody reads: neither the
    library's config nor the net's code.

    A key that has the library's default is left out.
    """
    defaults = kind().to_dict()
    for key in values.keys() - {*kind.sub_configs}:
        stored = kind.attribute_map.get(key, key)
        if stored not in vars(config) or values[key] in (None, [], {}, defaults.get(stored)):
            continue
        names = {stored, *(name for name, of in kind.attribute_map.items() if of == stored)}
        if WITHOUT_SIZE.fullmatch(key) or _named(kind, names, code):
            continue
        if not _depends(kind, values, key):
            yield key
    for name in kind.sub_configs:
        inner, own = values.get(name), getattr(config, name, None)
        if isinstance(inner, Mapping) and own is not None and hasattr(own, "attribute_map"):
            for key in _unread(type(own), inner, own, code):
                yield f"{name}.{key}"


def _named(kind: Any, names: Collection[str], code: str) -> bool:
    """Whether the net's code, or that of its config's class, reads a key by one of its names."""
    named = "|".join(map(re.escape, names))
    own = getsource(sys.modules[kind.__module__])
    return bool(
        re.search(rf"config\.({named})\b|[\"']({named})[\"']", code)
        or re.search(rf"self\.({named})\b(?! *=[^=])", own)
    )


def _code_of(net: nn.Module) -> str:
    """The library's code that reads a config while it builds and runs a net."""
    of_modules = {type(each).__module__ for each in net.modules()}
    names = sorted(name for name in of_modules if name.startswith("transformers."))
    return "\n".join(getsource(import_module(name)) for name in (*names, *READERS))


def _depends(kind: Any, values: Mapping[str, Any], key: str) -> bool:
    """Whether another entry of the library's config changes with this one, or without it."""

    def others(of: Mapping[str, Any]) -> dict[str, Any]:
        entries: dict[str, Any] = kind.from_dict(dict(of)).to_dict()
        entries.pop(kind.attribute_map.get(key, key), None)
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
def _errors_named(version: str) -> Iterator[None]:
    """What the library raises says who refuses the config."""
    try:
        with silenced():
            yield
    except Exception as error:
        raise ValueError(
            f"{version} refuses this config, {type(error).__name__}: {error}"
        ) from error
