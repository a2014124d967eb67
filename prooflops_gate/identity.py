"""Names of tests that are the same in every process.

A test's id may contain an address (`ids=str` over functions), a uuid or a temporary folder, which
differ from process to process. Its name here has a placeholder for each. Tests of one function that
have the same name then are numbered. A test without such parts is called by its id. This file uses
the standard library only, because the child's plugin imports it, too.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable

FOLDED = (
    (re.compile(r"0x[0-9a-fA-F]{6,}"), "0x…"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "uuid"),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])"), "uuid"),
    (re.compile(re.escape(tempfile.gettempdir()) + r"[^\s\]]*|/tmp/[^\s\]]*"), "…"),
    (re.compile(r"pytest-of-\w+[^\s\]]*"), "…"),
)


def folded(name: str) -> str:
    """The name with placeholders for parts that differ from process to process.

    >>> folded("t.py::test_f[<function double at 0x7f3a5c0b1d30>]")
    't.py::test_f[<function double at 0x…>]'
    >>> folded("t.py::test_f[6fa459ea-ee8a-4ca4-894e-db77e160355e-/tmp/tmpab12/x]")
    't.py::test_f[uuid-…]'
    """
    function, bracket, parameters = name.partition("[")
    if not bracket:
        return name
    for pattern, replacement in FOLDED:
        parameters = pattern.sub(replacement, parameters)
    return f"{function}[{parameters}"


def stable_names(ids: Iterable[str]) -> dict[str, str]:
    """The names of these tests, by id, in the order of their collection.

    >>> list(stable_names(["f[0x7f0000000010]", "f[0x7f0000000020]", "g"]).values())
    ['f[0x…]', 'f[0x…]#2', 'g']
    """
    seen = Counter[str]()
    names = {}
    for each in ids:
        name = folded(each)
        if name != each:
            seen[name] += 1
            if seen[name] > 1:
                name = f"{name}#{seen[name]}"
        names[each] = name
    return names
