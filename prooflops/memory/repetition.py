"""Two training steps, predicted: the passes of the second one repeat the events of the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn

from prooflops.memory.ledger import Event, Ledger

SECOND = "second "
# Values of a module that may decide what its next call does.
SETTINGS = (int, float, str, type(None))


class Steps:
    """The parts of a training step; each marks its phases, whose names begin with the prefix.

    `forwards` return the loss of each micro-batch. Without an `optimizer` nothing is updated.
    """

    def __init__(
        self,
        module: nn.Module,
        forwards: Sequence[Callable[[], Tensor]],
        optimizer: torch.optim.Optimizer | None,
        mark: Callable[[str], object],
    ) -> None:
        self.module = module
        self.mark = mark
        self._forwards = forwards
        self._optimizer = optimizer

    def passes(self, prefix: str) -> None:
        """Runs the forward and backward passes."""
        for number, forward in enumerate(self._forwards, 1):
            suffix = f" {number}" if len(self._forwards) > 1 else ""
            loss = forward()
            self.mark(f"{prefix}forward{suffix}")
            loss.backward()  # type: ignore[no-untyped-call]
            del loss
            self.mark(f"{prefix}backward{suffix}")

    def update(self, prefix: str) -> None:
        """Updates the parameters."""
        if self._optimizer is not None:
            self._optimizer.step()
        self.mark(f"{prefix}step")

    def clear(self, prefix: str) -> None:
        """Drops the gradients."""
        (self._optimizer or self.module).zero_grad(set_to_none=True)
        self.mark(f"{prefix}zero_grad")


def take_two_steps(steps: Steps) -> None:
    """Takes two steps, each part in its turn."""
    for prefix in ("", SECOND):
        steps.passes(prefix)
        steps.update(prefix)
        steps.clear(prefix)


def enter_two_steps(ledger: Ledger, steps: Steps) -> None:
    """Enters two steps into the ledger; their passes run once, where the second ones are the same.

    They are where nothing is left of the first ones that they could begin with. Then the second
    update follows the first one, and the events of the passes are entered again between the two.
    """
    repetition = Repetition(ledger, steps.module)
    steps.passes("")
    steps.update("")
    if repetition.is_exact():
        steps.update(SECOND)
        steps.clear(SECOND)
        repetition.enter()
        return
    steps.clear("")
    steps.passes(SECOND)
    steps.update(SECOND)
    steps.clear(SECOND)


class Repetition:
    """The passes of a module that run once this is made, and that a later step repeats."""

    def __init__(self, ledger: Ledger, module: nn.Module) -> None:
        self._ledger = ledger
        self._module = module
        self._first = len(ledger.phase_ends)
        self._settings = _settings_of(module)

    def is_exact(self) -> bool:
        """True if the passes and the update leave nothing else to the next passes than they had.

        They may leave gradients, the optimizer's state, and what is named: captured tensors and
        the workspaces of cuBLAS.
        """
        if _settings_of(self._module) != self._settings:
            return False
        *passes, update = self._ledger.phases[self._first :]
        try:
            left = _left_by(chain(*passes))
            left_by_update = _left_by(chain(*passes, update))
        except KeyError:
            # A storage ended that was there before.
            return False
        held = [each.grad for each in self._module.parameters() if each.grad is not None]
        gradients = {self._ledger.number_of(each) for each in held}
        storages = self._ledger.storages
        is_known = all(each in gradients or storages[each].class_name for each in left)
        return is_known and left <= left_by_update

    def enter(self) -> None:
        """Enters the passes once more between two updates, and the end of their own gradients."""
        ledger, first = self._ledger, self._first
        *passes, update, second_update, cleared = ledger.phases[first:]
        *names, update_name, second_update_name, cleared_name = ledger.phase_names[first:]
        copies: dict[int, int] = {}
        for number, storage in enumerate([*ledger.storages]):
            place = storage.phase - first
            if place > len(passes):
                # Its phase is behind those that are inserted.
                storage.phase += len(passes) + 1
            elif 0 <= place < len(passes) and storage.class_name is None:
                copies[number] = len(ledger.storages)
                ledger.storages.append(replace(storage, phase=storage.phase + len(passes) + 2))

        end = [each for each in cleared if each.storage in copies]
        phases = {update_name: update, cleared_name.removeprefix(SECOND): end}
        for name, events in zip(names, passes, strict=True):
            own = [each for each in events if each.storage in copies]
            phases[f"{SECOND}{name}"] = _of(copies, own)
        phases[second_update_name] = _of(copies, second_update)
        phases[cleared_name] = _of(copies, cleared)
        ledger.replace_phases(first + len(passes), phases)


def _settings_of(module: nn.Module) -> list[tuple[str, object]]:
    """The numbers and texts that the module and its parts have, and the identity of all else."""
    return [
        (name, value if isinstance(value, SETTINGS) else id(value))
        for part in module.modules()
        for name, value in vars(part).items()
    ]


def _left_by(events: Iterable[Event]) -> set[int]:
    """The storages that are left. Raises KeyError where one ends that was there before."""
    left: set[int] = set()
    for number, is_allocated in events:
        if is_allocated:
            left.add(number)
        else:
            left.remove(number)
    return left


def _of(copies: Mapping[int, int], events: Iterable[Event]) -> list[Event]:
    """The events of the copies, where there are some."""
    return [Event(copies.get(number, number), is_allocated) for number, is_allocated in events]
