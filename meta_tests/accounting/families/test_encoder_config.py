"""Which layers of an encoder have a window, and how many tokens it has positions for."""

import pytest

from accounting.families import from_config
from accounting.models import parameter_count, step_flops
from meta_tests.accounting.families.published import MODELS


def test_of_modernbert_every_third_layer_attends_to_all_and_the_others_to_64_tokens_on_either_side():
    attentions = from_config(MODELS["answerdotai/ModernBERT-base"]["config"]).attentions
    counted = {size: sum(each.layers for each in attentions if each.window == size) for size in (0, 65)}
    assert counted == {0: 8, 65: 14}


def test_roberta_has_positions_for_512_tokens_as_two_of_its_514_are_for_none():
    model = from_config(MODELS["FacebookAI/roberta-base"]["config"])
    assert step_flops(model, 1, 512).forward > 0
    with pytest.raises(ValueError, match="sequence must be at most learned_positions=512, got 513"):
        step_flops(model, 1, 513)


@pytest.mark.parametrize(("name", "tables"), [("google-t5/t5-base", 1), ("facebook/bart-large", 3)])
def test_untied_t5_has_a_head_of_its_own_and_bart_a_table_on_either_side_besides(name, tables):
    config = MODELS[name]["config"]
    untied, tied = (parameter_count(from_config(config | {"tie_word_embeddings": each})) for each in (False, True))
    assert untied - tied == tables * config["vocab_size"] * config["d_model"]
