"""Generation: what is drawn, when it stops, and that users, seeds and threads stay apart."""

import math
import threading

import pytest
import reference
import torch
from conftest import MAX_SEQ_LEN, VOCAB_SIZE, lively, random_ids, tiny_config

import tinylm
from tinylm import LatentCache, sample, stream
from tinylm.generate import greedy

LOGITS = [0.3, 2.0, -1.0, 1.4, 1.9, 0.0, -3.0, 1.0]


def drawn(n, *args, seed=0):
    """Shares of `n` draws by id."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.tensor(LOGITS)
    counts = [0] * len(LOGITS)
    for _ in range(n):
        counts[sample(logits, *args, generator)] += 1
    return counts


@pytest.fixture(scope="module")
def text_model():
    return lively(tiny_config("text"))


# Sampling


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, None), (0.6, None, None), (2.5, None, None), (1.0, 3, None), (1.0, None, 0.8), (0.7, 5, 0.9)],
)
def test_tokens_are_drawn_with_the_exact_probabilities(temperature, top_k, top_p):
    n = 6000
    exact = reference.sampling_probabilities(LOGITS, temperature, top_k, top_p)
    counts = drawn(n, temperature, top_k, top_p)
    possible = [i for i, p in enumerate(exact) if p > 0]
    assert all(counts[i] == 0 for i in range(len(LOGITS)) if i not in possible)
    chi_square = sum((counts[i] - n * exact[i]) ** 2 / (n * exact[i]) for i in possible)
    freedom = len(possible) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("top_p", "n_kept"),
    [(0, 1), (0.499, 1), (0.501, 2), (0.749, 2), (0.751, 3), (0.901, 4), (0.969, 4), (0.971, 5), (1, 5)],
)
def test_top_p_keeps_the_fewest_likeliest_tokens_that_hold_it(top_p, n_kept):
    logits = torch.tensor([0.07, 0.25, 0.5, 0.03, 0.15]).log()
    generator = torch.Generator().manual_seed(0)
    seen = {sample(logits, 1.0, None, top_p, generator) for _ in range(400)}
    assert seen == set([2, 1, 4, 0, 3][:n_kept])


@pytest.mark.parametrize("top_k", [1, 2, 5, 7])
def test_top_k_keeps_the_k_likeliest_tokens(top_k):
    ranked = sorted(range(len(LOGITS)), key=lambda i: -LOGITS[i])
    counts = drawn(3000, 3.0, top_k, None)
    assert {i for i, count in enumerate(counts) if count} == set(ranked[:top_k])


@pytest.mark.parametrize("top_k", [None, 0, len(LOGITS), 10**6])
@pytest.mark.parametrize("top_p", [None, 1, 1.0])
def test_settings_that_cut_nothing_off_change_nothing(top_k, top_p):
    # cog-MiniGPT-4 #2
    assert drawn(200, 1.3, top_k, top_p) == drawn(200, 1.3, None, None)


@pytest.mark.parametrize("settings", [(0.0, None, None), (1e-6, None, None), (1e-300, None, None), (5.0, 1, None)])
def test_temperature_near_zero_and_top_k_of_one_are_greedy(settings):
    assert drawn(20, *settings)[1] == 20


def test_a_very_high_temperature_stays_finite_and_draws_every_token():
    counts = drawn(4000, 1e6, None, None)
    assert min(counts) > 350


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ((float("nan"), None, None), "temperature=nan"),
        ((float("inf"), None, None), "temperature=inf"),
        ((-0.1, None, None), "temperature=-0.1"),
        ((1.0, -1, None), "top_k=-1"),
        ((1.0, None, -0.1), "top_p=-0.1"),
        ((1.0, None, 1.1), "top_p=1.1"),
        ((1.0, None, float("nan")), "top_p=nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name_before_anything_is_read(settings, named, text_model):
    with pytest.raises(ValueError, match=named):
        sample(torch.tensor(LOGITS), *settings)
    temperature, top_k, top_p = settings
    with pytest.raises(ValueError, match=named):
        stream(text_model, [1], temperature=temperature, top_k=top_k, top_p=top_p)


def test_huge_logits_and_impossible_tokens_do_not_upset_sampling():
    logits = torch.tensor([1e30, -1e30, float("-inf"), 1e30])
    generator = torch.Generator().manual_seed(0)
    assert {sample(logits, 0.1, None, None, generator) for _ in range(50)} == {0, 3}


def test_sampling_leaves_the_logits_alone():
    logits = torch.tensor(LOGITS)
    sample(logits, 0.5, 2, 0.5, torch.Generator().manual_seed(0))
    assert logits.tolist() == torch.tensor(LOGITS).tolist()


# Steps


@torch.no_grad()
def test_every_step_tells_the_models_own_probabilities(model, images_for):
    # Whatever the temperature, against a fresh reading of the whole text so far without a cache.
    images = images_for(model, 1)
    prompt = random_ids(1, 4)[0].tolist()
    n_slots = 0 if images is None else 4
    new = []
    for n_new, step in enumerate(stream(model, prompt, images, 6, temperature=1.7, top_k=9, seed=3)):
        read = [*prompt, *new]
        probs = model(torch.tensor([read]), images).logits[0, -1].double().softmax(dim=-1).tolist()
        ranked = sorted(range(VOCAB_SIZE), key=lambda i: -probs[i])
        assert step.logprob == pytest.approx(math.log(probs[step.token_id]), abs=1e-4)
        assert [i for i, _ in step.alternatives] == ranked[:10]
        assert [p for _, p in step.alternatives] == pytest.approx([probs[i] for i in ranked[:10]], abs=1e-5)
        assert step.cache_nbytes == (n_slots + len(prompt) + n_new) * 3 * 5 * 4
        assert len(step.routing) == (3 if model.config.moe else 0)
        for routing in step.routing:
            # The whole prompt first, then the newest token alone.
            assert len(routing.probs) == (n_slots + 4 if n_new == 0 else 1)
        new.append(step.token_id)
    assert len(new) == 6


@torch.no_grad()
def test_the_routing_of_each_step_equals_that_of_reading_all_at_once(images_for):
    for variant in ("moe", "vision+moe"):
        model = lively(tiny_config(variant))
        images = images_for(model, 1)
        prompt = random_ids(1, 3)[0].tolist()
        steps = list(stream(model, prompt, images, 5))
        read = [*prompt, *(step.token_id for step in steps[:-1])]
        whole = model(torch.tensor([read]), images).routings
        for layer, routing in enumerate(whole):
            for name in ("probs", "weights", "expert_ids"):
                pieces = torch.cat([getattr(step.routing[layer], name) for step in steps])
                torch.testing.assert_close(pieces, getattr(routing, name), atol=1e-5, rtol=1e-5)


def test_the_latents_of_the_steps_are_the_cache_after_the_last_one(model, images_for):
    images, prompt = images_for(model, 1), [3, 1, 4]
    steps = list(stream(model, prompt, images, 5))
    cache = tinylm.LatentCache(model.config)
    with torch.no_grad():
        model(torch.tensor([[*prompt, *(step.token_id for step in steps[:-1])]]), images, cache)
    latents = torch.cat([step.latents_NTR for step in steps], dim=1)
    torch.testing.assert_close(latents, cache.latents[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "seed": 7}])
def test_given_tokens_come_first_and_the_models_own_choice_given_changes_nothing(model, images_for, settings):
    images, prompt = images_for(model, 1), [3, 1, 4]
    free = list(stream(model, prompt, images, 6, **settings))
    ids = [step.token_id for step in free]
    for n in range(7):
        again = list(stream(model, prompt, images, 6, given=ids[:n], **settings))
        assert [step.token_id for step in again] == ids
        assert [step.logprob for step in again] == [step.logprob for step in free]


def test_a_given_token_that_the_model_would_not_choose_is_described_and_continued(model, images_for):
    images, prompt = images_for(model, 1), [3, 1, 4]
    first = next(stream(model, prompt, images, 6))
    other = first.alternatives[7]
    forked = list(stream(model, prompt, images, 6, given=[other[0]]))
    assert forked[0].token_id == other[0]
    assert math.exp(forked[0].logprob) == pytest.approx(other[1], rel=1e-4)
    assert forked[0].alternatives == first.alternatives
    rest = [step.token_id for step in stream(model, [*prompt, other[0]], images, 5)]
    assert [step.token_id for step in forked[1:]] == rest


def test_given_tokens_end_a_text_where_they_hold_its_end_and_are_checked(text_model):
    ended = stream(text_model, [1], max_new_tokens=6, given=[2, 9], eos_id=9)
    assert [step.token_id for step in ended] == [2]
    assert ended.stopped == "eos"
    with pytest.raises(ValueError, match="token id 999"):
        stream(text_model, [1], given=[999])
    assert len(list(stream(text_model, [1], max_new_tokens=2, given=[2, 3, 4]))) == 2


def test_a_vocabulary_smaller_than_ten_gives_all_alternatives():
    model = lively(tiny_config("text", vocab_size=4))
    (step,) = stream(model, [0], max_new_tokens=1)
    assert len(step.alternatives) == 4
    assert sum(p for _, p in step.alternatives) == pytest.approx(1, abs=1e-5)


# Stops


def finished(model, *args, **settings):
    steps = stream(model, *args, **settings)
    return [step.token_id for step in steps], steps.stopped


@pytest.mark.parametrize("length", [MAX_SEQ_LEN - 1, MAX_SEQ_LEN])
def test_a_prompt_that_nearly_fills_the_context_is_continued_to_its_end(model, images_for, length):
    # transformers #1749, einygpt #2
    ids, images = random_ids(1, length)[0].tolist(), images_for(model, 1)
    new, stopped = finished(model, ids, images, max_new_tokens=10**9)
    assert len(new) == MAX_SEQ_LEN - length + 1  # the last position still says what comes next
    assert stopped == "context"


@pytest.mark.parametrize("length", [MAX_SEQ_LEN + 1, 10 * MAX_SEQ_LEN])
def test_a_prompt_longer_than_the_context_is_an_error_with_both_numbers(model, images_for, length):
    with pytest.raises(ValueError, match=f"the prompt has {length} tokens; the context holds {MAX_SEQ_LEN}"):
        stream(model, [1] * length, images_for(model, 1))


def test_the_length_limit_is_kept_and_told(text_model):
    for limit in (0, 1, 5):
        new, stopped = finished(text_model, [1, 2], max_new_tokens=limit)
        assert (len(new), stopped) == (limit, "length")
    new, stopped = finished(text_model, [1, 2], max_new_tokens=MAX_SEQ_LEN - 1)
    assert (len(new), stopped) == (MAX_SEQ_LEN - 1, "length")
    new, stopped = finished(text_model, [1, 2], max_new_tokens=MAX_SEQ_LEN)
    assert (len(new), stopped) == (MAX_SEQ_LEN - 1, "context")


def test_eos_ends_the_text_is_told_and_is_not_part_of_it(text_model):
    everything = tinylm.generate(text_model, [3, 1], max_new_tokens=8)
    eos = everything[4]
    first = everything.index(eos)
    assert finished(text_model, [3, 1], max_new_tokens=8, eos_id=eos) == (everything[:first], "eos")
    assert tinylm.generate(text_model, [3, 1], max_new_tokens=8, eos_id=eos) == everything[:first]


def test_why_it_stopped_is_not_said_before_it_has(text_model):
    steps = stream(text_model, [1], max_new_tokens=2)
    assert steps.stopped is None
    next(steps)
    next(steps)
    assert steps.stopped is None
    assert list(steps) == []
    assert steps.stopped == "length"
    assert list(steps) == []
    assert steps.stopped == "length"


@pytest.mark.parametrize(
    ("ids", "settings", "named"),
    [
        ([], {}, "no tokens"),
        ([0, VOCAB_SIZE], {}, f"token id {VOCAB_SIZE} is outside the vocabulary of {VOCAB_SIZE}"),
        ([-1], {}, "token id -1"),
        ([1], {"max_new_tokens": -1}, "max_new_tokens=-1"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused_at_once(text_model, ids, settings, named):
    with pytest.raises(ValueError, match=named):
        stream(text_model, ids, **settings)


# Seeds and company


def test_the_same_seed_gives_the_same_tokens_and_another_gives_others(model, images_for):
    images = images_for(model, 1)

    def run(seed):
        return tinylm.generate(model, [1, 2], images, 10, temperature=2.0, seed=seed)

    assert run(7) == run(7)
    assert len({tuple(run(seed)) for seed in range(8)}) > 4
    assert len({tuple(run(None)) for _ in range(8)}) > 4


def test_generation_neither_reads_nor_moves_the_global_random_numbers(text_model):
    torch.manual_seed(1)
    first = tinylm.generate(text_model, [1], temperature=2.0, seed=5, max_new_tokens=8)
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), after)
    torch.manual_seed(2)
    assert tinylm.generate(text_model, [1], temperature=2.0, seed=5, max_new_tokens=8) == first


def test_interleaved_streams_do_not_mix(model, images_for):
    # gradio #6866, h2ogpt #368
    settings = [
        {"ids": random_ids(1, 3, seed)[0].tolist(), "images": images_for(model, 1, seed), "seed": seed}
        for seed in range(4)
    ]
    alone = [list(stream(model, **s, max_new_tokens=8, temperature=1.5)) for s in settings]
    running = [stream(model, **s, max_new_tokens=8, temperature=1.5) for s in settings]
    together = [[] for _ in settings]
    for turn in range(8):
        for user in sorted(range(4), key=lambda u: (u * 7 + turn) % 4):
            together[user].append(next(running[user]))
    for a, b in zip(alone, together, strict=True):
        assert [step[:3] for step in a] == [step[:3] for step in b]


def test_streams_in_threads_do_not_mix(text_model):
    right = [tinylm.generate(text_model, [n, 2], temperature=1.5, seed=n, max_new_tokens=10) for n in range(4)]
    found = [None] * 4

    def run(n):
        found[n] = [tinylm.generate(text_model, [n, 2], temperature=1.5, seed=n, max_new_tokens=10) for _ in range(5)]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[ids] * 5 for ids in right]


def test_a_stream_left_or_closed_half_way_leaves_nothing_behind(text_model):
    # gradio #7593: stop at token 3, then run again.
    right = tinylm.generate(text_model, [4, 2], max_new_tokens=8)
    left = stream(text_model, [4, 2], max_new_tokens=8)
    for _ in range(3):
        next(left)
    assert tinylm.generate(text_model, [4, 2], max_new_tokens=8) == right
    left.close()
    assert list(left) == []
    assert tinylm.generate(text_model, [4, 2], max_new_tokens=8) == right


def test_a_stream_between_two_steps_leaves_its_callers_gradients_on(text_model):
    steps = stream(text_model, [4, 2], max_new_tokens=4)
    next(steps)
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert (torch.ones(2, requires_grad=True) * 2).requires_grad


@torch.no_grad()
def test_prefill_and_decode_are_the_steps_that_stream_takes(model, images_for):
    ids, images = random_ids(1, 4)[0].tolist(), images_for(model, 1)
    cache = LatentCache(model.config)
    out = tinylm.prefill(model, ids, cache, images)
    by_hand = []
    for _ in range(5):
        by_hand.append(int(out.logits[0, -1].argmax()))
        out = tinylm.decode(model, by_hand[-1], cache)
    assert tinylm.generate(model, ids, images, max_new_tokens=5) == by_hand


def test_top_k_keeps_exactly_k_of_tokens_that_are_equally_likely():
    """Remembers a cut by value, which kept every token equal to the k-th."""
    generator = torch.Generator().manual_seed(0)
    found = {tinylm.sample(torch.zeros(6), 1.0, 2, None, generator) for _ in range(200)}
    assert len(found) == 2


# Together


def together(model, prompts_BT, images, *args):
    """`greedy`, with the slots of the images."""
    slots = None if images is None else model.encoder(images)
    return greedy(model, prompts_BT, slots, *args)


@torch.no_grad()
def test_rows_continued_together_equal_generation_one_by_one(variant, images_for):
    # What the model would say behind the end must not show, nor the end of one row end another.
    prompts, eos, lengths = random_ids(9, 3), 7, set()
    for seed in range(6):
        model = lively(tiny_config(variant), seed)
        model.head_bias[eos] += 2.0
        images = images_for(model, 9, seed)
        for limit in (0, 1, 6, 99):
            found = together(model, prompts, images, limit, eos)
            for row, ids in enumerate(found):
                image = None if images is None else images[row : row + 1]
                assert ids == tinylm.generate(model, prompts[row].tolist(), image, limit, eos_id=eos)
        lengths |= {len(ids) for ids in found}
    assert {0, MAX_SEQ_LEN - 2} < lengths  # some ended at once, some filled the context, others in between


def test_rows_without_an_end_go_on_to_the_limit(text_model):
    prompts = random_ids(4, 2)
    right = [tinylm.generate(text_model, ids, max_new_tokens=5) for ids in prompts.tolist()]
    assert greedy(text_model, prompts, max_new_tokens=5) == right


def test_nothing_more_is_read_once_every_row_has_ended():
    model, prompts, eos, n_read = lively(tiny_config("text"), seed=2), random_ids(9, 3), 7, []
    with torch.no_grad():
        model.head_bias[eos] += 3.0
    handle = model.register_forward_hook(lambda *_: n_read.append(1))
    lengths = [len(ids) for ids in greedy(model, prompts, None, 99, eos)]
    handle.remove()
    assert len(set(lengths)) > 1
    assert max(lengths) < MAX_SEQ_LEN - 3
    assert len(n_read) == max(lengths) + 1  # the prompt, and each token but the end


def test_slots_in_the_images_place_give_the_same_steps(images_for):
    for variant in ("vision", "vision+moe"):
        model = lively(tiny_config(variant))
        images = images_for(model, 1)
        with torch.no_grad():
            slots = model.encoder(images)
        by_images = list(stream(model, [3, 1], images, max_new_tokens=6))
        by_slots = list(stream(model, [3, 1], slots=slots, max_new_tokens=6))
        assert [step.token_id for step in by_slots] == [step.token_id for step in by_images]
        assert [step.logprob for step in by_slots] == pytest.approx([step.logprob for step in by_images], abs=1e-5)
        with pytest.raises(ValueError, match="not both"):
            next(stream(model, [3], images, slots=slots))
