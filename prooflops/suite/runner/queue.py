"""The tests of a run that are left, and which of them a process gets next."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable


class Queue:
    """Hands out tests, those of one file to one process where possible.

    A process that has run tests of a file goes on with it, since they share fixtures. Another one
    takes the file with the most tests left.
    """

    def __init__(self, tests: Iterable[str], alone: Collection[str]) -> None:
        self.alone: deque[str] = deque()
        self._files: dict[str, deque[str]] = {}
        self.kept_apart = frozenset(alone)
        for test in tests:
            self._line_of(test).append(test)

    def _line_of(self, test: str) -> deque[str]:
        if test in self.kept_apart:
            return self.alone
        return self._files.setdefault(file_of(test), deque())

    def side_by_side(self, before: str, others: Collection[str]) -> str:
        """The next test that may run beside others, after the test `before`; "" if there is none.

        `others` are the tests of the other processes, in whose files they go on.
        """
        lines = {file: line for file, line in self._files.items() if line}
        if not lines:
            return ""
        taken = {file_of(test) for test in others}
        file = file_of(before)
        if file not in lines:
            free = [each for each in lines if each not in taken] or [*lines]
            file = max(free, key=lambda each: len(lines[each]))
        return lines[file].popleft()

    def put_back(self, test: str) -> None:
        """Takes back a test that was handed out, and did not begin."""
        self._line_of(test).appendleft(test)

    def clear(self) -> None:
        self.alone.clear()
        self._files.clear()

    def __len__(self) -> int:
        return len(self.alone) + sum(map(len, self._files.values()))


def file_of(test: str) -> str:
    return test.partition("::")[0]
