"""Which lines training reads how often: those whose answers it knows less often than the others."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

KNOWN = 0.5
"""Nats a token. An answer with a lower loss counts as known, in proportion."""


class Known:
    """How well each line's answer was known when the line was read last.

    Source: Jiang et al., "Accelerating deep learning by focusing on the biggest losers" (2019); here the
    losses are those of the last reading, which cost nothing.
    """

    def __init__(self, n_lines: int, share: float) -> None:
        """A line with a perfectly known answer is read `share` times as often as one whose answer is not known."""
        self._share = share
        self._nats = torch.full((n_lines,), math.inf)
        self._epoch, self._at_its_start = -1, self._nats

    def note(self, rows: Tensor, nats_B: Tensor) -> None:
        """Keep the losses of these lines' answers, nats a token; nan for a line without an answer."""
        self._nats[rows] = nats_B.float()

    def readings(self, epoch: int, generator: torch.Generator) -> Tensor:
        """The lines of one epoch in a random order, as many as there are: some not at all, some twice or more.

        A line without an answer is read as often as the others are on average. An epoch that was begun stays the same,
        whatever was noted since.
        """
        if epoch != self._epoch:
            self._epoch, self._at_its_start = epoch, self._nats.clone()
        order = torch.randperm(len(self._nats), generator=generator)
        shares = (self._at_its_start[order].double() / KNOWN).clamp(self._share, 1)
        shares = shares.nan_to_num(float(shares.nanmean().nan_to_num(1.0)))
        ends = (shares.cumsum(0) * (len(order) / shares.sum())).round().long()
        rows = order.repeat_interleave(ends.diff(prepend=ends.new_zeros(1)))
        return rows[torch.randperm(len(rows), generator=generator)]

    def state_dict(self) -> dict[str, Any]:
        """What a run that was stopped needs to go on with the same lines."""
        return {"nats": self._nats, "epoch": self._epoch, "at_its_start": self._at_its_start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`. Raises KeyError or ValueError if it is not one of as many lines."""
        nats, epoch, at_its_start = (state[key] for key in ("nats", "epoch", "at_its_start"))
        if not nats.shape == at_its_start.shape == self._nats.shape:
            raise ValueError(f"the state knows {len(nats)} lines, there are {len(self._nats)}")
        self._nats, self._epoch, self._at_its_start = nats.cpu(), epoch, at_its_start.cpu()
