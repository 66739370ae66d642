"""The Caption tab: a picture, its caption, the likeliest names and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinylm.captioner import MAX_CAPTION_TOKENS, Captioner
from tinylm.data.flowers import CAPTION_PROMPT
from tinylm.data.flowers import caption as caption_of
from tinylm.generate import stream
from tinylm.ui.limits import Refused
from tinylm.ui.models import VISION
from tinylm.ui.service.common import Pace, Service, Update, probability
from tinylm.vision import image_to_tensor, load_image

N_LABELS = 5


def caption(service: Service, image: Any) -> Iterator[Update]:
    """Caption a picture: a path, an open file or a PIL image. Raises Refused or Unavailable."""
    if image is None:
        raise Refused("Please choose a picture first.")
    with service.slots.take() as deadline:
        run = service.runs.get(VISION)
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
            "labels": [[label, round(p, 6)] for label, p in scores],
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
            "weights": service.weights(VISION),
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
        named = {caption_of(label): label for label in captioner.labels}
        result["label"] = named.get(result["caption"], scores[0][0])
        result["probability"] = probability(logprob)
        yield Update(result, page)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
