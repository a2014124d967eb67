"""What bad input gets: an error that names the argument, its value and what is valid."""

import re
from collections.abc import Callable, Sequence

import pytest

Row = tuple[Callable[[], object], type[Exception], "str | Sequence[str]"]


def refuses(*rows: Row) -> Callable[[Callable[[], object], type[Exception], "str | Sequence[str]"], None]:
    """A test that each call raises its error, whose message matches a pattern or names all of some words."""

    @pytest.mark.parametrize(("call", "error", "says"), rows)
    def refused(call: Callable[[], object], error: type[Exception], says: "str | Sequence[str]") -> None:
        with pytest.raises(error) as raised:
            call()
        patterns = [says] if isinstance(says, str) else [re.escape(word) for word in says]
        missing = [pattern for pattern in patterns if not re.search(pattern, str(raised.value))]
        assert not missing, f"the error is {str(raised.value)!r}, but should name {missing}"

    return refused
