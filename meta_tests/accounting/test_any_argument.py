"""Every public function and class of the formulas, given numbers of every type and values of the wrong one.

The signatures say what each takes, so that a new function is tried as soon as it is there. A good call gives the same
plain result for every type of number; a bad argument gets a ValueError or TypeError that names it, and nothing else.
"""

from __future__ import annotations

import importlib
import inspect
import re
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import accounting
from accounting import attention, convolution, devices, families, parallel, roofline

FORMULAS = sorted({*accounting.__all__} - {"counted", "measured", "predicted"})
NET = families.Transformer(vocab_size=96, layers=96, dim=96, heads=12, hidden=96, kv_heads=12)
GPT2 = {"model_type": "gpt2", "n_embd": 96, "n_layer": 2, "n_head": 2, "vocab_size": 96, "n_positions": 96}
BIG = 10**30

# A good value by the name of the parameter, or by the annotation where that says enough; 96 · 96 is beyond 8 bits.
BY_NAME: dict[str, Any] = {
    "accumulate": "fp32", "arch": "9.0", "collective": "all-reduce", "compute_capability": (9, 0),
    "config": GPT2, "context": 96,
    "convention": "math", "device": "H100 PCIe", "dim": 96, "equation": "ij,jk->ik", "features": ["avx2", "fma3"],
    "figure": 96, "fma_units_512": 2, "function": "relu", "gradients": [1], "groups": 2, "implementation": "fused",
    "item": 96, "items": [1, 2, 3], "mfu": 0.5, "new_shape": (96, 2), "norm": "rmsnorm", "optimizer": "adamw",
    "pairs": "full", "part": "mlp", "path": "matrix", "recipe": "fp32", "result": "bf16",
    "row": devices.ACCELERATORS["H100 PCIe 80GB"], "column": "bf16", "rule": "step", "shapes": [(2, 96), (96, 96)],
    "specials": "ieee", "strides": (96, 1), "kernel_size": (2, 2), "padding": 1, "stride": 2,
    "dilation": 1, "overflow": None, "unit": "B",
    "work": roofline.Work(96, 96), "zero_stage": 2, "a_shape": (2, 96), "b_shape": (96, 96), "index": (1, 1),
    "heads": 12, "kv_heads": 12, "active_experts": 1, "experts": 1, "name": "fp16", "autocast": None, "order": "left",
    "local": "sliding",
    "rows": "tokens", "split": parallel.Parallelism(), "recompute": "none",
    "wire_bytes_per_s": 96.0, "attention": "flash", "checkpoint_layers": None, "valid": ["fp16"], "argument": "dtype",
}  # fmt: skip
BY_ANNOTATION: dict[str, Any] = {
    "int": 96, "Parameters": 96, "float": 96.0, "bool": False, "Dtype": "fp16",
    "Model": NET, "Lengths": 96, "Shape": (96, 2),
    "Sequence[int]": (96, 2), "Iterable[int]": [96, 2], "Sequence[float]": [96.0, 2.0], "Rows": "tokens",
    "Attention": attention.Attention(96, 12, 96, 96), "Figure": devices.Figure(96.0),
    "Convolution": convolution.Convolution(96, 96, 96, (96, 96), (2, 2)), "DeepLinear": families.DeepLinear(96, 9),
    "Transformer": NET, "tuple[int, ...]": (96, 2), "str": "fp16", "Parts": NET.parts,
}  # fmt: skip
# Where a name means something else in one place.
SPECIAL: dict[str, dict[str, Any]] = {
    "flops.elementwise_flops": {"shapes": [(96, 2), (2,)]},
    "layout.broadcast_shape": {"shapes": [(96, 2), (2,)]},
    "attention.Attention": {"value_dim": 96, "key_length": 96, "window": None},
    "attention.attention_flops": {"attention": BY_ANNOTATION["Attention"]},
    "attention.attention_backward_flops": {"attention": BY_ANNOTATION["Attention"]},
    "attention.attention_step": {"attention": BY_ANNOTATION["Attention"]},
    "roofline.attention_work": {"attention": BY_ANNOTATION["Attention"]},
    "attention.attention_pairs": {"window": None},
    "planning.fitting_plans": {"devices": 2},  # all of whose splits are tried
    "formats.block_format_of": {"name": "mxfp4"},
    "memory.storage_bytes": {"strides": (2, 1)},
    "layout.is_contiguous": {"strides": (2, 1)},
    "layout.view_strides": {"strides": (2, 1)},
    "devices.device_named": {"name": "NVIDIA H100 PCIe", "units": 114},
    "devices.device_called": {"name": "H100 PCIe"},
    "allocator.charged_bytes": {"block": 1024},
    "devices.flop_per_s": {"figure": devices.Figure(96.0)},
    "units.amount": {"name": "figure"},
    "families.with_adapters": {"model": NET},
    "allocator.cublas_workspace_bytes": {"config": ":96:2"},
    "families.Transformer": {"dim": 96},
    "families.mixture": {"experts": 96, "active": 2},
}
# Options that a function hands on.
HANDED_ON = {"planning.fitting_plans": {"memory_bytes": 10**15, "peak_flop_per_s": 1e12, "wire_bytes_per_s": 1e9}}
# What an error calls the argument where that is not the parameter's name.
CALLED: dict[str, str] = {
    "cache_bytes.context": "sequence", "decoding_work.context": "sequence", "step_flops.checkpoint_layers": "layers",
    "block_format_of.name": "block format", "device_called.name": "device",
}  # fmt: skip
# Tables' rows and the pieces of an einsum: data that the formulas make, not what users call.
NOT_CALLED = {"contraction", "parts"}
CLASSES_MADE_BY_FORMULAS = {
    "SavedTensor",
    "QuantisedBlocks",
    "BlockFormat",
    "ModelState",
    "StepPlan",
    "Optimizer",
    "Recipe",
    "Built",
}

NUMBERS: list[Callable[[int], Any]] = [
    np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16, np.float32,
    np.float64, float, Fraction, torch.tensor,
]  # fmt: skip


class Target(typing.NamedTuple):
    """A function or class under test, and a good call of it."""

    name: str
    function: Callable[..., Any]
    kinds: dict[str, str]  # the annotation of each parameter
    positional: tuple[Any, ...]
    arguments: dict[str, Any]

    def __call__(self, **changed: Any) -> Any:
        arguments = self.arguments | changed
        positional = arguments.pop("shapes", self.positional) if "shapes" in self.kinds else ()
        first = {name: arguments.pop(name) for name in list(arguments) if positional and name == "equation"}
        with warnings.catch_warnings(), np.errstate(over="ignore"):
            warnings.simplefilter("error")
            return self.function(*first.values(), *positional, **arguments)


def good_value(target: str, name: str, parameter: inspect.Parameter, kind: str) -> Any:
    """A good value of a parameter, the same for every function that has one of this name or annotation."""
    if name in SPECIAL.get(target, {}):
        return SPECIAL[target][name]
    if name in BY_NAME:
        return BY_NAME[name]
    for each in [part.strip() for part in kind.split("|")]:
        if each in BY_ANNOTATION:
            return BY_ANNOTATION[each]
    if parameter.default is not inspect.Parameter.empty:
        return parameter.default
    raise LookupError(f"{target}: {name} is {kind}, of which BY_NAME and BY_ANNOTATION have no good value")


def targets() -> Iterator[Target]:
    for module_name in FORMULAS:
        if module_name in NOT_CALLED:
            continue
        module = importlib.import_module(f"accounting.{module_name}")
        for name, function in vars(module).items():
            home = str(getattr(function, "__module__", ""))
            public = not name.startswith("_") and f"{home}.".startswith(f"{module.__name__}.")  # there, or in its room
            is_row = inspect.isclass(function) and issubclass(function, tuple)
            made = is_row or name in CLASSES_MADE_BY_FORMULAS or name == "Model"
            if not public or made or not (inspect.isfunction(function) or inspect.isclass(function)):
                continue
            full, kinds = f"{module_name}.{name}", {}
            arguments = dict(HANDED_ON.get(full, {}))
            for each in inspect.signature(function).parameters.values():
                if each.kind is not inspect.Parameter.VAR_KEYWORD:
                    kinds[each.name] = str(each.annotation)
                    arguments[each.name] = good_value(full, each.name, each, str(each.annotation))
            positional = tuple(arguments.pop("shapes", ()))
            yield Target(full, function, kinds, positional, arguments)


TARGETS = list(targets())


def leaves(value: object) -> Iterator[object]:
    """The numbers and names that a result is made of; of this project's classes their fields."""
    if is_dataclass(value):
        yield from leaves(vars(value))
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from leaves(each)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def foreign(value: object) -> set[str]:
    return {type(leaf).__name__ for leaf in leaves(value)} - {
        "int",
        "float",
        "str",
        "bool",
        "NoneType",
        "SimpleNamespace",
    }


def converted(value: Any, number: Callable[[int], Any]) -> Any:
    """`value` with each of its whole numbers in another type, or None where it has none that fits."""
    if isinstance(value, bool) or not isinstance(value, (int, float, list, tuple)):
        return None
    if isinstance(value, (list, tuple)):
        inner = [converted(each, number) for each in value]
        return None if not inner or any(each is None for each in inner) else type(value)(inner)
    with suppress(OverflowError):
        return number(int(value)) if value == int(value) else None
    return None  # beyond its width


@pytest.mark.prove(sample=40)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_type_of_number_gives_the_same_plain_result(target: Target) -> None:
    expected = target()
    wrong = [f"of plain numbers: parts of type {foreign(expected)}"] if foreign(expected) else []
    for name in target.kinds:
        value = list(target.positional) if name == "shapes" else target.arguments[name]
        for number in NUMBERS:
            changed = converted(value, number)
            if changed is None or (number is torch.tensor and "float" in target.kinds[name]):
                continue
            got = target(**{name: changed})
            if got != expected or foreign(got):
                wrong.append(f"{name}={changed!r}: {got} with {foreign(got)}, but should be {expected}")
    assert not wrong, f"{target.name}: " + "\n".join(wrong)


OF_A_DTYPE = [
    target for target in TARGETS if "Dtype" in {kind.removesuffix(" | None") for kind in target.kinds.values()}
]


@pytest.mark.parametrize("target", OF_A_DTYPE, ids=lambda target: target.name)
def test_a_dtype_of_torch_or_numpy_gives_what_its_name_gives(target: Target) -> None:
    for name, kind in target.kinds.items():
        if kind.removesuffix(" | None") == "Dtype":
            expected = target(**{name: "fp16"})
            assert target(**{name: torch.float16}) == target(**{name: np.float16}) == expected, f"{target.name}: {name}"


OF_A_CLASS = {
    "str", "Model", "Attention", "Convolution", "DeepLinear", "Transformer", "Parallelism", "Accelerator", "Figure",
    "Work", "Format",
}  # fmt: skip


def bad_values(kind: str, default: object) -> list[Any]:
    """Values that no parameter with this annotation takes."""
    parts = {part.strip() for part in kind.split("|")}
    if parts & {"Sequence[int]", "Shape", "Iterable[int]", "tuple[int, ...]", "Sequence[float]"}:
        bad = [None, "23", [None], ["2"], [1.5] if "Sequence[float]" not in parts else [True]]
        bad += [] if "int" in parts else [5]
    elif parts & {"int", "Lengths", "Parameters"}:
        bad = [True, np.bool_(True), 1.5, float("nan"), float("inf"), "3", None, [None], np.ones(2)]
    elif "float" in parts:
        bad = [True, "x", None, [1.0], 1j]
    elif "bool" in parts:
        bad = ["no", 1, 1.5, None]
    elif "Dtype" in parts:
        bad = [5, "bf61", None, 1.5]
    elif parts & OF_A_CLASS:
        bad = [5, 1.5, None, True]
    else:
        bad = []
    return [value for value in bad if value is not None or ("None" not in parts and default is not None)]


# Where nothing is wrong with such a value, and why.
TAKEN = {
    ("roofline.mfu", "peak_flop_per_s"): "None: no peak is on record",
    ("planning.step_plan", "wire_bytes_per_s"): "one device sends nothing",
    ("formats.dtype_name", "argument"): "only a word of the message",
    ("units.amount", "name"): "only a word of the message",
    ("units.with_unit", "unit"): "only a word of the result",
    ("formats.Format", "name"): "only a word",
    ("formats.Format", "torch_name"): "only a word",
    ("formats.IntegerFormat", "name"): "only a word",
    ("formats.IntegerFormat", "torch_name"): "only a word",
    ("families.linear", "part"): "only a word", ("families.linear", "name"): "only a word",
    ("families.other", "part"): "only a word", ("families.mlp", "part"): "only a word",
}  # fmt: skip


def complaint(target: Target, name: str, value: object) -> str | None:
    """What is wrong with the answer to a bad value; None for a ValueError or TypeError that names the argument."""
    try:
        got = target(**{name: [value] if name == "shapes" else value})
    except (ValueError, TypeError) as error:
        called = CALLED.get(f"{target.name.partition('.')[2]}.{name}", name)
        named = [called, name, *(["dtype"] if "Dtype" in target.kinds[name] else [])]
        if any(re.search(rf"\b{re.escape(each)}\b", str(error)) for each in named):
            return None
        return f"{name}={value!r}: the error does not name it: {type(error).__name__}: {error}"
    except Exception as error:
        return f"{name}={value!r}: {type(error).__name__}: {error}"
    return f"{name}={value!r} is taken, and gives {got!r:.100}"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_bad_argument_is_named_in_a_clear_error(target: Target) -> None:
    defaults = {name: each.default for name, each in inspect.signature(target.function).parameters.items()}
    found = [
        complaint(target, name, value)
        for name, kind in target.kinds.items()
        if (target.name, name) not in TAKEN
        for value in bad_values(kind, defaults[name])
    ]
    wrong = [each for each in found if each]
    assert not wrong, f"{target.name}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_number_of_any_size_is_computed_with_or_refused_by_name(target: Target) -> None:
    wrong = []
    for name, kind in target.kinds.items():
        if "int" in {part.strip() for part in kind.split("|")}:
            try:
                got = target(**{name: BIG})
            except (ValueError, TypeError) as error:
                if CALLED.get(f"{target.name.partition('.')[2]}.{name}", name) not in str(error):
                    wrong.append(f"{name}: {error}")
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__}: {error}")
            else:
                wrong += [f"{name}: {foreign(got)}"] if foreign(got) else []
    assert not wrong, f"{target.name} of {BIG}:\n" + "\n".join(wrong)
