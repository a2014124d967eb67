"""The installed pytest plugin: `--model` in any folder, with the suite's test of a model.

Loaded by every run of pytest where the package is installed. So it imports nothing at start but
pytest and the standard library, and does nothing unless one of its options is given. In a clone
conftest.py loads the suite's plugins itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator

import pytest

from prooflops.copies import refuse_another_accounting
from prooflops.suite_root import SUITE_PATHS, SUITE_ROOT
from prooflops_gate import needs
from prooflops_gate.options import refuse_rootdir_paths

SUITE_PLUGINS = ("prooflops_gate.plugin", "prooflops.suite.hooks", "prooflops.model.model_option")
MODEL_TEST = "bench/test_user_model.py"
# As the command `pytest`: the folder in which it is called is not searched for modules before all
# others.
START = (
    "import sys; sys.path[:1] = []; sys.argv[0] = 'pytest'; import pytest; sys.exit(pytest.main())"
)
_runs_a_model = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None]:
    """Leaves `--model` outside a clone to `run_model`, unless it is the project's own option."""
    yield
    if hasattr(early_config.option, "model"):
        return
    here = early_config.invocation_params.dir
    given = {word.partition("=")[0] for word in args}
    # A clone: pytest has read the conftest.py of another folder.
    if (here / "test_claims" / "registry").is_dir():
        refuse_rootdir_paths(here, args, ("--model",), suffix=":factory")
        refuse_rootdir_paths(here, args, SUITE_PATHS)
    elif "--model" in given:
        early_config.stash[_runs_a_model] = True
        # It would be refused as what it does not know.
        args.clear()
    else:
        for name in given.intersection(SUITE_PATHS):
            if not hasattr(early_config.option, name[2:].replace("-", "_")):
                needed = (
                    f"write --model=FILE:FACTORY {name}=..., or call it in a clone of prooflops"
                )
                parser.extra_info[name] = needed


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    return run_model(config) if _runs_a_model in config.stash else None


def run_model(config: pytest.Config) -> int:
    """Runs pytest with the suite's plugins and its test, without the settings of this project."""
    needs.check("--model needs", needs.SUITE)
    try:
        refuse_another_accounting()
    except ImportError as error:
        raise pytest.UsageError(str(error)) from None
    # Without settings of its own, pytest may have taken its rootdir from a path among the
    # arguments.
    root = config.rootpath if config.inipath else config.invocation_params.dir
    own = [
        *(
            "-c",
            os.devnull,
            f"--rootdir={SUITE_ROOT}",
            "-o",
            "testpaths=test_claims bench",
            "-o",
            "addopts=--benchmark-quiet",
        ),
        *(word for plugin in SUITE_PLUGINS for word in ("-p", plugin)),
        *("-o", f"cache_dir={root / '.pytest_cache'}"),
    ]
    test = str(SUITE_ROOT / MODEL_TEST)
    history = root / (os.environ.get("PROOFLOPS_HISTORY") or str(config.getini("gate_history")))
    child = subprocess.Popen(
        [sys.executable, "-c", START, *own, *config.invocation_params.args, test],
        env={**os.environ, "PROOFLOPS_HISTORY": str(history)},
    )
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            # The child has it as well, and ends by itself.
            continue
