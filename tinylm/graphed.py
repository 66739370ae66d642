"""CUDA graphs: work recorded once and replayed by one call, and a decoder whose every step is such a replay.

R `d_latent`, H heads, K = D/H head width, S all positions that the context holds, D `d_model`, V vocabulary, N layers.

The kernels of a tiny model are over sooner than the next one is launched. A graph launches all of them at once, but
always on the same memory: what changes between replays is written into tensors that stay where they are.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tinylm.attention import MultiHeadLatentAttention
from tinylm.cache import LatentCache
from tinylm.generate import prefill
from tinylm.model import Block, TinyLM
from tinylm.moe import FeedForward, MixtureOfExperts


def capture(work: Callable[[], None], pool: Any = None) -> Callable[[], None]:
    """`work` as a CUDA graph: what it did on the device, done again on the same tensors by one call.

    `work` runs once beforehand, which sets up the libraries that it calls, and then a second time without effect,
    to be recorded. Graphs that share a `pool` (`torch.cuda.graph_pool_handle()`) share the memory of what they make
    in between, and must not run at the same time. Raises RuntimeError if `work` waits for the device.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with _refusing_to_wait(), torch.cuda.stream(stream):
            work()
    finally:
        torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph.replay


@contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """Waiting for the device is an error, before anything is recorded: it would break a recording off in the middle."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def records(device: torch.device) -> bool:
    """Whether work on `device` can be captured."""
    return device.type == "cuda"


class GraphedDecoder:
    """Greedy decoding of one row with steps of fixed shapes: on CUDA one replay a token, and no waiting between them.

    The position is a tensor, and attention runs over the whole context with what lies ahead masked: a step costs the
    same at every position. Every expert of a mixture runs, since a graph can't choose. The model's own weights are
    read, so that writing to them in place shows at once; if they have moved, the step is recorded anew.
    """

    def __init__(self, model: TinyLM) -> None:
        """Room for one row of `model`, on its device and in its dtype. Only on CUDA is anything recorded."""
        self._model = model
        config, weight = model.config, model.head_bias
        self._n_slots, self._capacity = config.n_slots, config.n_slots + config.max_seq_len
        self._device = weight.device
        # Zeros, not what memory held before: a masked position still takes part, with weight 0.
        self._latents_NSR = weight.new_zeros(config.n_layers, self._capacity, config.d_latent)
        self._k_pos_S = torch.arange(self._capacity, device=weight.device)
        self._position_1 = self._k_pos_S[:1].clone()
        self._token_1 = self._k_pos_S[:1].clone()
        self._logits_V = weight.new_zeros(config.vocab_size, dtype=torch.float32)
        self._chosen_S = torch.zeros_like(self._k_pos_S)  # the likeliest token behind each position
        self._length = 0
        self._replay: Callable[[], None] | None = None
        self._places: list[int] = []

    @torch.inference_mode()
    def start(self, cache: LatentCache) -> None:
        """Go on behind a filled cache of one row; it is copied.

        Raises ValueError if it has more rows or is empty.
        """
        if cache.batch_size != 1 or cache.length == 0:
            raise ValueError(
                f"the cache has {cache.batch_size} rows of {cache.length} positions; one filled row goes in"
            )
        self._record()
        self._latents_NSR[:, : cache.length].copy_(cache.latents[:, 0])
        self._position_1.fill_(cache.length)
        self._length = cache.length

    @torch.inference_mode()
    def step(self, token_id: int) -> Tensor:
        """Read a token; the logits (V,), which the next step overwrites.

        Raises ValueError if the context is full or nothing was started, IndexError on an id outside the vocabulary.
        """
        if not 0 <= token_id < len(self._logits_V):
            raise IndexError(f"token id {token_id} is outside the vocabulary of {len(self._logits_V)}")
        self._token_1.fill_(token_id)
        self._advance()
        return self._logits_V

    @torch.inference_mode()
    def greedy(
        self, ids: Sequence[int], images: Tensor | None = None, max_new_tokens: int = 64, eos_id: int | None = None
    ) -> list[int]:
        """What `tinylm.generate` gives at temperature 0; the device is waited for once, at the end.

        So all `max_new_tokens` are made, also where `eos_id` comes sooner. Raises ValueError as the model does.
        """
        cache = LatentCache(self._model.config)
        output = prefill(self._model, ids, cache, images)
        if max_new_tokens < 1:
            return []
        self.start(cache)
        first, n_steps = self._length, min(max_new_tokens - 1, self._capacity - self._length)
        torch.argmax(output.logits[0, -1], dim=-1, keepdim=True, out=self._token_1)
        self._chosen_S[first - 1] = self._token_1[0]
        for _ in range(n_steps):
            self._advance()
        new = self._chosen_S[first - 1 : first + n_steps].tolist()
        return new[: new.index(eos_id)] if eos_id in new else new

    def _advance(self) -> None:
        """Read the token that lies ready; the likeliest next one then does."""
        if self._replay is None or self._length == 0:
            raise ValueError("nothing to go on from: call start first")
        if self._length == self._capacity:
            raise ValueError(f"the context of {self._capacity - self._n_slots} text positions is full")
        self._replay()
        self._length += 1

    def _record(self) -> None:
        """Make ready what a step calls, unless it is."""
        places = [parameter.data_ptr() for parameter in self._model.parameters()]
        if self._replay is None or places != self._places:
            if self._model.head_bias.device != self._device:
                raise ValueError(f"the model has moved from {self._device}; make a new decoder")
            self._position_1.fill_(0)
            self._replay = capture(self._work) if records(self._device) else self._work
            self._places = places

    @torch.inference_mode()
    def _work(self) -> None:
        """One step; everything that it reads and writes stays where it is."""
        model, position_1 = self._model, self._position_1
        h_1D = model.embed(self._token_1) + model.pos_embed((position_1 - self._n_slots).clamp_(min=0))
        ahead_S = self._k_pos_S > position_1
        for latents_SR, block in zip(self._latents_NSR.unbind(), model.blocks, strict=True):
            assert isinstance(block, Block)
            h_1D = h_1D + _attend(block.attention, block.norm1(h_1D), latents_SR, position_1, ahead_S)
            h_1D = h_1D + _feed_forward(block.ffn, block.norm2(h_1D))
        logits_1V = torch.nn.functional.linear(model.norm(h_1D), model.embed.weight, model.head_bias)
        self._logits_V.copy_(logits_1V[0])
        torch.argmax(self._logits_V, dim=-1, keepdim=True, out=self._token_1)
        self._chosen_S.index_copy_(0, position_1, self._token_1)
        position_1.add_(1)


def _attend(
    attention: MultiHeadLatentAttention, x_1D: Tensor, latents_SR: Tensor, position_1: Tensor, ahead_S: Tensor
) -> Tensor:
    """`MultiHeadLatentAttention.absorb` over the whole context, after the new latent is written."""
    heads, width = attention.n_heads, attention.d_head
    latents_SR.index_copy_(0, position_1, attention.w_dkv(x_1D))
    w_uk_HKR = attention.w_uk.weight.view(heads, width, -1)
    w_uv_HKR = attention.w_uv.weight.view(heads, width, -1)
    q_H1K = attention.w_q(x_1D).view(heads, 1, width)
    q_HR = (q_H1K @ w_uk_HKR).squeeze(1)
    scores_HS = (q_HR @ latents_SR.t() / math.sqrt(width)).masked_fill(ahead_S, float("-inf"))
    context_HR = scores_HS.softmax(dim=-1) @ latents_SR
    out_H1K = context_HR.unsqueeze(1) @ w_uv_HKR.transpose(1, 2)
    return attention.w_o(out_H1K.view(1, -1))


def _feed_forward(ffn: FeedForward | MixtureOfExperts, x_1D: Tensor) -> Tensor:
    """The layer's output; of a mixture every expert's, those not chosen with weight 0."""
    if isinstance(ffn, MixtureOfExperts):
        return ffn.by_weight(x_1D, ffn.router(x_1D))
    return ffn(x_1D)[0]
