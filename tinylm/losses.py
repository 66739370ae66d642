"""What training minimises: the next token, the balance of the experts, and the label named by the image trunk.

B batch, T positions, N = B*T tokens, L labels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.data.batches import IGNORED, Batch
from tinylm.model import ModelOutput, TinyLM
from tinylm.moe import load_balancing_loss
from tinylm.vision import ImageEncoder


class Loss(NamedTuple):
    """What a step minimises, and what it tells."""

    total: Tensor
    nats: Tensor  # its cross-entropy part, nats a token, every token counting the same
    answers_B: Tensor | None = None  # the same of each line's answer alone, nan without one; None if none is marked


class LabelHead(nn.Module):
    """Names the label straight from the image trunk's features; used in training only.

    Through the caption alone, the trunk's gradient is the product of many small matrices at first, and captions stay
    a guess for epochs. This gives the trunk something to learn from the first step.
    """

    def __init__(self, encoder: ImageEncoder, n_labels: int, weight: float, smoothing: float) -> None:
        """`weight` is that of its loss; of each right answer a share `smoothing` is spread over all labels."""
        super().__init__()
        self.w = nn.Linear(encoder.d_trunk, n_labels)
        self.weight, self.smoothing = weight, smoothing

    def loss(self, features: Tensor, shares_BL: Tensor) -> Tensor:
        """Weighted cross-entropy with each picture's share of every label; features are (B, d_trunk)."""
        return self.weight * F.cross_entropy(self.w(features), shares_BL, label_smoothing=self.smoothing)


def training_loss(
    model: TinyLM,
    batch: Batch,
    label_head: LabelHead | None = None,
    bf16_trunk: bool = False,
) -> Loss:
    """The losses of one batch; `bf16_trunk` computes the image trunk in bfloat16.

    The captions are those of the last pictures, where there are more of these; the label head reads all.
    """
    if batch.images is None:
        return _text_loss(model, batch, model(batch.ids))
    assert model.encoder is not None
    # Straight into the trunk, which takes pictures of any size: early in a run they are smaller than the model's.
    with torch.autocast(batch.images.device.type, torch.bfloat16, enabled=bf16_trunk):
        features = model.encoder.trunk(batch.images)
    features = features.float()
    slots_BSD = model.encoder.fill_slots(features[-len(batch.ids) :])
    loss = _text_loss(model, batch, model(batch.ids, slots=slots_BSD))
    if label_head is not None:
        assert batch.shares is not None
        loss = loss._replace(total=loss.total + label_head.loss(features, batch.shares))
    return loss


def _text_loss(model: TinyLM, batch: Batch, output: ModelOutput) -> Loss:
    logits, targets = output.logits.flatten(0, 1), batch.targets.flatten()
    n_targets = (targets != IGNORED).sum().clamp(min=1)
    # Not the built-in mean: a batch of one-token lines has no target, and its loss is 0, not 0/0.
    answers_B = None
    if batch.weights is None:
        nats = F.cross_entropy(logits, targets, reduction="sum") / n_targets
        total = nats
    else:
        nats_N = F.cross_entropy(logits, targets, reduction="none")
        weights_N = batch.weights.flatten() * (targets != IGNORED)
        nats = nats_N.detach().sum() / n_targets
        total = (nats_N * weights_N).sum() / weights_N.sum().clamp(min=1)
        in_answer_BT = (batch.weights != 1) & (batch.targets != IGNORED)
        answers_B = (nats_N.detach().view_as(in_answer_BT) * in_answer_BT).sum(dim=1) / in_answer_BT.sum(dim=1)
    if output.routings:
        assert model.config.moe is not None
        mask_N = batch.routed(model.config.n_slots)
        balancing = sum((load_balancing_loss(r, mask_N) for r in output.routings), torch.zeros_like(nats))
        total = total + model.config.moe.load_balancing_coef * balancing
    return Loss(total, nats, answers_B)
