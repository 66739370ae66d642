"""What each expert of a mixture turned out to prefer: tokens and kinds of words that it takes more often than others.

E experts, k chosen experts, N routed tokens.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypedDict

import torch

from tinylm.data.batches import IGNORED, Batch
from tinylm.data.english import FUNCTION_WORDS, QUESTION_WORDS
from tinylm.model import TinyLM
from tinylm.tokenizer import EOS, Tokenizer

N_NAMED = 6
MIN_SHARE_OF_TOKENS = 0.0005
"""A token or a kind must make up this share of the text to be named."""


class Preference(TypedDict):
    """What one expert takes more often than a token taken at random would make it; lifts are ratios, 1 is no bias."""

    tokens: list[tuple[str, float]]
    kinds: list[tuple[str, float]]


@torch.inference_mode()
def expert_preferences(
    model: TinyLM, tokenizer: Tokenizer, batches: Iterable[Batch], kinds: Mapping[str, str]
) -> list[list[Preference]]:
    """By layer and expert the tokens and kinds of words with the highest lift, at most six of each.

    The lift of a token is its share among the tokens that the expert takes over its share among all. `kinds` names
    the kind of a word in small letters ("cat": "animal"); other words are told apart by their form alone.
    Images are not looked at: of a model with vision only the text is counted.
    """
    assert model.config.moe is not None
    n_layers, n_experts = model.config.n_layers, model.config.moe.n_experts
    by_token: list[list[Counter[str]]] = [[Counter() for _ in range(n_experts)] for _ in range(n_layers)]
    by_kind: list[list[Counter[str]]] = [[Counter() for _ in range(n_experts)] for _ in range(n_layers)]
    names = [EOS if i == tokenizer.eos_id else token for i, token in enumerate(tokenizer.tokens)]
    was_training = model.training
    model.eval()
    for batch in batches:
        batch = batch.to(model.head_bias.device)
        real_BT = (batch.targets != IGNORED).cpu()
        ids_BT = batch.ids.cpu()
        kinds_N = [
            kind
            for ids, real in zip(ids_BT.tolist(), real_BT.tolist(), strict=True)
            for kind, is_real in zip(token_kinds(tokenizer, ids, kinds), real, strict=True)
            if is_real
        ]
        tokens_N = [names[i] for i in ids_BT[real_BT].tolist()]
        n_slots = model.config.n_slots
        for layer, routing in enumerate(model(batch.ids, batch.images).routings):
            chosen_Nk = routing.expert_ids.cpu().view(len(ids_BT), -1, routing.expert_ids.shape[1])[:, n_slots:][
                real_BT
            ]
            for expert in range(n_experts):
                taken = (chosen_Nk == expert).any(dim=1).nonzero().flatten().tolist()
                by_token[layer][expert].update(tokens_N[i] for i in taken)
                by_kind[layer][expert].update(kinds_N[i] for i in taken)
    model.train(was_training)
    return [
        [
            Preference(tokens=_lifts(by_token[layer], expert), kinds=_lifts(by_kind[layer], expert))
            for expert in range(n_experts)
        ]
        for layer in range(n_layers)
    ]


def token_kinds(tokenizer: Tokenizer, ids: list[int], kinds: Mapping[str, str]) -> list[str]:
    """The kind of word that each token is or belongs to."""
    special = {tokenizer.eos_id: "end of text", tokenizer.pad_id: "padding", tokenizer.unk_id: "unknown character"}
    found: list[str] = []
    word: list[int] = []

    def close() -> None:
        text = "".join(tokenizer.tokens[i] for i in word).strip()
        found.extend([_kind(text, kinds)] * len(word))
        word.clear()

    for token_id in ids:
        token = tokenizer.tokens[token_id]
        mark = token_id in special or not any(character.isalnum() for character in token)
        if mark or token.startswith(" "):
            close()
        if mark:
            found.append(special.get(token_id, "mark"))
        else:
            word.append(token_id)
    close()
    return found


def _kind(word: str, kinds: Mapping[str, str]) -> str:
    small = word.lower()
    bare = re.sub(r"\W+$", "", small)
    if any(character.isdigit() for character in small):
        return "digits"
    if bare in QUESTION_WORDS:
        return "question word"
    if bare in FUNCTION_WORDS:
        return "function word"
    return kinds.get(bare, "other word")


def _lifts(by_expert: list[Counter[str]], expert: int) -> list[tuple[str, float]]:
    """The names with the highest lift for one expert of a layer, highest first."""
    in_all: Counter[str] = Counter()
    for counts in by_expert:
        in_all.update(counts)
    total, own = sum(in_all.values()), sum(by_expert[expert].values())
    least = max(MIN_SHARE_OF_TOKENS * total, 1)
    lifts = [
        (name, (n / own) / (in_all[name] / total)) for name, n in by_expert[expert].items() if in_all[name] >= least
    ]
    lifts = [(name, lift) for name, lift in lifts if lift > 1]
    lifts.sort(key=lambda pair: (-pair[1], pair[0]))
    return [(name, round(lift, 2)) for name, lift in lifts[:N_NAMED]]
