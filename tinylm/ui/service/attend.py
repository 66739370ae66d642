"""The Complete tab's attention map: who attends to whom in one head of one block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tinylm.generate import generate
from tinylm.ui import limits
from tinylm.ui.limits import Refused
from tinylm.ui.models import TEXT
from tinylm.ui.service.common import Service, Start, Update, coded, text_model, token_text

MAX_VALUES = 16_000_000
"""Numbers in the maps of all blocks and heads together."""


def attend(service: Service, question: Any) -> Iterator[Update]:
    """The map of `{"model", "ids", "block", "head"}`; blocks and heads count from 1. Raises Refused or Unavailable.

    The token that ends a full context was never read; the map leaves it out.
    """
    if not isinstance(question, dict):
        raise Refused("A map needs a model, the tokens' ids, a block and a head.")
    name, ids = text_model(service, question.get("model", "")), question.get("ids")
    with service.slots.take() as deadline:
        run = service.runs.get(name)
        config = run.model.config
        ids = _checked_ids(ids, config.vocab_size, config.max_seq_len)
        block = limits.whole(question.get("block"), "Block", 1, config.n_layers, 1)
        head = limits.whole(question.get("head"), "Head", 1, config.n_heads, 1)
        if config.n_layers * config.n_heads * len(ids) ** 2 > MAX_VALUES:
            raise Refused(f"{len(ids):,} tokens are too many for this model's maps. Please try a shorter text.")
        maps_NBHLL = run.model.attention_maps(torch.tensor([ids], device=run.model.head_bias.device))
        deadline.check()
        map_LL = maps_NBHLL[block - 1, 0, head - 1]
        rows, columns = torch.tril_indices(len(ids), len(ids))
        result = {
            "model": name,
            "ids": ids,
            "block": block,
            "head": head,
            "map": coded(map_LL[rows, columns]),
        }
        page = {
            "texts": [token_text(run.tokenizer, token_id) for token_id in ids],
            "n_blocks": config.n_layers,
            "n_heads": config.n_heads,
            "d_head": config.d_head,
            "context": config.max_seq_len,
            "weights": service.weights(name),
        }
        yield Update(result, page)


def attend_to_example(service: Service, prompt: str, max_new_tokens: int) -> Iterator[Update]:
    """The map that the tab opens with: a prompt and its likeliest continuation by the text model."""
    run = service.runs.get(TEXT)
    ids = Start.read(run, prompt).ids
    new_ids = generate(run.model, ids, max_new_tokens=max_new_tokens, eos_id=run.tokenizer.eos_id)
    yield from attend(service, {"model": TEXT, "ids": ids + new_ids})


def _checked_ids(ids: Any, vocab_size: int, context: int) -> list[int]:
    if not isinstance(ids, list) or not ids:
        raise Refused("There is no text yet to draw a map of.")
    if len(ids) > context + 1:
        raise Refused(f"The text has {len(ids):,} tokens; this model reads at most {context:,}.")
    if any(type(token_id) is not int or not 0 <= token_id < vocab_size for token_id in ids):
        raise Refused("This text has tokens that this model doesn't know.")
    return ids[:context]
