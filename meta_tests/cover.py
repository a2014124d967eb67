"""Compares what the claims' tests call with what their statements cover.

    python -m meta_tests.cover [TOPIC]

Prints each value and each pair of values that test_claims/covers.toml states, and no test tries.
"""

import argparse
import contextlib
import functools
import inspect
import io
import pkgutil
import sys
from collections import defaultdict
from itertools import combinations, product

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode, resolve_name

from meta_tests.conftest import ROOT
from test_claims.strategies import TORCH_DTYPES, covers, layouts_of, makes_sense, sizes_of

DTYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
# Python functions of torch, which no mode sees.
INITIALISERS = (
    *("zeros_", "ones_", "trunc_normal_", "xavier_uniform_", "xavier_normal_"),
    *("kaiming_uniform_", "kaiming_normal_"),
)
FUNCTIONS = (
    *(f"torch.nn.init.{name}" for name in INITIALISERS),
    "torch.utils.checkpoint.checkpoint",
    "torch.utils.checkpoint.checkpoint_sequential",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
    "torch.autograd.grad",
    "torch.autograd.backward",
    "torch.manual_seed",
    "torch.save",
    "torch.load",
    "torch.optim.Optimizer.zero_grad",
    "torch.nn.Module.zero_grad",
)
CONTEXTS = ("no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "autocast")

# Stands for the tensors of a call that has none.
NO_TENSOR = torch.empty(0)


def tensors_in(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from (each for each in value if isinstance(each, torch.Tensor))


class Observer(TorchFunctionMode):
    """A pytest plugin that records, for each claim, the calls of its tests."""

    def __init__(self):
        super().__init__()
        self.calls = defaultdict(set)
        self.current = set()

    def record(self, entry, values, options=()):
        for x in tensors_in(values):
            with contextlib.suppress(Exception):
                place = x.dtype, tuple(x.shape), x.stride(), x.storage_offset()
                self.current.add((entry, *place))
                self.current.update((f"{entry}({option})", *place) for option in options)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        options = kwargs or {}
        name = (resolve_name(function) or "").removesuffix(".__get__")
        # The call may raise, or change its arguments.
        self.record(name, [*args, *options.values()], self.told(options))
        result = function(*args, **options)
        self.record(name, [result], self.told(options))
        return result

    @staticmethod
    def told(options):
        """The names of options, and those of few values with them."""
        few = (bool, str, torch.memory_format, type(None))
        named = [f"{name}={value}" for name, value in options.items() if isinstance(value, few)]
        return [*options, *named]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        claims = {claim for mark in item.iter_markers("claim") for claim in mark.args}
        self.current = set()
        with self:
            result = yield
        for claim in claims:
            self.calls[claim] |= self.current
        return result

    def pytest_collection_modifyitems(self, items):
        """Times need no cover, and compiled functions trace the observer."""
        items[:] = [
            item
            for item in items
            if "speed" not in item.fixturenames and item.path.stem != "test_compile"
        ]

    def module_called(self, module, arguments, result):
        self.record(f"nn.{type(module).__name__}", [*arguments, result])

    def optimizer_stepped(self, optimizer, _arguments, _options):
        for group in optimizer.param_groups:
            told = {
                name: group[name]
                for name, parameter in inspect.signature(type(optimizer)).parameters.items()
                if name in group and group[name] != parameter.default
            }
            self.record(f"optim.{type(optimizer).__name__}", group["params"], self.told(told))

    def install(self, patch):
        torch.nn.modules.module.register_module_forward_hook(self.module_called)
        register_optimizer_step_post_hook(self.optimizer_stepped)
        for path in FUNCTIONS:
            owner, _, name = path.rpartition(".")
            holder = pkgutil.resolve_name(owner)
            patch.setattr(holder, name, self.wrapped(path, getattr(holder, name)))
        for name in CONTEXTS:
            context = getattr(torch, name)
            patch.setattr(context, "__init__", self.wrapped(name, context.__init__))

    def wrapped(self, name, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            told = self.told(kwargs)
            self.record(name, [NO_TENSOR, *args, *kwargs.values()], told)
            return function(*args, **kwargs)

        return call


def values_of(call):
    """The names of a call's entry, dtype, layout and size."""
    entry, dtype, shape, strides, offset = call
    function, parenthesis, option = entry.partition("(")
    entries = {entry, function.rpartition(".")[2] + parenthesis + option}
    name = DTYPES.get(dtype, str(dtype).removeprefix("torch."))
    return {name, *entries, *layouts_of(shape, strides, offset), *sizes_of(shape)}


def observe(topics):
    """What the tests of these topics' claims call, by claim."""
    observer = Observer()
    options = [f"--claim={topic}" for topic in topics]
    options += [str(ROOT / "test_claims"), "-q", "--quick", "--hypothesis-seed=0"]
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        observer.install(patch)
        code = pytest.main([*options, "-p", "no:cacheprovider"], plugins=[observer])
    # A failing claim makes calls, too, which count.
    known = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED
    assert code in known, output.getvalue()[-5000:]
    return observer.calls


def gaps(row, calls):
    """The values and pairs of a row that none of these calls has."""
    stated = {name: axis for axis, names in enumerate(row) for name in names}
    pairs = set()
    for call in calls:
        had = sorted(values_of(call) & stated.keys(), key=stated.get)
        pairs.update(combinations(had, 2))
        pairs.update((name,) for name in had)
    values = [(name,) for name in stated]
    missing = {name for (name,) in values if (name,) not in pairs}
    for one, other in combinations(row, 2):
        values += [pair for pair in product(one, other) if not missing & {*pair}]
    return [" x ".join(value) for value in values if value not in pairs and makes_sense({*value})]


def all_gaps(topics, calls):
    """The gaps of each claim of these topics that has any."""
    found = {}
    for claim, rows in covers().items():
        if claim.partition(".")[0] in topics:
            missing = [gap for row in rows for gap in gaps(row, calls[claim])]
            found |= {claim: missing} if missing else {}
    return found


def main():
    topics = sorted({claim.partition(".")[0] for claim in covers()})
    parser = argparse.ArgumentParser(prog="python -m meta_tests.cover", description=__doc__)
    parser.add_argument("topics", nargs="*", default=topics, metavar="TOPIC")
    options = parser.parse_args()
    found = all_gaps(options.topics, observe(options.topics))
    for claim, missing in found.items():
        print(f"{claim}: {', '.join(missing)}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
