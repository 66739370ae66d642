"""Generation: prefill once, then decode a token at a time against the latent cache.

B batch, T positions, S image slots, D `d_model`, R `d_latent`, N layers, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tinylm.cache import LatentCache
from tinylm.decoder import Decoder
from tinylm.model import ModelOutput, TinyLM
from tinylm.moe import Routing

N_ALTERNATIVES = 10
SHORT_PROMPT = 4
"""Tokens up to which reading a prompt one by one, with folded weights, was measured to beat reading it whole."""
StopReason = Literal["eos", "length", "context"]


class Step(NamedTuple):
    """One generated token."""

    token_id: int
    logprob: float  # of the token, under the model itself: temperature 1, nothing cut off
    alternatives: list[tuple[int, float]]  # the likeliest ids with their probabilities, under the model itself
    routing: tuple[Routing, ...]  # of the positions read to choose it: the whole prompt first, then the last token
    cache_nbytes: int  # bytes in the latent cache when it was chosen
    latents_NTR: Tensor  # what the cache got for the positions read, in every layer


def sample(
    logits_V: Tensor,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> int:
    """Choose an id: the likeliest at temperature 0, else drawn after temperature, top-k and top-p, in that order.

    `top_k` None or 0 and `top_p` None or 1 cut nothing off; a `top_k` above V keeps all; `top_p` 0 keeps the
    likeliest alone. Raises ValueError on values that are not finite or out of range.
    """
    check_sampling(temperature, top_k, top_p)
    if temperature == 0:
        return int(logits_V.argmax())
    # Subtract the maximum first, so that a tiny temperature can't overflow.
    scaled_V = (logits_V.double() - logits_V.max()) / temperature
    if top_k and top_k < len(scaled_V):
        kept = scaled_V.topk(top_k)  # exactly k, also where logits are equal
        scaled_V = torch.full_like(scaled_V, float("-inf")).scatter(0, kept.indices, kept.values)
    probs_V = scaled_V.softmax(dim=-1)
    if top_p is not None and top_p < 1:
        ordered, order = probs_V.sort(descending=True, stable=True)
        # A token stays if those ahead of it hold less than top_p; the first always stays.
        cut = ordered.cumsum(dim=-1) - ordered >= top_p
        cut[0] = False
        probs_V[order[cut]] = 0
    return int(torch.multinomial(probs_V, 1, generator=generator))


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise ValueError, naming the value, unless the sampling settings make sense."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature={temperature} must be a finite number, 0 or more")
    if top_k is not None and top_k < 0:
        raise ValueError(f"top_k={top_k} must be 0 or more")
    if top_p is not None and not 0 <= top_p <= 1:
        raise ValueError(f"top_p={top_p} must be between 0 and 1")


def prefill(
    model: TinyLM,
    ids: Sequence[int],
    cache: LatentCache,
    images: Tensor | None = None,
    slots: Tensor | None = None,
) -> ModelOutput:
    """Read a whole prompt into an empty cache; the last position's logits choose the first token."""
    device = model.head_bias.device
    ids_BT = torch.tensor([list(ids)], dtype=torch.long, device=device)
    images, slots = (None if given is None else given.to(device) for given in (images, slots))
    return model(ids_BT, images, cache, slots)


def decode(model: TinyLM, token_id: int, cache: LatentCache) -> ModelOutput:
    """Read one more token behind the cache."""
    return model(torch.tensor([[token_id]], device=model.head_bias.device), cache=cache)


class Stream(Iterator[Step]):
    """Steps as they are generated; when they are over, `stopped` says why."""

    def __init__(self, steps: Generator[Step, None, StopReason]) -> None:
        self._steps = steps
        self.stopped: StopReason | None = None

    def __next__(self) -> Step:
        try:
            return next(self._steps)
        except StopIteration as end:
            self.stopped = end.value or self.stopped
            raise StopIteration from None

    def close(self) -> None:
        """End the generation here."""
        self._steps.close()


def stream(
    model: TinyLM,
    ids: Sequence[int],
    images: Tensor | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    eos_id: int | None = None,
    given: Sequence[int] = (),
    slots: Tensor | None = None,
) -> Stream:
    """Continue one prompt; each step comes as soon as it is known.

    `ids` is a sequence of ints, `images` None or (1, 3, size, size), or `slots` (1, S, D) in their place. Ends at
    `eos_id` (which is not yielded), after `max_new_tokens`, or when the context is full. The same `seed` gives the
    same tokens. On the CPU in float32 a `Decoder` reads all but images and long prompts, with the weights as they are
    when the first step is taken.

    The first tokens are those of `given`, whatever the model would choose; they count as new ones, and the random
    numbers go on behind them as if they had been drawn.

    Raises ValueError at once if the prompt is empty, longer than the context, or holds an id outside the vocabulary,
    and on bad sampling settings.
    """
    chosen = _begin(
        model, ids, images, max_new_tokens, temperature, top_k, top_p, seed, eos_id, given, slots, described=True
    )
    return Stream(_steps(chosen))


class Chosen(NamedTuple):
    """One generated token, before it is described."""

    token_id: int
    logits_V: Tensor
    routing: tuple[Routing, ...]  # () if it will not be described
    cache_nbytes: int
    latents_NTR: Tensor  # empty if it will not be described


def _begin(
    model: TinyLM,
    ids: Sequence[int],
    images: Tensor | None,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    eos_id: int | None,
    given: Sequence[int],
    slots: Tensor | None,
    described: bool,
) -> Generator[Chosen, None, StopReason]:
    """The tokens to come, with what describes them if that is asked for, once everything is known to make sense."""
    check_sampling(temperature, top_k, top_p)
    ids = [int(token_id) for token_id in ids]
    config = model.config
    if not ids:
        raise ValueError("the prompt has no tokens")
    if len(ids) > config.max_seq_len:
        raise ValueError(f"the prompt has {len(ids)} tokens; the context holds {config.max_seq_len}")
    given = [int(token_id) for token_id in given]
    outside = [token_id for token_id in (*ids, *given) if not 0 <= token_id < config.vocab_size]
    if outside:
        raise ValueError(f"token id {outside[0]} is outside the vocabulary of {config.vocab_size}")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must be 0 or more")
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return _tokens(
        model, ids, images, max_new_tokens, temperature, top_k, top_p, generator, eos_id, given, slots, described
    )


def _steps(chosen: Generator[Chosen, None, StopReason]) -> Generator[Step, None, StopReason]:
    while True:
        try:
            token = next(chosen)
        except StopIteration as end:
            return end.value
        with torch.inference_mode():
            step = _describe(token)
        yield step


def _tokens(
    model: TinyLM,
    ids: list[int],
    images: Tensor | None,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator,
    eos_id: int | None,
    given: list[int],
    slots: Tensor | None,
    described: bool,
) -> Generator[Chosen, None, StopReason]:
    if max_new_tokens == 0:
        return "length"
    cache = LatentCache(model.config)
    # inference_mode is entered anew for every step: a generator must not leave it set in its caller's thread.
    with torch.inference_mode():
        # Under autocast the latents have another type, and only the model itself can go on.
        decoder = None if max_new_tokens == 1 or torch.is_autocast_enabled("cpu") else Decoder.of(model)
        if decoder is not None and model.config.vision is None and images is None and len(ids) <= SHORT_PROMPT:
            logits_V, routings = _read_short(decoder, ids, cache, described)
        else:
            output = prefill(model, ids, cache, images, slots)
            logits_V, routings = output.logits[0, -1].cpu(), output.routings
    nbytes_per_position = cache.nbytes // cache.length
    n_read = 0
    for n_new in range(1, max_new_tokens + 1):
        with torch.inference_mode():
            token_id = sample(logits_V, temperature, top_k, top_p, generator)
            token_id = given[n_new - 1] if n_new <= len(given) else token_id
            if token_id == eos_id:
                return "eos"
            latents_NTR = cache.latents[:, 0, n_read:].clone() if described else logits_V[:0]
            n_read = cache.length
        yield Chosen(token_id, logits_V, routings, nbytes_per_position * cache.length, latents_NTR)
        if n_new == max_new_tokens:
            break
        if cache.length == cache.capacity:
            return "context"
        with torch.inference_mode():
            if decoder is not None:
                logits_V = decoder.read(token_id, cache)
                routings = decoder.routings() if described else ()
            else:
                output = decode(model, token_id, cache)
                logits_V, routings = output.logits[0, -1].cpu(), output.routings
    return "length"


def _read_short(
    decoder: Decoder, ids: list[int], cache: LatentCache, described: bool
) -> tuple[Tensor, tuple[Routing, ...]]:
    """What the prefill gives for a short prompt: the last position's logits, and the routing of all positions."""
    routings = []
    for token_id in ids:
        logits_V = decoder.read(token_id, cache)
        routings.append(decoder.routings() if described else ())
    layers = zip(*routings, strict=True)
    return logits_V, tuple(Routing(*map(torch.cat, zip(*layer, strict=True))) for layer in layers)


def _describe(token: Chosen) -> Step:
    logprobs_V = token.logits_V.log_softmax(dim=-1)
    top = logprobs_V.topk(min(N_ALTERNATIVES, len(logprobs_V)))
    ids = top.indices.tolist()
    alternatives = list(zip(ids, top.values.exp().tolist(), strict=True))
    logprob = logprobs_V[token.token_id].item()
    return Step(token.token_id, logprob, alternatives, token.routing, token.cache_nbytes, token.latents_NTR)


def generate(
    model: TinyLM,
    ids: Sequence[int],
    images: Tensor | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    eos_id: int | None = None,
) -> list[int]:
    """The new ids, without `eos_id`; see `stream`."""
    # No step is described: that takes a fifth of the time.
    chosen = _begin(
        model, ids, images, max_new_tokens, temperature, top_k, top_p, seed, eos_id, (), None, described=False
    )
    return [token.token_id for token in chosen]


@torch.inference_mode()
def greedy(
    model: TinyLM,
    ids_BT: Tensor,
    slots_BSD: Tensor | None = None,
    max_new_tokens: int = 64,
    eos_id: int | None = None,
) -> list[list[int]]:
    """Likeliest continuations of prompts of one length (B, T), decoded together; the new ids, without `eos_id`.

    A vision model gets each row's slots (B, S, D) in place of an image. Each row equals what `generate` gives for it
    alone. Raises ValueError if the prompts exceed the context, or on slots as the model does.
    """
    device = model.head_bias.device
    cache = LatentCache(model.config, len(ids_BT))
    logits_BTV = model(ids_BT.to(device), cache=cache, slots=slots_BSD).logits
    new: list[Tensor] = []
    ended_B = torch.zeros(len(ids_BT), dtype=torch.bool, device=device)
    for n_new in range(1, max_new_tokens + 1):
        next_B = logits_BTV[:, -1].argmax(dim=-1)
        new.append(next_B)
        if eos_id is not None:  # what an ended row says behind its end is cut off below
            ended_B = ended_B | (next_B == eos_id)
        if n_new == max_new_tokens or cache.length == cache.capacity or bool(ended_B.all()):
            break
        logits_BTV = model(next_B[:, None], cache=cache).logits
    rows = torch.stack(new, dim=1).tolist() if new else [[] for _ in ids_BT]
    return [row[: row.index(eos_id)] if eos_id in row else row for row in rows]
