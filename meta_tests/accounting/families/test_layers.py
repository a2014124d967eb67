"""What a layer of latents keeps."""

from accounting.families import latent_attention
from accounting.models import cache_bytes


def test_latents_are_what_is_cached_at_inference():
    layer = latent_attention(7168, 128, 1536, 512, 128, 64, 128)
    assert cache_bytes(layer, 1, 1000) == 2 * 1000 * (512 + 64)
