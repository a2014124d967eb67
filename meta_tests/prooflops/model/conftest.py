"""The users' models, each examined once: that takes most of the tests' time."""

import functools

import pytest
import torch

from meta_tests.conftest import ROOT
from prooflops.model.examination import examine
from prooflops.model.factory import import_factory
from prooflops.model.progress import Stages
from prooflops.model.step_memory import tried
from prooflops.model.user_model import UserModel

SILENT = Stages(lambda _: None)


def model_of(factory):
    """A factory of meta_tests/user_models, on the CPU."""
    spec = f"meta_tests.user_models.{factory}"
    return UserModel(spec, import_factory(spec, ROOT), torch.device("cpu"))


@pytest.fixture(scope="package")
def examined():
    """The facts of a factory, such as `examined("gpt:factory")`."""
    return functools.cache(lambda factory: examine(tried(model_of(factory)), SILENT))
