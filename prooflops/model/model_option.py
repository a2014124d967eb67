"""The pytest side of `--model`: which tests run, the fixture `user_model`, the page of each model
at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
import torch

from accounting.units import amount
from prooflops.model.claims import MARKER, Answer, answer_of
from prooflops.suite.collection import check_claims_exist, claims_of
from prooflops.suite.registry import Registry
from prooflops.suite.run import RUN, outcome_of
from prooflops.suite.verdicts import DOES_NOT_APPLY, Outcome
from prooflops_gate.console.progress import Progress
from prooflops_gate.plugin import suggest_options

if TYPE_CHECKING:
    # A run without --model does not import what examines a model.
    from prooflops.model.examination import Examination

# By the value of --model.
_examinations = pytest.StashKey["dict[str, Examination]"]()
_answers = pytest.StashKey["Answers"]()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    group = parser.getgroup("prooflops")
    group.addoption(
        "--model",
        metavar="FACTORY",
        action="append",
        help="validate your own model, module:factory or path/to/file.py:factory, or several: see "
        "docs/your-model.md",
    )
    group.addoption(
        "--model-largest",
        metavar="ARGUMENT",
        action="append",
        default=[],
        help="with --model: the largest value of this argument of the factory, such as batch, "
        "whose step fits; or of several, each for itself",
    )
    group.addoption(
        "--fits",
        action="store_true",
        help="with --model: which cards a step fits on, predicted; "
        "with --model-largest also the largest value there",
    )
    group.addoption(
        "--fits-choices",
        action="store_true",
        help="--fits, and what fits with layers recomputed, in bf16 or fp32, with 8-bit AdamW",
    )
    group.addoption(
        "--model-memory",
        metavar="BYTES",
        help="with --model-largest: the memory that a step may take, such as 4GiB "
        "(default: all that is free on an accelerator, 1 GiB on a CPU)",
    )
    parser.addini(
        "model_tests", "the files of tests that --model runs, and nothing else does", type="paths"
    )
    suggest_options(parser, pluginmanager, "prooflops")


@pytest.hookimpl(
    trylast=True
)  # after the suite's own, which chooses the device and loads the registry
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(id, ...): the claims of the registry that it settles for your model"
    )
    if config.option.model is None:
        options = config.option
        if options.model_largest or options.model_memory or options.fits or options.fits_choices:
            raise pytest.UsageError(
                "--model-largest, --model-memory, --fits and --fits-choices are about a model: "
                "name it by --model"
            )
        return
    if config.option.claim:
        raise pytest.UsageError(
            "--model and --claim exclude each other: name the paths of other tests to run as well"
        )
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("--model measures and prints in one process: run it without -n")
    run = config.stash[RUN]
    try:
        config.stash[_examinations] = {
            spec: _examination(config, spec, run.device)
            for spec in dict.fromkeys(config.option.model)
        }
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[_answers] = Answers(run.registry)
    config.pluginmanager.register(config.stash[_answers], "prooflops.model_answers")
    tests = config.getini("model_tests")
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(file) for file in tests]
        return
    given = [
        (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        for argument in config.args
    ]
    config.args += [
        str(file)
        for file in tests
        if not any(path == file or path in file.parents for path in given)
    ]


def _examination(config: pytest.Config, spec: str, device: torch.device) -> Examination:
    from prooflops.model.examination import Examination
    from prooflops.model.factory import ModelError
    from prooflops.model.largest import default_of
    from prooflops.model.progress import Stages
    from prooflops.model.user_model import load_user_model

    stages = Stages(Progress(config, spec).always)
    with stages.stage("building it twice and taking a step"):
        user_model = load_user_model(spec, config.invocation_params.dir, device)
    arguments, memory = config.option.model_largest, config.option.model_memory
    for argument in arguments:
        default_of(user_model, argument)
    if memory and not arguments:
        raise ModelError(
            "--model-memory limits --model-largest: name its argument, "
            "such as --model-largest batch"
        )
    limit = amount(memory, "--model-memory") if memory else None
    choices = config.option.fits_choices
    return Examination(user_model, tuple(arguments), limit, stages, choices=choices)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.model is None and collection_path in config.getini("model_tests"):
        return True  # no model was named
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "user_model" in metafunc.fixturenames:
        specs = metafunc.config.stash.get(_examinations, None)
        if specs is None:
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid} is about your own model: name it by --model FACTORY"
            )
        metafunc.parametrize(
            "user_model", specs, indirect=True, scope="session"
        )  # so the spec is in the node's id


class Answers:
    """The plugin that collects, for the user's model, the outcomes of the tests of the registry's
    claims.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        # By model and claim.
        self._outcomes: defaultdict[tuple[str, str], list[Outcome]] = defaultdict(list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        check_claims_exist(self.registry, items, MARKER)
        for item in items:
            # JUnit's XML shows these.
            item.user_properties += [(MARKER, claim) for claim in claims_of(item, MARKER)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        result = yield
        claims = claims_of(item, MARKER)
        spec = item.callspec.params.get("user_model") if hasattr(item, "callspec") else None
        result.claims_of_model = [(spec, claim) for claim in claims]  # type: ignore[attr-defined]
        if result.failed and claims:
            text = "\n\n".join(self.registry.describe(claim) for claim in claims)
            result.sections.append(("claimed of any model", text))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if outcome := outcome_of(report):
            for of_model in getattr(report, "claims_of_model", ()):
                self._outcomes[of_model].append(outcome)

    def in_order(self, spec: str) -> list[Answer]:
        """One answer for each claim that had a test of this model, in the order of the registry."""
        rows = self.registry.claims.values()
        return [
            answer_of(row, self._outcomes[spec, row.id])
            for row in rows
            if (spec, row.id) in self._outcomes
        ]


@pytest.fixture
def does_not_apply() -> Callable[[str], NoReturn]:
    """Ends a test of a claim whose condition the user's model does not meet: `does_not_apply("no
    weight is tied")`.
    """

    def end(reason: str) -> NoReturn:
        pytest.skip(f"{DOES_NOT_APPLY}: {reason}")

    return end


@pytest.fixture(scope="session")
def user_model(request: pytest.FixtureRequest) -> Examination:
    """The model that `--model` names, see `prooflops.model.examination`."""
    return request.config.stash[_examinations][request.param]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    run = config.stash[RUN]
    if _examinations not in config.stash or config.option.collectonly or not run.fingerprint:
        return  # without a fingerprint it is the parent of a gate run, which examines nothing
    from prooflops.model.page import write_pages

    examinations = config.stash[_examinations]
    for spec, examination in examinations.items():
        if (config.option.fits or config.option.fits_choices) and not run.partial:
            _ = examination.fits
        examination.answers = config.stash[_answers].in_order(spec)
    write_pages(
        [*examinations.values()],
        Path(config.option.report),
        run.headline,
        run.fingerprint,
        run.partial,
    )


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    if _examinations in config.stash and not config.option.collectonly:
        from prooflops.model.page import print_pages

        print_pages(
            terminalreporter, list(config.stash[_examinations].values()), Path(config.option.report)
        )
