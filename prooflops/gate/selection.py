"""Which tests a run was asked for, by its command line."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def files_of(ids: Sequence[str]) -> list[str]:
    """The files of these tests, each once, in order."""
    return list(dict.fromkeys(name.partition("::")[0] for name in ids))


def selects_by_expression(config: pytest.Config) -> bool:
    """Whether more than paths and node ids decides which tests run."""
    option = config.option
    return bool(
        option.keyword or option.markexpr or getattr(option, "deselect", None) or getattr(option, "claim", None)
    )


def is_asked_for(name: str, config: pytest.Config) -> bool:
    """Whether the folders, files and node ids of this run's command line cover a test of this name, existing or not.

    So a benchmark that vanished from a file is missing, and one of a file that this run does not concern is not. Where
    the last run decides which tests run (--lf, --sw), nothing else was asked for: the other side has no such past.
    """
    if getattr(config.option, "lf", False) or getattr(config.option, "stepwise", False):
        return False
    file, _, inside = name.partition("::")
    path = (config.rootpath / file).resolve()
    for argument in config.args:
        given, _, wanted = argument.partition("::")
        place = (config.invocation_params.dir / given).resolve()
        if (not wanted and (place == path or place in path.parents)) or (
            wanted and place == path and (inside == wanted or inside.startswith((wanted + "::", wanted + "[")))
        ):
            return True
    return False


def without_fixture(items: Sequence[pytest.Item]) -> str:
    """Names the tests with the marker `benchmark` and without the fixture, which pytest-codspeed alone measures."""
    names = [
        item.nodeid
        for item in items
        if item.get_closest_marker("benchmark") and "benchmark" not in getattr(item, "fixturenames", ())
    ]
    if not names:
        return ""
    return (
        f"not compared: {len(names)} tests with the marker `benchmark` that do not use its fixture, the first "
        f"{names[0]}; pytest-benchmark does not measure them: call benchmark(...) in them"
    )
