"""Figures as JSON writes them. Standard library only: the gate copies this file beside each process it starts."""

from __future__ import annotations


def plain_figure(value: object) -> object:
    """For `json.dumps(default=...)`: a scalar of numpy or torch as its number, anything else as text.

    >>> plain_figure(b"a")
    "b'a'"
    """
    try:
        figure = value.item()  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several elements
        return str(value)
    return figure if isinstance(figure, (bool, int, float, str)) else str(value)
