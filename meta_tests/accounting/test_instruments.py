"""The page about the instruments' domains names tests that exist; the edges that no other test shows are shown here."""

import ast
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from accounting import counted
from accounting.flops import matmul_flops
from meta_tests.accounting.counted import operator_definitions as define
from meta_tests.conftest import ROOT

PAGE = ROOT / "docs" / "instruments.md"


def named_tests(page: str) -> list[tuple[str, str]]:
    return re.findall(r"`([\w/]+\.py)::(\w+)`", page)


def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_page_names_exists() -> None:
    missing = [
        f"{file}::{test}"
        for file, test in named_tests(PAGE.read_text(encoding="utf-8"))
        if not (ROOT / file).exists() or test not in functions(file)
    ]
    assert not missing, f"docs/instruments.md names tests that do not exist: {missing}"


def test_every_statement_of_the_page_names_a_test() -> None:
    tables = PAGE.read_text(encoding="utf-8").split("### Torch's own MemTracker")  # whose table is of one day
    page = tables[0] + tables[1].partition("\n## ")[2]
    rows = [line for line in page.splitlines() if re.match(r"\| \w", line)]
    silent = [row for row in rows if not named_tests(row)]
    assert len(rows) > 20, f"the page has {len(rows)} statements"
    assert not silent, f"statements without a test: {silent}"


# --- torch's own counter ----------------------------------------------------------------------------------------------


def torch_flops_of(act: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        act()
    return int(counter.get_total_flops())


def test_torchs_counter_is_right_about_plain_products() -> None:
    a, b, layer = torch.randn(3, 4), torch.randn(4, 5), nn.Conv1d(2, 4, 3, bias=False)
    right = define.multiply_adds(a, b) + define.convolution(layer, torch.ones(1, 2, 6))[0]
    got = torch_flops_of(lambda: (a @ b, layer(torch.ones(1, 2, 6))))
    assert got == right, f"torch reports {got}, but should {right}"


def test_torchs_counter_says_nothing_of_a_matrix_times_a_vector() -> None:
    a, x = torch.randn(3, 4), torch.randn(4)
    right = define.multiply_adds(a, x[:, None])
    with counted.flops() as ours:
        a @ x
    got = torch_flops_of(lambda: a @ x)
    assert ours.total == right, f"{ours}, but should be {right}"
    assert got in (0, right), f"torch reports {got}, but was known for 0, where {right} is right"


def test_torchs_counter_is_wrong_about_grouped_gradients_and_complex_numbers() -> None:
    layer, data = nn.Conv1d(4, 4, 3, groups=2, bias=False), torch.randn(1, 4, 6, requires_grad=True)
    out = layer(data)
    _, right = define.convolution(layer, data.detach())
    got = torch_flops_of(out.sum().backward)
    assert (right, got) in ((384, 576), (384, 384)), f"torch reports {got}, {right} is right, and 576 was known"
    a, b = torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 5, dtype=torch.complex64)
    right, got = define.multiply_adds(a, b), torch_flops_of(lambda: a @ b)
    assert got in (right // 4, right), f"torch reports {got}, but was known for a quarter of {right}"


@pytest.mark.filterwarnings("ignore")  # of torch.compile's own modules
def test_a_compiled_function_first_called_beneath_torchs_counter_stays_uncompiled() -> None:
    runs = {"torch": 0, "ours": 0}

    def compiled(function: Callable[[Tensor], Tensor], whose: str) -> Callable[[Tensor], Tensor]:
        def backend(module: torch.fx.GraphModule, _examples: list[Tensor]) -> Callable[..., object]:
            def run(*arguments: Tensor) -> object:
                runs[whose] += 1
                return module.forward(*arguments)

            return run

        torch._dynamo.reset()
        return torch.compile(function, backend=backend)

    square = torch.randn(4, 4)
    function = compiled(lambda x: (x @ x).relu(), "torch")
    theirs = torch_flops_of(lambda: function(square))
    function(square)
    function = compiled(lambda x: (x @ x).relu(), "ours")
    with counted.flops() as count:
        function(square)
    function(square)
    assert theirs == count.total == matmul_flops(4, 4, 4), f"torch counts {theirs}, we {count}"
    assert runs["ours"] == 1, f"after our count the function ran compiled {runs['ours']} times, but should once"
    assert runs["torch"] in (0, 1), f"after torch's it ran compiled {runs['torch']} times, but was known for never"


# --- the meta device --------------------------------------------------------------------------------------------------


def test_the_meta_device_keeps_the_probabilities_that_fused_attention_does_not() -> None:
    kept = {}
    for device, backend in (("cpu", SDPBackend.FLASH_ATTENTION), ("meta", SDPBackend.MATH)):
        query, shapes = torch.empty(1, 2, 33, 8, device=device).requires_grad_(), []
        keep = lambda tensor, shapes=shapes: (shapes.append(tensor.shape), tensor)[1]  # noqa: E731
        with sdpa_kernel(backend), saved_tensors_hooks(keep, lambda tensor: tensor):
            F.scaled_dot_product_attention(query, query, query)
        kept[device] = any(shape[-2:] == (33, 33) for shape in shapes)
    assert kept == {"cpu": False, "meta": True}, f"probabilities are kept: {kept}"


def test_the_meta_device_keeps_statistics_in_fp32_where_the_cpu_keeps_16_bits() -> None:
    statistics = {}
    for device in ("cpu", "meta"):
        data = torch.ones(3, 8, dtype=torch.bfloat16, device=device)
        statistics[device] = torch.native_layer_norm(data, [8], None, None, 1e-5)[1].dtype
    assert statistics == {"cpu": torch.bfloat16, "meta": torch.float32}, f"the mean of a row is kept in {statistics}"
