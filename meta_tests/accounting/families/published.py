"""Public models: their configs, parameters and other published figures."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from accounting.families import from_config
from accounting.parts import Parts

MODELS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published_models.json").read_text())


@cache
def model_called(name: str) -> Parts:
    return from_config(MODELS[name]["config"])
