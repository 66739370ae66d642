"""Many visitors at once, each with prompts and a picture of their own: every answer must be the asker's."""

from __future__ import annotations

import asyncio
import json
import random
import time
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

import torch
from serve import ROOT

import tinylm
from soak.figures import Figure, percentile
from soak.pictures import png
from soak.visitors import Page, RefusedByQueue, Visitor
from soak.watch import Server
from tinylm.captioner import Captioner
from tinylm.data import painter
from tinylm.data.flowers import CAPTION_PROMPT

BEGINNINGS = ("A baby {} is called", "The opposite of {} is", "The capital of {} is", "{} make", "The day after {} is")
WORDS = (
    "cat",
    "dog",
    "hot",
    "big",
    "France",
    "Italy",
    "Bees",
    "Birds",
    "Monday",
    "Friday",
    "cow",
    "fast",
    "Japan",
    "Trees",
)
KINDS = ("tulip", "sunflower", "rose", "daisy", "iris", "poppy", "water lily")
TEMPERATURE, N_NEW = 0.7, 24
MOST_THINKING = 1.0
"""Seconds, at most, between an answer and the visitor's next question."""
AGAIN = "try again"
"""What every sentence says that turns a visitor away because others are being served."""


class Question(NamedTuple):
    """What a visitor asks, and the answer that `tinylm` itself gives to it."""

    kind: str
    data: list[Any]
    answer: str
    beginning: str  # of every text that is told on the way
    score: float | None = None  # of a picture, which tells two with the same caption apart
    picture: bytes = b""


class Tally:
    """What all visitors together saw."""

    def __init__(self) -> None:
        self.first: list[float] = []  # seconds from the question to the first update
        self.whole: list[float] = []
        self.answers: Counter[int] = Counter()  # by visitor
        self.kinds: Counter[str] = Counter()
        self.refused = 0
        self.mixed: list[str] = []
        self.failed: list[str] = []


class Library:
    """The shipped models, called directly."""

    def __init__(self) -> None:
        self.text, self.moe, self.vision = (tinylm.load(ROOT / "weights" / name) for name in ("text", "moe", "vision"))

    def completed(self, run: Any, prompt: str, seed: int) -> str:
        tokenizer = run.tokenizer
        options = {"max_new_tokens": N_NEW, "temperature": TEMPERATURE, "seed": seed, "eos_id": tokenizer.eos_id}
        return prompt + tokenizer.decode(tinylm.generate(run.model, tokenizer.encode(prompt), **options))

    def captioned(self, picture: Any) -> tuple[str, float]:
        run, captioner = self.vision, Captioner.of(self.vision)
        image = tinylm.image_to_tensor(tinylm.load_image(picture), run.model.config.vision.image_size)[None]
        with torch.inference_mode():
            ids = tinylm.generate(
                run.model, run.tokenizer.encode(CAPTION_PROMPT), image, 24, eos_id=run.tokenizer.eos_id
            )
            score = captioner.flower_scores(captioner.logprobs(captioner.slots(image)))
        return CAPTION_PROMPT + run.tokenizer.decode(ids), float(score)

    def questions(self, i: int) -> list[Question]:
        """Those of visitor `i`."""
        prompt = BEGINNINGS[i % len(BEGINNINGS)].format(WORDS[i % len(WORDS)])
        picture = painter.paint(KINDS[i % len(KINDS)], 1_000 + i, 64)
        (caption, score), file = self.captioned(picture), png(picture)
        data = [prompt, "text", TEMPERATURE, 0, 1, N_NEW, i]
        text, mixture = (self.completed(run, prompt, i) for run in (self.text, self.moe))
        inside = {"url": "data:image/png;base64," + b64encode(file).decode(), "meta": {"_type": "gradio.FileData"}}
        return [
            Question("page: complete", data, text, prompt),
            Question("page: caption", [], caption, CAPTION_PROMPT, score, file),
            Question("API: complete", [prompt, "moe", *data[2:]], mixture, prompt),
            Question("API: route", [prompt, TEMPERATURE, N_NEW, i], mixture, prompt),
            Question("API: caption", [inside], caption, CAPTION_PROMPT, score),
        ]


class Refusal(Exception):
    """The app turned the visitor away, in words."""


async def _results(server: Server, page: Page, i: int, question: Question) -> AsyncIterator[dict[str, Any]]:
    """What the visitor is told, update by update."""
    visitor = Visitor(server.port, i)
    surface, _, name = question.kind.partition(": ")
    if surface == "API":
        async with aclosing(visitor.called(name, question.data)) as events:
            async for kind, value in events:
                if kind == "error":
                    raise Refusal(str(value))
                yield value[0]
        return
    data, control = question.data, "complete-run"
    if name == "caption":
        data, control = [await visitor.uploaded(question.picture), ""], "caption-run"
    async with aclosing(visitor.joined(page.fn_indices[control, "click"], data)) as messages:
        value: dict[str, Any] = {}
        async for message in messages:
            if message["msg"] not in ("process_generating", "process_completed"):
                continue
            if not message["success"]:
                raise Refusal(str(message["output"]))
            new = message["output"]["data"][0]
            value = new if isinstance(new, dict) else patched(value, new)
            if value["state"] == "error":
                raise Refusal(value["message"])
            if value["state"] != "waiting":  # for a place: nothing is answered yet
                yield json.loads(value["rest"])["result"]


def patched(value: dict[str, Any], changes: list[list[Any]]) -> dict[str, Any]:
    """A panel's value after an update, which names only what has changed: its entries are strings and numbers."""
    value = dict(value)
    for action, path, new in changes:
        (key,) = path
        value[key] = value[key] + new if action == "append" else new
    return value


async def _ask(server: Server, page: Page, i: int, question: Question, tally: Tally) -> None:
    start, first, text, score = time.perf_counter(), 0.0, "", None
    try:
        async with aclosing(_results(server, page, i, question)) as results:
            async for result in results:
                first = first or time.perf_counter() - start
                text, score = result.get("caption") or result["text"], result.get("flower_score")
                if not text.startswith(question.beginning):
                    tally.mixed.append(f"{question.kind}: {question.beginning!r} got {text!r}")
    except RefusedByQueue:
        tally.refused += 1
        return
    except Refusal as refusal:
        if AGAIN in str(refusal):
            tally.refused += 1
        else:
            tally.failed.append(f"{question.kind}: {refusal}")
        return
    except (AssertionError, OSError, EOFError, KeyError, ValueError) as error:
        tally.failed.append(f"{question.kind}: {error!r}")
        return
    if text != question.answer or (question.score is not None and not abs(question.score - score) < 1e-3):
        expected = f"{question.answer!r}, {question.score}"
        tally.mixed.append(f"{question.kind}: {expected} expected, got {text!r}, {score}")
    tally.first.append(first)
    tally.whole.append(time.perf_counter() - start)
    tally.answers[i] += 1
    tally.kinds[question.kind] += 1


def many_visitors(server: Server, n: int, seconds: float) -> tuple[dict[str, Figure], list[str]]:
    """`n` visitors who ask one question after the other; the figures, and what went wrong."""
    page, library, tally = Page.of(server.address), Library(), Tally()
    questions = [library.questions(i) for i in range(n)]

    async def visitor(i: int, end: float) -> None:
        source = random.Random(i)
        # A short run still asks everything at least once in all.
        turn = i % len(questions[i])
        while True:
            await _ask(server, page, i, questions[i][turn % len(questions[i])], tally)
            turn += 1
            if time.monotonic() > end:
                return
            await asyncio.sleep(source.uniform(0, MOST_THINKING))

    async def go() -> float:
        start = time.monotonic()
        await asyncio.gather(*(visitor(i, start + seconds) for i in range(n)))
        return time.monotonic() - start

    took = asyncio.run(go())
    n_answers = sum(tally.answers.values())
    milliseconds: Callable[[list[float], float], float] = lambda times, share: 1000 * percentile(times, share)  # noqa: E731
    figures = {
        "visitors": Figure(n),
        "answers": Figure(n_answers),
        "requests a second": Figure(n_answers / took),
        "first token, p50": Figure(milliseconds(tally.first, 0.5), None, "ms"),
        "first token, p95": Figure(milliseconds(tally.first, 0.95), 30_000, "ms"),
        "whole answer, p50": Figure(milliseconds(tally.whole, 0.5), None, "ms"),
        "whole answer, p95": Figure(milliseconds(tally.whole, 0.95), 60_000, "ms"),
        "fewest answers of a visitor": Figure(min(tally.answers[i] for i in range(n))),
        "most answers of a visitor": Figure(max(tally.answers[i] for i in range(n))),
        "visitors without an answer": Figure(sum(tally.answers[i] == 0 for i in range(n)), 0),
        "turned away in words": Figure(tally.refused),
        "kinds of question never answered": Figure(5 - len(tally.kinds), 0),
        "mixed or wrong answers": Figure(len(tally.mixed), 0),
        "failures": Figure(len(tally.failed), 0),
    }
    return figures, tally.mixed + tally.failed
