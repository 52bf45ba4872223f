"""A short causal convolution over positions, and the state that it needs: the last TAPS - 1 inputs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TAPS = (0.5, 0.3, 0.2)
"""Weights of the input itself, of the one before it, and so on."""


def empty_tail(num_heads: int, head_dim: int) -> Floats:
    """The state before any input: zeros [n, TAPS - 1, d]."""
    return np.zeros((num_heads, len(TAPS) - 1, head_dim))


def convolve_next(tail: Floats, row: Floats) -> tuple[Floats, Floats]:
    """One more input [n, d] after a tail [n, TAPS - 1, d], oldest first: its output [n, d] and the tail behind it."""
    window = np.concatenate([tail, row[:, None]], axis=1)  # [n, TAPS, d]
    output: Floats = np.tensordot(window, np.array(TAPS[::-1]), axes=(1, 0))
    return output, window[:, 1:]


def convolve(rows: Floats) -> Floats:
    """All inputs [n, T, d] at once, without a state -> [n, T, d]."""
    mixed = np.zeros_like(rows)
    for lag, weight in enumerate(TAPS):
        mixed[:, lag:] += weight * rows[:, : rows.shape[1] - lag]
    return mixed


def tails(rows: Floats) -> Floats:
    """The state behind every one of T inputs [n, T, d], without stepping: [n, T, TAPS - 1, d]."""
    padded = np.concatenate([empty_tail(len(rows), rows.shape[2]), rows], axis=1)  # [n, T + TAPS - 1, d]
    views = [padded[:, 1 + lag : 1 + lag + rows.shape[1]] for lag in range(len(TAPS) - 1)]
    return np.stack(views, axis=2)
