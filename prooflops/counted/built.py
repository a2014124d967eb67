"""Models of any config that transformers knows: built on the meta device, one step counted.

Parameters are those of the library's modules, FLOPs those of a counted step: exact for its code,
in seconds instead of a millisecond. Remote code is never run.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getsource
from typing import Any

import torch
from torch import nn

from accounting.parts import Parts
from prooflops.counted.library_parameters import parts_of
from prooflops.counted.library_step import CountedProducts, without_values
from prooflops.families.config import content_of
from prooflops.families.config import from_config as decoder_from_config
from prooflops.families.decoders import MODEL_TYPES, WITHOUT_SIZE, UnreadError

OLDEST_TRANSFORMERS_MAJOR = 5
# Tasks of which a model is built where its config names no architecture that transformers has.
TASKS = (
    "ImageTextToText", "MaskedLM", "CausalLM", "Seq2SeqLM", "SpeechSeq2Seq", "CTC",
    "ImageClassification", "AudioClassification", "VideoClassification", "ObjectDetection",
    "SemanticSegmentation", "DepthEstimation", "",
)  # fmt: skip
# Values of a config that need code of its own.
REMOTE = ("auto_map", "quantization_config")


@dataclass(frozen=True, eq=False)
class CountedModel(Parts):
    """The parts of a model that transformers builds; `source` names its class and the version.

    Attention and experts run as plain products, each token with the experts chosen for it, over all
    pairs of query and key. A model of text and images runs on its text alone, unless it compares
    the two. `ignored` are the keys of the config that the library does not know. Corrections of a
    router, buffers there, are the part "corrections": published counts include them.
    """

    source: str = ""
    ignored: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.source}>"


def from_config(config: Any, *, text_only: bool = False, ignore: Collection[str] = ()) -> Parts:
    """The model of any config that the formulas or else transformers know.

    Arguments are those of `prooflops.families.from_config`. Warns of keys that the library
    ignores. Raises ValueError for what neither reads, and where transformers is missing.
    """
    content = content_of(config, text_only, ignore)
    try:
        return decoder_from_config(content)
    except UnreadError as unread:
        try:
            return from_library(content)
        except ImportError as error:
            raise ValueError(
                f"{unread}. With transformers 5 or later installed it would be counted ({error})"
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
    return found


def from_library(values: Mapping[str, Any]) -> CountedModel:
    """The model of a config's values as transformers builds it.

    Raises ValueError for a type that the library does not know, for values that it refuses, and for
    keys of a decoder that neither the formulas nor the library know; ImportError without it. Warns
    of other keys that the library ignores.
    """
    net = net_of(values, attention="eager", experts="batched_mm").eval()
    version = _version()
    code = getsource(sys.modules[type(net).__module__])
    ignored = tuple(sorted(_ignored(values, net.config, code)))
    if ignored and values["model_type"] in MODEL_TYPES:
        raise ValueError(
            f"{version} knows no {', '.join(ignored)}; "
            f"ignore={ignored} passes over what changes no size"
        )
    if ignored:
        warnings.warn(
            f"{type(net).__name__} of {version} ignores {', '.join(ignored)}", stacklevel=3
        )
    source = f"counted: {type(net).__name__} of {version}"
    parts = parts_of(net, untied=values.get("tie_word_embeddings") is False)
    # It follows the linear maps, so that it has a backward pass.
    products: Any = CountedProducts("attention", net, source, parts, place=1, block_end=1)
    lists = parts.linear_maps, (products,), parts.other_parameters
    return CountedModel(*lists, source=source, ignored=ignored)


def net_of(values: Mapping[str, Any], attention: str = "sdpa", experts: str = "grouped_mm") -> Any:
    """The net that transformers builds of a config, on the meta device.

    By default as it trains: attention is torch's fused one, and experts are multiplied in groups.
    """
    import transformers

    version, name = _version(), str(values.get("model_type"))
    if name not in transformers.CONFIG_MAPPING:
        raise ValueError(f"{version} does not know model_type {name!r}")
    own = {key: value for key, value in values.items() if key not in REMOTE}
    with _errors_named(version), without_values(), torch.device("meta"):
        config = transformers.CONFIG_MAPPING[name].from_dict(own)
        # The library iterates over them, and fails at None.
        config.architectures = config.architectures or []
        config.use_cache = config.get_text_config().use_cache = False
        parts = [getattr(config, part, None) for part in config.sub_configs]
        for each in (config, *parts):
            if each is not None:
                each._attn_implementation = attention
        net: Any = _maker(transformers, config, values)(config)
    for module in net.modules():
        if hasattr(module, "config"):
            module.config._experts_implementation = experts
    return net


def _version() -> str:
    import transformers

    version = f"transformers {transformers.__version__}"
    if int(transformers.__version__.split(".")[0]) < OLDEST_TRANSFORMERS_MAJOR:
        raise ImportError(f"{version} is older than {OLDEST_TRANSFORMERS_MAJOR}")
    return version


def _ignored(values: Mapping[str, Any], config: Any, code: str) -> Iterator[str]:
    """Keys that the library's config stores, and that neither its class nor `code` names."""
    kind = type(config)
    known = {*kind().to_dict(), *kind.attribute_map, *kind.sub_configs, *REMOTE}
    code += getsource(sys.modules[kind.__module__])
    for key in values.keys() - known:
        is_read = WITHOUT_SIZE.fullmatch(key) or re.search(rf"\b{re.escape(key)}\b", code)
        if key in vars(config) and values[key] not in (None, [], {}) and not is_read:
            yield key
    for name in kind.sub_configs:
        if isinstance(values.get(name), Mapping):
            for key in _ignored(values[name], getattr(config, name), code):
                yield f"{name}.{key}"


def _maker(transformers: Any, config: Any, values: Mapping[str, Any]) -> Callable[[Any], nn.Module]:
    """What builds the architecture that the config names, or else the first task's that the type
    has.
    """
    for architecture in values.get("architectures") or ():
        own: Any = getattr(transformers, str(architecture), None)
        if own is not None and getattr(own, "config_class", None) is type(config):
            return own._from_config  # type: ignore[no-any-return]
    paired = getattr(config, "is_encoder_decoder", False)
    for task in sorted(TASKS, key=lambda task: paired and "Seq2Seq" not in task):
        auto = getattr(transformers, f"AutoModelFor{task}" if task else "AutoModel")
        if type(config) in auto._model_mapping:
            return auto.from_config  # type: ignore[no-any-return]
    raise ValueError(f"it has no model of type {config.model_type!r}")


@contextmanager
def _errors_named(version: str) -> Iterator[None]:
    """What the library raises says who refuses the config."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{version} refuses this config, {type(error).__name__}: {error}"
        ) from error
