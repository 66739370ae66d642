"""Expert surgery: the same mixture with some experts switched off, and what a model makes of a given text.

N routed tokens, D `d_model`, E experts, k chosen experts, T positions, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.model import TinyLM
from tinylm.moe import MixtureOfExperts, Router, Routing

M = TypeVar("M", bound=nn.Module)


class PartialRouter(nn.Module):
    """A router, on the weights of another one, that can't choose the experts switched `off`.

    Their scores are -inf before the softmax, so that the probabilities of the others sum to 1. Where fewer experts
    are left than the router would choose, it chooses those.
    """

    off_E: Tensor

    def __init__(self, router: Router | PartialRouter, off: Collection[int]) -> None:
        super().__init__()
        self.w: nn.Linear = router.w
        if isinstance(router, PartialRouter):  # what is off stays off
            off_E = router.off_E.clone()
        else:
            off_E = torch.zeros(self.w.out_features, dtype=torch.bool, device=self.w.weight.device)
        off_E[sorted(off)] = True
        self.register_buffer("off_E", off_E, persistent=False)  # a saved model is whole again
        self.top_k: int = min(router.top_k, int((~off_E).sum()))

    def forward(self, x_ND: Tensor) -> Routing:
        """Route N tokens, in float32 as `Router` does."""
        with torch.autocast(x_ND.device.type, enabled=False):
            scores_NE = F.linear(x_ND.float(), self.w.weight.float()).masked_fill(self.off_E, float("-inf"))
        probs_NE = scores_NE.softmax(dim=-1)
        # Chosen by score: a probability may underflow to the 0 of an expert that is off.
        expert_ids_Nk = scores_NE.topk(self.top_k, dim=-1).indices
        top_Nk = probs_NE.gather(-1, expert_ids_Nk)
        return Routing(probs_NE, top_Nk / top_Nk.sum(dim=-1, keepdim=True), expert_ids_Nk)


def without_experts(model: TinyLM, off: Mapping[int, Collection[int]]) -> TinyLM:
    """The model without the experts in `off`, by layer; layers and experts count from 0.

    It shares every weight with `model` and copies none; `model` stays as it is and may run meanwhile. It is for
    reading and generating: what is done to its parts (`train`, `to`) is done to those of `model`. To force one
    expert, switch all others off. Raises ValueError on a dense model, on layers or experts that are not there, and
    if a layer would have none left.
    """
    blocks = list(model.blocks)
    if model.config.moe is None:
        raise ValueError("this model has no experts to switch off")
    for layer, experts in off.items():
        if not 0 <= layer < len(blocks):
            raise ValueError(f"layer {layer} is not one of the {len(blocks)} layers, counted from 0")
        ffn = blocks[layer].ffn
        assert isinstance(ffn, MixtureOfExperts)
        outside = [expert for expert in experts if not 0 <= expert < len(ffn.experts)]
        if outside:
            raise ValueError(f"expert {outside[0]} is not one of the {len(ffn.experts)} experts, counted from 0")
        if not experts:
            continue
        router = PartialRouter(ffn.router, experts)
        if router.top_k == 0:
            raise ValueError(f"layer {layer} would have no expert left of its {len(ffn.experts)}")
        blocks[layer] = _twin(blocks[layer], ffn=_twin(ffn, router=router))
    return _twin(model, blocks=nn.ModuleList(blocks))


def _twin(module: M, **parts: nn.Module) -> M:
    """The same module with other `parts`; the original keeps its own."""
    twin = copy.copy(module)  # its dictionaries would still be the original's
    twin._parameters, twin._buffers = dict(module._parameters), dict(module._buffers)
    twin._modules = {**module._modules, **parts}
    return twin


class Reading(NamedTuple):
    """What a model makes of a text that is given."""

    losses: list[float]  # nats, of each token but the first: minus the logarithm of its probability
    likeliest: list[int]  # the id that the model would put behind each token it read
    routings: tuple[Routing, ...]  # of the tokens read, one a layer; () when dense

    @property
    def loss(self) -> float | None:
        """Mean nats per token; None for a text of one token, which nothing predicts."""
        return sum(self.losses) / len(self.losses) if self.losses else None


@torch.inference_mode()
def read(model: TinyLM, ids: Sequence[int]) -> Reading:
    """Read a text of at least one token without generating anything.

    The text may be one token longer than the context: the last one need not be read to be predicted. Raises
    ValueError beyond that, and as the model does.
    """
    room = model.config.max_seq_len
    read_T = torch.tensor(list(ids), dtype=torch.long, device=model.head_bias.device)
    output = model((read_T[:room] if len(ids) == room + 1 else read_T)[None])
    logprobs_TV = output.logits[0].log_softmax(dim=-1)
    targets = read_T[1:]
    losses = F.nll_loss(logprobs_TV[: len(targets)], targets, reduction="none").tolist() if len(targets) else []
    return Reading(losses, logprobs_TV.argmax(dim=-1).tolist(), output.routings)


def mean_loss(model: TinyLM, ids: Sequence[int]) -> float | None:
    """Mean nats per token of a text, its first token aside; see `read`."""
    return read(model, ids).loss
