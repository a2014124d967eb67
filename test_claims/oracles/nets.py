"""Small classifiers of the layers that people train: of rows, tokens and images."""

import torch
from torch import nn

from test_claims.strategies import with_dtype

CLASSES = 3


def of_rows(between):
    return nn.Sequential(nn.Linear(60, 80), between(80), nn.Tanh(), nn.Linear(80, CLASSES))


def of_tokens(between):
    """The tokens are the classes, and the head is tied to their embedding."""
    embedding, head = nn.Embedding(CLASSES, 8), nn.Linear(8, CLASSES)
    head.weight = embedding.weight
    attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True)
    return nn.Sequential(embedding, between(8), attention, head)


def of_images(between):
    filters = nn.Conv2d(2, 4, 2), between(4), nn.GroupNorm(2, 4), nn.GELU()
    return nn.Sequential(*filters, nn.Flatten(), nn.Linear(16, CLASSES))


# Nets, each with the shape of an example.
NETS = {"rows": (of_rows, (60,)), "tokens": (of_tokens, (4,)), "images": (of_images, (2, 3, 3))}


def net_and_batch(device, batch, kind="rows", between=nn.Identity, dtype=torch.float64):
    """A small classifier, and a batch for it with labels."""
    device = with_dtype(device, dtype)
    torch.manual_seed(0)
    build, shape = NETS[kind]
    net = build(between)
    labels = torch.randint(CLASSES, (batch, *shape) if kind == "tokens" else (batch,))
    x = labels.flip(0) if kind == "tokens" else torch.randn(batch, *shape, dtype=dtype)
    return net.to(device, dtype), x.to(device), labels.to(device)
