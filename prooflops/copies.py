"""Refuses another copy: an `accounting` that is not ours, an installed package beside a clone."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PACKAGES = Path(__file__).resolve().parents[1]


def refuse_another_accounting() -> None:
    """Raises ImportError where `import accounting` finds somebody else's package."""
    spec = find_spec("accounting")
    found = Path(spec.origin).resolve().parent if spec and spec.origin else None
    if found == PACKAGES / "accounting":
        return
    if found and (found.parent / "prooflops").is_dir():
        raise ImportError(
            f"prooflops was imported from {PACKAGES}, but accounting from another copy, {found}: "
            "start python -m pytest in the clone that you mean, which takes all from there, or "
            "uninstall the other copy (pip uninstall prooflops prooflops-gate)"
        )
    raise ImportError(
        f"prooflops needs its own package accounting, in {PACKAGES}, but this Python takes "
        f"accounting from {found or 'a folder without __init__.py'}: rename that package, "
        "start Python in another folder, or give prooflops an environment of its own"
    )


def other_copy(packages: Iterable[ModuleType], home: Path) -> str:
    """The first of these packages that was not imported from `home`, and where from; else empty."""
    for package in packages:
        origin = Path(str(package.__file__)).resolve()
        if home not in origin.parents:
            return f"{package.__name__} was imported from {origin.parent}"
    return ""
