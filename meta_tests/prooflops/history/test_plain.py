"""Figures as JSON writes them."""

import json
from pathlib import Path

import numpy as np
import pytest

from prooflops.history import records


@pytest.mark.parametrize(
    ("given", "written"),
    [(np.int64(7), 7), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.longdouble(2), "2.0"), (Path("a"), "a")],
    ids=str,
)
def test_a_figure_of_numpy_is_written_as_the_number_that_it_is(given: object, written: object) -> None:
    assert json.loads(records.as_text({"flops": given})) == {"flops": written}
