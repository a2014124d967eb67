"""Napkin figures of a training run, by the formulas: `python -m accounting llama-3-70b --devices 1024 --tokens 15T`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accounting import models
from accounting.activations import DTYPES
from accounting.checks import at_least_one, validated_choice
from accounting.devices import Accelerator, device_called, memory_bytes, peak_flop_per_s
from accounting.families import from_config
from accounting.families.config import content_of, hub_cache, public_models
from accounting.formats import dtype_name
from accounting.memory import model_state
from accounting.models import Model, active_parameter_count, cache_bytes, parameter_count
from accounting.optimizers import OPTIMIZERS
from accounting.parallel import ZERO_SHARDS, Parallelism, device_activation_bytes
from accounting.planning import SECONDS_PER_DAY, device_state, fitting_plans, training_s
from accounting.units import amount, with_unit

KNOWN: dict[str, Model] = {
    "gpt2": models.GPT2_SMALL,
    "gpt2-xl": models.GPT2_XL,
    "llama-3-8b": models.LLAMA3_8B,
    "llama-3-70b": models.LLAMA3_70B,
    "mixtral-8x7b": models.MIXTRAL_8X7B,
}
USUAL_SEQUENCE = 8192
Lines = Iterator[tuple[str, str, dict[str, Any]]]  # label, text, and the same figures for programs
EXAMPLES = """examples:
  python -m accounting llama-3-70b --devices 1024 --tokens 15T
  python -m accounting path/to/config.json --device A100-SXM4-80GB --sequence 4096 --mfu 0.5
  python -m accounting Qwen/Qwen3-8B --devices 8 --tokens 300B --json
"""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The parsed command line; figures are still text."""
    parser = argparse.ArgumentParser(
        prog="python -m accounting",
        description="Napkin figures of a training run, by the formulas.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    public = f"one of {len(public_models())} released ones such as Qwen/Qwen3-8B"
    add(
        "model",
        help=f"{', '.join(KNOWN)}; {public}; a config.json, its folder; a name of the local Hugging Face cache",
    )
    add(
        "--ignore",
        action="append",
        default=[],
        metavar="KEY",
        help="a key of the config that changes no size",
    )
    add(
        "--device",
        default="H100 SXM",
        help="as you would call it: 'A100-SXM4-80GB' (default: %(default)s)",
    )
    add("--devices", default="1", help="how many (default: %(default)s)")
    add("--tokens", default="1T", help="of the whole run: 15T, 300B (default: %(default)s)")
    add("--batch", help="sequences a step (default: one for each device)")
    add(
        "--sequence",
        help=f"tokens of a sequence (default: the model's context, at most {USUAL_SEQUENCE:,})",
    )
    add("--mfu", type=float, default=0.4, help="share of the peak (default: %(default)s)")
    add("--dtype", default="bf16", help="of the products (default: %(default)s)")
    add(
        "--recipe",
        default="bf16-fp32-gradients-master",
        help="dtypes of the model state (default: %(default)s)",
    )
    add("--optimizer", default="adamw", help="default: %(default)s")
    add(
        "--wire", default="50G", help="bytes a second that a device can send (default: %(default)s)"
    )
    add("--json", action="store_true", help="print the figures for programs")
    return parser.parse_args(words)


def model_called(name: str, ignore: Sequence[str] = ()) -> tuple[Model, int | None]:
    """The model of a config, of text alone where it handles more, or one known by this name; and its context."""
    if name.lower() in KNOWN and not Path(name).exists():
        return KNOWN[name.lower()], None
    try:
        content = content_of(name, ignore=ignore)
    except FileNotFoundError:
        try:
            validated_choice("model", name, [*KNOWN, *public_models()])
        except ValueError as error:
            said = str(error).replace(
                ", ".join(public_models()), f"{len(public_models())} such as Qwen/Qwen3-8B"
            )
            cached = f"the name of a model whose config.json is in {hub_cache()}"
            raise ValueError(f"{said}; or give the path of a config.json, or {cached}") from None
    text = content.get("text_config", content)
    context = text.get("max_position_embeddings", text.get("n_positions"))
    return from_config(content, text_only=True), context


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 sequence, 2,048 sequences."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def count(name: str, figure: str) -> int:
    """The number, at least 1, that a figure such as 15T stands for."""
    return at_least_one(name, amount(figure, name))


def napkin(asked: argparse.Namespace) -> Lines:
    """The lines of the answer, each with its label and figures. Raises ValueError, naming what is valid."""
    (model, context), device = model_called(asked.model, asked.ignore), device_called(asked.device)
    learned = max((table.longest for table in model.other_parameters), default=0)
    longest = min(filter(None, (learned, context)), default=USUAL_SEQUENCE)
    devices, tokens = count("devices", asked.devices), count("tokens", asked.tokens)
    batch = count("batch", asked.batch or asked.devices)
    sequence = count("sequence", asked.sequence or str(min(USUAL_SEQUENCE, longest)))
    parameters, active = parameter_count(model), active_parameter_count(model)
    shown = f"{parameters:,}" + (
        f", of which a token meets {active:,}" if active < parameters else ""
    )
    yield "parameters", shown, {"parameters": parameters, "active_parameters": active}
    # An encoder is given as many tokens as the decoder.
    pairs = (
        "full" if hasattr(model, "source") else "causal"
    )  # of a counted model masks are not read
    step = models.step_flops(
        model, batch, {"source": sequence, "tokens": sequence}, pairs=pairs
    ).model
    steps = -(-tokens // (batch * sequence))
    of_more = (
        f" (the model's context is {longest:,})"
        if sequence < longest and not asked.sequence
        else ""
    )
    shown = (
        f"{counted(batch, 'sequence')} of {sequence:,} tokens{of_more}: {with_unit(step, 'FLOP')}"
    )
    yield (
        "a step",
        shown,
        {"batch": batch, "sequence": sequence, "context": longest, "step_flops": step},
    )
    rule = models.rule_flops("step", active, tokens) / (steps * step)
    shown = f"{counted(steps, 'step')}: {with_unit(steps * step, 'FLOP')} (6ND says {rule:.3f} times that)"
    yield "the run", shown, {"steps": steps, "flops": steps * step, "rule_6nd": rule}
    peak = peak_flop_per_s(device, asked.dtype)
    if peak is None:
        yield (
            "time",
            f"unknown: no peak of {asked.dtype} is on record for {device.label}",
            {"days": None},
        )
    else:
        days = training_s(steps * step, devices, peak, asked.mfu) / SECONDS_PER_DAY
        shown = f"{devices:,} × {device.label} of {with_unit(peak, 'FLOP/s')}"
        yield "time", f"{days:,.1f} days at an MFU of {asked.mfu:.0%} on {shown}", {"days": days}
    yield from held(asked, model, sequence)
    yield from fitting(asked, model, device, devices, batch, sequence)


def held(asked: argparse.Namespace, model: Model, sequence: int) -> Lines:
    """Memory of the model state, activations and cache."""
    by_count = [
        name for name, row in OPTIMIZERS.items() if not row.factored
    ]  # others need the shapes of all tensors
    if asked.optimizer.lower() not in by_count:
        validated_choice("optimizer", asked.optimizer, by_count)
    state = model_state(parameter_count(model), asked.optimizer, asked.recipe)
    for part in ("parameters", "gradients", "state", "master"):
        yield (
            f"memory: {part}",
            with_unit(getattr(state, part), "B"),
            {f"{part}_bytes": getattr(state, part)},
        )
    total, of_what = state.total, "without activations"
    dtype = dtype_name(asked.dtype)
    kept = (
        dtype if dtype in DTYPES else {"tf32": "fp32"}.get(dtype, "bf16")
    )  # products in fewer bits keep as many
    try:
        saved = device_activation_bytes(model, Parallelism(), 1, sequence, kept)
    except ValueError as error:
        yield "memory: activations", f"unknown: {error}", {"activation_bytes": None}
    else:
        shown = f"{with_unit(saved, 'B')} of one sequence in {kept}, nothing recomputed"
        yield "memory: activations", shown, {"activation_bytes": saved}
        total, of_what = total + saved, "of the state and one sequence"
    yield (
        "memory: total",
        f"{with_unit(total, 'B')} {of_what}, on one device",
        {"total_bytes": total},
    )
    cached = cache_bytes(model, 1, {"source": sequence, "tokens": sequence}, asked.dtype)
    yield (
        "cache",
        f"{with_unit(cached, 'B')} of one sequence in generation",
        {"cache_bytes": cached},
    )


def fitting(
    asked: argparse.Namespace,
    model: Model,
    device: Accelerator,
    devices: int,
    batch: int,
    sequence: int,
) -> Lines:
    """Which shards of the model state fit, and the fastest way to split a step."""
    memory, peak = memory_bytes(device), peak_flop_per_s(device, asked.dtype)
    if memory is None:
        yield (
            "fits",
            f"unknown: the memory of {device.label} is not on record as one size",
            {"device_bytes": None},
        )
        return
    shards = {
        stage: device_state(
            parameter_count(model), devices, stage, asked.optimizer, asked.recipe
        ).total
        for stage in ZERO_SHARDS
    }
    alike = len({*shards.values()}) == 1
    for stage, each in [*shards.items()][: 1 if alike else None]:
        label = f"ZeRO stage {stage} to {max(shards)}" if alike else f"ZeRO stage {stage}"
        fits = "fits" if each <= memory else "does not fit"
        shown = f"{with_unit(each, 'B')} of state a device: {fits} into {with_unit(memory, 'B')}"
        yield label, shown, {"device_bytes": memory, "zero_state_bytes": shards}
    if peak is None:
        yield "fastest", f"unknown: no peak of {asked.dtype} is on record", {"fastest": None}
        return
    options: dict[str, Any] = {
        "memory_bytes": memory,
        "peak_flop_per_s": peak,
        "wire_bytes_per_s": amount(asked.wire, "wire"),
    }
    options |= {"recipe": asked.recipe, "optimizer": asked.optimizer}
    try:
        plans = fitting_plans(model, devices, batch, sequence, **options)
    except (
        ValueError
    ) as error:  # of an encoder's length, or of a net that does not run without values
        yield "fastest", f"unknown: {error}", {"fastest": None}
        return
    if not plans:
        shown = (
            "no way to split a step fits, with one sequence a micro-batch and nothing recomputed"
        )
        yield "fastest", shown, {"fastest": None}
        return
    best, split = plans[0], plans[0].split
    ways = f"data {split.data} · tensor {split.tensor} · context {split.context} · pipeline {split.pipeline}"
    ways += f", experts on {split.expert}" if split.expert > 1 else ""
    found = {
        "split": asdict(split),
        "held_bytes": best.held_bytes,
        "seconds": best.seconds,
        "bound": best.bound,
    }
    shown = f"{ways}, ZeRO stage {split.zero_stage}: {with_unit(best.held_bytes, 'B')} a device"
    yield "fastest", shown, {"fastest": found}
    fit = f"{counted(len(plans), 'way')} fit{'s' * (len(plans) == 1)}"
    yield (
        "",
        f"at least {best.seconds:.3g} s a step, bound by {best.bound}; {fit}",
        {"plans": len(plans)},
    )


def main(words: Sequence[str] | None = None) -> int:
    """Prints the figures; 2 where something asked for is not valid."""
    asked = arguments(words)
    try:
        lines = list(napkin(asked))
        if asked.json:
            figures = {name: figure for *_, figures in lines for name, figure in figures.items()}
            print(json.dumps({"model": asked.model, "device": asked.device, **figures}, indent=1))
            return 0
        for label, text, _ in lines:
            print(f"{label:20}{text}")
    except (ValueError, TypeError, OSError) as error:
        print(f"python -m accounting: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
