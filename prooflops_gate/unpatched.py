"""The functions of `io`, `os`, `resource` and `time` as they are when the gate is imported.

Tests replace them: `monkeypatch` in their module, freezegun in each module that imported one by its
name. The gate reads its clocks and its machine beside such tests, so it keeps copies that neither
finds.
"""

from __future__ import annotations

import io as _io
import os as _os
import resource as _resource
import time as _time
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    io, os, resource, time = _io, _os, _resource, _time
else:
    io, os, resource, time = (
        SimpleNamespace(**vars(each)) for each in (_io, _os, _resource, _time)
    )
