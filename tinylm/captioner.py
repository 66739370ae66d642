"""What a vision model says about a picture, how sure it is, and what of the picture it says it from.

B pictures, S image slots, D `d_model`, L labels, T positions, G labels whose captions have the same number of tokens.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from tinylm.cache import LatentCache
from tinylm.checkpoint import Run
from tinylm.data.flowers import CAPTION_PROMPT, caption
from tinylm.files import shown
from tinylm.generate import greedy
from tinylm.model import TinyLM
from tinylm.tokenizer import Tokenizer

MAX_CAPTION_TOKENS = 24
MAX_PICTURES = 256  # encoded or captioned together
MAX_CAPTIONS = 1024  # scored together: pictures times labels
GREY = 0.5


@dataclass(frozen=True)
class Captioner:
    """A vision model with the labels it knows.

    The model may be in training mode: pictures are encoded in evaluation mode, and the mode is put back. Results are
    on the CPU but for `slots`, which stay with the model. Raises ValueError if the model has no vision, if there are
    no labels or one whose caption is longer than the context, or if the temperature is not a number above 0.
    """

    model: TinyLM
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    temperature: float = 1.0  # the captions' log-likelihoods are divided by it (calibrated on validation)
    flower_threshold: float = 0.0  # least flower score of a picture that counts as a known flower

    def __post_init__(self) -> None:
        if self.model.config.vision is None:
            raise ValueError("this model has no vision; a captioner needs one that reads pictures")
        if not self.labels:
            raise ValueError("a captioner needs at least one label")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature={self.temperature} must be a finite number above 0")
        room = self.model.config.max_seq_len - len(self.tokenizer.encode(CAPTION_PROMPT))
        for columns_G, tails_GT in self._tails:
            if tails_GT.shape[1] - 1 > room:  # the last token is predicted, not read
                label = shown(self.labels[columns_G[0]])
                raise ValueError(f"the caption of the label {label} is longer than the model's context")

    @classmethod
    def of(cls, run: Run) -> Captioner:
        """The captioner of a run folder, from its `labels`, `flower_threshold` and `caption_temperature`.

        Without a temperature it is 1. Raises ValueError if one of the others is missing, and as the class does.
        """
        labels, threshold = run.info.get("labels"), run.info.get("flower_threshold")
        if not labels:
            raise ValueError("metrics.json names no labels")
        if threshold is None:
            raise ValueError("metrics.json names no flower_threshold")
        temperature = run.info.get("caption_temperature")
        return cls(
            run.model,
            run.tokenizer,
            tuple(labels),
            1.0 if temperature is None else float(temperature),
            float(threshold),
        )

    @torch.no_grad()
    def slots(self, images: Tensor) -> Tensor:
        """The slots (B, S, D) of images (B, 3, size, size). Raises ValueError on images of another shape."""
        vision, encoder = self.model.config.vision, self.model.encoder
        assert vision is not None and encoder is not None
        size = vision.image_size
        if images.dim() != 4 or images.shape[1:] != (3, size, size):
            raise ValueError(f"images must have shape (batch, 3, {size}, {size}), got {tuple(images.shape)}")
        was_training, device = encoder.training, self.model.head_bias.device
        encoder.eval()
        try:
            return torch.cat([encoder(part.to(device)) for part in images.split(MAX_PICTURES)])
        finally:
            encoder.train(was_training)

    def greedy(self, slots_BSD: Tensor) -> list[str]:
        """Whole greedy captions, the fixed beginning included."""
        ids_T = torch.tensor(self.tokenizer.encode(CAPTION_PROMPT))
        eos_id = self.tokenizer.eos_id
        texts = []
        for part_BSD in slots_BSD.split(MAX_PICTURES):
            ids_BT = ids_T.expand(len(part_BSD), -1)
            rows = greedy(self.model, ids_BT, part_BSD, MAX_CAPTION_TOKENS, eos_id)
            texts += [CAPTION_PROMPT + self.tokenizer.decode(ids) for ids in rows]
        if eos_id is None:  # such a model never stops by itself; a caption ends at its first "!"
            texts = [text[: text.find("!") + 1] or text for text in texts]
        return texts

    @torch.inference_mode()
    def logprobs(self, slots_BSD: Tensor) -> Tensor:
        """Log-likelihood of each label's caption behind its fixed beginning, `<eos>` included, (B, L), in nats.

        A picture and the fixed beginning are read once; the captions continue from copies of that cache.
        """
        parts = [self._logprobs(part_BSD) for part_BSD in slots_BSD.split(max(1, MAX_CAPTIONS // len(self.labels)))]
        return torch.cat(parts).cpu()

    def _logprobs(self, slots_BSD: Tensor) -> Tensor:
        n_pictures, device = len(slots_BSD), self.model.head_bias.device
        prompt_BT = torch.tensor([self.tokenizer.encode(CAPTION_PROMPT)] * n_pictures, device=device)
        cache = LatentCache(self.model.config, n_pictures)
        first_BV = self.model(prompt_BT, cache=cache, slots=slots_BSD).logits[:, -1].log_softmax(dim=-1)
        logprobs_BL = first_BV.new_empty(n_pictures, len(self.labels))
        # Captions of one length at a time: no padding is read. Sharing their common beginnings too (" a", " an") was
        # measured and is slower, for the copies of the cache that it takes at every token.
        for columns_G, tails_GT in self._tails:
            tails_GT = tails_GT.to(device)
            sums_BG = first_BV[:, tails_GT[:, 0]]
            if tails_GT.shape[1] > 1:
                tails_NT = tails_GT.repeat(n_pictures, 1)
                logits_NTV = self.model(tails_NT[:, :-1], cache=cache.repeat(len(tails_GT))).logits
                chosen_NT = logits_NTV.gather(2, tails_NT[:, 1:, None])[:, :, 0]
                rest_N = (chosen_NT - logits_NTV.logsumexp(dim=-1)).sum(dim=1)
                sums_BG = sums_BG + rest_N.view(n_pictures, -1)
            logprobs_BL[:, columns_G] = sums_BG
        return logprobs_BL

    @cached_property
    def _tails(self) -> list[tuple[list[int], Tensor]]:
        """Tokens of the captions behind their fixed beginning, by length: the labels' places, and the ids (G, T)."""
        end = [] if self.tokenizer.eos_id is None else [self.tokenizer.eos_id]
        by_length: dict[int, list[tuple[int, list[int]]]] = {}
        for place, label in enumerate(self.labels):
            tail = [*self.tokenizer.encode(caption(label)[len(CAPTION_PROMPT) :]), *end]
            by_length.setdefault(len(tail), []).append((place, tail))
        return [
            ([place for place, _ in some], torch.tensor([tail for _, tail in some]))
            for group in by_length.values()
            for some in (group[start : start + MAX_CAPTIONS] for start in range(0, len(group), MAX_CAPTIONS))
        ]

    def probabilities(self, logprobs_BL: Tensor) -> Tensor:
        """The labels' calibrated probabilities, (B, L), each row summing to 1."""
        return (logprobs_BL / self.temperature).softmax(dim=-1)

    def flower_scores(self, logprobs_BL: Tensor) -> Tensor:
        """How much each picture looks like one of the known flowers, (B,): the largest probability."""
        return self.probabilities(logprobs_BL).amax(dim=-1)

    def in_order(self, logprobs_L: Tensor) -> list[tuple[str, float]]:
        """All labels with their probabilities given one picture's row of `logprobs`, likeliest first."""
        probs_L = self.probabilities(logprobs_L)
        # By the likelihoods: probabilities too small for their type are all 0.
        order = logprobs_L.argsort(descending=True, stable=True).tolist()
        return [(self.labels[i], float(probs_L[i])) for i in order]

    def ranked(self, image: Tensor) -> list[tuple[str, float]]:
        """All labels with their probabilities given one image (1, 3, size, size), likeliest first."""
        return self.in_order(self.logprobs(self.slots(image))[0])


def mute(slots_BSD: Tensor, which: Iterable[int]) -> Tensor:
    """The slots with those of `which` as zeros; the position embedding that the model adds to them stays.

    Raises IndexError if there is no such slot.
    """
    muted_BSD = slots_BSD.clone()
    muted_BSD[:, list(which)] = 0
    return muted_BSD


class SlotEffect(NamedTuple):
    """What becomes of a caption when one slot is muted, or taken from another picture."""

    slot: int
    logprob: float  # change in the caption's log-probability, in nats; below 0 where the slot spoke for it
    label: str  # the likeliest label then
    probability: float  # of that label


def slot_effects(captioner: Captioner, image: Tensor, label: str, other: Tensor | None = None) -> list[SlotEffect]:
    """Each slot of an image (1, 3, size, size) muted in turn, or taken from the image `other` in turn.

    `label` names the caption whose log-probability is followed. Raises ValueError if the captioner doesn't know it, or
    on images of another shape.
    """
    column = captioner.labels.index(_known(captioner, label))
    whole_SD = captioner.slots(_one(image))[0]
    new_SD = torch.zeros_like(whole_SD) if other is None else captioner.slots(_one(other))[0]
    changed_SSD = whole_SD.repeat(len(whole_SD), 1, 1)
    for slot in range(len(whole_SD)):
        changed_SSD[slot, slot] = new_SD[slot]
    logprobs_BL = captioner.logprobs(torch.cat([whole_SD[None], changed_SSD]))
    changes_S = logprobs_BL[1:, column] - logprobs_BL[0, column]
    best = [captioner.in_order(logprobs_L)[0] for logprobs_L in logprobs_BL[1:]]
    return [SlotEffect(slot, float(changes_S[slot]), *best[slot]) for slot in range(len(whole_SD))]


def occlusion_map(captioner: Captioner, image: Tensor, label: str, n_cells: int = 8) -> Tensor:
    """Loss of a caption's log-probability when a grey patch covers each place of an image (1, 3, size, size).

    (n_cells, n_cells), rows from the top, in nats: above 0 where what was covered spoke for the caption. A patch is
    about two cells wide and high, its middle on the middle of its cell, cut off at the picture's edge. Raises
    ValueError if the captioner doesn't know `label`, on an image of another shape, or unless 1 <= n_cells <= size.
    """
    size = _one(image).shape[-1]
    alone = dataclasses.replace(captioner, labels=(_known(captioner, label),))
    if not 1 <= n_cells <= size:
        raise ValueError(f"n_cells={n_cells} must be between 1 and the image's {size} pixels")
    pictures = image.repeat(1 + n_cells**2, 1, 1, 1)
    # Whole pixels, rounded outwards, so that every patch is as far to one side of its middle as to the other.
    spans = [
        slice(max(0, (2 * i - 1) * size // (2 * n_cells)), -(-(2 * i + 3) * size // (2 * n_cells)))
        for i in range(n_cells)
    ]
    for number in range(n_cells**2):
        pictures[1 + number, :, spans[number // n_cells], spans[number % n_cells]] = GREY
    logprobs_B = alone.logprobs(alone.slots(pictures))[:, 0]
    return (logprobs_B[0] - logprobs_B[1:]).view(n_cells, n_cells)


def _known(captioner: Captioner, label: str) -> str:
    if label not in captioner.labels:
        raise ValueError(f"the model knows no label {label!r}")
    return label


def _one(image: Tensor) -> Tensor:
    if len(image) != 1:
        raise ValueError(f"one image is questioned at a time, got {len(image)}")
    return image
