"""Public models: their configs, parameters and other published figures."""

from functools import cache
from typing import Any

from accounting.families import from_config
from accounting.families.config import public_models
from accounting.parts import Parts

MODELS: dict[str, dict[str, Any]] = public_models()


@cache
def model_called(name: str) -> Parts:
    return from_config(MODELS[name]["config"])
