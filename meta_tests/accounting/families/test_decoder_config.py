"""Which layers of a decoder have a window, as its config and its family say."""

from accounting.families import from_config
from meta_tests.accounting.families.published import MODELS


def test_windows_leave_mistral_at_32k_a_quarter_of_its_attention():
    model = from_config(MODELS["mistralai/Mistral-7B-v0.1"]["config"])
    [attention] = model.attentions
    full, windowed = (attention.shape(1, 32768, 32768, pairs).scores for pairs in ("full", "causal"))
    assert windowed == 32 * 32 * (32768 * 4096 - 4096 * 4095 // 2)
    assert 8.4 < full / windowed < 8.6


def test_of_llama_4_every_fourth_layer_attends_to_all_and_the_others_to_their_own_chunk():
    attentions = from_config(MODELS["meta-llama/Llama-4-Scout-17B-16E-Instruct"]["config"]).attentions
    counted = {size: sum(each.layers for each in attentions if each.window == size) for size in (0, 8192)}
    assert counted == {0: 12, 8192: 36}
