"""The Caption tab: a picture, its caption, the likeliest names and the verdict.

S image slots, D `d_model`, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tinylm.cache import LatentCache
from tinylm.captioner import MAX_CAPTION_TOKENS, Captioner
from tinylm.data.flowers import CAPTION_PROMPT
from tinylm.data.flowers import caption as caption_of
from tinylm.ui.limits import Refused
from tinylm.ui.models import VISION
from tinylm.ui.service.common import Pace, Service, Update, probability
from tinylm.vision import image_to_tensor, load_image

N_LABELS = 5
NO_PICTURE = "Please choose a picture first."


class Seen(NamedTuple):
    """A picture as the model takes it in."""

    captioner: Captioner
    images: Tensor  # (1, 3, size, size)
    slots_1SD: Tensor

    @classmethod
    def of(cls, service: Service, image: Any) -> Seen:
        """Read a path, an open file or a PIL image, and encode it once. Raises Refused or Unavailable."""
        run = service.runs.get(VISION)
        try:
            captioner = Captioner.of(run)
        except ValueError as error:
            raise Refused(f"The vision folder can't caption: {_first_line(error)}.") from None
        vision = run.model.config.vision
        assert vision is not None
        try:
            picture = load_image(image)
        except ValueError as error:
            raise Refused(_first_line(error)) from None
        images = image_to_tensor(picture, vision.image_size)[None]
        return cls(captioner, images, captioner.slots(images))


class Said(NamedTuple):
    """One token of a caption as it is said; None is its end."""

    token_id: int | None
    logprob: float


def say(captioner: Captioner, slots_1SD: Tensor) -> Iterator[Said]:
    """The greedy caption behind its fixed beginning, token by token: what `tinylm.stream` gives for the picture.

    The slots go in as they are, so that a picture is encoded once for all that is asked of it.
    """
    model, tokenizer = captioner.model, captioner.tokenizer
    cache, text, read = LatentCache(model.config), CAPTION_PROMPT, tokenizer.encode(CAPTION_PROMPT)
    slots: Tensor | None = slots_1SD
    for _ in range(MAX_CAPTION_TOKENS):
        # Entered anew for every token: a generator must not leave it set in its caller's thread.
        with torch.inference_mode():
            ids_BT = torch.tensor([read], device=model.head_bias.device)
            logprobs_V = model(ids_BT, cache=cache, slots=slots).logits[0, -1].log_softmax(dim=-1)
            token_id = int(logprobs_V.argmax())
            logprob = float(logprobs_V[token_id])
        if token_id == tokenizer.eos_id:
            yield Said(None, logprob)
            return
        yield Said(token_id, logprob)
        text += tokenizer.decode([token_id])
        if cache.length == cache.capacity or (tokenizer.eos_id is None and text.endswith("!")):
            return  # without <eos> the model never stops by itself
        read, slots = [token_id], None


def named(captioner: Captioner, text: str, logprobs_L: Tensor) -> tuple[str, bool]:
    """The label that a caption names, and True; of a caption that names none, the likeliest label, and False."""
    labels = {caption_of(label): label for label in captioner.labels}
    return (labels[text], True) if text in labels else (captioner.labels[int(logprobs_L.argmax())], False)


def caption(service: Service, image: Any) -> Iterator[Update]:
    """Caption a picture: a path, an open file or a PIL image. Raises Refused or Unavailable."""
    if image is None:
        raise Refused(NO_PICTURE)
    with service.slots.take() as deadline:
        seen = Seen.of(service, image)
        captioner, tokenizer = seen.captioner, seen.captioner.tokenizer
        logprobs_BL = captioner.logprobs(seen.slots_1SD)
        score = float(captioner.flower_scores(logprobs_BL))
        tokens: list[dict[str, Any]] = []
        result: dict[str, Any] = {
            "caption": CAPTION_PROMPT,
            "label": None,
            "probability": None,
            "labels": [[label, round(p, 6)] for label, p in captioner.in_order(logprobs_BL[0])],
            "is_flower": score >= captioner.flower_threshold,
            "flower_score": round(score, 6),
        }
        page: dict[str, Any] = {
            "pixels": seen.images[0].permute(1, 2, 0).mul(255).round().int().flatten().tolist(),
            "size": seen.images.shape[-1],
            "threshold": captioner.flower_threshold,
            "temperature": captioner.temperature,
            "n_labels": len(captioner.labels),
            "n_shown": N_LABELS,
            "n_slots": captioner.model.config.n_slots,
            "weights": service.weights(VISION),
            "end": None,  # probability of the caption's end behind its last token
            "scored": None,  # probability of the whole caption, end included, read in one go
        }
        pace, logprob = Pace(), 0.0
        for token_id, token_logprob in say(captioner, seen.slots_1SD):
            deadline.check()
            if token_id is None:
                page["end"] = probability(token_logprob)
                break
            logprob += token_logprob
            text = tokenizer.decode([token_id])
            result["caption"] += text
            tokens.append({"text": text, "probability": probability(token_logprob)})
            if pace.due():
                yield Update(dict(result), page | {"tokens": list(tokens)})
        result["label"], is_named = named(captioner, result["caption"], logprobs_BL[0])
        result["probability"] = probability(logprob)
        if is_named and page["end"] is not None:
            column = captioner.labels.index(result["label"])
            page["scored"] = round(math.exp(logprobs_BL[0, column]), 6)
        yield Update(result, page | {"tokens": tokens})


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
