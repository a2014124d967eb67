"""Steps of a library's net on tensors without values: FLOPs, saved bytes and the cache, counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from accounting import models
from accounting.checks import validated_choice
from accounting.flops import StepFlops
from accounting.parts import Lengths, LinearMaps, OtherParameters, Part, Parts, length
from prooflops.counted.counter import flops
from prooflops.counted.library_inputs import inputs_of, numbers_in
from prooflops.counted.library_parameters import parts_of
from prooflops.counted.repeated import each_kind_once

# What transformers is to call for attention that keeps one number per query, or every score.
ATTENTION = {"flash": "kept by flash attention", "unfused": "eager"}
# Tokens of the two runs from which a cache of any length follows.
SHORT_CONTEXTS = (8, 16)
# Tokens of a turn (or the key that states them) of nets that loop over tokens or chunks of them,
# for up to seconds a turn. Figures of equal last turns are a polynomial of the turns, of degree 2.
DELTA_RULE = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "kimi_linear")
TURNS = (
    dict.fromkeys(("mamba", "falcon_mamba", "jamba", "rwkv"), 4)
    | dict.fromkeys(DELTA_RULE, 64)
    | {"minimax": "block_size"}
)


class Run:
    """Steps of a net on tensors without values; `parts` are its parameters."""

    def __init__(self, net: Any, name: str, *, untied: bool) -> None:
        self.net, self.name, stored = net, name, list(parts_of(net, untied))
        maps, others = (
            [each for each in stored if isinstance(each, of)]
            for of in (LinearMaps, OtherParameters)
        )
        self.parts = Parts(tuple(maps), (), tuple(others))  # type: ignore[arg-type]
        self._counts: dict[Any, StepFlops] = {}
        self._saved_bytes: dict[Any, int] = {}
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        with self._fake:
            net.to_empty(device="cpu")

    def step(self, batch: int, sequence: Lengths) -> StepFlops:
        """FLOPs of the products of a step, forward and backward, from the model's outputs on."""
        key = batch, sequence if isinstance(sequence, int) else tuple(sorted(sequence.items()))
        if key not in self._counts:
            forward, backward = self._by_turns(sequence, partial(self._counted, batch))
            self._counts[key] = StepFlops(forward, backward, 0)
        return self._counts[key]

    def _counted(self, batch: int, sequence: Lengths) -> tuple[int, ...]:
        try:
            return self._ran(batch, sequence, each_kind_once)
        except Exception:  # layers that hand on more than their results
            return self._ran(batch, sequence, lambda *_: nullcontext(()))

    def _ran(self, batch: int, sequence: Lengths, runs: Callable[..., Any]) -> tuple[int, ...]:
        with self._running(), flops() as count, runs(self.net, flops) as skipped:
            outputs = [
                each for each in numbers_in(self._outputs(batch, sequence)) if each.requires_grad
            ]
            torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
        steps = [count.step, *(each.step for each in skipped)]
        return sum(each.forward for each in steps), sum(each.backward for each in steps)

    @property
    def _turn(self) -> int:
        """Tokens of a turn of a net that loops over them, else 0."""
        # A net of diffusers has no text.
        text: Any = getattr(self.net.config, "get_text_config", lambda: self.net.config)()
        turn = TURNS.get(getattr(text, "model_type", ""), 0)
        return turn if isinstance(turn, int) else int(getattr(text, turn))

    def _by_turns(
        self, sequence: Lengths, measured: Callable[[Lengths], tuple[int, ...]]
    ) -> tuple[int, ...]:
        """The figures of a run; those of a net that loops follow from runs of one to three turns.

        A run of four turns confirms them: else the whole run is measured.
        """
        turn = self._turn
        if not turn or (tokens := length("tokens", sequence)) < 5 * turn:
            return measured(sequence)
        *few, fourth = (measured(tokens % turn + turns * turn) for turns in (1, 2, 3, 4))
        figures = list(zip(*few, strict=True))
        if tuple(_extrapolated(each, 4) for each in figures) != fourth:
            return measured(sequence)
        return tuple(_extrapolated(each, tokens // turn) for each in figures)

    def saved_bytes(self, batch: int, sequence: int, attention: str) -> int:
        """Bytes that autograd keeps of a forward pass, each storage once, without parameters,
        inputs and logits.
        """
        if (key := (batch, sequence, attention)) not in self._saved_bytes:
            try:
                self._use(
                    ATTENTION[validated_choice("attention", attention, ATTENTION)], "grouped_mm"
                )
                [self._saved_bytes[key]] = self._by_turns(sequence, partial(self._saved, batch))
            finally:
                self._use()
        return self._saved_bytes[key]

    def _use(self, attention: str = "eager", experts: str = "batched_mm") -> None:
        """Chooses how attention and experts run: by default as plain products, which all are
        counted.
        """
        for config in (getattr(module, "config", None) for module in self.net.modules()):
            if config is not None and hasattr(config, "_attn_implementation"):
                config._attn_implementation, config._experts_implementation = attention, experts

    def _saved(self, batch: int, sequence: Lengths) -> tuple[int, ...]:
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: Tensor) -> Tensor:
            if (storage := tensor.untyped_storage())._cdata not in held:
                kept.setdefault(storage._cdata, storage)
            return tensor

        @contextmanager
        def of_a_layer() -> Iterator[list[int]]:
            figures, before = [0], {*kept}
            yield figures
            figures[0] = sum(storage.nbytes() for key, storage in kept.items() if key not in before)

        with self._running(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            tokens = length("tokens", sequence)
            given = inputs_of(self.net, batch, {"source": tokens, "tokens": tokens})
            others = (*self.net.parameters(), *self.net.buffers(), *given.values())
            held = {each.untyped_storage()._cdata for each in others}
            with each_kind_once(self.net, of_a_layer) as skipped:
                first = next(numbers_in(self._outputs(batch, sequence, **given)))
        kept.pop(first.untyped_storage()._cdata, None)
        of_skipped = sum(int(figures[0]) for figures in skipped)
        return (sum(storage.nbytes() for storage in kept.values()) + of_skipped,)

    def cached(self, context: Lengths) -> int:
        """Elements that the library's own cache keeps of one sequence.

        Of a long one they follow from two short runs: each tensor of the cache is constant, or
        grows with the tokens, up to its window.
        """
        tokens, source = (
            length("tokens", context),
            length("source", {"source": 0} | _mapping(context)),
        )
        short, longer = SHORT_CONTEXTS
        if max(tokens, source) <= longer:
            return sum(size for size, _ in self._cached(tokens, source))
        at_short = self._cached(short, short)
        by_tokens, by_source = self._cached(longer, short), at_short
        if getattr(self.net.config, "is_encoder_decoder", False):
            by_source = self._cached(short, longer)
        total = 0
        for (size, window), (more, _), (sourced, _) in zip(
            at_short, by_tokens, by_source, strict=True
        ):
            if window and more > size:
                total += size // min(short, window) * min(tokens, window)
                continue
            total += size + (more - size) // (longer - short) * (tokens - short)
            total += (sourced - size) // (longer - short) * (source - short)
        return total

    def _cached(self, tokens: int, source: int) -> list[tuple[int, int]]:
        """Elements of each tensor of the cache after so many tokens, and its window's tokens."""
        with self._running(), torch.no_grad():
            out = self._outputs(1, {"source": source, "tokens": tokens}, use_cache=True)
        found = []
        for layer in _cache_layers(out.get("past_key_values", out.get("cache_params"))):
            window = getattr(layer, "sliding_window", None) or 0
            found += [(each.numel(), max(window - 1, 0)) for each in numbers_in(layer)]
        return found

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Fake tensors, and errors that say which model does not run on them."""
        # Would read values.
        packed = "transformers.masking_utils.find_packed_sequence_indices"
        try:
            with (
                mock.patch(packed, return_value=None, create=True),
                self._fake,
                torch.device("cpu"),
                silenced(),
            ):
                yield
        except Exception as error:
            raise ValueError(
                "FLOPs and activations of this model are unknown: "
                f"{self.name} does not run on tensors without values, "
                f"{type(error).__name__}: {error}; its parameters are known"
            ) from error
        finally:
            self.net.zero_grad()

    def _outputs(self, batch: int, sequence: Lengths, **options: Any) -> Any:
        text: Any = getattr(self.net.config, "get_text_config", lambda: self.net.config)()
        caching = {"use_cache": False} if hasattr(text, "use_cache") else {}
        return self.net(**inputs_of(self.net, batch, sequence) | caching | options)


def _mapping(context: Lengths) -> dict[str, int]:
    return dict(context) if isinstance(context, Mapping) else {"tokens": context}


def _cache_layers(cache: Any) -> list[Any]:
    """The layers of a cache of transformers, those of both caches of an encoder and a decoder."""
    if hasattr(cache, "cross_attention_cache"):
        return [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
    return list(getattr(cache, "layers", [cache]))


def _extrapolated(at: Sequence[int], turns: int) -> int:
    """The polynomial of degree 2 through the values at one to three turns, in integers.

    >>> _extrapolated([3 * n * n + n for n in (1, 2, 3)], 1000)
    3001000
    """
    first, second = at[1] - at[0], at[2] - 2 * at[1] + at[0]
    return at[0] + (turns - 1) * first + (turns - 1) * (turns - 2) * second // 2


@dataclass(frozen=True)
class CountedProducts(Part):
    """The FLOPs of a counted model beyond those of its linear maps, so that both add up to the
    count.
    """

    run: Run

    def forward_flops(self, batch: int, sequence: Lengths, pairs: str) -> int:
        return self._step(batch, sequence, pairs).forward - models.forward_flops(
            self.run.parts, batch, sequence
        )

    def backward_flops(
        self,
        batch: int,
        sequence: Lengths,
        pairs: str,
        _convention: str,
    ) -> int:
        return self._step(batch, sequence, pairs).backward - models.backward_flops(
            self.run.parts, batch, sequence
        )

    def decoding_flops(self, *_: Any) -> int:
        raise ValueError(f"the FLOPs of one further token are unknown of {self.run.name}")

    def cached_elements(self, context: Lengths, _latents: bool) -> int:
        return self.run.cached(context)

    def _step(self, batch: int, sequence: Lengths, pairs: str) -> StepFlops:
        if pairs != "full":
            raise ValueError(
                f"pairs must be 'full' for {self.run.name}, whose masks are not read, got {pairs!r}"
            )
        return self.run.step(batch, sequence)


class FlashAttention(torch.autograd.Function):
    """Keeps what flash attention keeps, on any device: queries, keys, values, results, and a number
    per query.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, rows, _ = query.shape
        out = query.new_empty(batch, rows, heads, value.shape[-1])
        wide = torch.promote_types(query.dtype, torch.float32)
        ctx.save_for_backward(
            query, key, value, out, query.new_empty(batch, heads, rows, dtype=wide)
        )
        return out

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        return tuple(torch.zeros_like(each) for each in ctx.saved_tensors[:3])


def flash_attention(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    return FlashAttention.apply(query, key, value), None  # type: ignore[no-untyped-call]


@contextmanager
def silenced() -> Iterator[None]:
    """Within, transformers says nothing of its own."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
