"""The mixture of experts equals a loop over tokens; the load-balancing loss equals counting."""

import pytest
import reference
import torch
from reference import Route

from tinylm import MoEConfig, Routing, load_balancing_loss, moe
from tinylm.moe import FeedForward, MixtureOfExperts

COMBINATIONS = [(3, 2), (4, 2), (5, 1), (5, 3), (3, 3), (1, 1)]  # n_experts, top_k


def make(n_experts: int, top_k: int, d_model: int = 10, d_ff: int = 7) -> MixtureOfExperts:
    torch.manual_seed(n_experts * 10 + top_k)
    mixture = MixtureOfExperts(d_model, d_ff, MoEConfig(n_experts, top_k))
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter.copy_(torch.randn_like(parameter))
        mixture.router.w.weight.mul_(0.5)
    return mixture


def by_hand(mixture: MixtureOfExperts, x: torch.Tensor) -> tuple[torch.Tensor, list[Route]]:
    experts = [(e.w_in.weight, e.w_in.bias, e.w_out.weight, e.w_out.bias) for e in mixture.experts]
    return reference.mixture_of_experts(x, mixture.router.w.weight, experts, mixture.router.top_k)


def as_routing(routes: list[Route]) -> Routing:
    return Routing(
        torch.tensor([r.probs for r in routes]),
        torch.tensor([r.weights for r in routes]),
        torch.tensor([r.expert_ids for r in routes]),
    )


def random_routes(n: int, n_experts: int, top_k: int, seed: int = 0) -> list[Route]:
    logits = torch.randn(n, n_experts, generator=torch.Generator().manual_seed(seed)) * 2
    return [reference.route(row, top_k) for row in logits.tolist()]


@pytest.mark.parametrize(("n_experts", "top_k"), COMBINATIONS)
@torch.no_grad()
def test_the_mixture_equals_a_loop_over_tokens(n_experts, top_k):
    mixture = make(n_experts, top_k)
    x = torch.randn(3, 5, 10)
    y, routing = mixture(x)
    right, routes = by_hand(mixture, x.flatten(0, 1))
    torch.testing.assert_close(y.flatten(0, 1), right, atol=1e-4, rtol=1e-4)
    assert routing.expert_ids.tolist() == [r.expert_ids for r in routes]
    torch.testing.assert_close(routing.probs, torch.tensor([r.probs for r in routes]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(routing.weights, torch.tensor([r.weights for r in routes]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n_tokens", [7, moe.ROUND_FROM + 3])
@pytest.mark.parametrize(("n_experts", "top_k"), COMBINATIONS)
def test_both_ways_to_combine_the_experts_give_the_same_output_and_gradients(n_experts, top_k, n_tokens):
    # By weight is what an accelerator takes; by expert is what the loop over tokens is compared with. With many tokens
    # its groups are filled up with copies of token 0, which must leave no trace.
    mixture = make(n_experts, top_k)
    x = torch.randn(n_tokens, 10, generator=torch.Generator().manual_seed(5)).requires_grad_()
    found = []
    for combine in (mixture.by_expert, mixture.by_weight):
        mixture.zero_grad()
        x.grad = None
        y = combine(x, mixture.router(x))
        y.square().sum().backward()
        grads = [x.grad, *(p.grad.clone() if p.grad is not None else 0 * p for p in mixture.parameters())]
        found.append([y.detach(), *grads])
    # A gradient sums over all tokens, and is rounded as the largest terms are.
    atol = 1e-4 if n_tokens == 7 else 1e-6 * max(float(tensor.abs().max()) for tensor in found[0])
    for by_expert, by_weight in zip(*found, strict=True):
        torch.testing.assert_close(by_weight, by_expert, atol=atol, rtol=1e-4)


@torch.no_grad()
def test_with_many_tokens_every_expert_reads_a_multiple_of_the_same_number(monkeypatch):
    # Remembers training in bfloat16, where each new size cost more than its product.
    mixture, sizes = make(4, 2), []
    real = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: (sizes.append(len(x)), real(self, x))[1])
    mixture(torch.randn(9, 100, 10))
    assert sum(sizes) >= 1800 and all(size % moe.ROUND_TO == 0 for size in sizes)
    assert sum(sizes) < 1800 + 4 * moe.ROUND_TO
    sizes.clear()
    mixture(torch.randn(2, 5, 10))
    assert sum(sizes) == 20  # a prompt is not filled up


@pytest.mark.parametrize(("n_experts", "top_k"), COMBINATIONS)
def test_the_mixtures_gradients_equal_the_loops(n_experts, top_k):
    mixture = make(n_experts, top_k)
    x = torch.randn(6, 10)
    mask = torch.linspace(-1, 1, 10)
    (mixture(x[None])[0] * mask).sum().backward()
    gradients = {name: p.grad for name, p in mixture.named_parameters()}
    mixture.zero_grad()
    mixture.requires_grad_(True)
    (by_hand(mixture, x)[0] * mask).sum().backward()
    for name, parameter in mixture.named_parameters():
        # An expert that no token chose has no gradient either way.
        ours = torch.zeros_like(parameter) if gradients[name] is None else gradients[name]
        right = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(ours, right, atol=1e-3, rtol=1e-3, msg=name)


@torch.no_grad()
def test_a_single_expert_is_the_dense_layer():
    mixture = make(1, 1)
    dense = FeedForward(10, 7)
    dense.load_state_dict(mixture.experts[0].state_dict())
    x = torch.randn(2, 4, 10)
    torch.testing.assert_close(mixture(x)[0], dense(x)[0])


@torch.no_grad()
def test_a_token_is_treated_alike_in_any_company():
    mixture = make(4, 2)
    x = torch.randn(1, 9, 10)
    together = mixture(x)[0]
    for t in range(9):
        torch.testing.assert_close(mixture(x[:, t : t + 1])[0], together[:, t : t + 1], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_every_expert_may_be_left_without_tokens():
    mixture = make(4, 1)
    for lucky in range(4):
        mixture.router.w.weight.zero_()
        mixture.router.w.weight[lucky] = 1.0
        x = torch.rand(1, 5, 10)
        y, routing = mixture(x)
        assert (routing.expert_ids == lucky).all()
        torch.testing.assert_close(y, mixture.experts[lucky](x)[0])


@pytest.mark.parametrize(("n_experts", "top_k"), COMBINATIONS)
def test_the_load_balancing_loss_equals_counting(n_experts, top_k):
    routes = random_routes(40, n_experts, top_k)
    ours = float(load_balancing_loss(as_routing(routes)))
    assert ours == pytest.approx(reference.load_balancing_loss(routes), abs=1e-5)


@pytest.mark.parametrize(("n_experts", "top_k"), [(4, 1), (4, 2), (6, 3)])
def test_the_load_balancing_loss_is_top_k_when_perfectly_balanced(n_experts, top_k):
    # transformers #28255: experts taken in turn, every one as likely.
    routes = [
        Route([1 / n_experts] * n_experts, [(t + i) % n_experts for i in range(top_k)], [1 / top_k] * top_k)
        for t in range(3 * n_experts)
    ]
    assert float(load_balancing_loss(as_routing(routes))) == pytest.approx(top_k, abs=1e-6)


@pytest.mark.parametrize(("n_experts", "top_k", "worst"), [(4, 1, 4.0), (4, 2, 4.0), (6, 3, 6.0)])
def test_the_load_balancing_loss_is_higher_the_more_collapsed_the_routing(n_experts, top_k, worst):
    losses = []
    for sharpness in (0.0, 1.0, 4.0, 60.0):
        # Every token likes the same experts; how much so grows.
        logits = [sharpness * (n_experts - e) / n_experts for e in range(n_experts)]
        losses.append(float(load_balancing_loss(as_routing([reference.route(logits, top_k)] * 8))))
    assert losses == sorted(losses)
    assert losses[0] == pytest.approx(top_k, abs=1e-5)
    assert losses[-1] == pytest.approx(worst, abs=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_padding_takes_no_part_in_the_load_balancing_loss(seed):
    # transformers #28255, #28505: padded positions must count in neither mean.
    routes = random_routes(30, 4, 2, seed)
    counted = [i % 3 != seed for i in range(30)]
    ours = float(load_balancing_loss(as_routing(routes), torch.tensor(counted)))
    assert ours == pytest.approx(reference.load_balancing_loss(routes, counted), abs=1e-5)
    assert ours != pytest.approx(reference.load_balancing_loss(routes), abs=1e-3)
    # The padding's own routing is of no account at all.
    wild = [r if c else Route([1.0, 0.0, 0.0, 0.0], [0, 1], [1.0, 0.0]) for r, c in zip(routes, counted, strict=True)]
    assert float(load_balancing_loss(as_routing(wild), torch.tensor(counted))) == pytest.approx(ours, abs=1e-6)


def test_a_mask_in_rows_is_read_in_row_order():
    routes = random_routes(12, 4, 2)
    flat = torch.tensor([i not in (3, 7, 10, 11) for i in range(12)])
    routing = as_routing(routes)
    assert load_balancing_loss(routing, flat.view(3, 4)) == load_balancing_loss(routing, flat)


def test_a_mask_over_padding_alone_gives_a_finite_loss():
    loss = load_balancing_loss(as_routing(random_routes(5, 4, 2)), torch.zeros(5, dtype=torch.bool))
    assert torch.isfinite(loss)


def test_the_load_balancing_loss_is_alike_in_training_and_evaluation_mode():
    # transformers #28505
    mixture = make(4, 2)
    x = torch.randn(2, 6, 10)
    losses = [load_balancing_loss(mixture.train(mode)(x)[1]).item() for mode in (True, False)]
    assert losses[0] == losses[1]
    routes = by_hand(mixture, x.flatten(0, 1))[1]
    assert losses[0] == pytest.approx(reference.load_balancing_loss(routes), abs=1e-5)


def test_a_step_down_the_load_balancing_loss_spreads_the_experts():
    mixture = make(4, 1)
    with torch.no_grad():
        mixture.router.w.weight[0] += 0.5
    x = torch.rand(1, 64, 10)

    def busiest() -> float:
        return float(mixture(x)[1].expert_ids.flatten().bincount(minlength=4).max()) / 64

    before = busiest()
    optimizer = torch.optim.SGD(mixture.router.parameters(), lr=0.5)
    for _ in range(60):
        optimizer.zero_grad()
        load_balancing_loss(mixture(x)[1]).backward()
        optimizer.step()
    assert before > 0.9
    assert busiest() < 0.6
