"""The Caption tab: a picture, its caption, the likeliest names and the verdict.

S image slots, D `d_model`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from tinylm.captioner import MAX_CAPTION_TOKENS, Captioner
from tinylm.data.flowers import CAPTION_PROMPT
from tinylm.data.flowers import caption as caption_of
from tinylm.generate import stream
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
        # The end is generated as a token and left out, since its probability is told.
        ids = tokenizer.encode(CAPTION_PROMPT)
        for step in stream(captioner.model, ids, max_new_tokens=MAX_CAPTION_TOKENS, slots=seen.slots_1SD):
            deadline.check()
            if step.token_id == tokenizer.eos_id:
                page["end"] = probability(step.logprob)
                break
            logprob += step.logprob
            text = tokenizer.decode([step.token_id])
            result["caption"] += text
            tokens.append({"text": text, "probability": probability(step.logprob)})
            if tokenizer.eos_id is None and result["caption"].endswith("!"):
                break  # without <eos> the model never stops by itself
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
