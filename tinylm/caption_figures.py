"""How well held-out pictures are captioned: figures for metrics.json.

B pictures, S slots, D `d_model`, L labels.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tinylm.captioner import Captioner, mute
from tinylm.data.flowers import caption

ACCEPTED_SHARE = 0.965  # of the validation pictures pass the flower threshold; at least 95 % of new ones then should
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
N_BINS = 15
N_CONFUSIONS = 12
N_LARGEST = 10
SLOT_PICTURES = 256  # a few seconds' work on two cores
MAX_SUBSETS = 20  # of one size; with four slots there are at most six


class Reading(NamedTuple):
    """What a captioner makes of pictures, read once for several figures; on the CPU."""

    logprobs: Tensor  # (B, L)
    captions: list[str]  # greedy


def read(captioner: Captioner, images: Tensor) -> Reading:
    """Score and caption images (B, 3, size, size). Raises ValueError without pictures."""
    _check_some(len(images))
    slots_BSD = captioner.slots(images)
    return Reading(captioner.logprobs(slots_BSD).cpu(), captioner.greedy(slots_BSD))


# Pure functions of scores


def fit_temperature(logprobs_BL: Tensor, label_ids: Tensor) -> float:
    """The temperature at which `softmax(logprobs_BL / temperature)` gives the right labels (B,) most likelihood.

    Between `MIN_TEMPERATURE` and `MAX_TEMPERATURE`. Where every right label is the likeliest one, a lower temperature
    is always better and there is no best one: then 1. Raises ValueError without pictures.
    """
    _check(logprobs_BL, label_ids)
    scores_BL = logprobs_BL.double()
    # A score of minus infinity would make 0 * inf below.
    scores_BL = (scores_BL - scores_BL.max(dim=-1, keepdim=True).values).clamp(min=-1e6)
    right_B = scores_BL.gather(1, label_ids[:, None])[:, 0]
    if bool((right_B == 0).all()):
        return 1.0

    def slope(log_inverse: float) -> float:
        # Of the mean negative log-likelihood by 1 / temperature, in which it is convex: the slope only ever rises.
        probs_BL = (scores_BL * math.exp(log_inverse)).softmax(dim=-1)
        return float(((probs_BL * scores_BL).sum(dim=-1) - right_B).mean())

    low, high = -math.log(MAX_TEMPERATURE), -math.log(MIN_TEMPERATURE)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return math.exp(-(low + high) / 2)


def expected_calibration_error(probs_BL: Tensor, label_ids: Tensor, n_bins: int = N_BINS) -> float:
    """How far the likeliest label's probability is from the share that is right (Naeini et al. 2015).

    The pictures are put into `n_bins` equal ranges of that probability, each with its upper end; the distances are
    weighted by the pictures. Raises ValueError without pictures.
    """
    _check(probs_BL, label_ids)
    best = probs_BL.double().max(dim=-1)
    bins_B = (best.values * n_bins).ceil().long().sub(1).clamp(0, n_bins - 1)
    surplus_B = best.values - (best.indices == label_ids).double()
    # |sure - right| * share of the pictures, summed over the bins
    surplus_by_bin = torch.zeros(n_bins, dtype=torch.double).index_add(0, bins_B, surplus_B)
    return float(surplus_by_bin.abs().sum() / len(label_ids))


def auroc(scores_of_flowers: Tensor, scores_of_others: Tensor) -> float:
    """Share of the pairs in which the flower (n,) scores above the other picture (m,); ties count half.

    Raises ValueError where either has no scores.
    """
    if not len(scores_of_flowers) or not len(scores_of_others):
        raise ValueError("scores of at least one flower and one other picture are needed")
    flowers, others = scores_of_flowers.double().contiguous(), scores_of_others.double().sort().values
    below = torch.searchsorted(others, flowers)
    not_above = torch.searchsorted(others, flowers, right=True)
    return float((below + not_above).sum()) / (2 * len(flowers) * len(others))


def threshold_for(scores: Tensor, accepted: float = ACCEPTED_SHARE) -> float:
    """The highest threshold that at least a share `accepted` of the scores (n,) reach; it is one of the scores.

    Raises ValueError without scores, or if the share is not above 0 and at most 1.
    """
    if not len(scores) or not 0 < accepted <= 1:
        raise ValueError(f"a share above 0 and at most 1 of some scores, not {accepted} of {len(scores)}")
    needed = math.ceil(accepted * len(scores) - 1e-9)  # 0.55 * 200 is not quite 110
    return float(scores.sort(descending=True).values[needed - 1])


def confusions(
    predicted: Tensor, label_ids: Tensor, labels: Sequence[str], n: int = N_CONFUSIONS
) -> list[tuple[str, str, int]]:
    """The `n` commonest mistakes as (right label, said label, pictures); equal counts in the labels' order.

    `predicted` and `label_ids` (B,) are indices of `labels`.
    """
    pairs = zip(label_ids.tolist(), predicted.tolist(), strict=True)
    counts = Counter(pair for pair in pairs if pair[0] != pair[1])
    worst = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:n]
    return [(labels[right], labels[said], count) for (right, said), count in worst]


def most_pictured(label_ids: Tensor, labels: Sequence[str], n: int, ties: Tensor | None = None) -> list[str]:
    """The `n` labels with most pictures among `label_ids` (B,), most first.

    Equal ones come in the order of their pictures among `ties` (m,), then in the labels'.
    """
    counts = label_ids.bincount(minlength=len(labels)).tolist()
    others = counts if ties is None else ties.bincount(minlength=len(labels)).tolist()
    return [labels[i] for i in sorted(range(len(labels)), key=lambda i: (-counts[i], -others[i]))[:n]]


# Figures of a captioner


def calibrated(captioner: Captioner, validation_images: Tensor, validation_labels: Tensor) -> Captioner:
    """The captioner with temperature and flower threshold fitted on held-out images (B, 3, size, size), labels (B,).

    Both have few decimals, so that they are the same when written and read again. Raises ValueError without pictures.
    """
    _check_some(len(validation_images))
    logprobs_BL = captioner.logprobs(captioner.slots(validation_images)).cpu()
    captioner = dataclasses.replace(captioner, temperature=round(fit_temperature(logprobs_BL, validation_labels), 4))
    threshold = threshold_for(captioner.flower_scores(logprobs_BL))
    # Rounded down: the picture that sets the threshold stays accepted.
    return dataclasses.replace(captioner, flower_threshold=math.floor(threshold * 1e6) / 1e6)


def label_figures(
    captioner: Captioner,
    images: Tensor,
    label_ids: Tensor,
    reading: Reading | None = None,
    largest: Sequence[str] = (),
) -> dict[str, Any]:
    """How well images (B, 3, size, size) are named, against their labels (B,); shares between 0 and 1.

    - `caption_accuracy`: the greedy caption is the right one, to the letter.
    - `top1`, `top3`: the right label is the likeliest, or among the three likeliest.
    - `greedy_is_likeliest`: the greedy caption is that of the likeliest label, right or wrong.
    - `ten_largest`: `top1` over the pictures of the labels `largest`, told as `largest_labels`; without any, of the
      ten that have most of these pictures.
    - `expected_calibration_error`: of the likeliest label's probability.
    - `accuracy_by_label`: `top1` of each label that has pictures.
    - `n`: how many pictures.

    `reading` saves reading the images again. Raises ValueError without pictures.
    """
    logprobs_BL, said = reading or read(captioner, images)
    _check(logprobs_BL, label_ids)
    labels = captioner.labels
    likeliest_B = logprobs_BL.argmax(dim=-1)
    hit_B = likeliest_B == label_ids
    top3_B3 = logprobs_BL.topk(min(3, len(labels)), dim=-1).indices
    largest = list(largest) or most_pictured(label_ids, labels, N_LARGEST)
    in_largest_B = torch.tensor([labels[i] in largest for i in label_ids.tolist()])
    captions = [caption(label) for label in labels]
    right = [text == captions[i] for text, i in zip(said, label_ids.tolist(), strict=True)]
    agree = [text == captions[i] for text, i in zip(said, likeliest_B.tolist(), strict=True)]
    return {
        "caption_accuracy": sum(right) / len(right),
        "top1": _share(hit_B),
        "top3": _share((top3_B3 == label_ids[:, None]).any(dim=1)),
        "greedy_is_likeliest": sum(agree) / len(agree),
        "ten_largest": _share(hit_B[in_largest_B]),
        "largest_labels": largest,
        "expected_calibration_error": expected_calibration_error(captioner.probabilities(logprobs_BL), label_ids),
        "accuracy_by_label": {labels[i]: _share(hit_B[label_ids == i]) for i in label_ids.unique().tolist()},
        "n": len(label_ids),
    }


def slot_report(
    captioner: Captioner, images: Tensor, label_ids: Tensor, n_pictures: int = SLOT_PICTURES
) -> dict[str, Any]:
    """What each slot carries, over at most `n_pictures` of images (B, 3, size, size) with labels (B,), evenly drawn.

    - `n`: how many pictures; `accuracy`: share whose greedy caption is right to the letter, nothing muted.
    - `alone`, for each `slot` muted alone: `logprob`, the mean change of the right caption's log-probability, and
      `label_stays`, the share of pictures whose likeliest label stays the same.
    - `muted`: that `accuracy` for every subset of `slots` muted, small subsets first. Sizes between 1 and all that
      have more than `MAX_SUBSETS` subsets are left out.
    - `accuracy_by_n_muted`: the mean of those over each size, by that size as a string.

    Slots count from 0. Raises ValueError without pictures.
    """
    _check_some(len(label_ids))
    n = min(n_pictures, len(label_ids))
    drawn = torch.arange(n) * len(label_ids) // n
    slots_BSD, label_ids = captioner.slots(images[drawn]), label_ids[drawn]
    right = [caption(captioner.labels[i]) for i in label_ids.tolist()]

    def accuracy(subset: tuple[int, ...]) -> float:
        # Greedy, since scoring every label takes about twenty times as long.
        said = captioner.greedy(mute(slots_BSD, subset))
        return sum(text == wanted for text, wanted in zip(said, right, strict=True)) / n

    n_slots = slots_BSD.shape[1]
    whole_BL = captioner.logprobs(slots_BSD).cpu()
    alone = []
    for slot in range(n_slots):
        logprobs_BL = captioner.logprobs(mute(slots_BSD, [slot])).cpu()
        change_B = (logprobs_BL - whole_BL).gather(1, label_ids[:, None])[:, 0]
        stays_B = logprobs_BL.argmax(dim=-1) == whole_BL.argmax(dim=-1)
        alone.append({"slot": slot, "logprob": float(change_B.double().mean()), "label_stays": _share(stays_B)})
    muted, by_size = [], {}
    for size in range(1, n_slots + 1):
        if 1 < size < n_slots and math.comb(n_slots, size) > MAX_SUBSETS:
            continue
        subsets = list(itertools.combinations(range(n_slots), size))
        shares = [accuracy(subset) for subset in subsets]
        muted += [{"slots": list(subset), "accuracy": share} for subset, share in zip(subsets, shares, strict=True)]
        by_size[str(size)] = sum(shares) / len(shares)
    return {"n": n, "accuracy": accuracy(()), "alone": alone, "muted": muted, "accuracy_by_n_muted": by_size}


def not_flower_figures(captioner: Captioner, flower_scores: Tensor, other_images: Tensor) -> dict[str, Any]:
    """How well flowers, by their scores (B,), are told from pictures of other things (M, 3, size, size).

    - `auroc`: share of the pairs of a flower and another thing in which the flower scores higher, ties half.
    - `flowers_turned_away`, `others_refused`: shares that score below the captioner's threshold.
    - `n_flowers`, `n_others`: how many pictures.

    Raises ValueError where either has no pictures.
    """
    _check_some(len(other_images))
    flowers = flower_scores.cpu()
    others = captioner.flower_scores(captioner.logprobs(captioner.slots(other_images))).cpu()
    return {
        "auroc": auroc(flowers, others),
        "flowers_turned_away": _share(flowers < captioner.flower_threshold),
        "others_refused": _share(others < captioner.flower_threshold),
        "n_flowers": len(flowers),
        "n_others": len(others),
    }


def figures(
    captioner: Captioner,
    images: Tensor,
    label_ids: Tensor,
    other_images: Tensor | None = None,
    reading: Reading | None = None,
    slot_pictures: int = SLOT_PICTURES,
    largest: Sequence[str] = (),
) -> dict[str, Any]:
    """All of the above over images (B, 3, size, size) with labels (B,), as plain rounded numbers for metrics.json.

    `caption_accuracy`, `caption_temperature` and `flower_threshold` stand at the top, where a `Captioner` looks for
    them; `captions` holds `label_figures` and the commonest `confusions`, `slots` the `slot_report` of `slot_pictures`
    of them, and `not_flowers` the `not_flower_figures` over `other_images`, None without them. `reading` saves reading
    the images again, `largest` is for `label_figures`.
    Raises ValueError without pictures.
    """
    reading = reading or read(captioner, images)
    named = label_figures(captioner, images, label_ids, reading, largest)
    wrong = confusions(reading.logprobs.argmax(dim=-1), label_ids, captioner.labels)
    told_apart = None
    if other_images is not None and len(other_images):
        told_apart = not_flower_figures(captioner, captioner.flower_scores(reading.logprobs), other_images)
    return {
        "caption_accuracy": _rounded(named["caption_accuracy"]),
        "caption_temperature": captioner.temperature,
        "flower_threshold": captioner.flower_threshold,
        "captions": _rounded({**named, "confusions": wrong}),
        "slots": _rounded(slot_report(captioner, images, label_ids, slot_pictures)),
        "not_flowers": _rounded(told_apart),
    }


def _check(scores_BL: Tensor, label_ids: Tensor) -> None:
    if scores_BL.dim() != 2 or label_ids.shape != scores_BL.shape[:1]:
        raise ValueError(f"scores {tuple(scores_BL.shape)} and labels {tuple(label_ids.shape)} don't fit each other")
    _check_some(len(label_ids))


def _check_some(n_pictures: int) -> None:
    if not n_pictures:
        raise ValueError("at least one picture is needed")


def _share(true: Tensor) -> float:
    return int(true.sum()) / len(true)


def _rounded(value: Any) -> Any:
    """The same nest of dicts and lists, floats with four decimals, tuples as lists."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(part) for part in value]
    return round(value, 4) if isinstance(value, float) else value
