"""A model that decides by the values of a mask or a number is predicted by the values given."""

import pytest
import torch
from torch import nn

from prooflops import model_report
from prooflops.memory import TrainingStep

ROWS, WIDTH = 64, 32


class Masked(nn.Linear):
    """Masks its output only where the mask masks anything."""

    def __init__(self, mask_of):
        super().__init__(WIDTH, WIDTH)
        self.mask_of = mask_of

    def forward(self, x, given):
        out, mask = super().forward(x), self.mask_of(given)
        return out if mask.all() else out.tanh() * mask[:, None]


def first_rows(given):
    return given[:, 0] > 0


def made(given):
    return torch.ones(len(given), dtype=torch.bool)


def written(given):
    mask = given.clone()
    mask[:3] = 0
    return mask.bool()


ALL, SOME = torch.ones(ROWS, 2, dtype=torch.long), torch.ones(ROWS, 2, dtype=torch.long)
SOME[5:] = 0


@pytest.mark.parametrize("given", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize("mask_of", [first_rows, made])
def test_a_branch_that_reads_a_mask_is_the_one_that_runs(mask_of, given):
    step = TrainingStep(Masked(mask_of), (torch.ones(ROWS, WIDTH), given), torch.sum)
    guess, held = step.predict(), step.measure()
    ours = guess.phases["second forward"].live_bytes - guess.phases["built"].live_bytes
    assert ours == held.phases["second forward"].live_bytes


def test_a_mask_that_is_written_to_has_no_known_values():
    step = TrainingStep(Masked(written), (torch.ones(ROWS, WIDTH), ALL), torch.sum)
    with pytest.raises(RuntimeError, match="the block reads values"):
        step.predict()


def test_transformers_leaves_out_a_mask_of_ones_but_no_other():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    net = transformers.LlamaForCausalLM(config)
    ids = torch.ones(2, 128, dtype=torch.long)
    padded = torch.ones_like(ids)
    padded[0, 100:] = 0

    def held(**mask):
        measured = model_report(net, {"input_ids": ids, "labels": ids, **mask}, measure=True)
        rows = measured.examination.memory.rows
        assert all(row.predicted_bytes == row.measured_bytes for row in rows)
        return next(row.measured_bytes for row in rows if row.name.startswith("kept"))

    assert held() == held(attention_mask=torch.ones_like(ids)) < held(attention_mask=padded)
