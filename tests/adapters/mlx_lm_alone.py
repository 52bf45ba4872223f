"""What the findings about `mlx_lm` share: the toy pair, loaded by `mlx_lm` itself. Nothing of this project is used."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import load_model

TOY = Path(__file__).parents[2] / "fixtures" / "toy"
PROMPT = [1, 2, 3]


def load(name):
    """A model of the toy pair: `target` or `draft`."""
    return load_model(TOY / name)[0]


def greedy(target, prompt, count):
    """Plain greedy decoding without a cache."""
    history = list(prompt)
    for _ in range(count):
        history.append(mx.argmax(target(mx.array([history]))[0, -1]).item())
    return history[len(prompt) :]
