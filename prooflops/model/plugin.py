"""The pytest side of `--model module:factory`: which tests run, the fixture `user_model`, the page at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NoReturn

import pytest

from prooflops.machine import device as machine
from prooflops.model import report
from prooflops.model.claims import DOES_NOT_APPLY, MARKER, Answer, answer_of
from prooflops.model.examination import Examination
from prooflops.model.user_model import ModelError, load_user_model
from prooflops.suite.collection import check_claims_exist, claims_of
from prooflops.suite.registry import Registry
from prooflops.suite.run import RUN, outcome_of
from prooflops.suite.verdicts import Outcome

_examination = pytest.StashKey[Examination]()
_answers = pytest.StashKey["Answers"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("prooflops").addoption(
        "--model", metavar="MODULE:FACTORY", help="validate your own model: see docs/your-model.md"
    )
    parser.addini("model_tests", "the files of tests that --model runs, and nothing else does", type="paths")


@pytest.hookimpl(trylast=True)  # after the suite's own, which chooses the device and loads the registry
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}(id, ...): the claims of the registry that it settles for your model")
    if config.option.model is None:
        return
    if config.option.claim:
        raise pytest.UsageError("--model and --claim exclude each other: name the paths of other tests to run as well")
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("--model measures and prints in one process: run it without -n")
    run = config.stash[RUN]
    try:
        user_model = load_user_model(config.option.model, config.invocation_params.dir, run.device)
    except ModelError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[_examination] = Examination(user_model)
    config.stash[_answers] = Answers(run.registry)
    config.pluginmanager.register(config.stash[_answers], "prooflops.model_answers")
    tests = config.getini("model_tests")
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(file) for file in tests]
        return
    given = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    config.args += [str(file) for file in tests if not any(path == file or path in file.parents for path in given)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.model is None and collection_path in config.getini("model_tests"):
        return True  # no model was named
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
        for item in items:
            item.user_properties += [(MARKER, claim) for claim in claims_of(item, MARKER)]  # for JUnit's XML

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        result = yield
        result.claims_of_model = claims = claims_of(item, MARKER)  # type: ignore[attr-defined]
        if result.failed and claims:
            text = "\n\n".join(self.registry.describe(claim) for claim in claims)
            result.sections.append(("claimed of any model", text))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if outcome := outcome_of(report):
            for claim in getattr(report, "claims_of_model", ()):
                self._outcomes[claim].append(outcome)

    def in_order(self) -> list[Answer]:
        """One answer for each claim that had a test, in the order of the registry."""
        rows = self.registry.claims.values()
        return [answer_of(row, self._outcomes[row.id]) for row in rows if row.id in self._outcomes]


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
        examination = config.stash[_examination]
        examination.answers = config.stash[_answers].in_order()
        device = examination.user_model.device
        facts = machine.fingerprint(device)
        headline = [*machine.headline(device, facts), *config.stash[RUN].peaks.headline()]
        report.write(examination, Path(config.option.report), headline, facts)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    if _examination in config.stash and not config.option.collectonly:
        report.print_page(terminalreporter, config.stash[_examination], Path(config.option.report))
