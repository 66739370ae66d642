"""The whole model equals the textbook, cached or not, and keeps positions, rows and users apart."""

import dataclasses
import math

import pytest
import reference
import torch
from conftest import MAX_SEQ_LEN, VARIANTS, VOCAB_SIZE, extras, lively, random_ids, random_images, tiny_config

import tinylm
from tinylm import LatentCache, ModelConfig, MoEConfig, TinyLM, VisionConfig
from tinylm.config import preset

CHUNKS = [[1] * 9, [5, 4], [4, 5], [8, 1], [1, 8], [2, 1, 3, 3]]
# The logits of `test_golden_numbers_of_a_model_built_by_rule`.
GOLDEN = [-2.294603, -1.746086, -2.496932, -1.426353, 1.470954]
# A second set of sizes: one head, a latent wider than the model, more experts, other slots.
OTHER_SIZES = {
    "vocab_size": 17,
    "max_seq_len": 10,
    "d_model": 7,
    "n_layers": 2,
    "n_heads": 1,
    "d_latent": 9,
    "d_ff": 5,
    "n_slots": 2,
    "seed": 3,
}


def textbook(weights, ids, images, top_k=2, **options):
    """Logits (B, T, V) and routes [layer][position in (batch, position) order]."""
    logits, routes = [], None
    for row in range(len(ids)):
        image = None if images is None else images[row]
        row_logits, row_routes = reference.textbook_model(weights, ids[row].tolist(), image, top_k, **options)
        logits.append(row_logits)
        routes = row_routes if routes is None else [a + b for a, b in zip(routes, row_routes, strict=True)]
    return torch.stack(logits), routes


def assert_close(ours, right, atol=1e-4):
    torch.testing.assert_close(ours.double(), right.double(), atol=atol, rtol=1e-4)


def cached_logits(model, ids, images, chunks):
    """Logits of `ids` read in `chunks` behind one cache."""
    cache = LatentCache(model.config, batch_size=len(ids))
    parts = []
    for number, part in enumerate(ids.split(chunks, dim=1)):
        parts.append(model(part, images if number == 0 else None, cache).logits)
    return torch.cat(parts, dim=1), cache


# The textbook


@torch.no_grad()
def test_logits_equal_the_textbook(article, article_model, images_for):
    ids, images = random_ids(3, 9), images_for(article_model, 3)
    right, _ = textbook(article, ids, images)
    assert_close(article_model(ids, images).logits, right)


@pytest.mark.parametrize(
    ("variant", "top_k"),
    [("text", 1), ("vision", 1), *((variant, k) for variant in ("moe", "vision+moe") for k in (1, 3, 5))],
)
@torch.no_grad()
def test_logits_equal_the_textbook_at_other_sizes(variant, top_k):
    weights = reference.article_weights(**{**OTHER_SIZES, **extras(variant, n_experts=5, image_size=3)})
    model = tinylm.article.from_state_dict(weights, top_k=top_k)
    ids = random_ids(2, 10, vocab_size=17)
    images = random_images(2, 3) if "vision" in variant else None
    right, _ = textbook(weights, ids, images, top_k)
    assert_close(model(ids, images).logits, right)


@pytest.mark.parametrize("chunks", CHUNKS)
@torch.no_grad()
def test_logits_behind_a_cache_equal_the_textbook_however_the_prompt_is_cut(article, article_model, images_for, chunks):
    # x-transformers #219, nanoVLM #69
    ids, images = random_ids(2, 9), images_for(article_model, 2)
    right, _ = textbook(article, ids, images)
    logits, _ = cached_logits(article_model, ids, images, chunks)
    assert_close(logits, right)


@pytest.mark.parametrize("chunks", CHUNKS)
@torch.no_grad()
def test_logits_behind_a_cache_equal_those_without(model, images_for, chunks):
    # The same with a final norm and the convolutional encoder.
    ids, images = random_ids(2, 9), images_for(model, 2)
    logits, _ = cached_logits(model, ids, images, chunks)
    assert_close(logits, model(ids, images).logits)


@torch.no_grad()
def test_greedy_tokens_equal_full_recomputation_by_the_textbook(article, article_model, images_for):
    images = images_for(article_model, 1)
    for seed in range(3):
        prompt = random_ids(1, 3, seed)[0].tolist()
        right = reference.greedy(article, prompt, 6, None if images is None else images[0])
        assert tinylm.generate(article_model, prompt, images, max_new_tokens=6) == right


@torch.no_grad()
def test_the_final_norm_is_a_layer_norm_before_the_head(variant, article, article_model, images_for):
    weight, bias = torch.randn(24).abs() + 0.5, torch.randn(24)
    model = TinyLM(dataclasses.replace(article_model.config, final_norm=True)).eval()
    model.load_state_dict({**article_model.state_dict(), "norm.weight": weight, "norm.bias": bias})
    ids, images = random_ids(1, 6), images_for(model, 1)
    right, _ = textbook(article, ids, images, final_norm=(weight, bias))
    assert_close(model(ids, images).logits, right)


@torch.no_grad()
def test_golden_numbers_of_a_model_built_by_rule():
    """Numbers that stay put from one version to the next, whatever else changes with the code and its references."""
    model = TinyLM(ModelConfig(5, 4, d_model=4, n_layers=1, n_heads=2, d_latent=2, d_ff=3))
    for number, (_, parameter) in enumerate(sorted(model.named_parameters())):
        steps = torch.arange(parameter.numel()) + number
        parameter.copy_(torch.sin(steps.float() * 1.7).view_as(parameter))
    found = model(torch.tensor([[0, 3, 1]])).logits[0, -1]
    golden = torch.tensor(GOLDEN)
    assert torch.allclose(found, golden, atol=1e-4), (
        f"the logits are {found.tolist()}. If the model was meant to change, old run folders no longer load as they "
        "were trained: raise the version, retrain the weights that ship, and put these numbers into GOLDEN."
    )


# Causality


def embedded(module, run):
    """`run()` and the output of `module` on the way, with its gradient kept."""
    kept = []

    def hook(_module, _inputs, output):
        output.retain_grad()
        kept.append(output)

    handle = module.register_forward_hook(hook)
    try:
        return run(), kept[0]
    finally:
        handle.remove()


def test_no_gradient_flows_from_a_logit_to_a_later_token(model, images_for):
    ids, images = random_ids(1, 7), images_for(model, 1)
    for t in range(7):
        model.zero_grad()
        out, x = embedded(model.embed, lambda: model(ids, images))
        (out.logits[0, t] * torch.linspace(-1, 1, VOCAB_SIZE)).sum().backward()
        reached = x.grad[0].abs().sum(dim=1)
        assert (reached[t + 1 :] == 0).all()
        assert (reached[: t + 1] > 0).all()
    model.zero_grad()


@pytest.mark.parametrize("variant", ["vision", "vision+moe"])
def test_every_logit_sees_every_slot_and_no_slot_sees_a_later_one(variant):
    model = lively(tiny_config(variant))
    ids, images = random_ids(1, 3), random_images(1)
    for t in range(3):
        out, slots = embedded(model.encoder, lambda: model(ids, images))
        (out.logits[0, t] * torch.linspace(-1, 1, VOCAB_SIZE)).sum().backward()
        assert (slots.grad[0].abs().sum(dim=1) > 0).all()
    # What the last block makes of slot s hangs on slots 0 to s alone, and on no text.
    for s in range(4):
        captured = []
        handle = model.blocks[-1].register_forward_hook(lambda _m, _i, output, kept=captured: kept.append(output[0]))
        _, slots = embedded(model.encoder, lambda: model(ids, images))
        handle.remove()
        captured[0][0, s].square().sum().backward()
        reached = slots.grad[0].abs().sum(dim=1)
        assert (reached[s + 1 :] == 0).all()
        assert (reached[: s + 1] > 0).all()


@torch.no_grad()
def test_changing_a_later_token_leaves_earlier_logits_alone(model, images_for):
    ids, images = random_ids(1, 8), images_for(model, 1)
    before = model(ids, images).logits
    for t in range(1, 8):
        changed = ids.clone()
        changed[0, t] = (changed[0, t] + 1) % VOCAB_SIZE
        after = model(changed, images).logits
        assert_close(after[:, :t], before[:, :t], atol=1e-5)
        assert (after[:, t:] - before[:, t:]).abs().max() > 1e-3


# Rows, padding, users


@torch.no_grad()
def test_a_row_is_the_same_alone_and_in_a_batch(model, images_for):
    ids, images = random_ids(4, 6), images_for(model, 4)
    together = model(ids, images).logits
    for row in range(4):
        alone = model(ids[row : row + 1], None if images is None else images[row : row + 1]).logits
        assert_close(alone[0], together[row], atol=1e-5)


def test_no_gradient_flows_from_one_row_to_another(model, images_for):
    ids, images = random_ids(3, 5), images_for(model, 3)
    if images is not None:
        images.requires_grad_(True)
    out, x = embedded(model.embed, lambda: model(ids, images))
    (out.logits[1] * torch.linspace(-1, 1, VOCAB_SIZE)).sum().backward()
    for reached in [x.grad] if images is None else [x.grad, images.grad]:
        assert reached[1].abs().sum() > 0
        assert reached[[0, 2]].abs().sum() == 0
    model.zero_grad()


@torch.no_grad()
def test_padding_on_the_right_changes_nothing(model, images_for):
    ids, images = random_ids(2, 5), images_for(model, 2)
    right = model(ids, images).logits
    for pad in (0, VOCAB_SIZE - 1):
        padded = torch.cat([ids, torch.full((2, 6), pad)], dim=1)
        assert_close(model(padded, images).logits[:, :5], right, atol=1e-5)


@torch.no_grad()
def test_two_users_caches_do_not_mix(model, images_for):
    prompts = [random_ids(1, 4, seed) for seed in (1, 2)]
    pictures = [images_for(model, 1, seed) for seed in (1, 2)]
    tails = [random_ids(1, 5, seed) for seed in (3, 4)]
    alone = [
        cached_logits(model, torch.cat([p, t], dim=1), image, [4, 1, 1, 1, 1, 1])[0]
        for p, t, image in zip(prompts, tails, pictures, strict=True)
    ]
    caches = [LatentCache(model.config) for _ in range(2)]
    mixed = [[model(prompts[u], pictures[u], caches[u]).logits] for u in range(2)]
    for t in range(5):
        for user in (1, 0):
            mixed[user].append(model(tails[user][:, t : t + 1], cache=caches[user]).logits)
    for user in range(2):
        assert torch.equal(torch.cat(mixed[user], dim=1), alone[user])


@torch.no_grad()
def test_the_cache_holds_d_latent_numbers_a_position_a_layer(model, images_for):
    ids, images = random_ids(1, 9), images_for(model, 1)
    cache = LatentCache(model.config)
    n_slots = 4 if images is not None else 0
    read = 0
    for number, part in enumerate(ids.split([3, 1, 1, 4], dim=1)):
        model(part, images if number == 0 else None, cache)
        read += part.shape[1]
        assert cache.length == n_slots + read
        assert cache.nbytes == (n_slots + read) * 3 * 5 * 4


@torch.no_grad()
def test_the_whole_context_can_be_read_behind_a_cache_and_not_one_token_more(model, images_for):
    ids, images = random_ids(1, MAX_SEQ_LEN), images_for(model, 1)
    logits, cache = cached_logits(model, ids, images, [3, 8, 1])
    assert_close(logits, model(ids, images).logits)
    with pytest.raises(ValueError, match=f"{MAX_SEQ_LEN + 1} text positions exceed the context of {MAX_SEQ_LEN}"):
        model(ids[:, :1], cache=cache)
    assert cache.length == cache.capacity


def test_the_model_keeps_no_state_between_calls(model, images_for):
    def loose_tensors():
        return [
            (name, key)
            for name, module in model.named_modules()
            for key, value in vars(module).items()
            if isinstance(value, (torch.Tensor, tinylm.Routing, list))
        ]

    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ids, images = random_ids(1, 4), images_for(model, 1)
    first = model(ids, images).logits
    model(random_ids(2, 7, seed=5), images_for(model, 2, 5))
    assert loose_tensors() == []
    assert torch.equal(model(ids, images).logits, first)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# Slots in the images' place


@pytest.mark.parametrize("variant", ["vision", "vision+moe"])
@pytest.mark.parametrize("chunks", [None, [5, 4], [1] * 9])
@torch.no_grad()
def test_slots_in_the_images_place_give_the_logits_of_the_images(variant, chunks):
    model, ids, images = lively(tiny_config(variant)), random_ids(2, 9), random_images(2)
    slots = model.encoder(images)
    kept = slots.clone()
    right = model(ids, images)
    if chunks is None:
        found = model(ids, slots=slots)
        assert len(found.routings) == len(right.routings)
        for ours, theirs in zip(found.routings, right.routings, strict=True):
            assert torch.equal(ours.expert_ids, theirs.expert_ids)
        assert torch.equal(found.logits, right.logits)
    else:
        cache = LatentCache(model.config, batch_size=2)
        parts = ids.split(chunks, dim=1)
        logits = [model(parts[0], cache=cache, slots=slots).logits]
        logits += [model(part, cache=cache).logits for part in parts[1:]]
        assert_close(torch.cat(logits, dim=1), right.logits)
        assert cache.length == 4 + 9
    assert torch.equal(slots, kept)


@pytest.mark.parametrize("variant", ["vision", "vision+moe"])
@pytest.mark.parametrize("cached", [False, True])
@torch.no_grad()
def test_changed_slots_act_as_if_the_encoder_had_made_them(variant, cached):
    model, ids, images = lively(tiny_config(variant)), random_ids(2, 5), random_images(2)
    slots = torch.randn(2, 4, 24, generator=torch.Generator().manual_seed(1))
    handle = model.encoder.register_forward_hook(lambda *_: slots)
    right = model(ids, images).logits
    handle.remove()
    found = model(ids, cache=LatentCache(model.config, 2) if cached else None, slots=slots).logits
    assert_close(found, right, atol=1e-5)
    assert (found - model(ids, images).logits).abs().max() > 1e-2


@pytest.mark.parametrize("variant", ["vision", "vision+moe"])
def test_gradients_reach_slots_each_its_own_row(variant):
    model = lively(tiny_config(variant))
    slots = torch.randn(3, 4, 24, generator=torch.Generator().manual_seed(1)).requires_grad_(True)
    (model(random_ids(3, 5), slots=slots).logits[1] * torch.linspace(-1, 1, VOCAB_SIZE)).sum().backward()
    assert (slots.grad[1].abs().sum(dim=1) > 0).all()
    assert slots.grad[[0, 2]].abs().sum() == 0


# Routing


@torch.no_grad()
def test_the_routing_is_returned_for_every_position_and_equals_the_textbook(
    variant, article, article_model, images_for
):
    ids, images = random_ids(2, 6), images_for(article_model, 2)
    _, right = textbook(article, ids, images)
    routings = article_model(ids, images).routings
    if "moe" not in variant:
        assert routings == ()
        return
    assert len(routings) == 3
    n_slots = 0 if images is None else 4
    for routing, routes in zip(routings, right, strict=True):
        assert len(routing.probs) == 2 * (n_slots + 6) == len(routes)
        assert_close(routing.probs, torch.tensor([r.probs for r in routes]))
        assert_close(routing.weights, torch.tensor([r.weights for r in routes]))
        assert routing.expert_ids.tolist() == [r.expert_ids for r in routes]


@pytest.mark.parametrize("variant", ["moe", "vision+moe"])
@torch.no_grad()
def test_the_chosen_experts_are_the_likeliest_and_their_weights_sum_to_one(variant):
    model = lively(tiny_config(variant))
    images = random_images(2) if "vision" in variant else None
    cache = LatentCache(model.config, batch_size=2)
    for ids in (random_ids(2, 5), random_ids(2, 1, seed=1)):
        for routing in model(ids, images, cache).routings:
            assert_close(routing.probs.sum(dim=1), torch.ones(len(routing.probs)), atol=1e-6)
            assert_close(routing.weights.sum(dim=1), torch.ones(len(routing.weights)), atol=1e-6)
            for probs, weights, ids_k in zip(*map(torch.Tensor.tolist, routing), strict=True):
                ranked = sorted(range(3), key=lambda e: -probs[e])
                assert ids_k == ranked[:2]
                assert weights[0] / weights[1] == pytest.approx(probs[ids_k[0]] / probs[ids_k[1]], rel=1e-4)
        images = None
    assert len(routing.probs) == 2  # decoding routes the new positions alone


# Weights


def test_the_tied_embedding_gets_the_gradients_of_both_its_uses(variant, article, article_model, images_for):
    # One tensor in the package; two leaves in the textbook, whose gradients must add up to the one.
    ids, images = random_ids(1, 6), images_for(article_model, 1)
    push = torch.linspace(-1, 1, VOCAB_SIZE).double()
    article_model.zero_grad()
    (article_model(ids, images).logits.double() * push).sum().backward()
    ours = article_model.embed.weight.grad.double()
    article_model.zero_grad()
    embed = article["embed.weight"].double().requires_grad_(True)
    head = article["embed.weight"].double().requires_grad_(True)
    logits, _ = textbook({**article, "embed.weight": embed, "lm_head.weight": head}, ids, images)
    (logits * push).sum().backward()
    assert embed.grad.abs().max() > 0.1
    assert head.grad.abs().max() > 0.1
    torch.testing.assert_close(ours, embed.grad + head.grad, atol=2e-3, rtol=2e-3)
    assert [name for name, _ in article_model.named_parameters() if "head" in name and "heads" not in name] == [
        "head_bias"
    ]


def test_every_weight_gets_a_gradient(model, images_for):
    model.zero_grad()
    ids, images = random_ids(4, MAX_SEQ_LEN), images_for(model, 4)
    (model(ids, images).logits * torch.randn(VOCAB_SIZE)).sum().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().sum() == 0]
    model.zero_grad()
    assert idle == []


@pytest.mark.parametrize(
    ("variant", "encoder"),
    [("text", None), ("moe", None), *((variant, e) for variant in ("vision", "vision+moe") for e in ("mlp", "conv"))],
)
def test_the_first_loss_is_close_to_that_of_guessing(variant, encoder):
    torch.manual_seed(0)
    config = ModelConfig(
        1250,
        32,
        **preset("article"),
        moe=MoEConfig() if "moe" in variant else None,
        vision=VisionConfig(encoder=encoder) if "vision" in variant else None,
    )
    model = TinyLM(config)
    ids, targets = torch.randint(1250, (4, 16)), torch.randint(1250, (4, 16))
    images = torch.rand(4, 3, 32, 32) if "vision" in variant else None
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(ids, images).logits.flatten(0, 1), targets.flatten())
    assert float(loss) == pytest.approx(math.log(1250), abs=0.1)


def test_residual_outputs_start_smaller_the_deeper_the_model():
    for n_layers in (1, 8):
        model = TinyLM(tiny_config("moe", n_layers=n_layers, d_model=48, d_ff=200))
        for block in model.blocks:
            for weight in (block.attention.w_o.weight, *(e.w_out.weight for e in block.ffn.experts)):
                assert float(weight.detach().std()) == pytest.approx(0.02 / math.sqrt(2 * n_layers), rel=0.1)
            assert float(block.attention.w_q.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_are_counted_by_hand(variant):
    model = TinyLM(tiny_config(variant, n_layers=2))
    d, r, f, v, t = 24, 5, 40, 31, 12
    block = d * r + d * d + 2 * r * d + d * d + d + 4 * d
    dense = d * f + f + f * d + d
    total = v * d + t * d + v + 2 * d + 2 * block
    active = total
    if "moe" in variant:
        total += 2 * (3 * dense + 3 * d)
        active += 2 * (2 * dense + 3 * d)
    else:
        total += 2 * dense
        active = total
    if "vision" in variant:
        encoder = sum(p.numel() for p in model.encoder.parameters())
        total, active = total + encoder, active + encoder
        if variant == "vision+moe":
            assert encoder == 108 * 11 + 11 + 11 * 14 + 14 + 4 * (14 * 11 + 11 + 11 * d + d)
    assert model.n_parameters() == total
    assert model.n_parameters(active=True) == active


# Refusals


@pytest.mark.parametrize("shape", [(4,), (1, 0), (1, 2, 3)])
def test_ids_of_another_form_are_refused(shape):
    model = lively(tiny_config("text"))
    with pytest.raises(ValueError, match="ids must have shape"):
        model(torch.zeros(shape, dtype=torch.long))


def test_images_are_asked_for_checked_and_refused_where_they_do_not_belong():
    text, vision = lively(tiny_config("text")), lively(tiny_config("vision"))
    ids = random_ids(2, 3)
    with pytest.raises(ValueError, match="reads an image first"):
        vision(ids)
    for shape in [(1, 3, 6, 6), (2, 1, 6, 6), (2, 3, 8, 8), (2, 6, 6, 3), (3, 6, 6)]:
        with pytest.raises(ValueError, match=r"images must have shape \(2, 3, 6, 6\)"):
            vision(ids, torch.zeros(shape))
    with pytest.raises(ValueError, match="only into a model with vision"):
        text(ids, random_images(2))
    cache = LatentCache(vision.config, batch_size=2)
    vision(ids, random_images(2), cache)
    with pytest.raises(ValueError, match="once, at the first call"):
        vision(ids, random_images(2), cache)
    assert cache.length == 7


@pytest.mark.parametrize("variant", ["vision", "vision+moe"])
@pytest.mark.parametrize("cached", [False, True])
def test_slots_are_checked_and_refused_where_they_do_not_belong(variant, cached):
    text, vision = lively(tiny_config("text")), lively(tiny_config(variant))
    ids, slots = random_ids(2, 3), torch.zeros(2, 4, 24)

    def read(model, cache=None, **inputs):
        model(ids, cache=cache or (LatentCache(model.config, 2) if cached else None), **inputs)

    with pytest.raises(ValueError, match="not both"):
        read(vision, images=random_images(2), slots=slots)
    for shape in [(1, 4, 24), (2, 3, 24), (2, 4, 23), (2, 24), (2, 3, 6, 6)]:
        with pytest.raises(ValueError, match=r"slots must have shape \(2, 4, 24\), got"):
            read(vision, slots=torch.zeros(shape))
    with pytest.raises(ValueError, match="only into a model with vision"):
        read(text, slots=slots)
    cache = LatentCache(vision.config, batch_size=2)
    read(vision, cache, slots=slots)
    with pytest.raises(ValueError, match="once, at the first call"):
        read(vision, cache, slots=slots)
    assert cache.length == 7


def test_a_cache_of_other_rows_is_refused_before_anything_is_written():
    model = lively(tiny_config("text"))
    cache = LatentCache(model.config, batch_size=2)
    with pytest.raises(ValueError, match="the cache has 2 rows, the ids have 3"):
        model(random_ids(3, 4), cache=cache)
    assert cache.length == 0


@torch.no_grad()
def test_a_prompt_longer_than_the_context_is_refused(model, images_for):
    images = images_for(model, 1)
    assert model(random_ids(1, MAX_SEQ_LEN), images).logits.shape[1] == MAX_SEQ_LEN
    with pytest.raises(ValueError, match=f"{MAX_SEQ_LEN + 1} text positions exceed the context of {MAX_SEQ_LEN}"):
        model(random_ids(1, MAX_SEQ_LEN + 1), images)


# Attention maps


def test_attention_maps_are_those_of_the_running_model(model, images_for):
    # Against the inputs that each block's attention really gets, seen by hooks while the model reads.
    ids, images = random_ids(2, 6), images_for(model, 2)
    seen = []
    hooks = [
        block.attention.register_forward_pre_hook(lambda attention, inputs: seen.append(attention.weights(inputs[0])))
        for block in model.blocks
    ]
    with torch.no_grad():
        model(ids, images)
    for hook in hooks:
        hook.remove()
    maps = model.attention_maps(ids, images)
    n_positions = model.config.n_slots + 6
    assert maps.shape == (3, 2, model.config.n_heads, n_positions, n_positions)
    torch.testing.assert_close(maps, torch.stack(seen))
    assert not maps.requires_grad


def test_attention_maps_refuse_what_the_model_refuses(model, images_for):
    with pytest.raises(ValueError, match="exceed the context"):
        model.attention_maps(random_ids(1, model.config.max_seq_len + 1), images_for(model, 1))
