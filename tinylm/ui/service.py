"""What the page and its API compute: generators over plain Python values that know nothing of gradio.

Each yields `Update`s that grow: `result` is the API's JSON object, `page` is what only the page shows. Lists are new
at every update, and only ever get longer within one run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tinylm.captioner import MAX_CAPTION_TOKENS, Captioner
from tinylm.checkpoint import Run, unknown_words
from tinylm.data.flowers import CAPTION_PROMPT, caption
from tinylm.generate import Step, stream
from tinylm.moe import Routing, load_balancing_loss
from tinylm.tokenizer import EOS, Tokenizer
from tinylm.ui import limits
from tinylm.ui.limits import Refused, Slots
from tinylm.ui.models import MOE, VISION, RunFolders
from tinylm.vision import image_to_tensor, load_image

SECONDS_BETWEEN_UPDATES = 1 / 30
N_LABELS = 5


class Update(NamedTuple):
    """One state of a run."""

    result: dict[str, Any]
    page: dict[str, Any]


class Service:
    """The three models behind the page, and the places to run them in."""

    def __init__(self, runs: RunFolders, slots: Slots | None = None) -> None:
        self.runs = runs
        self.slots = slots or Slots()

    def complete(
        self,
        prompt: Any,
        model: Any = "text",
        temperature: Any = 0,
        top_k: Any = 0,
        top_p: Any = 1,
        max_new_tokens: Any = 40,
        seed: Any = 0,
    ) -> Iterator[Update]:
        """Continue a prompt. Raises Refused or Unavailable, with a sentence for the visitor."""
        names = self.runs.text_names()
        if model is None:
            model = names[0]
        if model not in names:
            raise Refused(f"There is no model of that name; choose one of {', '.join(names)}.")
        settings = {
            "max_new_tokens": _max_new_tokens(max_new_tokens),
            "temperature": limits.number(temperature, "Temperature", 0, limits.MAX_TEMPERATURE, 0),
            "top_k": limits.whole(top_k, "Top-k", 0, 10**9, 0),
            "top_p": limits.number(top_p, "Top-p", 0, 1, 1),
            "seed": limits.whole(seed, "Seed", 0, limits.MAX_SEED, 0),
        }
        text = limits.prompt(prompt)
        with self.slots.take() as deadline:
            run = self.runs.get(model)
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
            steps = stream(run.model, start.ids, eos_id=tokenizer.eos_id, **settings)  # type: ignore[arg-type]
            pace = Pace()
            for step in pace.timed(steps):
                deadline.check()
                tokens.append(_described(tokenizer, step))
                n_read = len(start.ids) + len(tokens) - 1
                result |= {
                    "text": start.text + tokenizer.decode([token["id"] for token in tokens]),
                    "cache_bytes": step.cache_nbytes,
                    "full_cache_bytes": 2
                    * config.d_model
                    * config.n_layers
                    * n_read
                    * run.model.head_bias.element_size(),
                }
                if pace.due():
                    yield Update(result | {"tokens": list(tokens)}, page | pace.speed())
            result |= {"tokens": tokens, "stopped": steps.stopped}
            yield Update(result, page | pace.speed())

    def caption(self, image: Any) -> Iterator[Update]:
        """Caption a picture: a path, an open file or a PIL image. Raises Refused or Unavailable."""
        if image is None:
            raise Refused("Please choose a picture first.")
        with self.slots.take() as deadline:
            run = self.runs.get(VISION)
            tokenizer, vision = run.tokenizer, run.model.config.vision
            try:
                captioner = Captioner.of(run)
            except ValueError as error:
                raise Refused(f"The vision folder can't caption: {_first_line(error)}.") from None
            assert vision is not None
            try:
                picture = load_image(image)
            except ValueError as error:
                raise Refused(_first_line(error)) from None
            pixels = image_to_tensor(picture, vision.image_size)
            images = pixels[None]
            logprobs_BL = captioner.logprobs(captioner.slots(images))
            scores = captioner.in_order(logprobs_BL[0])
            score = float(captioner.flower_scores(logprobs_BL))
            result: dict[str, Any] = {
                "caption": CAPTION_PROMPT,
                "label": None,
                "probability": None,
                "labels": [[label, round(probability, 6)] for label, probability in scores],
                "is_flower": score >= captioner.flower_threshold,
                "flower_score": round(score, 6),
            }
            page: dict[str, Any] = {
                "pixels": pixels.permute(1, 2, 0).mul(255).round().int().flatten().tolist(),
                "size": vision.image_size,
                "threshold": captioner.flower_threshold,
                "temperature": captioner.temperature,
                "n_labels": len(captioner.labels),
                "n_shown": N_LABELS,
                "n_slots": vision.n_slots,
            }
            ids = tokenizer.encode(CAPTION_PROMPT)
            steps = stream(run.model, ids, images, MAX_CAPTION_TOKENS, eos_id=tokenizer.eos_id)
            pace, logprob = Pace(), 0.0
            for step in pace.timed(steps):
                deadline.check()
                logprob += step.logprob
                result["caption"] += tokenizer.decode([step.token_id])
                if tokenizer.eos_id is None and result["caption"].endswith("!"):
                    break  # without <eos> the model never stops by itself
                if pace.due():
                    yield Update(dict(result), page)
            named = {caption(label): label for label in captioner.labels}
            result["label"] = named.get(result["caption"], scores[0][0])
            result["probability"] = _probability(logprob)
            yield Update(result, page)

    def route(self, prompt: Any, temperature: Any = 0, max_new_tokens: Any = 40, seed: Any = 0) -> Iterator[Update]:
        """Continue a prompt and tell each token's experts. Raises Refused or Unavailable.

        `load_balancing_loss` is the mean over layers; `load` and it are those of the tokens read so far.
        """
        settings = {
            "max_new_tokens": _max_new_tokens(max_new_tokens),
            "temperature": limits.number(temperature, "Temperature", 0, limits.MAX_TEMPERATURE, 0),
            "seed": limits.whole(seed, "Seed", 0, limits.MAX_SEED, 0),
        }
        text = limits.prompt(prompt)
        with self.slots.take() as deadline:
            run = self.runs.get(MOE)
            tokenizer, config = run.tokenizer, run.model.config
            if config.moe is None or config.vision is not None:
                raise Refused(
                    "The moe folder holds a model without experts; `python train.py moe` makes one with them."
                )
            start = Start.read(run, text)
            texts = [piece["text"] for piece in start.pieces] or [EOS]
            new_ids: list[int] = []
            seen = Routed(config.n_layers)
            page = {
                "n_prompt": len(texts),
                "from_nothing": start.from_nothing,
                "unknown": start.unknown,
                "unknown_words": start.new_words,
                "top_k": config.moe.top_k,
                "n_layers": config.n_layers,
                "context": config.max_seq_len,
                "stopped": None,
            }

            def update(stopped: str | None, speed: dict[str, Any]) -> Update:
                result = {
                    "text": start.text + tokenizer.decode(new_ids),
                    "n_experts": run.model.config.moe.n_experts,  # type: ignore[union-attr]
                    "tokens": [{"text": t, **token} for t, token in zip(texts, seen.tokens, strict=False)],
                    "load": seen.load(),
                    "load_balancing_loss": seen.loss(),
                }
                return Update(result, page | {"stopped": stopped} | speed)

            steps = stream(run.model, start.ids, eos_id=tokenizer.eos_id, **settings)  # type: ignore[arg-type]
            pace = Pace()
            for step in pace.timed(steps):
                deadline.check()
                seen.read(step.routing)  # of the tokens before this one
                texts.append(token_text(tokenizer, step.token_id))
                new_ids.append(step.token_id)
                if pace.due():
                    yield update(None, pace.speed())
            ids = [*start.ids, *new_ids]
            if len(ids) <= config.max_seq_len and len(seen.tokens) < len(ids):
                # The last token was chosen but not read: read it, so that it has experts too.
                with torch.inference_mode():
                    routings = run.model(torch.tensor([ids], device=run.model.head_bias.device)).routings
                seen.read(tuple(Routing(*(part[len(seen.tokens) :] for part in routing)) for routing in routings))
            yield update(steps.stopped, pace.speed())


class Start(NamedTuple):
    """A prompt as the model reads it."""

    text: str
    ids: list[int]
    pieces: list[dict[str, Any]]  # {"text", "known"} a token, in the visitor's own characters
    unknown: list[str]  # characters that no token covers
    new_words: list[str]  # words that the training text did not have
    from_nothing: bool

    @classmethod
    def read(cls, run: Run, text: str) -> Start:
        """Encode a prompt; an empty one starts from `<eos>`, which stands before a text. Raises Refused."""
        tokenizer, room = run.tokenizer, run.model.config.max_seq_len
        if not text.strip():
            if tokenizer.eos_id is None:
                raise Refused("This model needs a prompt to start from. Please type a word or two.")
            return cls("", [tokenizer.eos_id], [], [], [], True)
        ids = tokenizer.encode(text)
        if len(ids) > room:
            raise Refused(f"The prompt has {len(ids):,} tokens; this model reads at most {room:,}. Please shorten it.")
        unknown_ids = {tokenizer.pad_id, tokenizer.unk_id}
        pieces, at = [], 0
        for token_id in ids:
            known = token_id not in unknown_ids
            end = at + (len(tokenizer.tokens[token_id]) if known else 1)
            pieces.append({"text": text[at:end], "known": known})
            at = end
        return cls(text, ids, pieces, tokenizer.unknown_characters(text), unknown_words(run, text), False)


class Routed:
    """The routing of the tokens read so far."""

    def __init__(self, n_layers: int) -> None:
        self.tokens: list[dict[str, Any]] = []
        self._layers: list[list[Routing]] = [[] for _ in range(n_layers)]

    def read(self, routings: Sequence[Routing]) -> None:
        """Add the tokens that one step read."""
        for parts, routing in zip(self._layers, routings, strict=True):
            parts.append(routing)
        by_layer = [
            (routing.expert_ids.tolist(), _rounded(routing.weights), _rounded(routing.probs)) for routing in routings
        ]
        for i in range(len(by_layer[0][0])):
            self.tokens.append(
                {
                    "experts": [experts[i] for experts, _, _ in by_layer],
                    "weights": [weights[i] for _, weights, _ in by_layer],
                    "probs": [probs[i] for _, _, probs in by_layer],
                }
            )

    def load(self) -> list[list[float]]:
        """Share of the choices that went to each expert, by layer; each layer sums to 1."""
        shares = []
        for routing in self._whole():
            counts = routing.expert_ids.flatten().bincount(minlength=routing.probs.shape[1])
            shares.append([round(share, 6) for share in (counts / counts.sum()).tolist()])
        return shares

    def loss(self) -> float | None:
        """Mean of the layers' load-balancing losses; None before the first token."""
        layers = self._whole()
        if not layers:
            return None
        return round(sum(float(load_balancing_loss(routing)) for routing in layers) / len(layers), 6)

    def _whole(self) -> list[Routing]:
        if not self.tokens:
            return []
        for parts in self._layers:
            parts[:] = [Routing(*(torch.cat(column) for column in zip(*parts, strict=True)))]
        return [parts[0] for parts in self._layers]


class Pace:
    """Times the model's own work, and tells when the next update is due."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._count = 0
        self._last = -math.inf

    def timed(self, steps: Iterator[Step]) -> Iterator[Step]:
        """The steps; the time between a step and the request for the next one doesn't count."""
        while True:
            start = time.perf_counter()
            step = next(steps, None)
            self._seconds += time.perf_counter() - start
            if step is None:
                return
            self._count += 1
            yield step

    def due(self) -> bool:
        """Whether the page should hear of the newest step: at once for the first, then at most 30 times a second."""
        now = time.perf_counter()
        if now - self._last < SECONDS_BETWEEN_UPDATES:
            return False
        self._last = now
        return True

    def speed(self) -> dict[str, Any]:
        """`tokens_per_second` of model time."""
        return {"tokens_per_second": round(self._count / self._seconds if self._seconds else 0.0, 1)}


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's characters; a special token by its name, an unknown character as U+FFFD."""
    return tokenizer.decode([token_id]) or tokenizer.tokens[token_id]


def _described(tokenizer: Tokenizer, step: Step) -> dict[str, Any]:
    return {
        "id": step.token_id,
        "text": token_text(tokenizer, step.token_id),
        "probability": _probability(step.logprob),
        "alternatives": [[token_text(tokenizer, i), round(p, 6)] for i, p in step.alternatives],
    }


def _max_new_tokens(value: Any) -> int:
    return limits.whole(value, "Max new tokens", 1, limits.MAX_NEW_TOKENS, 40)


def _probability(logprob: float) -> float:
    return round(math.exp(logprob), 6)


def _rounded(values: torch.Tensor) -> list[list[float]]:
    return [[round(value, 5) for value in row] for row in values.tolist()]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
