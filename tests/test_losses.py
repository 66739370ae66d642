"""What training minimises, against values worked out by hand."""

from __future__ import annotations

import pytest
import reference
import torch
from conftest import lively, random_ids, random_images, tiny_config
from reference import Route

from tinylm.data.batches import IGNORED, Batch, Lines
from tinylm.losses import LabelHead, training_loss
from tinylm.tokenizer import Tokenizer


@pytest.mark.parametrize("variant", ["text", "vision", "moe", "vision+moe"])
def test_the_training_loss_leaves_padding_out_of_both_its_parts(variant):
    tokenizer = Tokenizer.train(["the cat sat on the mat", "a dog"], 40, 4)
    model = lively(tiny_config(variant, vocab_size=tokenizer.vocab_size, max_seq_len=30))
    batch = Lines.encode(["the cat sat on the mat", "a dog", "the"], tokenizer, 30).batch(torch.arange(3))
    images = random_images(3) if "vision" in variant else None
    loss, nats, _ = training_loss(model, Batch(batch.ids, batch.targets, images))
    logprobs = model(batch.ids, images).logits.detach().double().log_softmax(dim=-1)
    lost, routes = [], [[] for _ in range(3)]
    for row in range(3):
        real = [t for t, target in enumerate(batch.targets[row].tolist()) if target != IGNORED]
        lost += [-float(logprobs[row, t, batch.targets[row, t]]) for t in real]
        # The row alone, without any padding.
        alone = model(batch.ids[row : row + 1, : len(real)], None if images is None else images[row : row + 1])
        for layer, routing in enumerate(alone.routings):
            routes[layer] += [Route(*values) for values in zip(
                routing.probs.tolist(), routing.expert_ids.tolist(), routing.weights.tolist(), strict=True
            )]  # fmt: skip
    right = sum(lost) / len(lost)
    assert nats.item() == pytest.approx(right, abs=1e-4)
    if "moe" in variant:
        right += 0.01 * sum(reference.load_balancing_loss(layer) for layer in routes)
    assert loss.item() == pytest.approx(right, abs=1e-5)


def test_the_answers_of_lines_count_as_often_as_the_recipe_says():
    tokenizer = Tokenizer.train(["bees make honey", "cows eat grass"], 60, 8)
    model = lively(tiny_config("text", vocab_size=tokenizer.vocab_size, max_seq_len=30))
    lines = ["bees make honey", "cows eat grass", "bees"]
    starts = [10, 9, None]
    batch = Lines.encode(lines, tokenizer, 30, starts, 4.0).batch(torch.arange(3))
    loss, nats, answers = training_loss(model, batch)
    logprobs = model(batch.ids).logits.detach().double().log_softmax(dim=-1)
    lost, weights, of_answers = [], [], [[], [], []]
    for row, (line, start) in enumerate(zip(lines, starts, strict=True)):
        n_prompt = len(tokenizer.encode(line if start is None else line[:start].rstrip()))
        for t, target in enumerate(batch.targets[row].tolist()):
            if target != IGNORED:
                lost.append(-float(logprobs[row, t, target]))
                weights.append(1.0 if start is None or t + 1 < n_prompt else 4.0)
                if weights[-1] == 4.0:
                    of_answers[row].append(lost[-1])
    assert nats.item() == pytest.approx(sum(lost) / len(lost), abs=1e-4)
    weighted = sum(a * w for a, w in zip(lost, weights, strict=True)) / sum(weights)
    assert loss.item() == pytest.approx(weighted, abs=1e-4) and loss.item() != pytest.approx(nats.item(), abs=1e-3)
    assert answers[:2].tolist() == pytest.approx([sum(nats) / len(nats) for nats in of_answers[:2]], abs=1e-4)
    assert answers[2].isnan()  # it has none


@pytest.mark.parametrize("variant", ["text", "vision", "moe", "vision+moe"])
def test_a_step_in_bfloat16_changes_loss_and_gradients_by_rounding_alone(variant):
    model = lively(tiny_config(variant))
    ids = random_ids(8, 9)
    batch = Batch(ids[:, :-1], ids[:, 1:], random_images(8) if "vision" in variant else None)
    found = []
    for rounded in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            loss = training_loss(model, batch, bf16_trunk=rounded)
        loss.total.backward()
        grads = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        assert grads.dtype == torch.float32 and bool(grads.isfinite().all())
        found.append((loss.total.item(), grads))
    (whole, grads), (near, near_grads) = found
    assert near != whole and near == pytest.approx(whole, rel=0.02)
    assert torch.cosine_similarity(grads, near_grads, dim=0) > 0.99


def test_a_batch_without_a_target_costs_nothing():
    """Remembers lines of a single token, without <eos>: their mean loss was 0/0 and ended the run."""
    model = lively(tiny_config("text"))
    loss, nats, _ = training_loss(model, Batch(random_ids(2, 3), torch.full((2, 3), IGNORED)))
    assert float(loss.detach()) == float(nats.detach()) == 0.0


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_label_loss_is_the_cross_entropy_with_the_shares_of_every_label(smoothing):
    model = lively(tiny_config("vision"))
    head = LabelHead(model.encoder, n_labels=3, weight=0.7, smoothing=smoothing)
    images, ids = random_images(2), random_ids(2, 5)
    shares = torch.tensor([[0.0, 1.0, 0.0], [0.25, 0.0, 0.75]])
    batch = Batch(ids, ids, images, shares)
    with_head, without = training_loss(model, batch, head), training_loss(model, batch)
    logprobs = head.w(model.encoder.trunk(images)).detach().double().log_softmax(dim=-1)
    right = 0.0
    for row in range(2):
        for label in range(3):
            target = (1 - smoothing) * float(shares[row, label]) + smoothing / 3
            right -= target * float(logprobs[row, label]) / 2
    assert (with_head.total - without.total).item() == pytest.approx(0.7 * right, abs=1e-5)
    assert with_head.nats.item() == pytest.approx(without.nats.item())


@pytest.mark.parametrize("n_captions", [1, 3, 5])
def test_captions_belong_to_the_last_pictures_and_labels_to_all(n_captions):
    model = lively(tiny_config("vision"))
    head = LabelHead(model.encoder, n_labels=3, weight=1.0, smoothing=0.0)
    images, ids = random_images(5), random_ids(n_captions, 4)
    shares = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    loss = training_loss(model, Batch(ids, ids, images, shares), head)
    captions = training_loss(model, Batch(ids, ids, images[5 - n_captions :]))
    assert loss.nats.item() == pytest.approx(captions.nats.item(), abs=1e-5)
    label_loss = head.loss(model.encoder.trunk(images), shares)
    assert loss.total.item() == pytest.approx((captions.total + label_loss).item(), abs=1e-5)


@pytest.mark.parametrize("variant", ["vision", "vision+moe"])
def test_the_caption_loss_of_pictures_reaches_the_trunk(variant):
    model = lively(tiny_config(variant))
    ids = random_ids(2, 5)
    training_loss(model, Batch(ids, ids, random_images(2))).total.backward()
    for name, parameter in model.encoder.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.abs().sum() > 0), name


def test_a_trunk_in_bfloat16_changes_the_loss_by_its_rounding_alone():
    model = lively(tiny_config("vision"))
    ids = random_ids(2, 5)
    batch = Batch(ids, ids, random_images(2))
    whole, rounded = (training_loss(model, batch, bf16_trunk=on).total.item() for on in (False, True))
    assert rounded != whole and rounded == pytest.approx(whole, rel=0.05)
