"""Models from the `config.json` of Hugging Face repositories: plain JSON, read without transformers.

Every key of a config is either read, or known to change no size (`without_size` in `model_types.json`), or refused by
name; what no family reads, transformers is asked where it is installed.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from accounting.checks import checked, validated_choice, validated_instance
from accounting.families.architectures import (
    BUILDERS,
    MODEL_TYPES,
    WITHOUT_SIZE,
    Config,
    UnreadError,
    decoder_layer,
    kinds,
)
from accounting.families.networks import multi_token
from accounting.parts import Parts


@checked(flags=("multi_token_prediction", "text_only"))
def from_config(
    config: Any,
    *,
    multi_token_prediction: bool = False,
    text_only: bool = False,
    ignore: Collection[str] = (),
) -> Parts:
    """The model that a `config.json` describes: a mapping, a path, an object of transformers, or a name, of one of the
    `public_models` or of the local Hugging Face cache.

    What the families do not read, transformers 5 is asked where it is installed: the result is then an
    `prooflops.counted.built.CountedModel`, in seconds; remote code is never run. A config of diffusers is built by
    that. `multi_token_prediction` adds modules that published counts leave out (DeepSeek-V3, GLM-4.5). `text_only`
    reads the text part of a model of text and images, without its encoder. `ignore` names keys that change no size.
    Exact for the families' code in transformers 5; of experts those that a token is sent to (llama4's eager code runs
    all); windows count for "causal" pairs.
    Warns of keys that transformers ignores. Raises ValueError for an unknown type, a missing key, and a key of a family
    that neither reads and that is not known to change nothing.

    >>> llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    ...          "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
    >>> sum(each.parameters for each in from_config(llama).linear_maps)  # and the embedding, and the norms
    7504658432
    >>> from_config(llama | {"num_registers": 4}, ignore=["num_registers"]) == from_config(llama)
    True
    """
    content = content_of(config, text_only, ignore)
    try:
        return _of_family(content, multi_token_prediction)
    except UnreadError as error:
        if multi_token_prediction:
            raise
        return _of_library(content, error)


def _of_family(content: Mapping[str, Any], multi_token_prediction: bool = False) -> Parts:
    if "_class_name" in content:
        raise UnreadError(f"config is of diffusers, for its {content['_class_name']}")
    if "text_config" in content:
        raise UnreadError(
            f"config is that of a model of more than text, {content.get('model_type')!r}; text_only=True reads its "
            "text_config, the part that handles text, alone"
        )
    c = Config(content)
    model = BUILDERS[c.family.get("build", "decoder")](c)
    ahead = c("num_nextn_predict_layers", default=0)
    if multi_token_prediction and ahead:
        model += ahead * multi_token(c.dim, decoder_layer(c, kinds(c)[-1]), c("vocab_size"))
    c.nothing_else()
    return replace(model, config=content)


def _of_library(content: Mapping[str, Any], unread: UnreadError) -> Parts:
    """The model as transformers or diffusers builds it."""
    try:
        built = import_module(
            "prooflops.counted.built"
        )  # by name: it needs torch, and this module only Python
        model = built.from_library(
            content, WITHOUT_SIZE.fullmatch, strict=content.get("model_type") in MODEL_TYPES
        )
    except ImportError as error:
        package = "diffusers" if "_class_name" in content else "transformers 5 or later"
        raise ValueError(
            f"{unread}. With {package} installed it would be asked ({error})"
        ) from None
    except ValueError as error:
        raise ValueError(f"{unread}; {error}") from error
    if model.ignored:
        named = ", ".join(f"{key}={content[key]!r}" for key in model.ignored)
        warnings.warn(f"{model.source} ignores {named}", stacklevel=4)
    return cast("Parts", model)


def content_of(
    config: Any, text_only: bool = False, ignore: Collection[str] = ()
) -> Mapping[str, Any]:
    """The values of a config, or of its text part, but for those to ignore."""
    if hasattr(config, "to_dict"):  # of transformers
        config = config.to_dict()
    if not isinstance(config, (Mapping, str, Path)):
        raise TypeError(
            "config must be a mapping, the path of a config.json, a model's name or a config of transformers, "
            f"got a {type(config).__name__}"
        )
    if isinstance(config, str) and config in public_models() and not Path(config).exists():
        config = public_models()[config]["config"]
    if not isinstance(config, Mapping):
        path = config_file(config)
        try:
            config = validated_instance(
                "config", json.loads(path.read_text(encoding="utf-8")), dict
            )
        except ValueError as error:
            raise ValueError(f"config must be JSON, got {path}: {error}") from None
    if text_only and "text_config" in config:
        config = {"model_type": f"{config.get('model_type')}_text", **config["text_config"]}
    if isinstance(ignore, str):
        raise TypeError(f"ignore must be keys, as in [{ignore!r}], got {ignore!r} of type str")
    for key in ignore:
        validated_choice("ignore", key, config)
    return {key: value for key, value in config.items() if key not in ignore}


@cache
def public_models() -> dict[str, dict[str, Any]]:
    """Released configs by their names on the Hub, each with figures published, and where they were found.

    >>> public_models()["openai/gpt-oss-20b"]["parameters"]
    20914757184
    """
    models: dict[str, dict[str, Any]] = json.loads(
        Path(__file__).with_name("public_models.json").read_text()
    )
    return models


def config_file(name: str | Path) -> Path:
    """The config.json of a path, or of the newest snapshot of a model in the local Hugging Face cache."""
    path = Path(name)
    if path.exists():
        return path / "config.json" if path.is_dir() else path
    files = (hub_cache() / f"models--{str(name).replace('/', '--')}" / "snapshots").glob(
        "*/config.json"
    )
    if not (newest := max(files, key=lambda file: file.stat().st_mtime, default=None)):
        raise FileNotFoundError(
            f"no config.json at {name}, nor of a model of this name in {hub_cache()}"
        )
    return newest


def hub_cache() -> Path:
    """The folder in which huggingface_hub keeps what it has downloaded."""
    home = os.environ.get("HF_HOME") or Path(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
