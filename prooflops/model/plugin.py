"""The pytest side of `--model module:factory`: which tests run, the fixture `user_model`, the page at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NoReturn

import pytest

from prooflops.machine import device as devices
from prooflops.model import report as page
from prooflops.model.claims import DOES_NOT_APPLY, MARKER, answer_of
from prooflops.model.examination import Examination
from prooflops.model.user_model import ModelError, loaded
from prooflops.suite.collection import check_claims_exist, claims_of
from prooflops.suite.registry import Registry, RegistryError, load_registry
from prooflops.suite.run import outcome_of
from prooflops.suite.verdicts import Outcome

TESTS = ("test_claims/test_user_model.py", "bench/test_user_model.py")

_examination = pytest.StashKey[Examination]()
_answers = pytest.StashKey["Answers"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("prooflops").addoption(
        "--model", metavar="MODULE:FACTORY", help="validate your own model: see docs/your-model.md"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}(id, ...): the claims of the registry that it settles for your model")
    if config.option.model is None:
        return
    if config.option.claim:
        raise pytest.UsageError("--model and --claim exclude each other: name the paths of other tests to run as well")
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("--model measures and prints in one process: run it without -n")
    try:
        device = devices.chosen(config.option.device)
        config.stash[_examination] = Examination(loaded(config.option.model, config.invocation_params.dir, device))
        config.stash[_answers] = Answers(load_registry(config.rootpath / "test_claims" / "registry"))
    except (ModelError, RegistryError) as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(config.stash[_answers], "prooflops.model_answers")
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


class Answers:
    """The plugin that collects, for the user's model, the outcomes of the tests of the registry's claims."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        check_claims_exist(self.registry, items, MARKER)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        report.claims_of_model = claims = claims_of(item, MARKER)  # type: ignore[attr-defined]
        if report.failed and claims:
            text = "\n\n".join(self.registry.describe(claim) for claim in claims)
            report.sections.append(("claimed of any model", text))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if outcome := outcome_of(report):
            for claim in getattr(report, "claims_of_model", ()):
                self._outcomes[claim].append(outcome)

    def tell(self, examination: Examination) -> None:
        """Takes the answers down among the facts, in the order of the registry."""
        rows = self.registry.claims.values()
        examination.answers = [answer_of(row, self._outcomes[row.id]) for row in rows if row.id in self._outcomes]


@pytest.fixture
def does_not_apply() -> Callable[[str], NoReturn]:
    """Ends a test of a claim whose condition the user's model does not meet: `does_not_apply("no weight is tied")`."""

    def end(reason: str) -> NoReturn:
        pytest.skip(f"{DOES_NOT_APPLY}: {reason}")

    return end


@pytest.fixture(scope="session")
def user_model(request: pytest.FixtureRequest) -> Examination:
    """The model that `--model` names, see `prooflops.model.examination`."""
    return request.config.stash[_examination]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if _examination in config.stash and not config.option.collectonly:
        device = config.stash[_examination].user_model.device
        config.stash[_answers].tell(config.stash[_examination])
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
