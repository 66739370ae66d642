"""The Routing tab: a prompt continued by the mixture of experts, each token with where it was sent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tinylm.checkpoint import Run
from tinylm.generate import stream
from tinylm.moe import Routing, load_balancing_loss
from tinylm.tokenizer import EOS
from tinylm.ui import limits
from tinylm.ui.limits import Refused
from tinylm.ui.models import MOE
from tinylm.ui.service.common import Pace, Service, Start, Update, checked_new_tokens, token_text


def route(
    service: Service, prompt: Any, temperature: Any = 0, max_new_tokens: Any = 40, seed: Any = 0
) -> Iterator[Update]:
    """Continue a prompt and tell each token's experts. Raises Refused or Unavailable.

    `load_balancing_loss` is the mean over layers; `load` and it are those of the tokens read so far.
    """
    settings = checked(temperature, max_new_tokens, seed)
    text = limits.prompt(prompt)
    with service.slots.take() as deadline:
        run = mixture(service)
        tokenizer, config = run.tokenizer, run.model.config
        assert config.moe is not None
        start = Start.read(run, text)
        texts = [piece["text"] for piece in start.pieces] or [EOS]
        new_ids: list[int] = []
        seen = Routed(config.n_layers)
        page = {
            "settings": {"prompt": text, **settings},
            "n_prompt": len(texts),
            "from_nothing": start.from_nothing,
            "unknown": start.unknown,
            "unknown_words": start.new_words,
            "top_k": config.moe.top_k,
            "n_layers": config.n_layers,
            "context": config.max_seq_len,
            "stopped": None,
            "weights": service.weights(MOE),
            "preferences": preferences(run),
        }

        def update(stopped: str | None, last: bool) -> Update:
            seen.read(waiting)
            waiting.clear()
            load, losses = seen.load(), seen.losses()
            result = {
                "text": start.text + tokenizer.decode(new_ids),
                "n_experts": config.moe.n_experts,  # type: ignore[union-attr]
                "tokens": [{"text": t, **token} for t, token in zip(texts, seen.tokens, strict=False)],
                "load": load,
                "load_balancing_loss": round(sum(losses) / len(losses), 6) if losses else None,
            }
            measured = {
                "ids": [*start.ids, *new_ids][: len(seen.tokens)],
                "entropy": [round(entropy(shares), 6) for shares in load],
                "layer_losses": [round(loss, 6) for loss in losses],
                "stopped": stopped,
            }
            return Update(result, page | measured | pace.speed(), last)

        # One token more than asked for, and <eos> too, are generated and left out: a token's routing comes with the
        # token behind it.
        waiting: list[tuple[Routing, ...]] = []  # added when the page is to hear of them, not one by one
        steps = stream(run.model, start.ids, **settings | {"max_new_tokens": settings["max_new_tokens"] + 1})
        stopped: str | None = None
        pace = Pace()
        for step in pace.timed(steps):
            deadline.check()
            waiting.append(step.routing)  # of the tokens before this one
            if step.token_id == tokenizer.eos_id:
                stopped = "eos"
            elif len(new_ids) == settings["max_new_tokens"]:
                stopped = "length"
            if stopped:
                break
            texts.append(token_text(tokenizer, step.token_id))
            new_ids.append(step.token_id)
            if pace.due():
                yield update(None, last=False)
        if stopped is None:
            stopped = "length" if len(new_ids) == settings["max_new_tokens"] else steps.stopped
        yield update(stopped, last=True)


def checked(temperature: Any, max_new_tokens: Any, seed: Any) -> dict[str, Any]:
    """The settings of a run, as `stream` takes them. Raises Refused in words."""
    return {
        "max_new_tokens": checked_new_tokens(max_new_tokens),
        "temperature": limits.number(temperature, "Temperature", 0, limits.MAX_TEMPERATURE, 0),
        "seed": limits.whole(seed, "Seed", 0, limits.MAX_SEED, 0),
    }


def mixture(service: Service) -> Run:
    """The run whose experts are shown. Raises Refused or Unavailable."""
    run = service.runs.get(MOE)
    if run.model.config.moe is None or run.model.config.vision is not None:
        raise Refused("The moe folder holds a model without experts; `python train.py moe` makes one with them.")
    return run


def entropy(shares: Sequence[float]) -> float:
    """Of a load, in bits: log2 of the number of experts if it is even, 0 if one takes all."""
    return -sum(share * math.log2(share) for share in shares if share > 0)


def preferences(run: Run) -> list[list[dict[str, Any]]] | None:
    """By layer and expert what training found it to prefer; None if the run folder doesn't tell of this model."""
    config, kept = run.model.config, ("tokens", "kinds")
    try:
        found = [
            [{kind: [[str(name), float(lift)] for name, lift in expert[kind]] for kind in kept} for expert in layer]
            for layer in run.info["expert_preferences"]
        ]
    except (KeyError, TypeError, ValueError):
        return None
    assert config.moe is not None
    return found if [len(layer) for layer in found] == [config.moe.n_experts] * config.n_layers else None


class Routed:
    """The routing of the tokens read so far."""

    def __init__(self, n_layers: int) -> None:
        self.tokens: list[dict[str, Any]] = []
        self._layers: list[list[Routing]] = [[] for _ in range(n_layers)]

    def read(self, steps: Sequence[Sequence[Routing]]) -> None:
        """Add the tokens that these steps have read."""
        if not steps:
            return
        by_layer = [Routing(*map(torch.cat, zip(*layer, strict=True))) for layer in zip(*steps, strict=True)]
        for parts, routing in zip(self._layers, by_layer, strict=True):
            parts.append(routing)
        told = [(r.expert_ids.tolist(), _rounded(r.weights), _rounded(r.probs)) for r in by_layer]
        for i in range(len(told[0][0])):
            self.tokens.append(
                {
                    "experts": [experts[i] for experts, _, _ in told],
                    "weights": [weights[i] for _, weights, _ in told],
                    "probs": [probs[i] for _, _, probs in told],
                }
            )

    def load(self) -> list[list[float]]:
        """Share of the choices that went to each expert, by layer; each layer sums to 1."""
        shares = []
        for routing in self._whole():
            counts = routing.expert_ids.flatten().bincount(minlength=routing.probs.shape[1])
            shares.append([round(share, 6) for share in (counts / counts.sum()).tolist()])
        return shares

    def losses(self) -> list[float]:
        """Each layer's load-balancing loss; [] before the first token."""
        return [float(load_balancing_loss(routing)) for routing in self._whole()]

    def _whole(self) -> list[Routing]:
        if not self.tokens:
            return []
        for parts in self._layers:
            parts[:] = [Routing(*(torch.cat(column) for column in zip(*parts, strict=True)))]
        return [parts[0] for parts in self._layers]


def _rounded(values: torch.Tensor) -> list[list[float]]:
    return [[round(value, 5) for value in row] for row in values.tolist()]
