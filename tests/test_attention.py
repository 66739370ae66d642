"""Latent attention: two ways to compute it and the textbook agree; the cache keeps latents only."""

import dataclasses

import pytest
import reference
import torch
from conftest import tiny_config

from tinylm import LatentCache, ModelConfig
from tinylm.attention import MOST_KEYS_IN_BF16, MultiHeadLatentAttention, visible

SHAPES = [(24, 3, 5), (24, 1, 7), (12, 4, 16), (6, 6, 1)]  # d_model, n_heads, d_latent


def make(d_model: int, n_heads: int, d_latent: int) -> MultiHeadLatentAttention:
    torch.manual_seed(d_model + n_heads)
    config = ModelConfig(9, 16, d_model=d_model, n_heads=n_heads, d_latent=d_latent)
    attention = MultiHeadLatentAttention(config)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[-1] ** 0.5)
    return attention


def textbook(attention: MultiHeadLatentAttention, x: torch.Tensor) -> torch.Tensor:
    width = attention.d_head
    weights = [attention.w_q.weight, attention.w_uk.weight, attention.w_uv.weight]
    heads = [tuple(w[h * width : (h + 1) * width].double() for w in weights) for h in range(attention.n_heads)]
    w_o = attention.w_o
    rows = [
        reference.textbook_attention(
            row, attention.w_dkv.weight.double(), heads, w_o.weight.double(), w_o.bias.double()
        )
        for row in x.double()
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_expand_and_absorb_equal_textbook_attention_on_rebuilt_keys_and_values(shape):
    attention = make(*shape)
    x = torch.randn(2, 9, shape[0])
    latents = attention.w_dkv(x)
    right = textbook(attention, x)
    torch.testing.assert_close(attention.expand(x, latents).double(), right, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(attention.absorb(x, latents).double(), right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n_queries", [1, 2, 5, 8])
@torch.no_grad()
def test_the_last_queries_see_all_keys_before_them_both_ways(n_queries):
    attention = make(24, 3, 5)
    x = torch.randn(2, 9, 24)
    latents, right = attention.w_dkv(x), textbook(attention, x)[:, -n_queries:]
    for way in (attention.expand, attention.absorb):
        torch.testing.assert_close(way(x[:, -n_queries:], latents).double(), right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(12, 3, 5), (8, 1, 4)])
def test_the_weights_are_those_with_which_attention_mixes_its_values(shape):
    attention = make(*shape)
    x = torch.randn(2, 6, shape[0], generator=torch.Generator().manual_seed(3))
    weights = attention.weights(x)
    assert weights.shape == (2, shape[1], 6, 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, shape[1], 6))
    assert torch.equal(weights.triu(1), torch.zeros_like(weights))
    values = attention.w_uv(attention.w_dkv(x)).view(2, 6, shape[1], -1)
    mixed = torch.einsum("bhts,bshk->bthk", weights, values).flatten(2)
    torch.testing.assert_close(attention.w_o(mixed).double(), textbook(attention, x), atol=1e-5, rtol=1e-5)


def test_expand_and_absorb_give_equal_gradients():
    attention = make(24, 3, 5)
    x = torch.randn(2, 7, 24)
    gradients = []
    for way in (attention.expand, attention.absorb):
        attention.zero_grad()
        (way(x, attention.w_dkv(x)) * torch.linspace(-1, 1, 24)).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in attention.named_parameters()})
    for name, gradient in gradients[0].items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("way", ["expand", "absorb"])
def test_no_gradient_reaches_a_later_position(way):
    attention = make(24, 3, 5)
    x = torch.randn(1, 8, 24, requires_grad=True)
    for t in range(8):
        out = getattr(attention, way)(x, attention.w_dkv(x))
        (gradient,) = torch.autograd.grad(out[0, t].sum(), x)
        assert gradient[0, t + 1 :].abs().sum() == 0
        assert (gradient[0, : t + 1].abs().sum(dim=1) > 0).all()


def test_a_query_sees_its_own_position_and_all_earlier_ones():
    for n_keys in range(1, 6):
        for n_queries in range(1, n_keys + 1):
            mask = visible(n_queries, n_keys).tolist()
            for t in range(n_queries):
                for s in range(n_keys):
                    assert mask[t][s] == (s <= n_keys - n_queries + t)


@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 5], [8, 1], [1, 8], [2, 3, 1, 3]])
@torch.no_grad()
def test_attention_behind_a_cache_equals_attention_over_everything(chunks):
    attention = make(24, 3, 5)
    config = ModelConfig(9, 9, d_model=24, n_layers=2, n_heads=3, d_latent=5)
    x = torch.randn(2, 9, 24)
    cache = LatentCache(config, batch_size=2)
    parts = []
    for part in x.split(chunks, dim=1):
        parts.append(attention(part, cache, layer=1))
        cache.advance(part.shape[1])
    torch.testing.assert_close(torch.cat(parts, dim=1).double(), textbook(attention, x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [9, MOST_KEYS_IN_BF16 + 1])
def test_under_autocast_attention_is_rounded_and_sees_no_later_position(length):
    attention = make(24, 3, 5)
    x = torch.randn(2, length, 24, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = attention(x)
    exact = textbook(attention, x).detach()
    assert float((y.detach().double() - exact).norm() / exact.norm()) < 0.01
    y[:, 4].sum().backward()
    assert bool((x.grad[:, 5:] == 0).all()) and bool((x.grad[:, :5] != 0).any(dim=2).all())


@torch.no_grad()
def test_the_cache_holds_the_latents_and_nothing_else():
    config = tiny_config("text", n_layers=2)
    attention = make(24, 3, 5)
    cache = LatentCache(config, batch_size=2)
    x = torch.randn(2, 4, 24)
    attention(x, cache, layer=1)
    cache.advance(4)
    assert torch.equal(cache.latents[1], attention.w_dkv(x))
    assert cache.latents.shape == (2, 2, 4, 5)
    assert cache.nbytes == 2 * 2 * 4 * 5 * 4


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_the_cache_counts_the_bytes_of_the_filled_part(dtype, size):
    cache = LatentCache(tiny_config("vision"), batch_size=3)
    assert cache.nbytes == 0
    for layer in range(3):
        cache.write(layer, torch.ones(3, 7, 5, dtype=dtype))  # the latents' own type is kept
    cache.advance(7)
    assert cache.nbytes == 3 * 7 * 3 * 5 * size
    assert cache.capacity == 4 + 12  # the slots and the context


def test_a_cache_that_is_full_says_so_and_keeps_what_it_has():
    cache = LatentCache(tiny_config("text"))
    cache.write(0, torch.ones(1, 12, 5))
    cache.advance(12)
    with pytest.raises(ValueError, match="12 positions; 13 don't fit"):
        cache.write(0, torch.zeros(1, 1, 5))
    assert (cache.latents[0] == 1).all()


def test_no_gradient_is_kept_in_the_cache():
    cache = LatentCache(tiny_config("text"))
    c_kv = torch.ones(1, 2, 5, requires_grad=True)
    assert not cache.write(0, c_kv).requires_grad


def test_a_repeated_cache_is_a_copy_row_after_row():
    cache = LatentCache(tiny_config("text"), batch_size=2)
    first = torch.randn(2, 3, 5)
    for layer in range(3):
        cache.write(layer, first + layer)
    cache.advance(3)
    copy = cache.repeat(3)
    assert (copy.batch_size, copy.length, copy.capacity) == (6, 3, cache.capacity)
    for row in range(6):
        for layer in range(3):
            assert torch.equal(copy.latents[layer, row], first[row // 3] + layer)
    copy.write(0, torch.zeros(6, 1, 5))
    copy.advance(1)
    copy.latents.zero_()
    assert cache.length == 3
    assert torch.equal(cache.latents[0], first)


def test_the_attention_keeps_no_state_between_calls():
    attention = make(24, 3, 5)
    before = set(vars(attention))
    config = dataclasses.replace(tiny_config("text"), n_layers=1)
    attention(torch.randn(1, 4, 24), LatentCache(config))
    assert set(vars(attention)) == before
    assert not [value for value in vars(attention).values() if isinstance(value, torch.Tensor)]
