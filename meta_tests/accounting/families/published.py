"""Public models: config, parameters and what else is published of each."""

import json
from pathlib import Path
from typing import Any

MODELS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published_models.json").read_text())
