"""Which layers of an encoder have a window."""

from accounting.families import from_config
from meta_tests.accounting.families.published import MODELS


def test_of_modernbert_every_third_layer_attends_to_all_and_the_others_to_64_tokens_on_either_side():
    attentions = from_config(MODELS["answerdotai/ModernBERT-base"]["config"]).attentions
    counted = {size: sum(each.layers for each in attentions if each.window == size) for size in (0, 65)}
    assert counted == {0: 8, 65: 14}
