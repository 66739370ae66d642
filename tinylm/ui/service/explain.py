"""Below a caption: what each slot says for it, what the visitor's own changes to the slots do, and the occlusion map.

S image slots, D `d_model`, B changed copies of a picture's slots, L labels.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor

from tinylm.captioner import Captioner, mute, occlusion_map
from tinylm.ui import limits
from tinylm.ui.limits import Refused
from tinylm.ui.models import VISION
from tinylm.ui.service.caption import NO_PICTURE, Seen, named
from tinylm.ui.service.common import Service, Update

N_CELLS = 8
"""Places of the occlusion map in a row and in a column."""
N_NAMES = 3
"""Likeliest names told of the visitor's own changes."""


Map = list[list[float]]


def explain(
    service: Service,
    image: Any,
    other: Any,
    muted: Any = (),
    swapped: Any = (),
    with_map: bool = False,
    kept: MutableMapping[str, Map] | None = None,
) -> Iterator[Update]:
    """What a picture's caption hangs on; `image` as `caption` takes it, `other` the picture that slots are taken from.

    `muted` and `swapped` are the numbers, from 0, of the slots that the visitor changed. Changes of a caption's
    log-probability are in nats. The map comes in a second update; `kept` holds it, by the weights' hash, for a picture
    that many ask about. Raises Refused or Unavailable.
    """
    if image is None:
        raise Refused(NO_PICTURE)
    with service.slots.take() as deadline:
        weights = service.weights(VISION)
        seen = Seen.of(service, image)
        captioner, n_slots = seen.captioner, seen.slots_1SD.shape[1]
        muted, swapped = _places(muted, n_slots), _places(swapped, n_slots)
        if set(muted) & set(swapped):
            raise Refused("A slot is either muted or swapped, not both.")
        other_1SD = Seen.of(service, other).slots_1SD
        deadline.check()
        # One batch: the picture as it is, each slot muted, each slot swapped, and the visitor's own changes.
        whole, places = seen.slots_1SD, range(n_slots)
        copies = [whole, *(mute(whole, [slot]) for slot in places), *(_swap(whole, other_1SD, [s]) for s in places)]
        copies.append(mute(_swap(whole, other_1SD, swapped), muted))
        effects, label = _effects(captioner, torch.cat(copies))
        result: dict[str, Any] = {
            "caption": effects[0]["caption"],
            "label": label,
            "probability": effects[0]["kept"],
            "muted": effects[1 : 1 + n_slots],
            "swapped": effects[1 + n_slots : 1 + 2 * n_slots],
            "changed": effects[-1],
        }
        page: dict[str, Any] = {"muted": muted, "swapped": swapped, "weights": weights}
        yield Update(result, page)
        if not with_map:
            return
        deadline.check()
        kept = {} if kept is None else kept
        losses = kept.get(weights["sha256"])
        if losses is None:
            losses = _map(seen, label)
            if service.weights(VISION) == weights:  # else it may be of either
                kept[weights["sha256"]] = losses
        yield Update(result | {"map": losses}, page)


def _map(seen: Seen, label: str) -> Map:
    n_cells = min(N_CELLS, seen.images.shape[-1])
    losses = occlusion_map(seen.captioner, seen.images, label, n_cells)
    return [[round(loss, 6) for loss in row] for row in losses.tolist()]


def _effects(captioner: Captioner, slots_BSD: Tensor) -> tuple[list[dict[str, Any]], str]:
    """What each copy makes of the first one's caption, and the label of that caption."""
    logprobs_BL, captions = captioner.logprobs(slots_BSD), captioner.greedy(slots_BSD)
    label, _ = named(captioner, captions[0], logprobs_BL[0])
    column = captioner.labels.index(label)
    kept_B = captioner.probabilities(logprobs_BL)[:, column].tolist()
    changes_B = (logprobs_BL[:, column] - logprobs_BL[0, column]).tolist()
    effects = [
        {
            "caption": text,
            "kept": round(kept, 6),  # calibrated probability of the first caption's label
            "logprob": round(change, 6),  # change of that caption's log-probability
            "labels": [[name, round(p, 6)] for name, p in captioner.in_order(logprobs_L)[:N_NAMES]],
        }
        for text, kept, change, logprobs_L in zip(captions, kept_B, changes_B, logprobs_BL, strict=True)
    ]
    return effects, label


def _swap(slots_1SD: Tensor, other_1SD: Tensor, which: list[int]) -> Tensor:
    swapped_1SD = slots_1SD.clone()
    swapped_1SD[:, which] = other_1SD[:, which]
    return swapped_1SD


def _places(value: Any, n_slots: int) -> list[int]:
    """Numbers of slots, each once, in order. Raises Refused."""
    if not isinstance(value, (list, tuple)) or len(value) > n_slots or None in value:
        raise Refused(f"Please name at most {n_slots} slots.")
    return sorted({limits.whole(place, "The number of a slot", 0, n_slots - 1, 0) for place in value})
