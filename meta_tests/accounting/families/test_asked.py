"""What the families do not read, transformers is asked: its modules' parameters, and FLOPs of a run without values."""

import sys
from dataclasses import replace
from itertools import chain

import pytest

from accounting.counted.built import CountedModel, from_library
from accounting.families import from_config
from accounting.families.architectures import MODEL_TYPES, WITHOUT_SIZE
from accounting.models import active_parameter_count, cache_bytes, parameter_count, step_flops
from meta_tests.accounting.families.test_transformers import (
    BATCH,
    beyond_the_model,
    built,
    config_of,
    corrections,
    counted_step,
    families,
    held_bytes,
    sequence_of,
    transformers,
)

# Of no family: layers of two kinds, experts; pairs of encoder and decoder, encoders, images, speech.
UNKNOWN = ("exaone4", "phimoe", "bart", "bert", "resnet", "roberta", "vit", "whisper")


@families
def test_a_family_has_the_parameters_and_flops_of_the_model_asked_for(family):
    config = config_of(family)
    asked, formula = from_library(config.to_dict(), WITHOUT_SIZE.fullmatch), from_config(config.to_dict())
    assert parameter_count(asked) == parameter_count(formula)
    assert active_parameter_count(asked) == active_parameter_count(formula)
    plain = replace(formula, linear_maps=[each for each in formula.linear_maps if each.uses <= each.copies])
    beyond = beyond_the_model("", built(config), plain)
    step = step_flops(formula, BATCH, sequence_of(family))
    should = step.forward + beyond[0], step.backward + beyond[1]
    step = step_flops(asked, BATCH, sequence_of(family))
    assert (step.forward, step.backward) == should, f"asked, but {should} by formula [{family}]"


@pytest.mark.parametrize("type_", UNKNOWN)
def test_the_model_asked_for_is_that_which_transformers_builds_and_runs(type_):
    assert type_ not in MODEL_TYPES
    config = config_of(type_)
    net, model = built(config), from_config(config)
    assert parameter_count(model) == sum(each.numel() for each in chain(net.parameters(), corrections(net)))
    step = step_flops(model, BATCH, sequence_of(type_))
    assert (step.forward, step.backward) == counted_step(type_, net)
    if type_ in ("exaone4", "bart", "whisper"):
        assert cache_bytes(model, BATCH, sequence_of(type_), "fp32") == held_bytes(type_, net)
    assert repr(model) == f"<counted: {type(net).__name__} of transformers {transformers.__version__}>"


def test_keys_that_the_library_ignores_are_named():
    config = config_of("exaone4").to_dict() | {"num_registers": 4, "early_stopping": True}
    with pytest.warns(UserWarning, match=r"of transformers .* ignores num_registers=4$"):
        model = from_config(config)
    assert isinstance(model, CountedModel)
    assert model.ignored == ("num_registers",)
    assert from_config(config, ignore=["num_registers"]).linear_maps == model.linear_maps  # type: ignore[attr-defined]


def test_a_key_of_a_family_that_nobody_reads_is_refused_until_it_is_ignored():
    config = config_of("llama").to_dict() | {"num_registers": 4}
    with pytest.raises(ValueError, match=r"num_registers=4, .* it reads no num_registers; ignore=\('num_registers',\)"):
        from_config(config)
    assert from_config(config, ignore=("num_registers",)) == from_config(config_of("llama"))
    with pytest.raises(ValueError, match=r"ignore must be one of .*, got 'num_register'; did you mean"):
        from_config(config, ignore=("num_register",))
    with pytest.raises(TypeError, match="ignore must be keys"):
        from_config(config, ignore="num_registers")


def test_what_the_library_refuses_and_its_absence_are_said(monkeypatch):
    wrong = config_of("exaone4").to_dict() | {"hidden_size": "wide"}
    with pytest.raises(ValueError, match=r"got 'exaone4'.*; transformers .* refuses this config"):
        from_config(wrong)
    with pytest.raises(ValueError, match=r"pairs must be 'full' for counted: Exaone4.*, got 'causal'"):
        step_flops(from_config(config_of("exaone4")), 1, 8, pairs="causal")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"model_type must be one of .*With transformers 5 or later installed"):
        from_config({"model_type": "exaone4"})
