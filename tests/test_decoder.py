"""The folded decoder: equal to the model at every position, never stale, and nothing shared between streams."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from conftest import MAX_SEQ_LEN, N_SLOTS, VOCAB_SIZE, lively, random_ids, tiny_config

import tinylm
from tinylm import LatentCache, TinyLM
from tinylm.decoder import Decoder
from tinylm.generate import SHORT_PROMPT

TOLERANCE = {"atol": 1e-4, "rtol": 0.0}

SIZES = {
    "as it is": {},
    "no final norm": {"final_norm": False},
    "one head": {"n_heads": 1, "n_layers": 1},
    "latent wider than a head": {"n_heads": 4, "d_latent": 13, "d_model": 20},
    "latent of one, widths of whole cache lines": {"d_latent": 1, "n_heads": 16, "d_model": 16, "d_ff": 32},
    "narrow hidden layer": {"d_ff": 3},
    "vocabulary smaller than the width": {"vocab_size": 7, "final_norm": False},
}


@pytest.fixture(scope="module")
def text_model():
    return lively(tiny_config("text"))


def prefilled(model, ids, images=None):
    """A cache that the model itself has filled with a prompt; without one for text it stays empty."""
    cache = LatentCache(model.config)
    if ids or images is not None:
        with torch.inference_mode():
            tinylm.prefill(model, ids, cache, images)
    return cache


def by_steps(decoder, ids, cache):
    """The outputs of reading the ids one by one, all kept until the end."""
    return [decoder.step(token_id, cache) for token_id in ids]


@torch.no_grad()
def assert_equal_to_the_model(model, decoder, images=None, n_prompt=1, seed=0):
    """Every position up to the end of the context, against one uncached reading of the whole."""
    ids = random_ids(1, model.config.max_seq_len, seed, model.config.vocab_size)
    whole = model(ids, images)
    prompt, rest = ids[0, :n_prompt].tolist(), ids[0, n_prompt:].tolist()
    outputs = by_steps(decoder, rest, prefilled(model, prompt, images))
    assert len(outputs) == len(rest)
    for position, output in enumerate(outputs, n_prompt):
        assert output.logits.shape == (1, 1, model.config.vocab_size)
        assert output.logits.dtype == torch.float32
        torch.testing.assert_close(output.logits[0, 0], whole.logits[0, position], **TOLERANCE)
        assert len(output.routings) == len(whole.routings)
        for found, right in zip(output.routings, whole.routings, strict=True):
            row = slice(model.config.n_slots + position, model.config.n_slots + position + 1)
            torch.testing.assert_close(found.probs, right.probs[row], **TOLERANCE)
            torch.testing.assert_close(found.weights, right.weights[row], **TOLERANCE)
            assert torch.equal(found.expert_ids, right.expert_ids[row])


def disagreement(model, decoder):
    """Largest difference of a few logits; no images."""
    ids = random_ids(1, 6)
    with torch.no_grad():
        right = model(ids).logits[0]
    found = torch.cat([o.logits[0] for o in by_steps(decoder, ids[0].tolist(), LatentCache(model.config))])
    return float((found - right).abs().max())


# Equal to the model


@pytest.mark.parametrize("changes", SIZES.values(), ids=SIZES.keys())
def test_every_position_equals_the_model_reading_all_at_once(variant, images_for, changes):
    model = lively(tiny_config(variant, **changes), seed=3)
    for n_prompt in (1, 5):
        assert_equal_to_the_model(model, Decoder.of(model), images_for(model, 1), n_prompt, seed=n_prompt)


def test_a_text_can_start_from_an_empty_cache():
    for variant in ("text", "moe"):
        model = lively(tiny_config(variant))
        assert_equal_to_the_model(model, Decoder.of(model), n_prompt=0)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_any_number_of_chosen_experts_equals_the_model(top_k):
    model = lively(tiny_config("moe", moe=tinylm.MoEConfig(n_experts=3, top_k=top_k)))
    assert_equal_to_the_model(model, Decoder.of(model), n_prompt=0)


@pytest.mark.parametrize("equal", [[0, 1, 2, 3, 4, 5], [1, 4], [0, 3, 5]])
def test_equally_likely_experts_are_chosen_as_the_model_chooses(equal):
    model = lively(tiny_config("moe", moe=tinylm.MoEConfig(n_experts=6, top_k=3)))
    for block in model.blocks:
        block.ffn.router.w.weight.data[equal] = 0.0
    assert_equal_to_the_model(model, Decoder.of(model), n_prompt=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_weights_that_broke_in_training_give_what_the_model_gives(value):
    model = lively(tiny_config("moe"))
    model.blocks[1].ffn.router.w.weight.data[2] = value
    with torch.no_grad():
        right = model(torch.tensor([[3]]))
    found = Decoder.of(model).step(3, LatentCache(model.config))
    torch.testing.assert_close(found.logits, right.logits, equal_nan=True, **TOLERANCE)
    assert torch.equal(found.routings[1].expert_ids[:, 0], right.routings[1].expert_ids[:, 0])


def test_each_norms_own_epsilon_counts(text_model):
    model = copy.deepcopy(text_model)
    for n, norm in enumerate(m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)):
        norm.eps = 0.3 + 0.2 * n
    assert disagreement(model, Decoder.of(model)) < 1e-4


def test_weights_of_the_articles_layout_equal_the_model(article_model, images_for):
    assert_equal_to_the_model(article_model, Decoder.of(article_model), images_for(article_model, 1))


def test_a_long_context_at_the_articles_sizes_equals_the_model():
    model = lively(tinylm.ModelConfig(vocab_size=1250, max_seq_len=300))
    assert_equal_to_the_model(model, Decoder.of(model), n_prompt=250)


@torch.no_grad()
def test_decoder_and_model_continue_each_others_cache(model, images_for):
    ids, images = random_ids(1, MAX_SEQ_LEN)[0].tolist(), images_for(model, 1)
    right = model(torch.tensor([ids]), images).logits[0]
    cache, decoder = prefilled(model, ids[:2], images), Decoder.of(model)
    with torch.inference_mode():
        for position in range(2, MAX_SEQ_LEN):
            read = decoder.step if position % 3 else lambda token_id, cache: tinylm.decode(model, token_id, cache)
            torch.testing.assert_close(read(ids[position], cache).logits[0, 0], right[position], **TOLERANCE)
            assert cache.length == model.config.n_slots + position + 1


@torch.no_grad()
def test_the_latents_it_writes_are_the_models(model, images_for):
    ids, images = random_ids(1, 6)[0].tolist(), images_for(model, 1)
    whole, cache = prefilled(model, ids, images), prefilled(model, ids[:2], images)
    by_steps(Decoder.of(model), ids[2:], cache)
    assert cache.nbytes == whole.nbytes
    torch.testing.assert_close(cache.latents, whole.latents, **TOLERANCE)


def test_one_decoder_moves_between_caches(text_model):
    decoder, ids = Decoder.of(text_model), random_ids(2, 8).tolist()
    alone = [by_steps(decoder, row, LatentCache(text_model.config)) for row in ids]
    caches = [LatentCache(text_model.config) for _ in ids]
    for position in range(8):
        for row in (0, 1):
            output = decoder.step(ids[row][position], caches[row])
            assert torch.equal(output.logits, alone[row][position].logits)
    # A cache made by copying another is its own.
    copied = caches[0].repeat(1)
    decoder.step(5, caches[0])
    for last, cache in ((6, copied), (7, caches[1]), (8, copied)):
        decoder.step(last, cache)
    right = by_steps(decoder, [*ids[0], 6, 8, 9], LatentCache(text_model.config))
    assert torch.equal(decoder.step(9, copied).logits, right[-1].logits)


# The same errors


def message(call, *args):
    with pytest.raises(ValueError) as error:
        call(*args)
    return str(error.value)


def test_a_full_context_is_the_models_error_and_leaves_the_cache_alone(model, images_for):
    cache = prefilled(model, [1] * MAX_SEQ_LEN, images_for(model, 1))
    said = message(Decoder.of(model).step, 1, cache)
    with torch.inference_mode():
        assert said == message(tinylm.decode, model, 1, cache)
    assert f"{MAX_SEQ_LEN + 1} text positions" in said
    assert cache.length == cache.capacity


def test_a_cache_of_other_rows_is_the_models_error(text_model):
    cache = prefilled(text_model, [1, 2]).repeat(2)
    with torch.inference_mode():
        assert message(Decoder.of(text_model).step, 1, cache) == message(tinylm.decode, text_model, 1, cache)


def test_a_missing_image_a_foreign_cache_and_an_unknown_id_are_refused(text_model):
    vision = lively(tiny_config("vision"))
    assert "reads an image first" in message(Decoder.of(vision).step, 1, LatentCache(vision.config))
    decoder = Decoder.of(text_model)
    wide = lively(tiny_config("text", d_latent=6))
    assert "the model needs (3, 1, 12, 5)" in message(decoder.step, 1, prefilled(wide, [1]))
    half = copy.deepcopy(text_model).bfloat16()
    assert "torch.bfloat16" in message(decoder.step, 1, prefilled(half, [1]))
    for token_id in (-1, VOCAB_SIZE):
        with pytest.raises(IndexError, match=f"token id {token_id} is outside the vocabulary of {VOCAB_SIZE}"):
            decoder.step(token_id, LatentCache(text_model.config))


# Never stale


def folded_of(model):
    return Decoder.of(model)._folded


NAMES = [name for name, _ in TinyLM(tiny_config("vision+moe")).named_parameters() if not name.startswith("encoder.")]


@pytest.mark.parametrize("name", NAMES)
def test_the_least_change_of_any_weight_behind_pytorchs_back_is_noticed(name):
    model = lively(tiny_config("vision+moe"))
    before = folded_of(model)
    parameter = model.get_parameter(name)
    version, place = parameter._version, -1 if parameter.dim() == 1 else (-1, -1)
    parameter.data[place] = torch.nextafter(parameter.data[place], torch.tensor(9.0))
    assert parameter._version == version
    assert folded_of(model) is not before


def swap_rows(model):
    weight = model.blocks[1].ffn.w_in.weight.data
    weight[[3, 8]] = weight[[8, 3]]


def swap_blocks_weights(model):
    one, other = model.blocks[0].attention.w_q.weight.data, model.blocks[2].attention.w_q.weight.data
    one[:], other[:] = other.clone(), one.clone()


def swap_blocks(model):
    model.blocks[0], model.blocks[1] = model.blocks[1], model.blocks[0]


def write_with_numpy(model):
    model.embed.weight.detach().numpy()[:] *= 1.5


def transpose_in_place(model):
    model.blocks[0].attention.w_o.weight.data = model.blocks[0].attention.w_o.weight.data.t().contiguous()


def point_elsewhere(model):
    model.head_bias.data = torch.randn(VOCAB_SIZE)


def replace_a_parameter(model):
    model.blocks[0].norm1.bias = torch.nn.Parameter(torch.ones(24))


def replace_a_module(model):
    model.norm = torch.nn.Identity()


def one_optimizer_step(model):
    model.train()
    model(random_ids(2, 5)).logits.square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad(set_to_none=True)


def load_other_weights(model):
    model.load_state_dict(lively(tiny_config("text"), seed=1).state_dict())


def load_other_tensors(model):
    model.load_state_dict(lively(tiny_config("text"), seed=1).state_dict(), assign=True)


def write_in_inference_mode(model):
    with torch.inference_mode():
        model.blocks[2].ffn.w_out.weight.mul_(-1.5)


CHANGES = [
    swap_rows,
    swap_blocks_weights,
    swap_blocks,
    write_with_numpy,
    transpose_in_place,
    point_elsewhere,
    replace_a_parameter,
    replace_a_module,
    one_optimizer_step,
    load_other_weights,
    load_other_tensors,
    write_in_inference_mode,
]


@pytest.mark.parametrize("change", CHANGES)
def test_however_the_weights_are_changed_the_next_decoder_has_the_new_ones(change):
    model = lively(tiny_config("text"))
    old = Decoder.of(model)
    assert disagreement(model, old) < 1e-4
    tinylm.generate(model, [1, 2], max_new_tokens=4)
    change(model)
    assert disagreement(model, old) > 1e-2
    assert disagreement(model, Decoder.of(model)) < 1e-4
    reference = copy.deepcopy(model)
    assert tinylm.generate(model, [1, 2], max_new_tokens=9) == tinylm.generate(reference, [1, 2], max_new_tokens=9)
    if change is not replace_a_module:
        model.load_state_dict(lively(tiny_config("text")).state_dict())
        assert disagreement(model, Decoder.of(model)) < 1e-4


def test_swapped_experts_are_noticed():
    model = lively(tiny_config("moe"))
    old = Decoder.of(model)
    experts = model.blocks[1].ffn.experts
    experts[0], experts[2] = experts[2], experts[0]
    assert disagreement(model, old) > 1e-2
    assert disagreement(model, Decoder.of(model)) < 1e-4


def test_weights_that_stay_are_folded_once(model, monkeypatch):
    first = folded_of(model)
    monkeypatch.setattr("tinylm.decoder.fold", lambda _: pytest.fail("folded again"))
    for _ in range(3):
        assert folded_of(model) is first
        assert tinylm.generate(model, [1], torch.rand(1, 3, 6, 6) if model.config.vision else None, 3)


def test_a_decoder_keeps_the_weights_that_it_was_made_with(text_model):
    model = copy.deepcopy(text_model)
    decoder, ids = Decoder.of(model), [3, 1, 4]
    right = by_steps(decoder, ids, LatentCache(model.config))
    for parameter in model.parameters():
        parameter.data.zero_()
    for a, b in zip(right, by_steps(decoder, ids, LatentCache(model.config)), strict=True):
        assert torch.equal(a.logits, b.logits)


def test_a_model_that_is_gone_frees_what_was_folded_of_it():
    model = lively(tiny_config("moe"))
    tinylm.generate(model, [1, 2], max_new_tokens=4)
    gone = [weakref.ref(model), weakref.ref(folded_of(model).head_VD), weakref.ref(model.embed.weight)]
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


def test_nothing_is_kept_on_the_model():
    model = lively(tiny_config("vision+moe"))
    before = {name: sorted(vars(module)) for name, module in model.named_modules()}
    Decoder.of(model)
    assert {name: sorted(vars(module)) for name, module in model.named_modules()} == before
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in model.parameters())


def test_weights_made_in_inference_mode_are_folded_and_watched():
    with torch.inference_mode():
        model = lively(tiny_config("moe"))
        right = by_steps(Decoder.of(model), [1, 2, 3], LatentCache(model.config))
    assert model.embed.weight.is_inference()
    decoder = Decoder.of(model)
    found = by_steps(decoder, [1, 2, 3], LatentCache(model.config))
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(right, found, strict=True))
    assert disagreement(model, decoder) < 1e-4
    with torch.inference_mode():
        model.head_bias += 1.0
    assert disagreement(model, decoder) > 0.5
    assert disagreement(model, Decoder.of(model)) < 1e-4


def test_a_model_decoded_from_still_trains(text_model):
    model = copy.deepcopy(text_model)
    tinylm.generate(model, [1, 2], max_new_tokens=4)
    model(random_ids(2, 5)).logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


# Streams apart


def test_what_a_step_returns_is_not_overwritten_by_later_steps(model, images_for):
    decoder, images = Decoder.of(model), images_for(model, 1)
    cache, kept, copies = prefilled(model, [1], images), [], []
    for token_id in range(8):
        kept.append(decoder.step(token_id, cache))
        copies.append(copy.deepcopy(kept[-1]))
    for output, then in zip(kept, copies, strict=True):
        assert torch.equal(output.logits, then.logits)
        for routing, routing_then in zip(output.routings, then.routings, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(routing, routing_then, strict=True))


def test_decoders_of_one_model_share_weights_and_nothing_that_a_step_writes(model, images_for):
    images, ids = images_for(model, 1), random_ids(4, 9).tolist()
    alone = [by_steps(Decoder.of(model), row, prefilled(model, [row[0]], images)) for row in ids]
    found = [None] * len(ids)
    barrier = threading.Barrier(len(ids))

    def run(n):
        decoder, cache = Decoder.of(model), prefilled(model, [ids[n][0]], images)
        found[n] = []
        for token_id in ids[n]:
            barrier.wait(30)
            found[n].append(decoder.step(token_id, cache))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(ids))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(alone, found, strict=True):
        assert all(torch.equal(x.logits, y.logits) for x, y in zip(a, b, strict=True))
    first, second = Decoder.of(model), Decoder.of(model)
    assert first._folded is second._folded
    one, other = (
        {t.data_ptr() for t in vars(decoder).values() if isinstance(t, torch.Tensor) and t.numel()}
        for decoder in (first, second)
    )
    assert len(one) >= 5
    assert not one & other


# What runs by itself instead


def test_models_that_folding_does_not_know_run_themselves(text_model):
    class Louder(torch.nn.Linear):
        def forward(self, x):
            return 3 * super().forward(x)

    adapted = copy.deepcopy(text_model)
    louder = Louder(24, 24)
    louder.load_state_dict(adapted.blocks[0].attention.w_o.state_dict())
    adapted.blocks[0].attention.w_o = louder
    assert Decoder.of(adapted) is None
    assert Decoder.of(copy.deepcopy(text_model).bfloat16()) is None
    assert Decoder.of(copy.deepcopy(text_model).double()) is None
    strided = copy.deepcopy(text_model)
    strided.embed.weight.data = strided.embed.weight.data.t().contiguous().t()
    assert Decoder.of(strided) is None
    for model in (adapted, strided):
        steps = [step.token_id for step in tinylm.stream(model, [1, 2], max_new_tokens=6)]
        with torch.no_grad():
            whole = model(torch.tensor([[1, 2, *steps[:-1]]])).logits[0, 1:]
        assert steps == whole.argmax(dim=-1).tolist()


def test_hooks_are_called_for_every_token(text_model):
    model, n_called = copy.deepcopy(text_model), []
    Decoder.of(model)
    handle = model.blocks[1].register_forward_hook(lambda *_: n_called.append(1))
    tinylm.generate(model, [1, 2], max_new_tokens=5)
    assert len(n_called) == 5
    handle.remove()
    assert Decoder.of(model) is not None


@pytest.mark.parametrize("n_prompt", [1, SHORT_PROMPT, SHORT_PROMPT + 1])
def test_the_model_reads_images_and_long_prompts_and_the_decoder_the_rest(model, images_for, monkeypatch, n_prompt):
    n_read, forward = [], TinyLM.forward
    monkeypatch.setattr(TinyLM, "forward", lambda *args, **kw: n_read.append(1) or forward(*args, **kw))
    prompt, images = list(range(1, n_prompt + 1)), images_for(model, 1)
    assert len(tinylm.generate(model, prompt, images, max_new_tokens=MAX_SEQ_LEN - n_prompt)) == MAX_SEQ_LEN - n_prompt
    assert len(n_read) == (images is not None or n_prompt > SHORT_PROMPT)


@pytest.mark.parametrize("n_prompt", range(1, SHORT_PROMPT + 2))
def test_the_first_step_has_the_routing_and_logits_of_the_whole_prompt_however_it_is_read(model, images_for, n_prompt):
    prompt, images = [3, 1, 4, 1, 5, 9][:n_prompt], images_for(model, 1)
    step = next(tinylm.stream(model, prompt, images, max_new_tokens=2))
    with torch.no_grad():
        whole = model(torch.tensor([prompt]), images)
    logprobs = whole.logits[0, -1].log_softmax(-1)
    assert step.logprob == pytest.approx(float(logprobs[step.token_id]), abs=1e-4)
    assert len(step.routing) == len(whole.routings)
    for found, right in zip(step.routing, whole.routings, strict=True):
        torch.testing.assert_close(found.probs, right.probs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.weights, right.weights, atol=1e-5, rtol=1e-5)
        assert torch.equal(found.expert_ids, right.expert_ids)


def test_a_stream_equals_the_model_read_again_for_every_token(model, images_for):
    images = images_for(model, 1)
    for step_settings in ({}, {"temperature": 1.3, "seed": 4}):
        read = [2, 5]
        for step in tinylm.stream(model, read, images, max_new_tokens=MAX_SEQ_LEN, **step_settings):
            with torch.no_grad():
                logprobs = model(torch.tensor([read]), images).logits[0, -1].log_softmax(-1)
            assert step.logprob == pytest.approx(float(logprobs[step.token_id]), abs=1e-4)
            assert step.cache_nbytes == (model.config.n_slots + len(read)) * 3 * 5 * 4
            assert all(not tensor.requires_grad for routing in step.routing for tensor in routing)
            read.append(step.token_id)
        assert len(read) == MAX_SEQ_LEN + 1
    assert model.config.n_slots in (0, N_SLOTS)


def test_a_stream_under_autocast_goes_on_with_the_model(text_model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert len(tinylm.generate(text_model, [1, 2], max_new_tokens=5)) == 5
