"""Faults of quantisation: roundings off or free, gradients that stop, bytes not as said."""

from meta_tests.faults import fault


@fault("quant.minimal-loss", instead_of="torch.fake_quantize_per_channel_affine")
def the_scale_of_the_first_channel_serves_all(quantise, x, scales, *rest):
    return quantise(x, scales[:1].expand_as(scales).contiguous(), *rest)


@fault("quant.easier-than-training", instead_of="torch.fake_quantize_per_channel_affine")
def no_gradient_passes_through_a_rounding(quantise, x, *rest):
    return quantise(x.detach(), *rest) + 0 * x


@fault("quant.smaller", instead_of="accounting.formats.element_bits")
def int8_is_said_to_take_two_bytes(element_bits, name):
    return 16 if name == "int8" else element_bits(name)


@fault("quant.faster", instead_of="torch._weight_int8pack_mm")
def the_product_with_small_weights_writes_them_out(_, x, weight, scales):
    return (x.float() @ (weight.double() * scales[:, None]).float().T).to(x.dtype)
