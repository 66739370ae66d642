"""The plain code that the benchmarks measure against computes what the package computes."""

import article_code
import pytest
import reference
import torch
from conftest import extras, random_ids

from tinylm import ModelConfig, MoEConfig, Tokenizer, article


@pytest.fixture(params=["text", "moe"])
def pair(request):
    """The article's model and the package's, with the same weights."""
    weights = reference.article_weights(**extras(request.param))
    ours = article.from_state_dict(weights)
    theirs = article_code.ArticleLM(ours.config)
    theirs.load_state_dict({**weights, "lm_head.weight": weights["embed.weight"]})
    return theirs.eval(), ours


@torch.no_grad()
def test_the_logits_are_those_of_the_package(pair):
    theirs, ours = pair
    ids = random_ids(3, 9)
    torch.testing.assert_close(theirs(ids), ours(ids).logits, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_decoding_with_the_cache_equals_reading_all_at_once(pair):
    theirs, _ = pair
    ids = random_ids(2, 8)
    whole, (logits, past) = theirs(ids), theirs.cached(ids[:, :3], None)
    for t in range(3, 8):
        torch.testing.assert_close(logits[:, -1], whole[:, t - 1], atol=1e-4, rtol=1e-4)
        logits, past = theirs.cached(ids[:, t : t + 1], past)
    torch.testing.assert_close(logits[:, -1], whole[:, 7], atol=1e-4, rtol=1e-4)
    row = [1, 2, 3]
    for _ in range(5):
        row.append(int(theirs(torch.tensor([row]))[0, -1].argmax()))
    assert theirs.generate([1, 2, 3], 5) == row[3:]


def test_the_router_learns_from_the_balance_too():
    config = ModelConfig(20, 8, d_model=8, n_layers=1, d_latent=4, d_ff=6, moe=MoEConfig())
    model = article_code.ArticleLM(config).train()
    model(random_ids(2, 5, vocab_size=20))
    loss = model.blocks[0].mlp.load_balancing_loss
    assert loss >= 1.9 and loss.requires_grad


def test_the_vocabulary_and_the_ids_are_those_of_the_package():
    lines = ["the cat sat on the mat", " a cat  sat", "the hat that the cat sat on", "zürich is a city"]
    ours = Tokenizer.train(lines, 40, 5, ("<pad>",))
    tokens = article_code.vocabulary(lines, 40, 5)
    assert tokens == ours.tokens
    for text in [*lines, "cats hate  that 🎉", ""]:
        assert article_code.encode(text, tokens) == ours.encode(text)
