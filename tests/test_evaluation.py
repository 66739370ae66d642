"""The figures in a run folder equal what a loop over examples finds."""

import math

import pytest
import torch
from conftest import lively, random_images, tiny_config

from tinylm import Tokenizer, evaluation, generate
from tinylm.data.batches import IGNORED, Batch, Lines
from tinylm.data.flowers import caption
from tinylm.data.knowledge import Line, Probe

LINES = ["the cat sat", "a dog", "the dog sat on the cat", "cats and dogs", "a"]
LABELS = ("iris", "rose", "tulip")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(LINES, 40, 4)


@pytest.fixture(scope="module")
def caption_tokenizer():
    return Tokenizer.train([caption(label) for label in LABELS], 90, 8)


def batches_for(model, tokenizer, lines=LINES):
    encoded = Lines.encode(lines, tokenizer, model.config.max_seq_len)
    for rows in torch.arange(len(lines)).split(2):
        batch = encoded.batch(rows)
        images = random_images(len(rows), seed=int(rows[0])) if model.config.vision else None
        yield Batch(batch.ids, batch.targets, images)


def make(variant, tokenizer, max_seq_len=30, seed=0):
    return lively(tiny_config(variant, vocab_size=tokenizer.vocab_size, max_seq_len=max_seq_len), seed)


@torch.no_grad()
def test_held_out_loss_is_the_mean_over_real_targets_and_bits_over_characters(variant, tokenizer):
    model = make(variant, tokenizer)
    nats, n_tokens, n_characters = 0.0, 0, 0
    for batch in batches_for(model, tokenizer):
        for row in range(len(batch.ids)):
            n = int((batch.targets[row] != IGNORED).sum())
            images = None if batch.images is None else batch.images[row : row + 1]
            logprobs = model(batch.ids[row : row + 1, :n], images).logits[0].double().log_softmax(dim=-1)
            for t in range(n):
                target = int(batch.targets[row, t])
                nats -= float(logprobs[t, target])
                n_tokens += 1
                n_characters += len(tokenizer.decode([target]))
    found = evaluation.held_out(model, tokenizer, batches_for(model, tokenizer))
    assert found.nats_per_token == pytest.approx(nats / n_tokens, abs=1e-4)
    assert found.bits_per_character == pytest.approx(nats / math.log(2) / n_characters, abs=1e-4)


def test_evaluating_leaves_the_models_mode_and_weights_alone(caption_tokenizer):
    model = make("vision+moe", caption_tokenizer, max_seq_len=40)
    lines = [caption(label) for label in LABELS]
    for mode in (True, False):
        model.train(mode)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        evaluation.held_out(model, caption_tokenizer, batches_for(model, caption_tokenizer, lines))
        evaluation.expert_load(model, batches_for(model, caption_tokenizer, lines))
        assert model.training is mode
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("variant", ["moe", "vision+moe"])
@torch.no_grad()
def test_expert_load_counts_the_choices_of_slots_and_real_tokens(variant, tokenizer):
    model = make(variant, tokenizer)
    n_slots = 4 if "vision" in variant else 0
    counts = [[0] * 3 for _ in range(3)]
    for batch in batches_for(model, tokenizer):
        for row in range(len(batch.ids)):
            n = int((batch.targets[row] != IGNORED).sum())
            images = None if batch.images is None else batch.images[row : row + 1]
            for layer, routing in enumerate(model(batch.ids[row : row + 1, :n], images).routings):
                assert len(routing.expert_ids) == n_slots + n
                for e in routing.expert_ids.flatten().tolist():
                    counts[layer][e] += 1
    loads = evaluation.expert_load(model, batches_for(model, tokenizer))
    for found, right in zip(loads, counts, strict=True):
        assert found == pytest.approx([c / sum(right) for c in right], abs=1e-6)


@pytest.mark.parametrize(
    ("completion", "hit"),
    [
        (" Paris.", True),
        ("paris, of course", True),
        ("Paris", True),
        (" New York is", True),
        (" Parisian", False),
        (" New", False),
        ("in Paris", False),
        ("", False),
        (" paris2", False),
    ],
)
def test_an_answer_counts_as_whole_words_at_the_beginning_whatever_the_case(completion, hit):
    assert evaluation.starts_with_answer(completion, ("Paris", "new york")) is hit


@pytest.mark.parametrize(
    ("completion", "answers", "hit"),
    [
        (" a kitten.", ("kitten",), True),
        (" kitten", ("a kitten",), True),
        (" the Pacific Ocean", ("pacific",), True),
        (" a.", ("a",), True),
        (" an", ("a",), False),
        ("4", ("4", "four"), True),
        (" in the sea", ("sea",), False),
        (" mother's", ("mothers",), True),
        (" honey", ("honey bee",), False),
    ],
)
def test_articles_and_marks_do_not_count(completion, answers, hit):
    assert evaluation.starts_with_answer(completion, answers) is hit


def test_a_completion_is_copied_if_prompt_and_completion_are_a_training_line(monkeypatch):
    said = {"bees make": " honey.", "cows eat": " grass and hay", "a cat": " is a pet", "dogs": ""}
    monkeypatch.setattr(evaluation, "completions", lambda model, tokenizer, prompts, n: [said[p] for p in prompts])
    lines = ["Bees make honey", "Cows eat grass.", "a cat is a pet"]
    assert evaluation.copied_share(None, None, list(said), lines) == 0.5
    assert math.isnan(evaluation.copied_share(None, None, [], lines))


def test_recall_is_the_share_of_completions_that_begin_with_an_answer(monkeypatch, tokenizer):
    said = {"one": " right.", "two": " wrong", "three": " Also right", "four": ""}
    monkeypatch.setattr(evaluation, "completions", lambda model, tokenizer, prompts: [said[p] for p in prompts])
    line = Line("", "", "", "", "")
    probes = [
        Probe("one", ("right",), "relation", "a", line),
        Probe("two", ("right",), "relation", "a", line),
        Probe("three", ("right", "also right"), "relation", "b", line),
        Probe("four", ("right",), "relation", "c", line),
    ]
    share, by_domain = evaluation.recall(None, tokenizer, probes)
    assert share == 0.5
    assert by_domain == {"a": 0.5, "b": 1.0, "c": 0.0}
    assert math.isnan(evaluation.recall(None, tokenizer, [])[0])


@pytest.mark.parametrize("variant", ["text", "moe"])
def test_completions_computed_together_equal_generation_one_by_one(variant, tokenizer):
    model = make(variant, tokenizer, max_seq_len=14, seed=2)
    prompts = ["the cat", "a", "the dog", "", "dog", "the dog sat on the cat and a dog sat", "on"]
    found = evaluation.completions(model, tokenizer, prompts, 10)
    for prompt, text in zip(prompts, found, strict=True):
        ids = tokenizer.encode(prompt)
        right = ""
        if 0 < len(ids) <= 14:
            right = tokenizer.decode(generate(model, ids, max_new_tokens=10, eos_id=tokenizer.eos_id))
        assert text == right
