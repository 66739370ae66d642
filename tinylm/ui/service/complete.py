"""The Complete tab: a prompt continued, each token with what else could have come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinylm.generate import Step, stream
from tinylm.tokenizer import Tokenizer
from tinylm.ui import limits
from tinylm.ui.limits import Refused
from tinylm.ui.service.common import Pace, Service, Start, Update, checked_new_tokens, probability, token_text


def complete(
    service: Service,
    prompt: Any,
    model: Any = "text",
    temperature: Any = 0,
    top_k: Any = 0,
    top_p: Any = 1,
    max_new_tokens: Any = 40,
    seed: Any = 0,
) -> Iterator[Update]:
    """Continue a prompt. Raises Refused or Unavailable, with a sentence for the visitor."""
    names = service.runs.text_names()
    if model is None:
        model = names[0]
    if model not in names:
        raise Refused(f"There is no model of that name; choose one of {', '.join(names)}.")
    settings = {
        "max_new_tokens": checked_new_tokens(max_new_tokens),
        "temperature": limits.number(temperature, "Temperature", 0, limits.MAX_TEMPERATURE, 0),
        "top_k": limits.whole(top_k, "Top-k", 0, 10**9, 0),
        "top_p": limits.number(top_p, "Top-p", 0, 1, 1),
        "seed": limits.whole(seed, "Seed", 0, limits.MAX_SEED, 0),
    }
    text = limits.prompt(prompt)
    with service.slots.take() as deadline:
        run = service.runs.get(model)
        tokenizer, config = run.tokenizer, run.model.config
        start = Start.read(run, text)
        tokens: list[dict[str, Any]] = []
        result: dict[str, Any] = {
            "text": start.text,
            "tokens": [],
            "stopped": None,
            "cache_bytes": 0,
            "full_cache_bytes": 0,
            "unknown": start.unknown,
            "unknown_words": start.new_words,
        }
        page = {"prompt": start.pieces, "from_nothing": start.from_nothing, "context": config.max_seq_len}
        page["weights"] = service.weights(model)
        steps = stream(run.model, start.ids, eos_id=tokenizer.eos_id, **settings)  # type: ignore[arg-type]
        pace = Pace()
        for step in pace.timed(steps):
            deadline.check()
            tokens.append(_described(tokenizer, step))
            n_read = len(start.ids) + len(tokens) - 1
            result |= {
                "text": start.text + tokenizer.decode([token["id"] for token in tokens]),
                "cache_bytes": step.cache_nbytes,
                "full_cache_bytes": 2 * config.d_model * config.n_layers * n_read * run.model.head_bias.element_size(),
            }
            if pace.due():
                yield Update(result | {"tokens": list(tokens)}, page | pace.speed())
        result |= {"tokens": tokens, "stopped": steps.stopped}
        yield Update(result, page | pace.speed())


def _described(tokenizer: Tokenizer, step: Step) -> dict[str, Any]:
    return {
        "id": step.token_id,
        "text": token_text(tokenizer, step.token_id),
        "probability": probability(step.logprob),
        "alternatives": [[token_text(tokenizer, i), round(p, 6)] for i, p in step.alternatives],
    }
