"""The figures of the three models' pages, worked out by hand."""

from accounting.models import Transformer, backward_flops, forward_flops, parameter_count
from meta_tests.user_models import gpt, own
from prooflops.model import flop_difference

GPT = Transformer(
    vocab_size=gpt.VOCABULARY,
    layers=gpt.LAYERS,
    dim=gpt.WIDTH,
    heads=gpt.HEADS,
    hidden=4 * gpt.WIDTH,
    learned_positions=gpt.POSITIONS,
    tied_embedding=True,
    norm_bias=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
)
GPT_TOKENS = gpt.BATCH * gpt.LENGTH

# The weights of two convolutions (outputs · inputs · kernel), which meet 4 images at each position.
FIRST_WEIGHTS, SECOND_WEIGHTS = 8 * 3 * 9, 16 * 8 * 9
CONVOLVED_WEIGHTS = FIRST_WEIGHTS + SECOND_WEIGHTS
CONVNET_FIRST_FLOPS = 2 * 4 * 16 * 16 * FIRST_WEIGHTS
CONVOLVED_FLOPS = 2 * 4 * 16 * 16 * CONVOLVED_WEIGHTS
CONVNET_NORMS = 2 * (8 + 16)

OWN_EXAMPLES, OWN_INPUTS, OWN_OUTPUTS, OWN_IDLE_OUTPUTS = 8, 16, 4, 8
OWN_FIRST_FLOPS = 2 * OWN_EXAMPLES * OWN_INPUTS * own.WIDTH
OWN_HEAD_FLOPS = 2 * OWN_EXAMPLES * own.WIDTH * OWN_OUTPUTS
# One (width, width) matrix multiplies all examples once.
OWN_SQUARE_FLOPS = 2 * OWN_EXAMPLES * own.WIDTH * own.WIDTH
OWN_PARAMETERS = (16 + 1 + 2 * (32 + 1) + 2 * 32 + 1) * 32 + (32 * 8 + 8) + (32 * 4 + 4)

PARAMETERS = {
    "convnet": CONVOLVED_WEIGHTS + CONVNET_NORMS + 16 * 10 + 10,
    "gpt": parameter_count(GPT),
    "own": OWN_PARAMETERS,
}
TOKENS = {
    "convnet": (4, "examples"),
    "gpt": (GPT_TOKENS, "tokens"),
    "own": (OWN_EXAMPLES, "examples"),
}
# The shared matrix is used three times, the frozen one once, and each expert by half the examples.
OWN_SQUARES = 3 + 1 + 1
FORWARD = {
    "convnet": CONVOLVED_FLOPS + 2 * 4 * 16 * 10,
    "gpt": forward_flops(GPT, gpt.BATCH, gpt.LENGTH),
    "own": OWN_FIRST_FLOPS + OWN_SQUARES * OWN_SQUARE_FLOPS + OWN_HEAD_FLOPS,
}
BACKWARD = {
    "convnet": 2 * FORWARD["convnet"] - CONVNET_FIRST_FLOPS,
    "gpt": backward_flops(GPT, gpt.BATCH, gpt.LENGTH),
    "own": 2 * FORWARD["own"] - OWN_FIRST_FLOPS - OWN_SQUARE_FLOPS,
}

# The rule of thumb counts a product also for parameters that are vectors, and none for attention.
GPT_VECTORS = gpt.LAYERS * ((3 + 1 + 4 + 1) + 4) * gpt.WIDTH + 2 * gpt.WIDTH
GPT_ATTENTION = gpt.LAYERS * 2 * 2 * gpt.BATCH * gpt.LENGTH**2 * gpt.WIDTH
# Three biases and the scale are as long as the width; the head has a bias, too.
OWN_VECTORS = (3 + 1) * own.WIDTH + OWN_OUTPUTS
OWN_IDLE = own.WIDTH * OWN_IDLE_OUTPUTS + OWN_IDLE_OUTPUTS


def both_passes(forward):
    """A difference in the forward pass, and twice as much in the backward pass."""
    return forward, 2 * forward


# Each reason makes the rule exceed the counted FLOPs by this much, forward and backward.
PARTS = {
    "convnet": {
        flop_difference.CONVOLVED: both_passes(2 * 4 * CONVOLVED_WEIGHTS - CONVOLVED_FLOPS),
        flop_difference.ELEMENTWISE: both_passes(2 * 4 * (CONVNET_NORMS + 10)),
        flop_difference.INPUT_GRADIENT: (0, CONVNET_FIRST_FLOPS),
    },
    "gpt": {
        flop_difference.LOOKED_UP: both_passes(2 * GPT_TOKENS * gpt.POSITIONS * gpt.WIDTH),
        flop_difference.ELEMENTWISE: both_passes(2 * GPT_TOKENS * GPT_VECTORS),
        flop_difference.ACTIVATIONS: both_passes(-GPT_ATTENTION),
    },
    "own": {
        flop_difference.ELEMENTWISE: both_passes(2 * OWN_EXAMPLES * OWN_VECTORS),
        flop_difference.SHARED: both_passes(-2 * OWN_SQUARE_FLOPS),
        flop_difference.PARTLY_USED: both_passes(OWN_SQUARE_FLOPS),
        flop_difference.UNUSED: both_passes(2 * OWN_EXAMPLES * OWN_IDLE),
        flop_difference.FROZEN: (0, OWN_SQUARE_FLOPS),
        flop_difference.INPUT_GRADIENT: (0, OWN_FIRST_FLOPS),
    },
}

# SGD with momentum keeps a buffer; AdamW and Adam keep two, and a count of 4 bytes per tensor that
# gets a gradient.
OWN_TRAINED = OWN_PARAMETERS - 33 * 32
OWN_WITH_GRADIENT = OWN_TRAINED - OWN_IDLE
STATE_BYTES = {
    "convnet": 4 * PARAMETERS["convnet"],
    "gpt": 8 * PARAMETERS["gpt"] + 4 * (2 + gpt.LAYERS * 12 + 2),
    "own": 8 * OWN_WITH_GRADIENT + 4 * 9,
}
GRADIENT_BYTES = {
    "convnet": 4 * PARAMETERS["convnet"],
    "gpt": 4 * PARAMETERS["gpt"],
    "own": 4 * OWN_WITH_GRADIENT,
}
