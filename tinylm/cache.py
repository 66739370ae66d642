"""The latent cache: what decoding keeps of the positions already read.

B batch, T new positions, S all positions so far, R `d_latent`, N layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tinylm.config import ModelConfig


class LatentCache:
    """Latents `c_kv` of every layer and position; made by the caller, filled by the model.

    R numbers a token and layer, against 2 D for a plain key/value cache. The tensor is allocated once, at the first
    write, for `n_slots + max_seq_len` positions, on the latents' device and in their dtype. It keeps values only: no
    gradient flows through it.
    """

    def __init__(self, config: ModelConfig, batch_size: int = 1) -> None:
        self._config = config
        self.batch_size = batch_size
        self.capacity = config.n_slots + config.max_seq_len
        self.length = 0
        self._latents_NBSR = torch.empty(config.n_layers, batch_size, 0, config.d_latent)

    @property
    def latents(self) -> Tensor:
        """The filled part, (N, B, length, R); a view."""
        return self._latents_NBSR[:, :, : self.length]

    @property
    def storage(self) -> Tensor:
        """The whole tensor, (N, B, capacity, R), `latents` its filled part; empty before the first write."""
        return self._latents_NBSR

    @property
    def nbytes(self) -> int:
        """Bytes of the filled part, measured on the tensor."""
        return self.latents.numel() * self._latents_NBSR.element_size()

    def write(self, layer: int, c_kv_BTR: Tensor) -> Tensor:
        """Store a layer's new latents behind the filled part; return all of that layer's, (B, S, R).

        `length` stays as it is until `advance`, so that every layer writes to the same positions.
        Raises ValueError when the positions don't fit.
        """
        end = self.length + c_kv_BTR.shape[1]
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions; {end} don't fit")
        if self._latents_NBSR.shape[2] == 0:
            n_layers, batch_size, _, d_latent = self._latents_NBSR.shape
            self._latents_NBSR = c_kv_BTR.new_empty(n_layers, batch_size, self.capacity, d_latent)
        self._latents_NBSR[layer, :, self.length : end] = c_kv_BTR.detach()
        return self._latents_NBSR[layer, :, :end]

    def advance(self, n_positions: int) -> None:
        """Count `n_positions` as filled, once every layer has written them."""
        self.length += n_positions

    def repeat(self, batch_size: int) -> LatentCache:
        """A new cache that holds each row `batch_size` times, so that a prefix is read once and continued often."""
        copy = LatentCache(self._config, self.batch_size * batch_size)
        copy._latents_NBSR = self._latents_NBSR.repeat_interleave(batch_size, dim=1)
        copy.length = self.length
        return copy
