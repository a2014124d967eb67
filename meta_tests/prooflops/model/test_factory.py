"""The factory that --model names, in a module or in a file; test_user_model.py has what is refused."""

import torch

from meta_tests.conftest import ROOT
from prooflops.model.user_model import load_user_model

CPU = torch.device("cpu")


def test_a_model_is_found_in_a_file() -> None:
    user_model = load_user_model("meta_tests/user_models/own.py:deep", ROOT, CPU)
    assert sum(each.numel() for each in user_model.fresh().module.parameters()) == 5 * 17 * 16
