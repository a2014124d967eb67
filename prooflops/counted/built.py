"""Counts a step of any model that transformers builds from a config, on the meta device.

Parameters are those of the library's modules, FLOPs those of a counted step. Both are exact for the
library's code, and take seconds instead of the milliseconds of formulas. Remote code is never run.
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
from prooflops.families.config import content_of, decoder_of
from prooflops.families.decoders import MODEL_TYPES, WITHOUT_SIZE, UnreadError

OLDEST_TRANSFORMERS_MAJOR = 5
# The first task that a type has decides its model, if the config names no known architecture.
TASKS = (
    "ImageTextToText", "MaskedLM", "CausalLM", "Seq2SeqLM", "SpeechSeq2Seq", "CTC",
    "ImageClassification", "AudioClassification", "VideoClassification", "ObjectDetection",
    "SemanticSegmentation", "DepthEstimation", "",
)  # fmt: skip
# These keys need code that transformers lacks.
KEYS_OF_REMOTE_CODE = ("auto_map", "quantization_config")


@dataclass(frozen=True, eq=False)
class CountedModel(Parts):
    """The parts of a model that transformers builds; `source` names its class and the version.

    Attention and experts run as plain products: attention over all pairs of query and key, each
    token with the experts chosen for it. A model of text and images runs on its text alone, unless
    it compares the two. `ignored` are the keys of the config that the library does not know. The
    part "corrections" has those of a router: published counts include them, though the library
    keeps them as buffers.
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
        return decoder_of(content)
    except UnreadError as unread:
        try:
            return from_library(content)
        except ImportError as error:
            raise ValueError(
                f"{unread}. Install transformers 5 or later to count it ({error})"
            ) from None
        except ValueError as error:
            raise ValueError(f"{unread}; {error}") from error


def cached_config(name: str) -> Mapping[str, Any]:
    """The config.json of a model's name, from the local cache of transformers.

    Raises OSError where it is not there.
    """
    import transformers

    found: Mapping[str, Any]
    found, _ = transformers.PretrainedConfig.get_config_dict(name, local_files_only=True)
    if not found:
        raise OSError(f"no config.json of {name!r} is in the local cache")
    return found


def from_library(values: Mapping[str, Any]) -> CountedModel:
    """The model of a config's values as transformers builds it.

    Raises ValueError for a type that the library does not know, and for values that it refuses. It
    also raises ValueError for decoder keys that neither the formulas nor the library know. Warns of
    other keys that the library ignores. Raises ImportError without the library.
    """
    net = net_of(values, attention="eager", experts="batched_mm").eval()
    version = _version()
    code = getsource(sys.modules[type(net).__module__])
    unread = {*_ignored(values, net.config, code)}
    architectures = [str(name).lower() for name in values.get("architectures") or ()]
    if architectures and type(net).__name__.lower() not in architectures:
        unread.add("architectures")
    ignored = tuple(sorted(unread))
    if ignored and values["model_type"] in MODEL_TYPES:
        stated = ", ".join(f"{key}={values[key]!r}" for key in ignored)
        raise ValueError(
            f"{version} knows no {stated}; ignore={ignored} accepts keys that change no size"
        )
    if ignored:
        warnings.warn(
            f"{type(net).__name__} of {version} ignores {', '.join(ignored)}", stacklevel=3
        )
    source = f"counted: {type(net).__name__} of {version}"
    parts = parts_of(net, untied=values.get("tie_word_embeddings") is False)
    # They follow the linear maps, so that they have a backward pass.
    products: Any = CountedProducts("attention", net, source, parts, place=1, block_end=1)
    lists = parts.linear_maps, (products,), parts.other_parameters
    return CountedModel(*lists, source=source, ignored=ignored)


def net_of(values: Mapping[str, Any], attention: str = "sdpa", experts: str = "grouped_mm") -> Any:
    """The net that transformers builds from a config, on the meta device.

    The defaults are those of training: attention is torch's fused one, and experts are multiplied
    in groups.
    """
    import transformers

    version, name = _version(), str(values.get("model_type"))
    if name not in transformers.CONFIG_MAPPING:
        raise ValueError(f"{version} does not know model_type {name!r}")
    own = {key: value for key, value in values.items() if key not in KEYS_OF_REMOTE_CODE}
    with _errors_named(version), without_values(), torch.device("meta"):
        config = transformers.CONFIG_MAPPING[name].from_dict(own)
        # The library iterates over the architectures, and fails at None.
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
    known = {*kind().to_dict(), *kind.attribute_map, *kind.sub_configs, *KEYS_OF_REMOTE_CODE}
    code += getsource(sys.modules[kind.__module__])
    for key in values.keys() - known:
        is_read = WITHOUT_SIZE.fullmatch(key) or re.search(rf"\b{re.escape(key)}\b", code)
        is_empty = values[key] in (None, [], {})
        if key in vars(config) and not is_empty and not is_read:
            yield key
    for name in kind.sub_configs:
        if isinstance(values.get(name), Mapping):
            for key in _ignored(values[name], getattr(config, name), code):
                yield f"{name}.{key}"


def _maker(transformers: Any, config: Any, values: Mapping[str, Any]) -> Callable[[Any], nn.Module]:
    """Builds the architecture that the config names, or else the one of the first known task."""
    for architecture in values.get("architectures") or ():
        own: Any = getattr(transformers, str(architecture), None)
        if getattr(own, "config_class", None) is type(config):
            return own._from_config  # type: ignore[no-any-return]
    tasks = list(TASKS)
    if getattr(config, "is_encoder_decoder", False):
        # Sorting is stable, and False comes first.
        tasks.sort(key=lambda task: "Seq2Seq" not in task)
    for task in tasks:
        auto = getattr(transformers, f"AutoModelFor{task}" if task else "AutoModel")
        if type(config) in auto._model_mapping:
            return auto.from_config  # type: ignore[no-any-return]
    raise ValueError(f"it has no model of type {config.model_type!r}")


@contextmanager
def _errors_named(version: str) -> Iterator[None]:
    """Reraises any error as one that names the library and its version.

    Deprecations are silenced: the library warns of what its own classes set, as GPT-J's
    `rope_scaling`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    except Exception as error:
        raise ValueError(
            f"{version} refuses this config, {type(error).__name__}: {error}"
        ) from error
