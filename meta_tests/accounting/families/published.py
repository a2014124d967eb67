"""Public models: config, parameters and what else is published of each."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from accounting.families import from_config
from accounting.models import parameter_count
from accounting.parts import Parts

MODELS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published_models.json").read_text())


@cache
def model_called(name: str) -> Parts:
    return from_config(MODELS[name]["config"])


def assert_published(name: str) -> None:
    """The parameters are those published, and MLPs lead from the width of the stream back to it."""
    formula, should = parameter_count(model_called(name)), MODELS[name]["parameters"]
    assert formula == should, f"{formula=}, but published are {should} [{name}]"
    config, maps = MODELS[name]["config"], model_called(name).linear_maps
    dim = next((config[key] for key in ("hidden_size", "n_embd", "n_embed", "d_model") if key in config), 0)
    ends = {each.in_features for each in maps if each.name in ("up", "gate")}
    ends |= {each.out_features for each in maps if each.name in ("down", "out")}
    assert ends <= {dim}, f"MLPs and attentions read and write {ends} values of a stream of {dim} [{name}]"
