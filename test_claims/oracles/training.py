"""A training run with every kind of state there is, saved and restored part by part."""

import io
import random
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

# State beyond model and optimizer that changes from step to step: a run that uses it must save it.
KINDS = ("step", "scheduler", "scaler", "data", "torch", "numpy", "python")
EXAMPLES = 40
BATCH = 8
WIDTH = 6
STEPS = 3


def kinds_on(device):
    """The kinds of state on this device: an accelerator has a random generator of its own."""
    return KINDS if device.type == "cpu" else (*KINDS, "accelerator")


class Training:
    """A regression in which only the `kinds` asked for change from step to step.

    step: the loss is weighted with a ramp over the steps. scheduler: the rate falls. scaler: fp16
    with a loss scale that begins too high, grows and is cut. data: shuffled batches, else the whole
    set. torch, numpy, python: noise drawn from the process's generators. Dropout draws from the
    generator of the device. The net has buffers, and the optimizer two groups of parameters.
    """

    def __init__(
        self,
        device,
        kinds=(),
        optimizer=torch.optim.AdamW,
        seed=0,
    ):
        self.device = device
        self.kinds = frozenset(kinds)
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - data pipelines draw from the global generator
        random.seed(seed)
        # The same data, whatever the seed of the run.
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(EXAMPLES, WIDTH, generator=generator)
        self.y = self.x.square().mean(dim=1, keepdim=True)
        dropping = ("torch" if device.type == "cpu" else "accelerator") in self.kinds
        layers = (
            nn.Linear(WIDTH, 8),
            nn.BatchNorm1d(8),
            nn.Tanh(),
            nn.Dropout(0.3 if dropping else 0.0),
            nn.Linear(8, 1),
        )
        self.net = nn.Sequential(*layers).to(device)
        vectors = [parameter for parameter in self.net.parameters() if parameter.dim() == 1]
        matrices = [parameter for parameter in self.net.parameters() if parameter.dim() > 1]
        # Two groups, as weight decay for matrices alone makes them.
        groups = [{"params": matrices}, {"params": vectors, "lr": 0.01}]
        self.optimizer = optimizer(groups, lr=0.02)
        # Not ExponentialLR: its state is the rate alone, which is saved with the optimizer.
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=20)
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=2.0**18, growth_interval=3, enabled="scaler" in self.kinds
        )
        self.steps = 0
        self.shuffler = generator
        self.order = []

    @property
    def parts(self):
        """By name: functions that read and restore each part of the state of this run."""
        rest = {
            "step": (lambda: self.steps, lambda steps: setattr(self, "steps", steps)),
            "scheduler": (self.scheduler.state_dict, self.scheduler.load_state_dict),
            "scaler": (self.scaler.state_dict, self.scaler.load_state_dict),
            "data": (lambda: (self.shuffler.get_state(), self.order), self.go_on_in_the_data),
            "torch": (torch.get_rng_state, torch.set_rng_state),
            "numpy": (np.random.get_state, np.random.set_state),
            "python": (random.getstate, random.setstate),
            "accelerator": (
                lambda: getattr(torch, self.device.type).get_rng_state(),
                lambda state: getattr(torch, self.device.type).set_rng_state(state),
            ),
        }
        return {
            "model": (self.net.state_dict, self.net.load_state_dict),
            "optimizer": (self.optimizer.state_dict, self.optimizer.load_state_dict),
            **{kind: part for kind, part in rest.items() if kind in self.kinds},
        }

    def go_on_in_the_data(self, place):
        state, self.order = place
        self.shuffler.set_state(state)

    def saved(self):
        """A checkpoint of all parts, as torch.save writes it."""
        file = io.BytesIO()
        torch.save({name: read() for name, (read, _) in self.parts.items()}, file)
        return file.getvalue()

    def restored(self, checkpoint, names):
        """This run, continued from the named parts of a checkpoint."""
        # Generators' states live on the host; load_state_dict moves the rest to the parameters.
        saved = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=False)
        for name in names:
            self.parts[name][1](saved[name])
        return self

    def batch(self):
        if "data" not in self.kinds:
            return self.x, self.y
        if not self.order:
            self.order = torch.randperm(EXAMPLES, generator=self.shuffler).tolist()
        rows = self.order[:BATCH]
        self.order = self.order[BATCH:]
        return self.x[rows], self.y[rows]

    def step(self):
        """One training step; its loss."""
        x, y = self.batch()
        if "torch" in self.kinds:
            # Normal numbers are drawn in pairs, so the state may hold the second of one.
            x = x + 0.1 * torch.randn(x.shape) + 0.1 * torch.randn(1)
        if "numpy" in self.kinds:
            noise = np.random.normal(0.0, 0.1, x.shape)  # noqa: NPY002 - the global one
            x = x + torch.from_numpy(noise).float()
        if "python" in self.kinds:
            x = x * random.uniform(0.9, 1.1)
        with torch.autocast(self.device.type, torch.float16, enabled=self.scaler.is_enabled()):
            output = self.net(x.to(self.device))
        loss = (output.float() - y.to(self.device)).square().mean()
        if "step" in self.kinds:
            loss = loss * min(1.0, (self.steps + 1) / 20)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        scale = self.scaler.get_scale()
        self.scaler.update()
        self.steps += 1
        stepped = self.scaler.get_scale() >= scale
        if stepped and "scheduler" in self.kinds:
            self.scheduler.step()
        return loss.item()

    def losses(self, steps):
        """The losses of the next `steps` steps."""
        return [self.step() for _ in range(steps)]

    def weights(self):
        """All parameters and buffers, in a row."""
        held = [*self.net.parameters(), *self.net.buffers()]
        return torch.cat([each.detach().float().flatten() for each in held]).tolist()


@contextmanager
def generators_kept():
    """Leaves the global generators of torch, numpy and Python as they were."""
    ours = np.random.get_state()  # noqa: NPY002
    pythons = random.getstate()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            np.random.set_state(ours)  # noqa: NPY002
            random.setstate(pythons)


class Run(NamedTuple):
    """What a run leaves."""

    losses: list
    weights: list


def random_run(device, seed):
    """A short run with dropout, shuffled batches and noise."""
    kinds = [kind for kind in kinds_on(device) if kind not in ("scaler", "scheduler")]
    run = Training(device, kinds, seed=seed)
    return Run(run.losses(STEPS), run.weights())
