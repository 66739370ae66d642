"""Batches of equal form for text and for pictures: ids, targets, and images where there are any.

B batch, T positions, S image slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tinylm.data.augment import augment, cutmix, nothing
from tinylm.data.flowers import FlowerData, caption
from tinylm.data.known import Known
from tinylm.tokenizer import Tokenizer

IGNORED = -100  # a target that takes no part in the loss; cross_entropy's own default
VALIDATION_TOKENS = 16_384  # at most read at once
VALIDATION_PICTURES = 512  # read at each evaluation during a run; they lie in random order
POOL = 50  # batches whose lines are sorted by length together


class Batch(NamedTuple):
    """What one step reads."""

    ids: Tensor  # (B, T)
    targets: Tensor  # (B, T), `IGNORED` at padding
    images: Tensor | None = None  # (B, 3, size, size) float32 in [0, 1]; the last B of them have captions
    shares: Tensor | None = None  # (images, labels): how much of each picture is a picture of which label
    weights: Tensor | None = None  # (B, T), how much each target counts; None where all count alike
    rows: Tensor | None = None  # (B,), which of their lines these are

    def to(self, device: torch.device) -> Batch:
        """The batch on `device`."""
        return Batch(*(None if part is None else part.to(device) for part in self))  # type: ignore[arg-type]

    @property
    def n_tokens(self) -> int:
        """Positions with a target: real tokens, padding not counted."""
        return int((self.targets != IGNORED).sum())

    def routed(self, n_slots: int) -> Tensor:
        """Which of the B * (S + T) routed positions count, (B * (S + T),) of bool: all but padding."""
        real_BT = self.targets != IGNORED
        return F.pad(real_BT, (n_slots, 0), value=True).flatten()


class BatchSource(Protocol):
    """Where training takes its batches from; the order depends on the seed, the epoch and what is `Known` alone."""

    def n_batches(self) -> int:
        """Batches an epoch."""

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """One pass for training."""

    def validation(self) -> Iterator[Batch]:
        """The held-out examples, always in the same order."""


@dataclass(frozen=True)
class Lines:
    """Tokenised lines as one padded matrix: <eos> (or <pad>), the line, <eos> if there is one, padding."""

    ids: Tensor  # (n, longest)
    lengths: Tensor  # (n,), tokens of the line with its end, without the start
    pad_id: int
    weights: Tensor | None = None  # like ids, how much each token counts as a target

    @classmethod
    def encode(
        cls,
        lines: Sequence[str],
        tokenizer: Tokenizer,
        max_seq_len: int,
        answer_starts: Sequence[int | None] = (),
        answer_weight: float = 1.0,
    ) -> Lines:
        """Tokenise once; a line is cut after `max_seq_len` tokens, its end included.

        The tokens from each line's answer to its end count `answer_weight` times; `answer_starts` are characters,
        and lines past their end have none.
        """
        start = tokenizer.pad_id if tokenizer.eos_id is None else tokenizer.eos_id
        end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
        rows = [[*tokenizer.encode(line), *end][:max_seq_len] for line in lines]
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.full((len(rows), 1 + int(lengths.max())), tokenizer.pad_id)
        ids[:, 0] = start
        # A tensor for each of a million lines would take longer than tokenising them.
        real = torch.arange(1, ids.shape[1]) <= lengths[:, None]
        ids[:, 1:][real] = torch.tensor([token for row in rows for token in row])
        if answer_weight == 1 or not answer_starts:
            return cls(ids, lengths, tokenizer.pad_id)
        weights = torch.ones(ids.shape)
        for i, (line, answer) in enumerate(zip(lines, answer_starts, strict=False)):
            if answer is not None:
                weights[i, 1 + len(tokenizer.encode(line[:answer].rstrip())) :] = answer_weight
        return cls(ids, lengths, tokenizer.pad_id, weights)

    def batch(self, rows: Tensor, from_start: bool = False, full_width: bool = False) -> Batch:
        """Next-token batch of some rows; `from_start` predicts the first token too, from the start token.

        `full_width` pads to the longest of all lines instead of the longest of these.
        """
        lengths = self.lengths[rows]
        width = (self.ids.shape[1] - 1) if full_width else int(lengths.max())
        first = 0 if from_start else 1
        ids = self.ids[rows, first : 1 + width]
        position = torch.arange(first + 1, 1 + width)
        targets = ids[:, 1:].masked_fill(position > lengths[:, None], IGNORED)
        weights = None if self.weights is None else self.weights[rows, first + 1 : 1 + width]
        return Batch(ids[:, :-1], targets, weights=weights, rows=rows)


class TextBatches:
    """Lines in batches of like length."""

    def __init__(
        self,
        train: Lines,
        validation: Lines,
        batch_size: int,
        seed: int,
        bucket: bool = True,
        start_share: float = 0.0,
        known: Known | None = None,
    ) -> None:
        """`bucket` sorts by length within pools of batches, else every batch is as wide as the longest line.

        `start_share` of the batches begins with the start token, so that the model can start from nothing. `known`
        tells how often each line is read; None reads every line once an epoch.
        """
        self._train, self._validation, self._known = train, validation, known
        self._batch_size, self._seed, self._bucket, self._start_share = batch_size, seed, bucket, start_share

    def n_batches(self) -> int:
        """Batches an epoch."""
        return math.ceil(len(self._train.lengths) / self._batch_size)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """One pass in a new order."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        if self._known is None:
            order = torch.randperm(len(self._train.lengths), generator=generator)
        else:
            order = self._known.readings(epoch, generator)
        groups = list(order.split(self._batch_size))
        if self._bucket:
            groups = []
            for pool in order.split(self._batch_size * POOL):
                by_length = pool[self._train.lengths[pool].argsort(stable=True)]
                groups += by_length.split(self._batch_size)
            groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
        from_start = torch.rand(len(groups), generator=generator) < self._start_share
        for rows, start in zip(groups, from_start.tolist(), strict=True):
            yield self._train.batch(rows, from_start=start, full_width=not self._bucket)

    def validation(self) -> Iterator[Batch]:
        """The held-out lines, shortest first."""
        rows_at_once = max(1, min(256, VALIDATION_TOKENS // self._validation.ids.shape[1]))
        for rows in self._validation.lengths.argsort(stable=True).split(rows_at_once):
            yield self._validation.batch(rows)


@dataclass(frozen=True)
class Views:
    """How training pictures are shown."""

    augmented: bool = True
    balance: float = 0.0  # 0 shows every picture as often, 1 every label as often, between them a mixture
    nothing_share: float = 0.0  # of each batch: pictures of no flower, which belong to all labels alike
    mixed_share: float = 0.0  # of each batch: pictures with a patch of another one, without a caption
    sides: tuple[int, ...] = ()  # of the views, in equal parts of the run one after the other; () for the model's own


def batches_an_epoch(n_pictures: int, batch_size: int) -> int:
    """As `PictureBatches` has them: a single picture left over joins the batch before."""
    whole, rest = divmod(n_pictures, batch_size)
    return whole + (rest > 1) or 1


class PictureBatches:
    """Pictures with the captions of their labels."""

    def __init__(
        self,
        data: FlowerData,
        tokenizer: Tokenizer,
        image_size: int,
        max_seq_len: int,
        batch_size: int,
        seed: int,
        views: Views = Views(),
        n_epochs: float | None = None,
        others: Tensor | None = None,
    ) -> None:
        """`n_epochs` is the length of the run, over which `views.sides` are spread; None takes the last of them.

        `others` are stored pictures of other things than flowers; half of the pictures of no flower are taken from
        them, the other half are pictures of nothing at all.
        """
        captions = [caption(label) for label in data.labels]
        self._data, self._captions = data, Lines.encode(captions, tokenizer, max_seq_len)
        self._image_size, self._batch_size, self._seed = image_size, batch_size, seed
        self._views, self._n_epochs, self._others = views, n_epochs, others
        counts = data.train_labels.bincount(minlength=len(data.labels)).double()
        self._weights = counts.clamp(min=1).pow(-views.balance)[data.train_labels] if views.balance else None

    def n_batches(self) -> int:
        """Batches an epoch."""
        return batches_an_epoch(len(self._data.train_labels), self._batch_size)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """As many pictures as there are, drawn by weight or each once, newly augmented."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        n = len(self._data.train_labels)
        if self._weights is None:
            order = torch.randperm(n, generator=generator)
        else:
            order = torch.multinomial(self._weights, n, replacement=True, generator=generator)
        groups = list(order.split(self._batch_size))
        if (
            self._batch_size > 1 < len(groups) and len(groups[-1]) == 1
        ):  # batch norm has nothing to compare a lone picture with
            groups[-2:] = [torch.cat(groups[-2:])]
        side = self._side(epoch)
        for rows in groups:
            yield self._shown(rows, side, generator)

    def validation(self) -> Iterator[Batch]:
        """The first held-out pictures as they are, at most 512: several views of each would take long."""
        shown = self._data.validation_images[:VALIDATION_PICTURES].split(256)
        named = self._data.validation_labels[:VALIDATION_PICTURES].split(256)
        for images, labels in zip(shown, named, strict=True):
            yield self._batch(resized(images, self._image_size), self._only(labels))

    def _side(self, epoch: int) -> int:
        sides = self._views.sides or (self._image_size,)
        if self._n_epochs is None:
            return sides[-1]
        return sides[min(int(epoch / self._n_epochs * len(sides)), len(sides) - 1)]

    def _shown(self, rows: Tensor, side: int, generator: torch.Generator) -> Batch:
        views, stored = self._views, self._data.train_images[rows]
        images = self._view(stored, side, generator)
        shares_BL = self._only(self._data.train_labels[rows])
        n_mixed = min(round(views.mixed_share * len(rows)), len(rows) - 1)  # at least one has a caption
        if n_mixed:
            images, shares_BL = cutmix(images, shares_BL, n_mixed, generator)
        n_nothing = round(views.nothing_share * len(rows))
        if n_nothing:
            images[-n_nothing:] = self._no_flowers(n_nothing, side, generator)
            shares_BL[-n_nothing:] = 1 / shares_BL.shape[1]
        return self._batch(images, shares_BL, n_mixed, generator)

    def _view(self, stored: Tensor, side: int, generator: torch.Generator) -> Tensor:
        return augment(stored, side, generator) if self._views.augmented else resized(stored, side)

    def _no_flowers(self, count: int, side: int, generator: torch.Generator) -> Tensor:
        if self._others is None:
            return nothing(count, side, generator)
        n_others = math.ceil(count / 2)
        rows = torch.randint(len(self._others), (n_others,), generator=generator)
        others = self._view(self._others[rows], side, generator)
        return torch.cat([others, nothing(count - n_others, side, generator)]) if count > n_others else others

    def _only(self, labels: Tensor) -> Tensor:
        """The shares of pictures that show one label each."""
        return F.one_hot(labels, len(self._data.labels)).float()

    def _batch(
        self, images: Tensor, shares_BL: Tensor, n_mixed: int = 0, generator: torch.Generator | None = None
    ) -> Batch:
        """Each picture that shows one label or none gets a caption; without any label it is drawn."""
        captioned_BL = shares_BL[n_mixed:]
        labels = captioned_BL.argmax(dim=1)
        if generator is not None:
            labels = torch.multinomial(captioned_BL, 1, generator=generator).squeeze(1)
        text = self._captions.batch(labels)
        return Batch(text.ids, text.targets, images, shares_BL)


def resized(images: Tensor, size: int) -> Tensor:
    """Square uint8 images (B, 3, n, n) as the model reads them, floats in [0, 1] of side `size`.

    Shrinking is bilinear and antialiased, as `image_to_tensor` does it.
    """
    scaled = images.float() / 255
    if images.shape[-1] == size:
        return scaled
    return F.interpolate(scaled, (size, size), mode="bilinear", antialias=True).clamp(0, 1)
