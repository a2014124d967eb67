"""Reads tables in TOML, which the standard library does from Python 3.11 on."""

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_tables(path):
    """The tables of a file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
