"""The gate's options and ini settings, checked before anything runs."""

from __future__ import annotations

import argparse
import errno
import itertools
import math
import os
import shlex
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prooflops_gate import needs

HISTORY = ".prooflops/history"
BUDGET_MIN = 10.0
MEMORY = ("fail", "show", "off")
TIERS = ("time", "instructions", "both")
ASKING = ("gate", "gate_baseline", "gate_versus", "gate_bisect", "gate_record", "gate_noise_floor")
MIN_INSTRUCTIONS = "0.5%"
# `gate_undecided = fail` means that a larger slowdown must be excluded.
ALLOWED_OPEN = "10%"
# Each has a meaning and a default.
INI = {
    "gate_history": (
        (
            "folder of the run records, relative to the rootdir; the environment variable "
            "PROOFLOPS_HISTORY overrides it"
        ),
        HISTORY,
    ),
    "gate_exact": (
        "keys of a benchmark's extra_info that are compared by equality",
        "flops bytes peak_bytes live_bytes parameters",
    ),
    "gate_min_effect": ("as --gate-min-effect", "3%"),
    "gate_memory": (
        "whether a call that uses more memory fails: fail, show, or off (not measured)",
        "fail",
    ),
    "gate_min_memory_effect": (
        "smallest growth of memory that counts, at least 4 KiB",
        "5%",
    ),
    "gate_by": (
        f"figures that decide: {', '.join(TIERS)}; all but time need valgrind",
        "both with valgrind installed, else time",
    ),
    "gate_min_instructions": ("as --gate-min-instructions", MIN_INSTRUCTIONS),
    "gate_missing": (
        "whether a benchmark fails if its test is in the code but did not run: fail or report",
        "fail",
    ),
    "gate_undecided": (
        (
            "pass: an INCONCLUSIVE benchmark passes with a warning; fail: it fails unless a "
            f"slowdown of {ALLOWED_OPEN} is excluded; or another slowdown, such as 20%"
        ),
        "pass",
    ),
    "gate_in_turn": (
        (
            "whether both processes of a pair are alive at once; false if they cannot be, for "
            "example because both open one port"
        ),
        "true",
    ),
}
# A comparison without --gate ends with these words.
REPORT_ONLY = "report only: never fails for a verdict"
# The options --gate-json and --gate-markdown name files of a comparison.
FILES = ("json", "markdown")
# Its default depends on other things.
COMPUTED = ("gate_by",)
FLAGS = {
    "--gate": (
        "fail if a regression is confirmed, or an exact quantity changes (default: only report)"
    ),
    "--gate-noise-floor": "compare this code with itself: print the smallest slowdown it can find",
    "--gate-history": "list records and baselines, and exit; with --report=DIR also write a page",
}
# Each option has a metavar and a meaning.
VALUES = {
    "--gate-baseline": (
        "NAME|latest",
        "compare with the commit of this baseline, or of the newest record",
    ),
    "--gate-versus": (
        "PYTHON|DIR|REVISION",
        "compare with this side; a branch means its merge base, main^0 its last commit",
    ),
    "--gate-bisect": (
        "GOOD",
        "name the first slow commit since GOOD for each benchmark that got slower",
    ),
    "--gate-record": ("NAME", "keep this run and its commit as the baseline NAME"),
    "--gate-replicates": (
        "N",
        "at most N fresh processes a side, confirming ones included (default: by --gate-budget)",
    ),
    "--gate-min-effect": (
        "X%",
        "smallest change, by time or instructions, that is SLOWER, such as 5%% (default: 3%%)",
    ),
    "--gate-by": (
        "time|instructions|both",
        "figures that decide (default: both with valgrind installed, else time)",
    ),
    "--gate-min-instructions": (
        "X%",
        (
            "smallest change of instructions that is reported, which alone never fails (default: "
            f"{MIN_INSTRUCTIONS}%)"
        ),
    ),
    "--gate-budget": ("MINUTES", f"longest time of a comparison (default: {BUDGET_MIN:g})"),
    "--gate-json": ("FILE", "write the comparison to this file, as JSON"),
    "--gate-markdown": ("FILE", "write it as Markdown, for a comment on a pull request"),
}
# The groups of `pytest --help`, in the order of use.
GROUPS = {
    "prooflops gate": "--gate --gate-versus --gate-baseline --gate-bisect --gate-noise-floor",
    "prooflops gate: decision": (
        "--gate-by --gate-min-effect --gate-min-instructions --gate-replicates --gate-budget"
    ),
    "prooflops gate: output": "--gate-json --gate-markdown --gate-record --gate-history",
}


def add_options(parser: pytest.Parser) -> None:
    """Declares the options and ini settings of the gate."""
    for name, (meaning, default) in INI.items():
        value = "" if name in COMPUTED else default
        parser.addini(name, f"{meaning} (default: {default})", default=value)
    for title, names in GROUPS.items():
        group = parser.getgroup(title)
        for name in names.split():
            if name in FLAGS:
                group.addoption(name, action="store_true", help=FLAGS[name])
            else:
                metavar, meaning = VALUES[name]
                group.addoption(name, metavar=metavar, help=meaning)


@dataclass(frozen=True)
class Settings:
    """The options of the gate, checked.

    An undecided benchmark passes where a change larger than `allowed_open` is excluded. `by` is one
    of TIERS.
    """

    gate: bool
    baseline: str | None
    versus: str | None
    bisect: str | None
    record: str | None
    replicates: int | None
    min_effect: float
    budget_s: float
    allowed_open: float
    noise_floor: bool
    memory: str
    min_memory_effect: float
    by: str
    by_is_given: bool
    min_instructions: float
    missing_fails: bool
    in_turn: bool
    exact: tuple[str, ...]
    folder: Path
    json: Path | None = None
    markdown: Path | None = None

    @property
    def orchestrated(self) -> bool:
        """True if fresh processes do the measuring, and this one only starts them."""
        return self.gate or self.compares

    @property
    def compares(self) -> bool:
        """True if there is another side."""
        return bool(self.baseline or self.versus or self.bisect) or self.noise_floor

    @property
    def reports_only(self) -> bool:
        """True if the verdicts of a comparison fail nothing."""
        return bool(self.baseline or self.versus) and not self.gate

    @property
    def used(self) -> bool:
        """True if any of these options was given."""
        return self.orchestrated or bool(self.record)


_settings = pytest.StashKey[Settings]()


def settings(config: pytest.Config) -> Settings:
    """The options of the gate.

    Raises UsageError for an impossible one, naming its value and valid ones.
    """
    if _settings not in config.stash:
        try:
            found = _read(config)
            _check_one_another(found)
            _check_paths(config)
            for name in FILES:
                if path := getattr(found, name):
                    refuse_unwritable(_flag(name), path, "file")
            if found.used or config.getoption("gate_history"):
                needs.check("the gate and the history need", needs.GATE)
            if found.used:
                _check_other_plugins(config, found.orchestrated)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[_settings] = found
    return config.stash[_settings]


def _read(config: pytest.Config) -> Settings:
    option = config.getoption
    ini = {name: str(config.getini(name)) for name in INI}
    here = config.invocation_params.dir
    record, replicates = option("gate_record"), option("gate_replicates")
    if record is not None:
        from prooflops_gate.history.records import check_name

        check_name(record)

    def named(name: str) -> tuple[str, str]:
        """The name and the text of an option, or else of the ini setting."""
        given = option(name)
        return (name, ini[name]) if given is None else (_flag(name.removeprefix("gate_")), given)

    def chosen(name: str, valid: tuple[str, ...]) -> str:
        """The text of an ini setting that is one of these."""
        return _one_of(name, ini[name], valid)

    files: dict[str, Path] = {}
    for name in FILES:
        path = option(f"gate_{name}")
        if path is not None:
            files[name] = here.joinpath(path).resolve()
    return Settings(
        gate=option("gate"),
        baseline=option("gate_baseline"),
        versus=option("gate_versus"),
        bisect=option("gate_bisect"),
        record=record,
        replicates=None if replicates is None else _count("--gate-replicates", replicates),
        min_effect=_share(*named("gate_min_effect")),
        budget_s=60 * _positive("--gate-budget", option("gate_budget") or str(BUDGET_MIN)),
        allowed_open=_allowed_open("gate_undecided", ini["gate_undecided"]),
        noise_floor=option("gate_noise_floor"),
        memory=chosen("gate_memory", MEMORY),
        min_memory_effect=_share("gate_min_memory_effect", ini["gate_min_memory_effect"]),
        by_is_given=bool(named("gate_by")[1]),
        by=_tier(*named("gate_by"), asked=any(map(option, ASKING))),
        min_instructions=_share(*named("gate_min_instructions")),
        missing_fails=chosen("gate_missing", ("fail", "report")) == "fail",
        in_turn=chosen("gate_in_turn", ("true", "false")) == "true",
        exact=tuple(ini["gate_exact"].split()),
        folder=history_folder(config),
        **files,
    )


def _check_one_another(found: Settings) -> None:
    for why, applies in _impossible(found).items():
        if applies:
            raise ValueError(why)


MISSING = (
    "but none is requested: add --gate-versus SIDE, --gate-baseline NAME, --gate-bisect GOOD or "
    "--gate-noise-floor"
)


def _impossible(found: Settings) -> Mapping[str, object]:
    """By message: True if two options exclude each other."""
    names = ("noise_floor", "baseline", "versus", "bisect")
    sides = [_flag(name) for name in names if getattr(found, name)]
    files = [_flag(name) for name in FILES if getattr(found, name)]
    return {
        f"{' and '.join(sides)} exclude each other: they name two things to compare with": (
            len(sides) > 1
        ),
        "--gate needs something to compare with: --gate-baseline NAME|latest, "
        "--gate-versus SIDE or --gate-bisect GOOD": (
            found.gate and not (found.baseline or found.versus or found.bisect)
        ),
        "--gate-record stores a baseline and compares nothing: run it without the gate's other "
        "options": found.record and found.orchestrated,
        f"--gate-replicates limits the pairs of a comparison, {MISSING}": (
            found.replicates and not found.orchestrated
        ),
        f"{' and '.join(files)}: the result of a comparison is written, {MISSING}": (
            files and not found.compares
        ),
    }


def _check_paths(config: pytest.Config) -> None:
    here, words = config.invocation_params.dir.resolve(), given_words(config)
    files = [_flag(name) for name in ("baseline", *FILES)]
    refuse_rootdir_paths(here, words, files)
    # Another checkout has settings of its own, also one within this folder.
    refuse_rootdir_paths(here, words, ("--gate-versus", "--gate-bisect"), also_within=True)


def refuse_rootdir_paths(
    here: Path,
    words: Sequence[str],
    options: Collection[str],
    suffix: str = "",
    *,
    also_within: bool = False,
) -> None:
    """Refuses `--option /another/folder`: pytest may take its rootdir from a word of its own."""
    for name, path in itertools.pairwise(words):
        if name not in options or not (here / path).exists():
            continue
        if also_within or not (here / path).resolve().is_relative_to(here):
            raise pytest.UsageError(
                f"{name} {path}: write {name}={path}{suffix}; otherwise pytest takes its rootdir "
                "from it"
            )


def refuse_unwritable(name: str, path: Path, kind: str) -> None:
    """Stops a run whose results could not be written at its end.

    `kind`: whether `path` is a file or a folder.
    """
    folder = path if kind == "folder" else path.parent
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        # A folder, or a device, which would be replaced.
        if kind == "file" and path.exists() and not path.is_file():
            raise OSError(errno.EEXIST, "it is not a regular file")
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        why = f"{name} cannot be written to {path}: {error.strerror}; name another {kind}"
        raise pytest.UsageError(why) from error


def _check_other_plugins(config: pytest.Config, orchestrated: bool) -> None:
    option = config.getoption
    # A project's `addopts` often disable benchmarks for its plain runs: the gate's processes ignore
    # that.
    given = given_words(config) if orchestrated else ["--benchmark-disable", "--benchmark-skip"]
    disabled = option("benchmark_disable", False) and not option("benchmark_enable", False)
    if disabled and "--benchmark-disable" in given:
        raise ValueError(
            "--benchmark-disable leaves nothing to compare: drop it, or add --benchmark-enable"
        )
    if option("benchmark_skip", False) and "--benchmark-skip" in given:
        raise ValueError(
            "--benchmark-skip leaves nothing to compare: drop it, or the options of the gate"
        )
    # Its options tell, not its name: that depends on how it was loaded.
    if option("benchmark_disable", None) is None:
        raise ValueError(
            "the gate compares what pytest-benchmark measures, and that plugin is not active: add "
            "-p pytest_benchmark.plugin, which also works with -p no:benchmark"
        )


def given_words(config: pytest.Config) -> list[str]:
    """The words of the command line and of PYTEST_ADDOPTS, without those of the ini file."""
    return [
        *shlex.split(os.environ.get("PYTEST_ADDOPTS", "")),
        *map(str, config.invocation_params.args),
    ]


def words_for_children(config: pytest.Config, cache: Path) -> list[str]:
    """This run's command line for a child.

    `child.options` resets there what concerns the parent alone. pytest's order: the ini setting
    `addopts`, the environment, the user's words. The gate's own options are left out: a child may
    run in an environment without this package.
    """
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in FLAGS:
        own.add_argument(name, action="store_true")
    for name in VALUES:
        own.add_argument(name)
    words = [word for word in (*config.getini("addopts"), *given_words(config)) if word != "--"]
    cache_dir = (
        ["-o", f"cache_dir={cache}"] if config.pluginmanager.hasplugin("cacheprovider") else []
    )
    return [*own.parse_known_args(words)[1], "-o", "addopts=", *cache_dir]


def _flag(name: str) -> str:
    return f"--gate-{name}".replace("_", "-")


def _number(text: str) -> float:
    """The number that a text is; NaN, which lies in no range, for another text."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 6 or int(text) < 1:
        raise ValueError(
            f"{name} should be a whole number of 1 or more, of 6 digits at most, got {text!r}"
        )
    return int(text)


def _positive(name: str, text: str) -> float:
    if not 0 < _number(text) < 1e6:
        raise ValueError(f"{name} should be a positive number below a million, got {text!r}")
    return _number(text)


def _share(name: str, text: str) -> float:
    """A share written as 5% or 0.05.

    >>> _share("x", "5%"), _share("x", "0.05")
    (0.05, 0.05)
    """
    value = _number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value < 1:
        meant = (
            f": {value:g} % is written {value:g}% or {value / 100:g}" if 1 <= value < 100 else ""
        )
        raise ValueError(
            f"{name} should be a share between 0 and 100 %, such as 5% or 0.05, got {text!r}{meant}"
        )
    return value


def _allowed_open(name: str, text: str) -> float:
    """The change that must be excluded: a share; none for `pass`."""
    if text == "pass":
        return math.inf
    try:
        return _share(name, ALLOWED_OPEN if text == "fail" else text)
    except ValueError as error:
        raise ValueError(f"{error}; or pass or fail") from None


def _one_of(name: str, text: object, valid: tuple[str, ...]) -> str:
    if text not in valid:
        raise ValueError(f"{name} should be one of {', '.join(valid)}, got {text!r}")
    return str(text)


def _tier(name: str, text: str, asked: bool) -> str:
    if not (text or asked):
        return "time"
    # A run of pytest without the gate loads no more of it.
    from prooflops_gate.child.callgrind import is_usable

    usable = is_usable()
    if not text:
        return "both" if usable else "time"
    if _one_of(name, text, TIERS) != "time" and not usable:
        raise ValueError(
            f"{name} is {text!r}, which needs valgrind, on Linux: `apt-get install valgrind`"
        )
    return text


def history_folder(config: pytest.Config) -> Path:
    """The folder of records.

    PROOFLOPS_HISTORY, or the ini setting `gate_history`, relative to the rootdir.
    """
    return config.rootpath / (
        os.environ.get("PROOFLOPS_HISTORY") or str(config.getini("gate_history"))
    )


def marker_settings(marker: pytest.Mark) -> dict[str, Any]:
    """The checked arguments of a marker `gate`. Raises ValueError, naming the valid ones."""
    valid = ("min_effect", "ignore")
    if marker.args or not set(marker.kwargs) <= set(valid):
        wrong = [
            *map(repr, marker.args),
            *(f"{key}={value!r}" for key, value in marker.kwargs.items()),
        ]
        raise ValueError(
            f"the marker gate takes {', '.join(valid)} by name, got {', '.join(wrong)}"
        )
    given = dict(marker.kwargs)
    if "min_effect" in given:
        given["min_effect"] = _share("min_effect", str(given["min_effect"]))
    if not isinstance(given.get("ignore", False), bool):
        raise ValueError(f"ignore should be True or False, got {given['ignore']!r}")
    return given
