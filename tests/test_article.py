"""The article's weights: every size read off the tensors, and anything else refused by name."""

import pytest
import reference
import torch
from conftest import VARIANTS, extras, random_ids, random_images

from tinylm import MoEConfig, Tokenizer, VisionConfig, article


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_size_is_read_off_the_tensors(variant):
    weights = reference.article_weights(
        vocab_size=29, max_seq_len=11, d_model=20, n_layers=2, n_heads=5, d_latent=7, d_ff=9, n_slots=3,
        d_trunk=13, d_hidden=6, **extras(variant, n_experts=6, image_size=5),
    )  # fmt: skip
    config = article.from_state_dict(weights, top_k=4).config
    sizes = (config.vocab_size, config.max_seq_len, config.d_model, config.n_layers, config.n_heads)
    assert sizes == (29, 11, 20, 2, 5)
    assert (config.d_latent, config.d_ff, config.final_norm) == (7, 9, False)
    assert config.moe == (MoEConfig(n_experts=6, top_k=4) if "moe" in variant else None)
    vision = VisionConfig(image_size=5, n_slots=3, encoder="mlp", d_trunk=13, d_hidden=6)
    assert config.vision == (vision if "vision" in variant else None)


def test_more_than_ten_layers_heads_and_experts_keep_their_order():
    # "10" sorts before "2" as text.
    weights = reference.article_weights(d_model=24, n_heads=12, n_layers=11, n_experts=11, d_ff=3, max_seq_len=4)
    model = article.from_state_dict(weights)
    ids = random_ids(1, 4)
    right, _ = reference.textbook_model(weights, ids[0].tolist())
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits[0].double(), right, atol=1e-3, rtol=1e-3)


def test_the_order_of_the_tensors_and_their_precision_do_not_matter(article_model, article):
    shuffled = dict(sorted(article.items(), reverse=True))
    model = article_from(shuffled)
    for name, tensor in article_model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    half = article_from({name: tensor.to(torch.float64) for name, tensor in article.items()})
    assert {p.dtype for p in half.parameters()} == {torch.float32}


article_from = article.from_state_dict  # the fixture of the same name hides the module in the tests that use it


def test_the_source_is_neither_changed_nor_shared(variant):
    weights = reference.article_weights(**extras(variant))
    before = {name: tensor.clone() for name, tensor in weights.items()}
    model = article_from(weights)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert list(weights) == list(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights.items())


def test_every_missing_tensor_is_named(variant):
    weights = reference.article_weights(n_layers=2, n_heads=2, **extras(variant, n_experts=2))
    for name in weights:
        if name == "lm_head.weight":  # the embedding once more
            continue
        fewer = {other: tensor for other, tensor in weights.items() if other != name}
        # Without the tensor that tells a variant, what is left of that variant is what does not belong.
        left_over = {"blocks.0.mlp.gate.weight": "blocks.0.mlp", "encoder.encoder.0.weight": "encoder."}
        with pytest.raises(ValueError) as error:
            article_from(fewer)
        assert left_over.get(name, name) in str(error.value)


def test_the_heads_own_weight_may_be_left_out_and_must_not_differ(article):
    without = {name: tensor for name, tensor in article.items() if name != "lm_head.weight"}
    assert torch.equal(article_from(without).embed.weight, article["embed.weight"])
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from embed\.weight"):
        article_from({**article, "lm_head.weight": article["embed.weight"] + 1})


def test_a_tensor_that_is_not_the_articles_is_named(article):
    with pytest.raises(ValueError, match=r"not the article's: blocks\.0\.rope"):
        article_from({**article, "blocks.0.rope": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"blocks\.7\.ln1\.weight|blocks\.3"):
        article_from({**article, "blocks.7.ln1.weight": torch.zeros(24)})


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blocks.1.kv_down.weight", (6, 24)),
        ("blocks.0.heads.1.q.weight", (7, 24)),
        ("blocks.2.ln2.bias", (23,)),
        ("blocks.0.proj.weight", (24, 25)),
        ("lm_head.bias", (30,)),
        ("pos_embed.weight", (12, 23)),
    ],
)
def test_a_tensor_of_another_shape_is_refused_with_its_shape(name, shape):
    weights = reference.article_weights()
    with pytest.raises(ValueError, match="shape"):
        article_from({**weights, name: torch.zeros(shape)})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"embed.weight": torch.zeros(5)}, "embed.weight must have 2 dimensions, it has 1"),
        ({"encoder.encoder.0.weight": torch.zeros(11, 100)}, "takes 100 values, which is no square RGB image"),
    ],
)
def test_tensors_no_size_can_be_read_off_are_named(change, named):
    weights = reference.article_weights(image_size=6)
    with pytest.raises(ValueError, match=named):
        article_from({**weights, **change})


def test_nothing_at_all_is_refused():
    with pytest.raises(ValueError, match=r"embed\.weight is missing"):
        article_from({})


def test_top_k_above_the_experts_is_refused():
    with pytest.raises(ValueError, match="top_k=4 must not exceed n_experts=3"):
        article_from(reference.article_weights(n_experts=3), top_k=4)


def test_top_k_is_what_the_caller_says():
    weights = reference.article_weights(n_experts=3)
    ids = random_ids(1, 4)
    for top_k in (1, 2, 3):
        right, _ = reference.textbook_model(weights, ids[0].tolist(), top_k=top_k)
        with torch.no_grad():
            ours = article_from(weights, top_k=top_k)(ids).logits[0]
        torch.testing.assert_close(ours.double(), right, atol=1e-4, rtol=1e-4)


def test_the_articles_tokenizer_has_pad_alone_as_special_token():
    lines = ["the rose is red", "the sky is blue", "the rose is a rose"]
    tokenizer = Tokenizer.train(lines, 40, 8, special_tokens=("<pad>",))
    assert tokenizer.tokens == reference.vocabulary(lines, 40, 8, ("<pad>",))
    assert tokenizer.pad_id == tokenizer.vocab_size - 1


def test_the_model_is_ready_for_evaluation_and_takes_images(variant):
    model = article_from(reference.article_weights(**extras(variant)))
    assert not model.training
    images = random_images(2) if "vision" in variant else None
    assert model(random_ids(2, 3), images).logits.dtype == torch.float32
