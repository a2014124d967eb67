"""What a call returned, or how it refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def outcome(kind: type[Exception], call: Callable[[], T]) -> tuple[T | None, str]:
    """What the call returned, and the text of its refusal, empty without one.

    Any other exception is not caught.
    """
    try:
        return call(), ""
    except kind as error:
        return None, str(error) or "refused without a word"
