"""What a model knows: losses, recall of held-out wordings, and how busy its experts are.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from tinylm.data.batches import IGNORED, Batch
from tinylm.data.knowledge import Probe, normalise
from tinylm.generate import greedy
from tinylm.model import TinyLM
from tinylm.tokenizer import Tokenizer

ARTICLES = frozenset(("a", "an", "the", "some"))
MAX_ANSWER_TOKENS = 12
MAX_LINE_TOKENS = 40


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
        rows = greedy(model, ids_BT, max_new_tokens=max_new_tokens, eos_id=tokenizer.eos_id)
        for i, ids in zip(group, rows, strict=True):
            results[i] = tokenizer.decode(ids)
    return results


def _evaluating(model: TinyLM, batches: Iterable[Batch]) -> Iterator[Batch]:
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            yield batch.to(model.head_bias.device)
    finally:
        model.train(was_training)
