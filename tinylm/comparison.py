"""The same prompt continued greedily in several ways, held against reading everything again for each token.

V vocabulary, P steps.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from tinylm import full_cache
from tinylm.cache import LatentCache
from tinylm.decoder import Decoder
from tinylm.full_cache import FullCache
from tinylm.generate import SHORT_PROMPT, prefill
from tinylm.model import TinyLM

Name = Literal["again", "latent", "folded", "full"]
N_TIMED = 20
"""Steps behind the prompt that are timed at least; a short text is run again until there are so many."""
N_ROUNDS = 3
"""Runs that are timed at least: in turn, so that what else the machine does falls on all ways alike."""


class Way(Protocol):
    """One way to read a text piece by piece; made for one text."""

    def read(self, ids: Sequence[int]) -> Tensor:
        """Read these ids behind what was read before; the logits (V,) after the last of them."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes kept of what was read, measured on the tensors."""
        ...


class Again:
    """Keeps nothing that was computed: reads the whole text for each token."""

    nbytes = 0

    def __init__(self, model: TinyLM, images: Tensor | None = None) -> None:
        self._model, self._images = model, images
        self._ids: list[int] = []

    def read(self, ids: Sequence[int]) -> Tensor:
        """The model's own answer without a cache."""
        self._ids += ids
        return self._model(_row(self._model, self._ids), self._images).logits[0, -1].cpu()


class Latent:
    """Keeps the latents and attends to them absorbed."""

    def __init__(self, model: TinyLM, images: Tensor | None = None) -> None:
        self._model, self._images = model, images
        self._cache = LatentCache(model.config)

    @property
    def nbytes(self) -> int:
        """Bytes in the latent cache."""
        return self._cache.nbytes

    def read(self, ids: Sequence[int]) -> Tensor:
        """The model's own decoding; the prompt is expanded."""
        images = self._images if self._cache.length == 0 else None
        return self._model(_row(self._model, ids), images, self._cache).logits[0, -1].cpu()


class Folded:
    """Keeps the latents too; a decoder with folded weights reads them, as `stream` has it."""

    def __init__(self, decoder: Decoder, model: TinyLM, images: Tensor | None = None) -> None:
        self._decoder, self._model, self._images = decoder, model, images
        self._cache = LatentCache(model.config)

    @property
    def nbytes(self) -> int:
        """Bytes in the latent cache."""
        return self._cache.nbytes

    def read(self, ids: Sequence[int]) -> Tensor:
        """The decoder's answer; images and long prompts are read by the model itself."""
        first = self._cache.length == 0
        if first and (self._images is not None or len(ids) > SHORT_PROMPT):
            return prefill(self._model, ids, self._cache, self._images).logits[0, -1]
        for token_id in ids:
            logits_V = self._decoder.read(token_id, self._cache)
        return logits_V


class Full:
    """Keeps every head's keys and values."""

    def __init__(self, model: TinyLM, images: Tensor | None = None) -> None:
        self._model, self._images = model, images
        self._cache = FullCache(model.config)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        return self._cache.nbytes

    def read(self, ids: Sequence[int]) -> Tensor:
        """Plain multi-head attention."""
        images = self._images if self._cache.length == 0 else None
        return full_cache.read(self._model, _row(self._model, ids), self._cache, images)[0, -1].cpu()


def ways(model: TinyLM, images: Tensor | None = None) -> dict[Name, Callable[[], Way]]:
    """Every way in which this model can be run, the reference first; `folded` only where the weights can be folded."""
    found: dict[Name, Callable[[], Way]] = {
        "again": lambda: Again(model, images),
        "latent": lambda: Latent(model, images),
    }
    decoder = Decoder.of(model)
    if decoder is not None:
        found["folded"] = lambda: Folded(decoder, model, images)
    found["full"] = lambda: Full(model, images)
    return found


class Trial(NamedTuple):
    """What one way did with the prompt."""

    token_ids: list[int]  # without the end mark
    logits_PV: Tensor  # that each step chose from, the one that ended the text too
    nbytes: int  # kept at the end


class Row(NamedTuple):
    """One way, held against the reference."""

    way: Name
    token_ids: list[int]
    same: bool  # the same tokens, and as many
    n_steps: int  # the one that ended the text too; the last one's token is not read
    n_compared: int  # steps whose logits were compared: those before which both had read the same tokens
    largest_difference: float  # of those logits; NaN if any of them is no number
    nbytes: int  # kept at the end, measured on the tensors
    ms_per_token: float | None  # median of the steps behind the prompt; None if there was none, or not timed yet


class Progress(NamedTuple):
    """Where a comparison stands."""

    rows: tuple[Row, ...]  # of the ways that have answered
    running: Name | Literal["times"] | None  # the way that answers now; then all are timed; None at the end


def compare(
    model: TinyLM,
    ids: Sequence[int],
    images: Tensor | None = None,
    max_new_tokens: int = 40,
    eos_id: int | None = None,
) -> Iterator[Progress]:
    """Run each way on the prompt, the first being what the others are held against; yields after every step.

    Once all have answered, which warms them up, they are timed. Takes `ids`, `images` and `eos_id` and ends as
    `stream` does at temperature 0. Raises ValueError as the model does, and unless there is a token to choose.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens} must be 1 or more")
    room = max(1, model.config.max_seq_len - len(ids) + 1)  # the last token needn't be read
    max_new_tokens = min(max_new_tokens, room)
    runnable = ways(model, images)
    rows: list[Row] = []
    reference: Trial | None = None
    for name, make in runnable.items():
        steps = trial(make(), ids, max_new_tokens, eos_id)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                done: Trial = end.value
                break
            yield Progress(tuple(rows), name)
        reference = reference or done
        rows.append(against(reference, done, name))
    seconds: dict[Name, list[float]] = {name: [] for name in runnable}
    n_behind = rows[0].n_steps - 1
    for _ in range(max(N_ROUNDS, math.ceil(N_TIMED / n_behind)) if n_behind else 0):
        for name, make in runnable.items():
            for taken in trial(make(), ids, max_new_tokens, eos_id):
                if taken is not None:
                    seconds[name].append(taken)
                yield Progress(tuple(rows), "times")
    medians = (1000 * statistics.median(taken) if taken else None for taken in seconds.values())
    yield Progress(tuple(row._replace(ms_per_token=ms) for row, ms in zip(rows, medians, strict=True)), None)


def trial(
    way: Way, ids: Sequence[int], max_new_tokens: int, eos_id: int | None
) -> Generator[float | None, None, Trial]:
    """Continue a prompt greedily; yields after every step, with the seconds that it took, None for the prompt's."""
    token_ids: list[int] = []
    logits: list[Tensor] = []
    unread = list(ids)
    while len(token_ids) < max_new_tokens:
        started = time.perf_counter()
        # Entered anew for every step: a generator must not leave it set in its caller's thread.
        with torch.inference_mode():
            logits_V = way.read(unread)
            token_id = int(logits_V.argmax())
        taken = time.perf_counter() - started
        yield taken if logits else None
        logits.append(logits_V)
        if token_id == eos_id:
            break
        token_ids.append(token_id)
        unread = [token_id]
    return Trial(token_ids, torch.stack(logits), way.nbytes)


def against(reference: Trial, found: Trial, name: Name) -> Row:
    """A way's row in the comparison."""
    n_equal = 0  # tokens that both chose alike before the first difference
    for one, other in zip(reference.token_ids, found.token_ids, strict=False):
        if one != other:
            break
        n_equal += 1
    n_compared = min(n_equal + 1, len(reference.logits_PV), len(found.logits_PV))
    differences_PV = (reference.logits_PV[:n_compared] - found.logits_PV[:n_compared]).abs()
    return Row(
        name,
        found.token_ids,
        found.token_ids == reference.token_ids,
        len(found.logits_PV),
        n_compared,
        float(differences_PV.max()),
        found.nbytes,
        None,
    )


def _row(model: TinyLM, ids: Sequence[int]) -> Tensor:
    return torch.tensor([list(ids)], device=model.head_bias.device)
