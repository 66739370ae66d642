"""Expert surgery on the Routing tab: a prompt continued with and without some experts, and what each is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tinylm.checkpoint import Run
from tinylm.config import ModelConfig
from tinylm.generate import stream
from tinylm.model import TinyLM
from tinylm.surgery import Reading, read, without_experts
from tinylm.tokenizer import EOS
from tinylm.ui import limits
from tinylm.ui.limits import Deadline, Refused
from tinylm.ui.models import MOE
from tinylm.ui.service.common import Pace, Service, Start, Update, token_text
from tinylm.ui.service.route import Routed, checked, mixture

N_SUREST = 5
EXAMPLE_EXPERT = 1
"""Off everywhere in the operation that the tab opens with, if there are as many."""


def example(service: Service, prompt: str) -> Iterator[Update]:
    """The operation that the tab opens with."""
    config = mixture(service).model.config
    assert config.moe is not None
    yield from operate(service, prompt, [[min(EXAMPLE_EXPERT, config.moe.n_experts - 1)]] * config.n_layers)


def operate(
    service: Service, prompt: Any, off: Any, temperature: Any = 0, max_new_tokens: Any = 40, seed: Any = 0
) -> Iterator[Update]:
    """Continue a prompt as trained, then with the experts `off` (one list a layer) switched off; then tell, for that
    operation and for each expert switched off everywhere, what it does to the text as trained.

    `losses` are those of that text under both models: nats, of each token but the first; `loss` is their mean.
    Raises Refused or Unavailable.
    """
    settings = checked(temperature, max_new_tokens, seed)
    text = limits.prompt(prompt)
    with service.slots.take() as deadline:
        run = mixture(service)
        config = run.model.config
        assert config.moe is not None
        operation = checked_off(off, config)
        start = Start.read(run, text)
        page = {
            "settings": {"prompt": text, **settings},
            "n_layers": config.n_layers,
            "n_experts": config.moe.n_experts,
            "n_prompt": len(start.ids),
            "from_nothing": start.from_nothing,
            "unknown": start.unknown,
            "weights": service.weights(MOE),
        }
        result: dict[str, Any] = {
            "off": [operation[layer] for layer in range(config.n_layers)],
            "plain": None,
            "operated": None,
            "loss": None,
            "losses": None,
            "rows": [],
        }
        operated = without_experts(run.model, operation)
        for name, model in (("plain", run.model), ("operated", operated)):
            for told in _continued(run, model, start, settings, deadline):
                result |= {name: told}
                yield Update(dict(result), page)

        text_read = Examined(run, result["plain"], len(start.ids))
        reading = read(operated, text_read.ids)
        result["loss"] = {"plain": _mean(text_read.plain), "operated": _mean(reading)}
        result["losses"] = {"plain": _rounded(text_read.plain.losses), "operated": _rounded(reading.losses)}
        rows = [text_read.row(reading, operation)]
        yield Update(result | {"rows": list(rows)}, page)
        for expert in range(config.moe.n_experts if config.moe.n_experts > 1 else 0):
            deadline.check()
            everywhere = {layer: [expert] for layer in range(config.n_layers)}
            reading = read(without_experts(run.model, everywhere), text_read.ids)
            rows.append(text_read.row(reading, everywhere, expert))
            yield Update(result | {"rows": list(rows)}, page)


def checked_off(off: Any, config: ModelConfig) -> dict[int, list[int]]:
    """The experts to switch off, by layer. Raises Refused in words, which count from 1."""
    assert config.moe is not None
    n_experts = config.moe.n_experts
    if not isinstance(off, list) or len(off) != config.n_layers:
        raise Refused(f"The experts to switch off must come as {config.n_layers} lists, one a layer.")
    for layer, experts in enumerate(off, start=1):
        fits = isinstance(experts, list) and len(experts) <= n_experts
        if not fits or any(type(expert) is not int or not 0 <= expert < n_experts for expert in experts):
            raise Refused(f"Layer {layer} has experts 1 to {n_experts}; what came names others.")
        if len(set(experts)) == n_experts:
            raise Refused(f"Layer {layer} would have no expert left. Please leave at least one on.")
    return {layer: sorted(set(experts)) for layer, experts in enumerate(off)}


def _continued(
    run: Run, model: TinyLM, start: Start, settings: Mapping[str, Any], deadline: Deadline
) -> Iterator[dict[str, Any]]:
    """The text so far, each time that the page should hear of it: its ids, tokens, and their experts."""
    tokenizer, seen, pace = run.tokenizer, Routed(model.config.n_layers), Pace()
    ids, tokens = list(start.ids), [piece["text"] for piece in start.pieces] or [EOS]
    stopped: str | None = None

    def told() -> dict[str, Any]:
        experts = [token["experts"] for token in seen.tokens]  # the newest token is not read yet
        new = tokenizer.decode(ids[len(start.ids) :])
        return {"text": start.text + new, "ids": [*ids], "tokens": [*tokens], "experts": experts, "stopped": stopped}

    steps = stream(model, start.ids, eos_id=tokenizer.eos_id, **settings)
    for step in steps:
        deadline.check()
        seen.read([step.routing])
        ids.append(step.token_id)
        tokens.append(token_text(tokenizer, step.token_id))
        if pace.due():
            yield told()
    stopped = steps.stopped
    yield told()


class Examined:
    """The text that was generated as trained, and what an operation does to it."""

    def __init__(self, run: Run, told: Mapping[str, Any], n_prompt: int) -> None:
        self.ids: list[int] = told["ids"]
        self.plain = read(run.model, self.ids)
        self._tokenizer, self._tokens = run.tokenizer, told["tokens"]
        # Where the model chose a token; that it ended the text was a choice too.
        self._choices = range(n_prompt - 1, len(self.ids) - (told["stopped"] != "eos"))

    def row(self, without: Reading, off: Mapping[int, Sequence[int]], expert: int | None = None) -> dict[str, Any]:
        """The operation's row; `expert` names the one that is off everywhere.

        `change` of the loss in nats per token, `share` of the experts' work as trained, the tokens that went to
        `expert` most surely (text, layer, probability), and where the likeliest token is another: `n_other` of
        `n_choices`, the `first` by the number of its token.
        """
        before, after = self.plain.loss, without.loss
        chosen = [routing.expert_ids for routing in self.plain.routings]
        n_taken = sum(int(ids_Nk.eq(e).sum()) for layer, ids_Nk in enumerate(chosen) for e in off[layer])
        others = [i for i in self._choices if without.likeliest[i] != self.plain.likeliest[i]]
        first = None
        if others:
            was, now = (token_text(self._tokenizer, r.likeliest[others[0]]) for r in (self.plain, without))
            first = {"token": others[0] + 1, "was": was, "now": now}
        return {
            "expert": expert,
            "change": None if before is None or after is None else round(after - before, 6),
            "share": round(n_taken / sum(ids_Nk.numel() for ids_Nk in chosen), 6),
            "surest": [] if expert is None else self._surest(expert),
            "n_other": len(others),
            "n_choices": len(self._choices),
            "first": first,
        }

    def _surest(self, expert: int) -> list[tuple[str, int, float]]:
        """The tokens sent to an expert with the highest probabilities, each by its surest layer."""
        sent = torch.stack(
            [r.probs[:, expert] * r.expert_ids.eq(expert).any(dim=1) for r in self.plain.routings]  # (layers, tokens)
        )
        surest = sent.max(dim=0)
        best = surest.values.topk(min(N_SUREST, len(surest.values)))
        return [
            (self._tokens[i], int(surest.indices[i]), round(p, 4))
            for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            if p > 0
        ]


def _mean(reading: Reading) -> float | None:
    return None if reading.loss is None else round(reading.loss, 6)


def _rounded(losses: Sequence[float]) -> list[float]:
    return [round(loss, 5) for loss in losses]
