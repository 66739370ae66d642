"""What every tab's answers share: an update, the models and the places to run them in, a prompt, and the pace."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor

from tinylm.checkpoint import WEIGHTS, Run, unknown_words
from tinylm.generate import Step
from tinylm.tokenizer import Tokenizer
from tinylm.ui import limits
from tinylm.ui.limits import Refused, Slots, SlotsOf, Visit
from tinylm.ui.models import RunFolders, Unavailable

SECONDS_BETWEEN_UPDATES = 1 / 30
MOST_SECONDS_BETWEEN_UPDATES = 1 / 8
SHARE_OF_UPDATES = 1 / 12
"""Of a run's time, at most, that goes into telling of it."""


GONE = "The weights of this model were taken away or changed just now. Please try again."


class Update(NamedTuple):
    """One state of a run."""

    result: dict[str, Any]
    page: dict[str, Any]
    last: bool = False  # nothing comes behind it


def n_tokens(update: Update) -> int:
    """New tokens that an update tells of, in whichever form."""
    result, page, _ = update
    if "rows" in result and "plain" not in result:  # a proof's ways
        return sum(row["n_new"] for row in result["rows"])
    if "plain" in result:  # an operation's two texts
        return sum(len(text["ids"]) - page["n_prompt"] for text in (result["plain"], result["operated"]) if text)
    tokens = result.get("tokens", page.get("tokens", ()))
    return max(0, len(tokens) - page.get("n_prompt", 0))


class Service:
    """The three models behind the page, and the places to run them in."""

    def __init__(self, runs: RunFolders, slots: Slots | None = None) -> None:
        self.runs = runs
        self.slots: Slots | SlotsOf = slots or Slots()
        self._digests: dict[str, tuple[tuple[float, ...], str]] = {}

    def of(self, visit: Visit) -> Service:
        """The same service, for one request."""
        if not isinstance(self.slots, Slots):
            raise TypeError("this service is one request's already")
        visited = copy.copy(self)
        visited.slots = self.slots.of(visit)
        return visited

    def apart(self) -> Service:
        """The same service with places of its own, for what the page computes before anyone asks."""
        apart = copy.copy(self)
        apart.slots = Slots()
        return apart

    def weights(self, name: str) -> dict[str, str]:
        """Which weights answer: the run's `name`, and the `sha256` of its weight file. Raises Unavailable as `get`."""
        self.runs.get(name)
        stamp = self.runs.stamp(name)
        if name not in self._digests or self._digests[name][0] != stamp:
            try:
                digest = hashlib.sha256((self.runs.folder / name / WEIGHTS).read_bytes()).hexdigest()
            except OSError:
                raise Unavailable(GONE) from None
            self._digests[name] = (stamp, digest)
        return {"name": name, "sha256": self._digests[name][1]}


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


class Pace:
    """Times the model's own work, and tells when the next update is due."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._count = 0
        self._pause = SECONDS_BETWEEN_UPDATES
        self._last = time.perf_counter()
        self._told = False

    def timed(self, steps: Iterator[Step]) -> Iterator[Step]:
        """The steps; the time between a step and the request for the next one doesn't count."""
        while True:
            start = time.perf_counter()
            if self._told:
                # An update costs what passes until the next step is asked for: gradio's work and the network's.
                self._pause = min((start - self._last) / SHARE_OF_UPDATES, MOST_SECONDS_BETWEEN_UPDATES)
                self._told = False
            step = next(steps, None)
            self._seconds += time.perf_counter() - start
            if step is None:
                return
            self._count += 1
            yield step

    def due(self) -> bool:
        """Whether the page should hear of the newest step: at most 30 times a second, less often if telling is slow.

        A run that is over sooner is told of once.
        """
        now = time.perf_counter()
        if now - self._last < max(self._pause, SECONDS_BETWEEN_UPDATES):
            return False
        self._last, self._told = now, True
        return True

    def speed(self) -> dict[str, Any]:
        """`tokens_per_second` of model time."""
        return {"tokens_per_second": round(self._count / self._seconds if self._seconds else 0.0, 1)}


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's characters; a special token by its name, an unknown character as U+FFFD."""
    return token_texts(tokenizer)[token_id]


def token_texts(tokenizer: Tokenizer) -> list[str]:
    """`token_text` of every token, by id."""
    if tokenizer not in _texts:
        _texts[tokenizer] = [tokenizer.decode([i]) or token for i, token in enumerate(tokenizer.tokens)]
    return _texts[tokenizer]


# A step has ten alternatives, and to decode each anew would take a tenth of its time.
_texts: WeakKeyDictionary[Tokenizer, list[str]] = WeakKeyDictionary()


def checked_new_tokens(value: Any) -> int:
    """How many tokens to generate; None gives 40. Raises Refused in words."""
    return limits.whole(value, "Max new tokens", 1, limits.MAX_NEW_TOKENS, 40)


def probability(logprob: float) -> float:
    """Of a log-probability in nats, rounded for the page."""
    return round(math.exp(logprob), 6)


def text_model(service: Service, name: Any) -> str:
    """The name of a run that completes text; None gives the first. Raises Refused."""
    names = service.runs.text_names()
    if name is None:
        return names[0]
    if name not in names:
        raise Refused(f"There is no model of that name; choose one of {', '.join(names)}.")
    return name


def coded(values: Tensor) -> str:
    """Base64 of the values as little-endian float32: what `tinylm.floats` reads in the browser, without any loss."""
    return coded_rows(values.reshape(1, -1))[0]


def coded_rows(values_rows: Tensor) -> list[str]:
    """`coded` of each row."""
    rows = values_rows.float().cpu().contiguous().numpy().astype("<f4", copy=False)
    return [b64encode(row.tobytes()).decode() for row in rows]
