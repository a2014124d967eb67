"""Calculates a training run on a napkin: `python -m examples.napkin`.

Only formulas are evaluated. Change the model, the tokens and the devices.
"""

from accounting import activations, devices, memory, models, planning
from accounting.models import Transformer

MODEL = Transformer(
    vocab_size=50_304,
    layers=24,
    dim=2048,
    heads=16,
    hidden=5632,
    kv_heads=8,
    gated=True,
    norm="rmsnorm",
)
TOKENS = 60 * 10**9
# The batch of each device.
BATCH = 4
SEQUENCE = 4096
DEVICE, COUNT, MFU = "NVIDIA H100 80GB HBM3", 8, 0.4
USD_PER_HOUR = 2.5


def lines() -> list[str]:
    parameters = models.parameter_count(MODEL)
    step = models.step_flops(MODEL, BATCH, SEQUENCE)
    rule = models.rule_flops("step", parameters, BATCH * SEQUENCE)
    state = memory.model_state(parameters, "adamw", "bf16-fp32-master")
    per_parameter = state.total / parameters
    kept = activations.activation_bytes(MODEL, BATCH, SEQUENCE, "bf16")
    peak = devices.peak_flop_per_s(DEVICE, "bf16")
    assert peak is not None, f"no bf16 peak on record for {DEVICE}"
    flops = step.model * TOKENS // (BATCH * SEQUENCE)
    days = planning.training_s(flops, COUNT, peak, MFU) / 86_400
    return [
        f"parameters          {parameters / 1e9:.2f} billion",
        f"FLOPs per step      {step.model:.3g}, by 6ND {rule:.3g}, {rule / step.model - 1:+.1%}",
        f"weights and state   {state.total / 2**30:.1f} GiB: {per_parameter:.0f} B per parameter",
        f"activations         {kept / 2**30:.1f} GiB at batch {BATCH} of {SEQUENCE}",
        f"training            {days:.1f} days on {COUNT} x {DEVICE} at an MFU of {MFU:.0%}",
        f"price               {planning.training_cost(days, COUNT, USD_PER_HOUR):,.0f} USD",
    ]


if __name__ == "__main__":
    print("\n".join(lines()))
