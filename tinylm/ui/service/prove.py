"""The Complete tab's "Prove it": one prompt, run in every way that the model can be run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from tinylm.comparison import N_TIMED, Row, compare
from tinylm.tokenizer import Tokenizer
from tinylm.ui import limits
from tinylm.ui.service.common import Service, Start, Update, checked_new_tokens, text_model

MAX_TOKENS = 64
"""New tokens that are compared; the rest of a longer text is left out."""
SECONDS_BETWEEN_SIGNS = 0.5
"""A way that takes long shows a sign of life, and can be left, this often."""


def prove(service: Service, prompt: Any, model: Any = "text", max_new_tokens: Any = 40) -> Iterator[Update]:
    """Compare the ways on a prompt, at temperature 0: a row as soon as it is there, the times at the end.

    Raises Refused or Unavailable.
    """
    model = text_model(service, model)
    asked = checked_new_tokens(max_new_tokens)
    text = limits.prompt(prompt)
    with service.slots.take() as deadline:
        run = service.runs.get(model)
        tokenizer, config = run.tokenizer, run.model.config
        start = Start.read(run, text)
        page = {
            "prompt": start.text,
            "from_nothing": start.from_nothing,
            "n_prompt": len(start.ids),
            "n_layers": config.n_layers,
            "d_latent": config.d_latent,
            "d_model": config.d_model,
            "bytes_per_number": run.model.head_bias.element_size(),
            "n_timed": N_TIMED,
            "max_tokens": min(asked, MAX_TOKENS),
            "shortened": asked > MAX_TOKENS,
            "running": None,
            "weights": service.weights(model),
        }
        n_shown, shown_at = -1, -math.inf
        for rows, running in compare(run.model, start.ids, None, min(asked, MAX_TOKENS), tokenizer.eos_id):
            deadline.check()
            now = time.monotonic()
            if len(rows) > n_shown or running is None or now - shown_at > SECONDS_BETWEEN_SIGNS:
                n_shown, shown_at = len(rows), now
                described = [_described(tokenizer, row, len(start.ids)) for row in rows]
                yield Update({"rows": described}, page | {"running": running})


def _described(tokenizer: Tokenizer, row: Row, n_prompt: int) -> dict[str, Any]:
    """A row as the page gets it; a difference that is no number is None."""
    return {
        "way": row.way,
        "same": row.same,
        "n_new": len(row.token_ids),
        "text": tokenizer.decode(row.token_ids),
        "n_read": n_prompt + row.n_steps - 1,
        "n_compared": row.n_compared,
        "largest_difference": row.largest_difference if math.isfinite(row.largest_difference) else None,
        "bytes": row.nbytes,
        "ms_per_token": row.ms_per_token,
    }
