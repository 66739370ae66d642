"""Experts switched off, against textbook models that never had them; and the original, which must not notice."""

import math
import threading

import pytest
import reference
import torch
from conftest import MAX_SEQ_LEN, extras, random_ids, random_images

import tinylm
from tinylm.decoder import Decoder
from tinylm.surgery import PartialRouter, mean_loss, read, without_experts

N_LAYERS, N_EXPERTS = 3, 4
OPERATIONS = {
    "nothing": {},
    "one layer": {1: [2]},
    "everywhere": {0: [2], 1: [2], 2: [2]},
    "different": {0: [0, 3], 2: [1]},
    "one left in a layer": {1: [0, 2, 3]},
    "forced": {layer: [0, 2, 3] for layer in range(N_LAYERS)},
}


@pytest.fixture(scope="module", params=["moe", "vision+moe"])
def mixture(request):
    return request.param


@pytest.fixture(scope="module")
def weights(mixture):
    return reference.article_weights(**extras(mixture, N_EXPERTS))


@pytest.fixture(scope="module")
def model(weights):
    """Shared: leave its weights alone."""
    return tinylm.article.from_state_dict(weights, top_k=2)


@pytest.fixture
def image(mixture):
    return random_images(1) if "vision" in mixture else None


def kept_in(layer, off):
    return [expert for expert in range(N_EXPERTS) if expert not in off.get(layer, ())]


def never_had(weights, off):
    """The article's weights with the experts cut out: their rows of the router gone, the others moved up."""
    cut = {name: tensor for name, tensor in weights.items() if ".mlp.experts." not in name}
    for layer in range(N_LAYERS):
        mlp, kept = f"blocks.{layer}.mlp", kept_in(layer, off)
        cut[f"{mlp}.gate.weight"] = weights[f"{mlp}.gate.weight"][kept]
        for place, expert in enumerate(kept):
            for part in ("0.weight", "0.bias", "2.weight", "2.bias"):
                cut[f"{mlp}.experts.{place}.{part}"] = weights[f"{mlp}.experts.{expert}.{part}"]
    return cut


@pytest.mark.parametrize("off", OPERATIONS.values(), ids=OPERATIONS)
@torch.no_grad()
def test_logits_and_routing_are_those_of_a_model_that_never_had_the_experts(weights, model, image, off):
    ids = random_ids(1, MAX_SEQ_LEN)
    logits, routings = without_experts(model, off)(ids, image)
    right, routes = reference.textbook_model(
        never_had(weights, off), ids[0].tolist(), None if image is None else image[0], top_k=2
    )
    torch.testing.assert_close(logits[0].double(), right, atol=2e-4, rtol=1e-4)
    for layer, (routing, layer_routes) in enumerate(zip(routings, routes, strict=True)):
        kept = kept_in(layer, off)
        for n, route in enumerate(layer_routes):
            assert routing.expert_ids[n].tolist() == [kept[place] for place in route.expert_ids]
            assert routing.weights[n].tolist() == pytest.approx(route.weights, abs=1e-4)
            assert routing.probs[n, kept].tolist() == pytest.approx(route.probs, abs=1e-4)
            assert all(routing.probs[n, expert] == 0 for expert in off.get(layer, ()))


@torch.no_grad()
def test_generation_goes_on_without_the_experts(weights, model, image):
    off = OPERATIONS["different"]
    new = tinylm.generate(without_experts(model, off), [3, 1, 4], image, max_new_tokens=6)
    assert new == reference.greedy(never_had(weights, off), [3, 1, 4], 6, None if image is None else image[0])


def test_a_forced_expert_does_all_the_work_up_to_the_end_of_the_context(model, image):
    forced = without_experts(model, OPERATIONS["forced"])
    steps = tinylm.stream(forced, [3, 1, 4], image, max_new_tokens=100, temperature=1.0, seed=0)
    routings = [routing for step in steps for routing in step.routing]
    assert steps.stopped == "context"
    for routing in routings:
        assert routing.expert_ids.eq(1).all() and routing.expert_ids.shape[1] == 1
        assert routing.weights.eq(1).all() and routing.probs[:, 1].eq(1).all()


@pytest.mark.parametrize("off", range(N_EXPERTS))
@torch.no_grad()
def test_an_expert_that_is_off_is_not_chosen_where_all_but_one_probability_underflow(model, off):
    x = torch.randn(50, model.config.d_model, generator=torch.Generator().manual_seed(0)) * 1e4
    found = PartialRouter(model.blocks[0].ffn.router, [off])(x)
    assert (found.probs == 0).sum(dim=1).max() == N_EXPERTS - 1  # one has it all; who comes second is at issue
    assert (found.expert_ids != off).all() and found.weights.isfinite().all()
    torch.testing.assert_close(found.weights.sum(dim=1), torch.ones(50))


def test_every_weight_is_shared_and_none_is_new(model):
    twin = without_experts(model, OPERATIONS["different"])
    assert [(n, id(p)) for n, p in twin.named_parameters()] == [(n, id(p)) for n, p in model.named_parameters()]
    assert list(twin.state_dict()) == list(model.state_dict())


@torch.no_grad()
def test_the_original_does_not_notice(model, image):
    ids = random_ids(1, MAX_SEQ_LEN)
    bits = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modules = [id(module) for module in model.modules()]
    logits, folded = model(ids, image).logits, Decoder.of(model)._folded
    twin = without_experts(model, OPERATIONS["everywhere"])
    tinylm.generate(twin, [3, 1], image, max_new_tokens=4)
    assert not torch.equal(twin(ids, image).logits, logits)
    twin.head_bias = torch.nn.Parameter(twin.head_bias + 1)  # another weight for the twin alone
    assert [id(module) for module in model.modules()] == modules
    assert all(torch.equal(tensor, bits[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model(ids, image).logits, logits)
    assert Decoder.of(model)._folded is folded and Decoder.of(twin) is None


@torch.no_grad()
def test_the_original_runs_as_ever_while_it_is_operated_on(model, image):
    ids = random_ids(1, MAX_SEQ_LEN)
    right, wrong, over = model(ids, image).logits, [], threading.Event()

    def run():
        while not over.is_set():
            with torch.no_grad():
                if not torch.equal(model(ids, image).logits, right):
                    wrong.append("changed")

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for off in list(OPERATIONS.values()) * 5:
            without_experts(model, off)(ids, image)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert wrong == []


@torch.no_grad()
def test_a_second_operation_keeps_the_first(model, image):
    ids = random_ids(1, MAX_SEQ_LEN)
    step_by_step = without_experts(without_experts(model, {0: [1], 2: [0]}), {0: [3]})
    at_once = without_experts(model, {0: [1, 3], 2: [0]})
    assert torch.equal(step_by_step(ids, image).logits, at_once(ids, image).logits)
    with pytest.raises(ValueError, match="layer 0 would have no expert left"):
        without_experts(at_once, {0: [0, 2]})


@pytest.mark.parametrize(
    ("off", "words"),
    [
        ({1: [0, 1, 2, 3]}, "layer 1 would have no expert left of its 4"),
        ({3: [0]}, "layer 3 is not one of the 3 layers"),
        ({-1: [0]}, "layer -1 is not"),
        ({0: [4]}, "expert 4 is not one of the 4 experts"),
        ({0: [-1]}, "expert -1 is not"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(model, off, words):
    with pytest.raises(ValueError, match=words):
        without_experts(model, off)


def test_a_dense_model_has_nothing_to_switch_off():
    dense = tinylm.article.from_state_dict(reference.article_weights(), top_k=2)
    with pytest.raises(ValueError, match="no experts"):
        without_experts(dense, {0: [0]})


@pytest.mark.parametrize("length", [2, 7, MAX_SEQ_LEN, MAX_SEQ_LEN + 1])
def test_the_loss_of_a_text_is_that_of_the_textbook(length):
    weights = reference.article_weights(n_experts=N_EXPERTS)
    model = tinylm.article.from_state_dict(weights, top_k=2)
    off, ids = OPERATIONS["different"], random_ids(1, length)[0].tolist()
    logits, _ = reference.textbook_model(never_had(weights, off), ids[:MAX_SEQ_LEN])
    losses = []
    for scores, target in zip(logits.tolist(), ids[1:], strict=False):
        losses.append(math.log(sum(math.exp(score) for score in scores)) - scores[target])
    twin = without_experts(model, off)
    reading = read(twin, ids)
    assert reading.losses == pytest.approx(losses, abs=2e-4) and len(losses) == length - 1
    assert mean_loss(twin, ids) == pytest.approx(sum(losses) / len(losses), abs=2e-4)
    assert reading.likeliest == [scores.index(max(scores)) for scores in logits.tolist()]
    assert [len(routing.probs) for routing in reading.routings] == [min(length, MAX_SEQ_LEN)] * N_LAYERS


def test_a_text_of_one_token_has_no_loss_and_a_longer_one_than_the_context_none_at_all():
    model = tinylm.article.from_state_dict(reference.article_weights(n_experts=N_EXPERTS), top_k=2)
    assert mean_loss(model, [3]) is None
    with pytest.raises(ValueError, match="exceed the context"):
        read(model, [3] * (MAX_SEQ_LEN + 2))
