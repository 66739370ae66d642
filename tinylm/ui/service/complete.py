"""The Complete tab: a prompt continued, each token with what else could have come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tinylm.checkpoint import Run
from tinylm.generate import N_ALTERNATIVES, Step, stream
from tinylm.ui import limits
from tinylm.ui.limits import Refused
from tinylm.ui.service.common import (
    Pace,
    Service,
    Start,
    Update,
    checked_new_tokens,
    coded,
    coded_rows,
    probability,
    text_model,
    token_text,
    token_texts,
)

MAX_LATENTS = 2**15
"""Numbers of the cache that a run sends to the page: gradio copies all of a panel's data at every update."""


def complete(
    service: Service,
    prompt: Any,
    model: Any = "text",
    temperature: Any = 0,
    top_k: Any = 0,
    top_p: Any = 1,
    max_new_tokens: Any = 40,
    seed: Any = 0,
    given: Any = (),
) -> Iterator[Update]:
    """Continue a prompt; the first new tokens are those of `given`, a list of ids that the visitor forks the text with.

    Raises Refused or Unavailable, with a sentence for the visitor. Beside what the API tells, `page` has `ids` (the
    prompt's), `settings` as used, `sizes` of the model, `alternative_ids` of each new token, and `latents`, a string
    that gets what `coded` makes of each position read: the latents of the first `n_shown_layers` layers, all of them
    in a small model.
    """
    model = text_model(service, model)
    given = _ids(given, limits.MAX_NEW_TOKENS)
    settings = {
        "max_new_tokens": max(checked_new_tokens(max_new_tokens), len(given)),
        "temperature": limits.number(temperature, "Temperature", 0, limits.MAX_TEMPERATURE, 0),
        "top_k": limits.whole(top_k, "Top-k", 0, 10**9, 0),
        "top_p": limits.number(top_p, "Top-p", 0, 1, 1),
        "seed": limits.whole(seed, "Seed", 0, limits.MAX_SEED, 0),
    }
    text = limits.prompt(prompt)
    with service.slots.take() as deadline:
        run = service.runs.get(model)
        tokenizer, config = run.tokenizer, run.model.config
        _check_inside(run, given)
        start = Start.read(run, text)
        bytes_per_number = run.model.head_bias.element_size()
        tokens: list[dict[str, Any]] = []
        texts = token_texts(tokenizer)
        alternative_ids: list[list[int]] = []
        latents = ""
        waiting: list[Step] = []  # described when the page is to hear of them, not one by one
        n_shown_layers = max(1, min(config.n_layers, MAX_LATENTS // (config.max_seq_len * config.d_latent)))
        result: dict[str, Any] = {
            "text": start.text,
            "tokens": [],
            "stopped": None,
            "cache_bytes": 0,
            "full_cache_bytes": 0,
            "unknown": start.unknown,
            "unknown_words": start.new_words,
        }
        page: dict[str, Any] = {
            "prompt": start.pieces,
            "from_nothing": start.from_nothing,
            "context": config.max_seq_len,
            "weights": service.weights(model),
            "ids": start.ids,
            "eos_id": tokenizer.eos_id,
            "given": given,
            "settings": {"model": model, **settings},
            "sizes": {
                "n_layers": config.n_layers,
                "n_shown_layers": n_shown_layers,
                "d_latent": config.d_latent,
                "d_model": config.d_model,
                "bytes_per_number": bytes_per_number,
            },
        }

        def update(stopped: str | None, last: bool) -> Update:
            nonlocal latents
            tokens.extend(_described(texts, waiting))
            alternative_ids.extend([token_id for token_id, _ in step.alternatives] for step in waiting)
            n_read = len(start.ids) + len(tokens) - 1
            if waiting:
                latents_NTR = torch.cat([step.latents_NTR[:n_shown_layers] for step in waiting], dim=1)
                latents += "".join(coded_rows(latents_NTR.transpose(0, 1).flatten(1)))
                result["cache_bytes"] = waiting[-1].cache_nbytes
                result["full_cache_bytes"] = 2 * config.d_model * config.n_layers * n_read * bytes_per_number
                result["text"] = start.text + tokenizer.decode([token["id"] for token in tokens])
            waiting.clear()
            grown = {"alternative_ids": list(alternative_ids), "latents": latents}
            whole = result | {"tokens": list(tokens), "stopped": stopped}
            return Update(whole, page | grown | pace.speed(), last)

        steps = stream(run.model, start.ids, eos_id=tokenizer.eos_id, given=given, **settings)  # type: ignore[arg-type]
        pace = Pace()
        for step in pace.timed(steps):
            deadline.check()
            waiting.append(step)
            if pace.due():
                yield update(None, last=False)
        yield update(steps.stopped, last=True)


def logits(service: Service, model: Any, ids: Any) -> Iterator[Update]:
    """What the model says of the token behind `ids`, all of them read at once, without a cache. Raises as `complete`.

    `logits` (`coded`) has those of the whole vocabulary; `likeliest` names the ten highest, [id, text, probability].
    """
    model = text_model(service, model)
    with service.slots.take():
        run = service.runs.get(model)
        ids = _ids(ids, run.model.config.max_seq_len)
        if not ids:
            raise Refused("There are no tokens to read.")
        _check_inside(run, ids)
        with torch.inference_mode():
            logits_V = run.model(torch.tensor([ids], device=run.model.head_bias.device)).logits[0, -1].cpu()
            top = logits_V.log_softmax(dim=-1).topk(min(N_ALTERNATIVES, len(logits_V)))
        likeliest = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        result = {
            "model": model,
            "ids": ids,
            "logits": coded(logits_V),
            "likeliest": [[i, token_text(run.tokenizer, i), probability(logprob)] for i, logprob in likeliest],
        }
        yield Update(result, {"weights": service.weights(model)})


def _ids(value: Any, at_most: int) -> list[int]:
    """A list of at most so many whole numbers. Raises Refused."""
    if not isinstance(value, (list, tuple)) or len(value) > at_most or any(type(i) is not int for i in value):
        raise Refused(f"The tokens must be a list of at most {at_most} token numbers.")
    return list(value)


def _check_inside(run: Run, ids: list[int]) -> None:
    outside = [token_id for token_id in ids if not 0 <= token_id < run.model.config.vocab_size]
    if outside:
        raise Refused(f"This model has no such token; its tokens are 0 to {run.model.config.vocab_size - 1}.")


def _described(texts: Sequence[str], steps: Sequence[Step]) -> list[dict[str, Any]]:
    # All numbers of an update are rounded at once: the model is so fast that one by one would be felt.
    shares = torch.tensor([[p for _, p in step.alternatives] for step in steps], dtype=torch.float64)
    return [
        {
            "id": step.token_id,
            "text": texts[step.token_id],
            "probability": probability(step.logprob),
            "alternatives": [[texts[i], p] for (i, _), p in zip(step.alternatives, rounded, strict=True)],
        }
        for step, rounded in zip(steps, shares.round(decimals=6).tolist(), strict=True)
    ]
