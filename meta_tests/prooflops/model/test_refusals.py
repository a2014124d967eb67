"""Anything but a model is refused by an error that lists the valid forms."""

import sys

import pytest

from meta_tests.conftest import ROOT
from meta_tests.prooflops.model.conftest import model_of
from meta_tests.user_models import broken
from prooflops.model.factory import ModelError, import_factory
from prooflops.model.step_memory import tried

FORMS = "must be module:factory, such as my_package.my_module:factory, or path/to/file.py:factory"
IMPORTS = {
    "meta_tests.user_models.gpt": FORMS,
    "meta_tests/user_models/gpt.py": FORMS,
    "meta_tests/user_models/gpd.py:factory": "FileNotFoundError: [Errno 2] No such file",
    "meta_tests.user_models.gpd:factory": "No module named 'meta_tests.user_models.gpd'",
    "meta_tests.user_models.gpt:factor": "one of ModelOutput, Block, LMHeadModel, factory",
}


@pytest.mark.parametrize("spec", IMPORTS)
def test_what_names_no_factory_is_refused(spec):
    with pytest.raises(ModelError) as refusal:
        import_factory(spec, ROOT)
    assert IMPORTS[spec] in str(refusal.value)


def test_a_file_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "failing.py").write_text("raise RuntimeError('not today')")
    with pytest.raises(ModelError) as refusal:
        import_factory("failing.py:factory", tmp_path)
    for said in ("failing.py raised RuntimeError: not today", "failing.py:1"):
        assert said in str(refusal.value)


@pytest.mark.parametrize("name", broken.REFUSALS)
def test_what_is_no_model_is_refused_with_its_name(name):
    with pytest.raises(ModelError) as refusal:
        tried(model_of(f"broken:{name}"))
    said = str(refusal.value)
    assert said.startswith(f"--model meta_tests.user_models.broken:{name}: ")
    assert broken.REFUSALS[name] in said
