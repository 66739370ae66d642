"""What a model knows: losses, recall of held-out wordings, captions, and how busy its experts are.

B batch, T positions, L labels, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from tinylm.cache import LatentCache
from tinylm.data.batches import IGNORED, Batch
from tinylm.data.flowers import CAPTION_PROMPT, caption
from tinylm.data.knowledge import Probe, normalise
from tinylm.model import TinyLM
from tinylm.tokenizer import Tokenizer

ARTICLES = frozenset(("a", "an", "the", "some"))
MAX_ANSWER_TOKENS = 12
MAX_LINE_TOKENS = 40
MAX_CAPTION_TOKENS = 24
ACCEPTED_SHARE = 0.95


class HeldOut(NamedTuple):
    """Loss on held-out examples."""

    nats_per_token: float
    bits_per_character: float  # the nats of all predicted tokens in bits, over the characters those tokens spell


@torch.inference_mode()
def held_out(model: TinyLM, tokenizer: Tokenizer, batches: Iterable[Batch]) -> HeldOut:
    """Mean loss over all targets of `batches`; the model is put in evaluation mode meanwhile."""
    lengths_V = torch.tensor([len(token) for token in tokenizer.tokens])
    for special in (tokenizer.pad_id, tokenizer.eos_id):
        if special is not None:
            lengths_V[special] = 0
    nats, n_tokens, n_characters = 0.0, 0, 0
    for batch in _evaluating(model, batches):
        logits_BTV = model(batch.ids, batch.images).logits
        nats += float(F.cross_entropy(logits_BTV.flatten(0, 1), batch.targets.flatten(), reduction="sum"))
        real = batch.targets[batch.targets != IGNORED].cpu()
        n_tokens += len(real)
        n_characters += int(lengths_V[real].sum())
    return HeldOut(nats / max(n_tokens, 1), nats / math.log(2) / max(n_characters, 1))


@torch.inference_mode()
def expert_load(model: TinyLM, batches: Iterable[Batch]) -> list[list[float]]:
    """Share of the routed tokens that each expert takes, (layers, experts), each layer summing to 1."""
    assert model.config.moe is not None
    counts = torch.zeros(model.config.n_layers, model.config.moe.n_experts)
    for batch in _evaluating(model, batches):
        real = batch.routed(model.config.n_slots)
        for layer, routing in enumerate(model(batch.ids, batch.images).routings):
            counts[layer] += routing.expert_ids[real].flatten().bincount(minlength=counts.shape[1]).cpu()
    return (counts / counts.sum(dim=1, keepdim=True)).tolist()


def recall(model: TinyLM, tokenizer: Tokenizer, probes: Sequence[Probe]) -> tuple[float, dict[str, float]]:
    """Share of probes whose greedy completion starts with an accepted answer, in all and by domain."""
    hits: dict[str, list[bool]] = {}
    said = completions(model, tokenizer, [probe.prompt for probe in probes])
    for probe, completion in zip(probes, said, strict=True):
        hits.setdefault(probe.domain, []).append(starts_with_answer(completion, probe.answers))
    all_hits = [hit for of_domain in hits.values() for hit in of_domain]
    share = sum(all_hits) / len(all_hits) if all_hits else float("nan")
    return share, {domain: sum(of_domain) / len(of_domain) for domain, of_domain in sorted(hits.items())}


def starts_with_answer(completion: str, answers: Sequence[str]) -> bool:
    """Whether `completion` begins with one of the answers as whole words; case, marks and articles do not count."""
    said = normalise(completion).split()
    for answer in answers:
        words = normalise(answer).split()
        for text, right in ((said, words), (_without_article(said), _without_article(words))):
            if right and text[: len(right)] == right:
                return True
    return False


def _without_article(words: list[str]) -> list[str]:
    return words[1:] if len(words) > 1 and words[0] in ARTICLES else words


def copied_share(model: TinyLM, tokenizer: Tokenizer, prompts: Sequence[str], lines: Iterable[str]) -> float:
    """Share of the prompts that the model completes to a whole training line; the other completions are new.

    Case and punctuation do not count.
    """
    known = {normalise(line) for line in lines}
    said = completions(model, tokenizer, prompts, MAX_LINE_TOKENS)
    whole = [normalise(prompt + text) for prompt, text in zip(prompts, said, strict=True)]
    return sum(line in known for line in whole) / len(whole) if whole else math.nan


def completions(
    model: TinyLM, tokenizer: Tokenizer, prompts: Sequence[str], max_new_tokens: int = MAX_ANSWER_TOKENS
) -> list[str]:
    """Greedy completions, computed together for prompts of equal length; a prompt too long gives ""."""
    ids_of = [tokenizer.encode(prompt) for prompt in prompts]
    by_length: dict[int, list[int]] = {}
    for i, ids in enumerate(ids_of):
        if 0 < len(ids) <= model.config.max_seq_len:
            by_length.setdefault(len(ids), []).append(i)
    results = [""] * len(prompts)
    for group in by_length.values():
        ids_BT = torch.tensor([ids_of[i] for i in group])
        for i, text in zip(group, _greedy(model, tokenizer, ids_BT, None, max_new_tokens), strict=True):
            results[i] = text
    return results


def captions(model: TinyLM, tokenizer: Tokenizer, images: Tensor) -> list[str]:
    """Greedy captions of images (B, 3, size, size)."""
    ids_T = torch.tensor(tokenizer.encode(CAPTION_PROMPT))
    texts = []
    for part in images.split(256):
        ids_BT = ids_T.expand(len(part), -1)
        texts += [CAPTION_PROMPT + text for text in _greedy(model, tokenizer, ids_BT, part, MAX_CAPTION_TOKENS)]
    if tokenizer.eos_id is None:  # such a model never stops by itself; a caption ends at its first "!"
        texts = [text[: text.find("!") + 1] or text for text in texts]
    return texts


@torch.inference_mode()
def caption_logprobs(model: TinyLM, tokenizer: Tokenizer, images: Tensor, labels: Sequence[str]) -> Tensor:
    """Log-likelihood of each label's caption given each image, (B, L), the caption's fixed beginning left out.

    The image and the shared prompt are read once; the captions continue from copies of that cache.
    """
    device = model.head_bias.device
    prompt = tokenizer.encode(CAPTION_PROMPT)
    end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    tails = [[*tokenizer.encode(caption(label)), *end][len(prompt) :] for label in labels]
    longest = max(len(tail) for tail in tails)
    tails_LT = torch.full((len(tails), longest), IGNORED)
    for row, tail in enumerate(tails):
        tails_LT[row, : len(tail)] = torch.tensor(tail)
    tails_LT = tails_LT.to(device)
    was_training = model.training
    model.eval()
    cache = LatentCache(model.config, len(images))
    first_BV = model(torch.tensor([prompt], device=device).expand(len(images), -1), images.to(device), cache).logits[
        :, -1
    ]
    targets_BLT = tails_LT.expand(len(images), -1, -1)
    logprobs_BL = first_BV.log_softmax(dim=-1)[:, tails_LT[:, 0]]
    if longest > 1:
        ids_BLT = targets_BLT[:, :, :-1].clamp(min=0)
        logits_NTV = model(ids_BLT.flatten(0, 1), cache=cache.repeat(len(tails))).logits
        rest_N = -F.cross_entropy(
            logits_NTV.transpose(1, 2), targets_BLT[:, :, 1:].flatten(0, 1), reduction="none"
        ).sum(1)
        logprobs_BL = logprobs_BL + rest_N.view(len(images), len(tails))
    model.train(was_training)
    return logprobs_BL


def score_captions(
    model: TinyLM, tokenizer: Tokenizer, image: Tensor, labels: Sequence[str]
) -> list[tuple[str, float]]:
    """Labels with the probabilities of their captions given one image (1, 3, size, size), likeliest first.

    The probabilities are the captions' likelihoods, scaled to sum to 1 over the given labels.
    """
    probs_L = caption_logprobs(model, tokenizer, image, labels)[0].softmax(dim=-1)
    order = probs_L.argsort(descending=True, stable=True).tolist()
    return [(labels[i], float(probs_L[i])) for i in order]


class CaptionFigures(TypedDict):
    """How well held-out pictures are named; shares between 0 and 1."""

    caption_accuracy: float  # the greedy caption is the right one, to the letter
    top3_accuracy: float  # the right label is among the three likeliest
    n_validation: int
    flower_threshold: float  # least probability of the likeliest label at which the picture counts as a known flower
    accepted_share: float  # held-out pictures at or above it
    accuracy_by_label: dict[str, float]


def judge_captions(
    model: TinyLM, tokenizer: Tokenizer, images: Tensor, label_ids: Tensor, labels: Sequence[str]
) -> CaptionFigures:
    """Caption held-out images (B, 3, size, size) and compare with their labels (B,).

    The threshold is set so that `ACCEPTED_SHARE` of these pictures pass it.
    """
    said = captions(model, tokenizer, images)
    right_B = torch.tensor([text == caption(labels[i]) for text, i in zip(said, label_ids.tolist(), strict=True)])
    parts = [caption_logprobs(model, tokenizer, part, labels).softmax(dim=-1).cpu() for part in images.split(64)]
    probs_BL = torch.cat(parts)
    top3_B3 = probs_BL.topk(min(3, len(labels)), dim=-1).indices
    best_B = probs_BL.max(dim=-1).values
    threshold = float(best_B.quantile(1 - ACCEPTED_SHARE))
    by_label = {labels[i]: round(float(right_B[label_ids == i].float().mean()), 4) for i in label_ids.unique().tolist()}
    return CaptionFigures(
        caption_accuracy=round(float(right_B.float().mean()), 4),
        top3_accuracy=round(float((top3_B3 == label_ids[:, None]).any(dim=1).float().mean()), 4),
        n_validation=len(label_ids),
        flower_threshold=round(threshold, 4),
        accepted_share=round(float((best_B >= threshold).float().mean()), 4),
        accuracy_by_label=by_label,
    )


def _evaluating(model: TinyLM, batches: Iterable[Batch]) -> Iterator[Batch]:
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            yield batch.to(model.head_bias.device)
    finally:
        model.train(was_training)


@torch.inference_mode()
def _greedy(
    model: TinyLM, tokenizer: Tokenizer, ids_BT: Tensor, images: Tensor | None, max_new_tokens: int
) -> list[str]:
    """Likeliest continuations of prompts of one length, decoded together until all have ended."""
    was_training, device = model.training, model.head_bias.device
    model.eval()
    cache = LatentCache(model.config, len(ids_BT))
    logits_BTV = model(ids_BT.to(device), None if images is None else images.to(device), cache).logits
    new: list[Tensor] = []
    ended_B = torch.zeros(len(ids_BT), dtype=torch.bool, device=device)
    for _ in range(max_new_tokens):
        next_B = logits_BTV[:, -1].argmax(dim=-1)
        if tokenizer.eos_id is not None:
            # Rows that have ended go on with <eos>, which decodes to nothing.
            next_B = next_B.masked_fill(ended_B, tokenizer.eos_id)
            ended_B = ended_B | (next_B == tokenizer.eos_id)
        new.append(next_B)
        if bool(ended_B.all()) or cache.length == cache.capacity:
            break
        logits_BTV = model(next_B[:, None], cache=cache).logits
    model.train(was_training)
    rows = torch.stack(new, dim=1).tolist() if new else [[] for _ in ids_BT]
    return [tokenizer.decode(row) for row in rows]
