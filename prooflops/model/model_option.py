"""The pytest side of `--model`: its one test, the fixture `user_model`, the page of each model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from prooflops.suite.run import RUN
from prooflops_gate.console.progress import Progress

if TYPE_CHECKING:
    # A run without --model does not import what examines a model.
    from prooflops.model.examination import Examination
    from prooflops.model.progress import Stages
    from prooflops.model.step_memory import Trial

MODEL_GROUP = "prooflops: your own model"
MODEL_TEST = Path("bench", "test_user_model.py")
_trials_by_spec = pytest.StashKey["dict[str, Trial]"]()
_examinations = pytest.StashKey["list[Examination]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup(MODEL_GROUP).addoption
    own = "report on the model of module:factory or path/to/file.py:factory; repeatable"
    add("--model", metavar="FACTORY", action="append", help=own)
    add("--fits", action="store_true", help="with --model: predict the cards that a step fits on")
    largest = "like --fits, and find the largest value of this argument of the factory; repeatable"
    add("--model-largest", metavar="ARGUMENT", action="append", default=[], help=largest)


# It runs after the suite's own, which chooses the device.
@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    options = config.option
    if options.model is None:
        if options.model_largest or options.fits:
            raise pytest.UsageError(
                "--fits and --model-largest are about a model: name it by --model"
            )
        return
    if options.claim:
        raise pytest.UsageError(
            "--model and --claim exclude each other: name the paths of other tests to run as well"
        )
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("--model measures and prints in one process: run it without -n")
    config.stash[_examinations] = []
    try:
        config.stash[_trials_by_spec] = {spec: _trial_of(config, spec) for spec in options.model}
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    test = config.rootpath / MODEL_TEST
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(test)]
        return
    here = config.invocation_params.dir
    paths = [(here / argument.partition("::")[0]).resolve() for argument in config.args]
    if not any(path == test or path in test.parents for path in paths):
        config.args.append(str(test))


def _trial_of(config: pytest.Config, spec: str) -> Trial:
    """The model after its first steps; what is no model is refused before any test runs."""
    from prooflops.model.factory import import_factory
    from prooflops.model.fits import growing_argument
    from prooflops.model.step_memory import tried
    from prooflops.model.user_model import UserModel

    factory = import_factory(spec, config.invocation_params.dir)
    user_model = UserModel(spec, factory, config.stash[RUN].device)
    with _stages(config, spec).stage("building it and taking two steps"):
        trial = tried(user_model)
    for argument in config.option.model_largest:
        growing_argument(user_model, argument)
    return trial


def _stages(config: pytest.Config, spec: str) -> Stages:
    from prooflops.model.progress import Stages

    return Stages(Progress(config, spec).always)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_without_model = (
        config.option.model is None and collection_path == config.rootpath / MODEL_TEST
    )
    return True if is_without_model else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "user_model" in metafunc.fixturenames:
        specs = metafunc.config.stash.get(_trials_by_spec, None)
        if specs is None:
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid} is about your own model: name it by --model FACTORY"
            )
        # A parameter puts the model into the test's id.
        metafunc.parametrize("user_model", specs, indirect=True, scope="session")


@pytest.fixture(scope="session")
def user_model(request: pytest.FixtureRequest) -> Examination:
    """The facts about the model that `--model` names, see `prooflops.model.examination`."""
    from prooflops.model.examination import examine
    from prooflops.model.fits import USUAL_CARDS, growing_argument

    config, spec = request.config, request.param
    trial, largest = config.stash[_trials_by_spec][spec], config.option.model_largest
    examination = examine(
        trial,
        _stages(config, spec),
        growing={name: growing_argument(trial.user_model, name) for name in largest},
        cards=USUAL_CARDS if config.option.fits or largest else (),
    )
    config.stash[_examinations].append(examination)
    return examination


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if examinations := config.stash.get(_examinations, []):
        from prooflops.model.page import write_pages

        run, folder = config.stash[RUN], Path(config.option.report)
        write_pages(examinations, folder, run.headline, run.fingerprint, _part(config))
    if session.exitstatus == pytest.ExitCode.OK and _unanswered(config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    # Pytest's own last line has been printed.
    for line in _unanswered(config):
        config.get_terminal_writer().line(line, red=True)


def _unanswered(config: pytest.Config) -> list[str]:
    """A line for each question of the options that has no answer."""
    return [
        f"NOT KNOWN for {each.user_model.spec}: {question}"
        for each in config.stash.get(_examinations, [])
        for question in each.unanswered
    ]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    for examination in config.stash.get(_examinations, []):
        from prooflops.model.page import print_page

        print_page(terminalreporter, examination, Path(config.option.report), _part(config))


def _part(config: pytest.Config) -> str:
    stopped = config.stash[RUN].rows.partial
    return stopped and f"partial run: {stopped}"
