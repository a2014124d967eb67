"""The commands that run no test: plan, fits, report, compare."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accounting import models
from accounting.activations import DTYPES, activation_bytes
from accounting.checks import at_least_one, validated_choice
from accounting.devices import device_called, memory_bytes, peak_flop_per_s, usable_bytes
from accounting.fitting import MOST_DEVICES, ways
from accounting.formats import dtype_name
from accounting.memory import model_state
from accounting.models import Model, active_parameter_count, cache_bytes, parameter_count
from accounting.optimizers import OPTIMIZERS, RECIPES
from accounting.parallel import ZERO_SHARDS
from accounting.parts import Lengths, Parts
from accounting.planning import (
    SECONDS_PER_DAY,
    device_state,
    sustained_flop_per_s,
    training_s,
)
from accounting.units import amount, with_unit
from prooflops.families.config import content_of, decoder_of, presets
from prooflops.families.decoders import UnreadError
from prooflops_gate.console.tables import many

if TYPE_CHECKING:
    # A plan imports no torch.
    from prooflops.model.fits import FitRow

# Short names of presets.
KNOWN = {
    "gpt2": "openai-community/gpt2",
    "gpt2-xl": "openai-community/gpt2-xl",
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3-70b": "meta-llama/Meta-Llama-3-70B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
}
USUAL_SEQUENCE = 8192
USUAL_DEVICE = "H100 SXM"
# --tokens has no usual value.
EXAMPLE_TOKENS = 10**12
# The cards of --fits, unless --device names another.
CARDS = ("RTX 4090", "A100 SXM4 80GB", "H100 SXM5 80GB", "H200 SXM 141GB")
NEEDED = "torch and transformers 5 or later: pip install torch 'transformers>=5'"
# A label, its text, and the same figures for programs.
Lines = Iterator[tuple[str, str, dict[str, Any]]]
DESCRIPTION = """Commands that run no test: plans, predictions and pages.
For tests see `pytest --help`. COMMAND --help lists the options of a command."""
EXAMPLES = """examples:
  python -m prooflops plan llama-3-70b --devices 1024 --tokens 15T
  python -m prooflops plan path/to/config.json --device A100-SXM4-80GB --sequence 4096 --mfu 0.5
  python -m prooflops plan Qwen/Qwen3-8B --devices 8 --tokens 300B --json
  python -m prooflops fits meta-llama/Llama-3.2-1B --sequence 1024
  python -m prooflops report results/NAME.jsonl
  python -m prooflops compare /shared/records
"""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The parsed command line; figures are still text."""
    return command_line()[0].parse_args(words)


def command_line() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The main parser, and the parser of each command."""
    parser = argparse.ArgumentParser(
        prog="python -m prooflops",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plan = commands.add_parser(
        "plan", help="print FLOPs, days and memory of a training run, by formula"
    )
    add_model(plan, USUAL_DEVICE)
    add_run(plan)
    fits = commands.add_parser(
        "fits", help="predict the cards that a training step of a model fits on"
    )
    add_model(fits, ", ".join(CARDS))
    report = commands.add_parser("report", help="write the page of a run that `make evidence` kept")
    report.add_argument("file", help="NAME.jsonl; NAME.html and NAME.md are written beside it")
    compare = commands.add_parser(
        "compare", help="compare many runs on one page: machines, versions, bad nodes"
    )
    places = "folders or files of run records; the exit code is 1 if two runs show a machine as bad"
    compare.add_argument("records", nargs="+", help=places)
    folder = "folder of compare.html (default: %(default)s)"
    compare.add_argument("--report", default="reports", metavar="DIR", help=folder)
    return parser, commands.choices


def add_model(parser: argparse.ArgumentParser, usual: str) -> None:
    """Adds the model, its tokens and its device, by default the `usual` ones."""
    add = parser.add_argument
    known = f"{', '.join(KNOWN)}, {', '.join(presets())}"
    add("model", help=f"a config.json, its folder, a name that transformers finds, or: {known}")
    ignored = "ignore this key of the config, which must not change a size; repeatable"
    add("--ignore", action="append", default=[], metavar="KEY", help=ignored)
    add("--device", help=f"a card by its usual name, such as 'A100-SXM4-80GB' (default: {usual})")
    context = f"the model's context, at most {USUAL_SEQUENCE:,}"
    add("--sequence", help=f"tokens per sequence (default: {context})")
    add("--json", action="store_true", help="print the figures for programs")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds what a training run and its state depend on."""
    add = parser.add_argument
    recipe = f"dtypes of the model state: {', '.join(RECIPES)} (default: %(default)s)"
    add("--recipe", default="bf16-fp32-gradients-master", help=recipe)
    add("--optimizer", default="adamw", help="optimizer of the run (default: %(default)s)")
    add("--devices", default="1", help="number of devices (default: %(default)s)")
    add(
        "--tokens",
        help="tokens of the whole run, such as 15T or 300B (default: 1T, as an example)",
    )
    add("--batch", help="sequences per step (default: one for each device)")
    add("--mfu", type=float, default=0.4, help="MFU, a share of the peak (default: %(default)s)")
    add("--dtype", default="bf16", help="dtype of the products (default: %(default)s)")


def model_called(name: str, ignore: Sequence[str] = ()) -> tuple[Parts, Mapping[str, Any]]:
    """The model of a preset, a file or a name, and its config.

    It is the text model of a model that reads more.
    """
    config = config_called(name, ignore)
    try:
        return decoder_of(config), config
    except UnreadError as unread:
        return library(unread).from_config(config), config


def config_called(name: str, ignore: Sequence[str]) -> Mapping[str, Any]:
    """The config of a file, a preset, or a name in the local cache of transformers."""
    if Path(name).exists():
        return content_of(name, text_only=True, ignore=ignore)
    name = KNOWN.get(name.lower(), name)
    try:
        validated_choice("model", name, [*KNOWN, *presets()])
    except ValueError as unknown:
        try:
            config = library(unknown).cached_config(name)
        except OSError:
            wanted = "give the path of a config.json, or a name that transformers has in its cache"
            raise ValueError(f"{unknown}; or {wanted}") from None
        return content_of(config, text_only=True, ignore=ignore)
    return content_of(name, text_only=True, ignore=ignore)


def library(unread: ValueError) -> Any:
    """The module that builds models by transformers. Raises ValueError where that is missing."""
    try:
        import transformers  # noqa: F401

        from prooflops.counted import built
    except ImportError as error:
        raise ValueError(f"{unread}; other models need {NEEDED} ({error})") from None
    return built


def with_numbers(options: argparse.Namespace) -> argparse.Namespace:
    """The options with the numbers that figures such as 15T stand for.

    Raises ValueError for a figure or an optimizer that is impossible, used or not.
    """
    numbers = {
        name: at_least_one(name, amount(getattr(options, name), name))
        for name in ("devices", "tokens", "batch", "sequence")
        if getattr(options, name, None) is not None
    }
    if options.command == "plan":
        sustained_flop_per_s(1, 1.0, options.mfu)
        by_count = [name for name, row in OPTIMIZERS.items() if not row.needs_shapes]
        if options.optimizer.lower() not in by_count:
            validated_choice("optimizer", options.optimizer, by_count)
    return argparse.Namespace(**{**vars(options), **numbers})


def napkin(options: argparse.Namespace) -> Lines:
    """The lines of the answer. Raises ValueError, naming what is valid."""
    options = with_numbers(options)
    model, config = model_called(options.model, options.ignore)
    device = device_called(options.device or USUAL_DEVICE)
    contexts = [table.longest for table in model.other_parameters if table.longest]
    if stated := config.get("max_position_embeddings", config.get("n_positions")):
        contexts.append(stated)
    longest = min(contexts, default=USUAL_SEQUENCE)
    sequence = options.sequence or min(USUAL_SEQUENCE, longest)
    models.refuse_beyond_positions(model, streams(sequence))
    parameters, active = parameter_count(model), active_parameter_count(model)
    shown = f"{parameters:,}"
    if active < parameters:
        shown += f", of which a token uses {active:,}"
    yield "parameters", shown, {"parameters": parameters, "active_parameters": active}
    if options.command == "fits":
        cards = (device.label,) if options.device else CARDS
        yield from fitting(options.model, config, sequence, cards, longest)
        return
    yield from run(options, model, device, sequence, longest)
    yield from memory(options, model, sequence)
    yield from fitting_way(options, model, sequence, device)


def run(
    options: argparse.Namespace, model: Model, device: Any, sequence: int, longest: int
) -> Lines:
    """FLOPs of a step and of the run, and its days."""
    devices, tokens = options.devices, options.tokens or EXAMPLE_TOKENS
    batch = options.batch or devices
    # Masks of a counted model are not read.
    pairs = "full" if hasattr(model, "source") else "causal"
    step = models.step_flops(model, batch, streams(sequence), pairs=pairs).model
    shown = f"{many(batch, 'sequence')} of {sequence:,} tokens"
    if sequence < longest and not options.sequence:
        shown += f" (the model's context is {longest:,})"
    figures = {"batch": batch, "sequence": sequence, "context": longest, "step_flops": step}
    yield "a step", f"{shown}: {with_unit(step, 'FLOP')}", figures

    steps = -(-tokens // (batch * sequence))
    flops = steps * step
    rule = models.rule_flops("step", active_parameter_count(model), tokens) / flops
    said = f"{with_unit(flops, 'FLOP')} (6ND says {rule:.3f} times that)"
    if not options.tokens:
        said += "; 1T tokens are an example: name yours by --tokens"
    ran = {"steps": steps, "flops": flops, "rule_6nd": rule}
    yield "the run", f"{many(steps, 'step')}: {said}", ran

    peak = peak_flop_per_s(device, options.dtype)
    if peak is None:
        shown = f"unknown: no peak of {options.dtype} is on record for {device.label}"
        yield "time", shown, {"days": None}
        return
    days = training_s(flops, devices, peak, options.mfu) / SECONDS_PER_DAY
    shown = f"{devices:,} × {device.label} of {with_unit(peak, 'FLOP/s')}"
    yield "time", f"{days:,.1f} days at an MFU of {options.mfu:.0%} on {shown}", {"days": days}


def streams(sequence: int) -> Lengths:
    """A sequence of this length, for the decoder and for an encoder."""
    return {"source": sequence, "tokens": sequence}


def kept_dtype(dtype: str) -> str:
    """The dtype of what products keep: those in fewer bits keep their operands in bf16."""
    name = dtype_name(dtype)
    return name if name in DTYPES else {"tf32": "fp32"}.get(name, "bf16")


def memory(options: argparse.Namespace, model: Parts, sequence: int) -> Lines:
    """Memory of the model state, activations and cache."""
    state = model_state(parameter_count(model), options.optimizer, options.recipe)
    for part in ("parameters", "gradients", "state", "master"):
        number, name = getattr(state, part), "optimizer" if part == "state" else part
        yield f"memory: {name}", with_unit(number, "B"), {f"{part}_bytes": number}
    total, of_what = state.total, "without activations"
    kept = kept_dtype(options.dtype)
    try:
        saved = activation_bytes(model, 1, sequence, kept, fused_norms=True)
    except ValueError as error:
        yield "memory: activations", f"unknown: {error}", {"activation_bytes": None}
    else:
        shown = f"{with_unit(saved, 'B')} of one sequence in {kept}, nothing recomputed"
        yield "memory: activations", shown, {"activation_bytes": saved}
        total, of_what = total + saved, "of the model state and one sequence"
    shown = f"{with_unit(total, 'B')} {of_what}, on one device"
    yield "memory: total", shown, {"total_bytes": total}
    try:
        cached = cache_bytes(model, 1, sequence, options.dtype)
    except ValueError as error:
        yield "cache", f"unknown: {error}", {"cache_bytes": None}
    else:
        shown = f"{with_unit(cached, 'B')} of one sequence in generation"
        yield "cache", shown, {"cache_bytes": cached}


def fitting_way(options: argparse.Namespace, model: Parts, sequence: int, device: Any) -> Lines:
    """The lines `fits` of state and activations, and `fits with` the cheapest sufficient change."""
    usable, devices = usable_bytes(device), options.devices
    if usable is None:
        shown = f"unknown: the memory of {device.label} is not on record as one size"
        yield "fits", shown, {"device_bytes": None}
        return
    # Each device has its share of the sequences, at least one.
    batch = -(-(options.batch or devices) // devices)
    parameters = parameter_count(model)
    states = {}
    for stage in ZERO_SHARDS:
        state = device_state(parameters, devices, stage, options.optimizer, options.recipe)
        states[stage] = state.total
    figures: dict[str, Any] = {
        "device_bytes": memory_bytes(device),
        "usable_bytes": usable,
        "zero_state_bytes": states,
    }
    try:
        changed = ways(
            model, batch, sequence, kept_dtype(options.dtype), options.optimizer, options.recipe
        )
        as_it_is = next(changed)
    except ValueError as error:
        yield "fits", f"unknown: {error}", figures
        return
    both = itertools.chain([as_it_is], changed)
    found = next((way for way in both if way.total_bytes <= usable), None)
    figures["fits"] = found is as_it_is
    figures["fits_with"] = None if found is None else vars(found)
    held, offered = with_unit(as_it_is.total_bytes, "B"), with_unit(usable, "B")
    what = f"model state and a device's {many(batch, 'sequence')} need at least {held}"
    # The formula leaves out workspace and fragmentation.
    verdict = "perhaps" if found is as_it_is else "no"
    yield "fits", f"{verdict}: {what}, one {device.label} offers {offered}", figures
    if found is None:
        yield "fits with", f"no change suffices on up to {MOST_DEVICES:,} devices", {}
    elif found is not as_it_is:
        shown = f"{found}: at least {with_unit(found.total_bytes, 'B')} a device, by formula"
        yield "fits with", shown, {}


def fitting(
    name: str, config: Mapping[str, Any], sequence: int, cards: tuple[str, ...], longest: int
) -> Lines:
    """A line for each card: the largest batch and the longest sequence, or what makes one fit.

    They are predicted from transformers' net. Raises ValueError where that is not possible.
    """
    instead = f"`python -m prooflops plan {name} --device CARD` answers by formula"
    try:
        from prooflops.model.of_config import fits_of_config

        fits = fits_of_config(config, sequence, cards, longest=max(longest, sequence))
    except ImportError as error:
        raise ValueError(f"fits needs {NEEDED} ({error}); {instead}") from None
    if not fits.rows:
        raise ValueError(f"{'; '.join(fits.not_predicted)}; {instead}")
    yield "sequence", f"{sequence:,} tokens", {"sequence": sequence}
    for row in fits.rows:
        yield of_row(row)
    how = "two steps in bf16 with AdamW, nothing recomputed; not run on these cards"
    yield "predicted", "; ".join([how, *fits.not_predicted]), {}


def of_row(row: FitRow) -> tuple[str, str, dict[str, Any]]:
    """The line of one card."""
    fit = row.fit
    shown = f"{row.answer}; one sequence reserves {row.reserves} of {row.offers}"
    if fit.unknown:
        shown += f" (workspace not known: {', '.join(fit.unknown)})"
    figures = {
        "usable_bytes": fit.usable_bytes,
        "reserved_bytes": fit.reserved_bytes,
        "largest_batch": row.largest.get("batch"),
        "longest_sequence": row.largest.get("sequence"),
        "unknown": fit.unknown,
        "fits_with": None if row.remedy is None else vars(row.remedy),
    }
    return fit.card, shown, {fit.card: figures}


def written_report(path: Path) -> int:
    """Writes the pages of a kept run beside its file."""
    from prooflops.suite.evidence import page
    from prooflops.suite.evidence.file import EvidenceFile

    file = EvidenceFile(path)
    if not (path.is_file() and file.plan):
        raise ValueError(
            f"report {path}: no run is in it; `make evidence` writes results/NAME.jsonl"
        )
    page.write(file)
    print(f"report: {path.with_suffix('.html')}")
    return 0


def printed_figures(options: argparse.Namespace) -> int:
    """Prints what `plan` and `fits` answer."""
    lines = list(napkin(options))
    if options.json:
        figures = {"model": options.model, "device": options.device or USUAL_DEVICE}
        for _, _, more in lines:
            figures |= more
        print(json.dumps(figures, indent=1))
        return 0
    for label, text, _ in lines:
        print(f"{label:20}{text}")
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command; 2 where an option is not valid."""
    options = arguments(words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The output has characters that a terminal without UTF-8 lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if options.command == "report":
            return written_report(Path(options.file))
        if options.command == "compare":
            from prooflops.suite.fleet import command

            return command.run(options.records, Path(options.report))
        return printed_figures(options)
    except (ValueError, TypeError, OSError) as error:
        print(f"python -m prooflops: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
