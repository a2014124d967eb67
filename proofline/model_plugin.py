"""The pytest side of `--model module:factory`: which tests run, the fixture `user_model`, the page at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofline import device as devices
from proofline import page
from proofline.facts import Examination
from proofline.model import ModelError, loaded

TESTS = ("test_claims/test_user_model.py", "bench/test_user_model.py")

_examination = pytest.StashKey[Examination]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("proofline").addoption(
        "--model", metavar="MODULE:FACTORY", help="validate your own model: see docs/your-model.md"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.model is None:
        return
    if config.option.claim:
        raise pytest.UsageError("--model and --claim exclude each other: name the paths of other tests to run as well")
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("--model measures and prints in one process: run it without -n")
    try:
        device = devices.chosen(config.option.device)
        config.stash[_examination] = Examination(loaded(config.option.model, config.invocation_params.dir, device))
    except ModelError as error:
        raise pytest.UsageError(str(error)) from error
    tests = [config.rootpath / file for file in TESTS]
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(file) for file in tests]
        return
    given = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    config.args += [str(file) for file in tests if not any(path == file or path in file.parents for path in given)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.model is None and collection_path in [config.rootpath / file for file in TESTS]:
        return True  # there is nothing to say of a model that nobody named
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "user_model" in metafunc.fixturenames:
        spec = metafunc.config.option.model
        if spec is None:
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid} is about your own model: name it by --model MODULE:FACTORY"
            )
        metafunc.parametrize("user_model", [spec], indirect=True, scope="session")  # so the spec is in the node's id


@pytest.fixture(scope="session")
def user_model(request: pytest.FixtureRequest) -> Examination:
    """The model that `--model` names, see `proofline.facts`."""
    return request.config.stash[_examination]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if _examination in config.stash and not config.option.collectonly:
        device = config.stash[_examination].user_model.device
        page.write(
            config.stash[_examination],
            Path(config.option.report),
            devices.headline(device),
            devices.fingerprint(device),
        )


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    if _examination in config.stash and not config.option.collectonly:
        page.show(terminalreporter, config.stash[_examination], Path(config.option.report))
