"""The feed-forward slot of a block: one dense layer, or a mixture of experts behind the same call.

B batch, T positions, N = B*T tokens, D `d_model`, E experts, k chosen experts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.config import ModelConfig, MoEConfig

ROUND_FROM, ROUND_TO = 1024, 64
"""From so many (token, expert) pairs on, the groups of the experts are rounded up to a multiple of this."""


class Routing(NamedTuple):
    """What a layer's router decided, for N tokens in (batch, position) order."""

    probs: Tensor  # (N, E), softmax over all experts
    weights: Tensor  # (N, k), of the chosen experts, summing to 1
    expert_ids: Tensor  # (N, k), likeliest first


class FeedForward(nn.Module):
    """Linear - GELU (exact) - Linear, with biases."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w_in = nn.Linear(d_model, d_ff)
        self.w_out = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Map the last dimension; a dense layer has no routing."""
        return self.w_out(F.gelu(self.w_in(x))), None


class Router(nn.Module):
    """Scores every expert for every token and picks the likeliest `top_k`."""

    def __init__(self, d_model: int, config: MoEConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.w = nn.Linear(d_model, config.n_experts, bias=False)

    def forward(self, x_ND: Tensor) -> Routing:
        """Route N tokens; in float32 also under autocast, since close probabilities decide who is chosen."""
        with torch.autocast(x_ND.device.type, enabled=False):
            probs_NE = F.linear(x_ND.float(), self.w.weight.float()).softmax(dim=-1)
        top_Nk, expert_ids_Nk = probs_NE.topk(self.top_k, dim=-1)
        return Routing(probs_NE, top_Nk / top_Nk.sum(dim=-1, keepdim=True), expert_ids_Nk)


class MixtureOfExperts(nn.Module):
    """The weighted sum of each token's chosen experts (Shazeer et al. 2017, eq. 2, with a renormalised top-k)."""

    def __init__(self, d_model: int, d_ff: int, config: MoEConfig) -> None:
        super().__init__()
        self.router = Router(d_model, config)
        self.experts = nn.ModuleList(FeedForward(d_model, d_ff) for _ in range(config.n_experts))

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Routing]:
        """Output (B, T, D) and the routing of the B*T tokens."""
        x_ND = x_BTD.flatten(0, -2)
        routing = self.router(x_ND)
        combine = self.by_expert if x_ND.device.type == "cpu" else self.by_weight
        return combine(x_ND, routing).view_as(x_BTD), routing

    def by_expert(self, x_ND: Tensor, routing: Routing) -> Tensor:
        """Sort the N*k (token, expert) pairs by expert, so that each expert runs once, on its own tokens."""
        top_k = routing.expert_ids.shape[1]
        chosen = routing.expert_ids.flatten()
        order = chosen.argsort(stable=True)
        token_of_pair, weights = order // top_k, routing.weights.flatten()[order]
        sizes_E = chosen.bincount(minlength=len(self.experts))
        if len(order) >= ROUND_FROM:
            token_of_pair, weights, sizes_E = _rounded_up(token_of_pair, weights, sizes_E)
        groups = x_ND.index_select(0, token_of_pair).split(sizes_E.tolist())
        outputs = [expert(group)[0] for expert, group in zip(self.experts, groups, strict=True) if len(group)]
        weighted = torch.cat(outputs) * weights[:, None].to(x_ND.dtype)
        return torch.zeros_like(weighted[:1]).expand(len(x_ND), -1).index_add(0, token_of_pair, weighted)

    def by_weight(self, x_ND: Tensor, routing: Routing) -> Tensor:
        """Run every expert on every token, and weight by 0 what was not chosen.

        More products, but their sizes are known beforehand: an accelerator need not wait for the CPU to learn them,
        and the step can be recorded as a graph.
        """
        weights_NE = torch.zeros_like(routing.probs).scatter(1, routing.expert_ids, routing.weights)
        weighted = [
            weights_N[:, None].to(x_ND.dtype) * expert(x_ND)[0]
            for expert, weights_N in zip(self.experts, weights_NE.unbind(1), strict=True)
        ]
        return torch.stack(weighted).sum(dim=0)


def _rounded_up(token_of_pair: Tensor, weights: Tensor, sizes_E: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fill each expert's group up to a multiple of `ROUND_TO` with copies of token 0 that weigh nothing.

    For each size of a bfloat16 product that a CPU has not met of late, code is made first, which takes longer than the
    product: in training, where no two steps would have the same sizes.
    """
    rooms_E = (sizes_E + ROUND_TO - 1) // ROUND_TO * ROUND_TO
    filled_before_E = (rooms_E - sizes_E).cumsum(0) - (rooms_E - sizes_E)
    places = torch.arange(len(weights), device=weights.device) + filled_before_E.repeat_interleave(sizes_E)
    total = int(rooms_E.sum())
    return (
        token_of_pair.new_zeros(total).index_copy(0, places, token_of_pair),
        weights.new_zeros(total).index_copy(0, places, weights),
        rooms_E,
    )


def feed_forward(config: ModelConfig) -> FeedForward | MixtureOfExperts:
    """The layer that `config` asks for."""
    if config.moe is None:
        return FeedForward(config.d_model, config.d_ff)
    return MixtureOfExperts(config.d_model, config.d_ff, config.moe)


def load_balancing_loss(routing: Routing, mask: Tensor | None = None) -> Tensor:
    """`E * sum_i f_i P_i` of one layer, a scalar; it is `top_k` when perfectly balanced, more when collapsed.

    f_i is the share of tokens that chose expert i (summing to top_k), P_i the mean router probability
    (Fedus et al. 2021, "Switch Transformers", eqs. 4-6, for any top_k). `mask` (N,) tells which tokens count;
    padding takes no part in either mean.
    """
    n_experts = routing.probs.shape[1]
    all_E = torch.arange(n_experts, device=routing.expert_ids.device)  # not one_hot, which looks at the ids and waits
    chosen_NE = (routing.expert_ids[..., None] == all_E).sum(dim=1).to(routing.probs.dtype)
    if mask is None:
        f_E, p_E = chosen_NE.mean(dim=0), routing.probs.mean(dim=0)
    else:
        m_N = mask.flatten().to(routing.probs.dtype)
        count = m_N.sum().clamp(min=1)
        # Sums, not matrix products: those would be rounded under autocast.
        f_E, p_E = ((m_N[:, None] * values_NE).sum(dim=0) / count for values_NE in (chosen_NE, routing.probs))
    return n_experts * (f_E * p_E).sum()
