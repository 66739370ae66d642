"""Decoding of one row, a token at a time, with weights folded for it.

D `d_model`, R `d_latent`, H heads, K = D/H head width, S positions so far, F `d_ff`, E experts, k chosen experts,
V vocabulary.

A step of a small model is a few dozen small matrix-vector products, so each call into PyTorch counts. Folding leaves
one product where the model has several:

- the absorbed queries and the latent come from one matrix, [W_UK^T W_Q / sqrt(K) of every head; W_DKV];
- W_O W_UV is one matrix, applied to the attended latents of all heads;
- LayerNorm's gain and shift go into the matrix behind it: W (g x + b) = (W g) x + W b;
- GELU(u) = u/2 (1 + erf(u/sqrt(2))) is (z + z erf(z)) / sqrt(2) with z = u/sqrt(2), and both factors go into the
  matrices around it;
- the bias of a product that is added to the residual stream is a column of its matrix, met by a constant 1.
"""

from __future__ import annotations

import math
import threading
from functools import cache as cached
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tinylm.attention import MultiHeadLatentAttention
from tinylm.cache import LatentCache
from tinylm.config import ModelConfig
from tinylm.model import Block, ModelOutput, TinyLM
from tinylm.moe import FeedForward, MixtureOfExperts, Router, Routing

ALIGNMENT = 16  # floats; rows of a padded matrix start at whole cache lines
CHUNK = 2**16  # values that share one row of the fingerprint's coefficients
# What folding knows. A part of any other class (an adapter, say) may compute something else.
FOLDABLE = frozenset(
    {
        TinyLM,
        Block,
        MultiHeadLatentAttention,
        FeedForward,
        MixtureOfExperts,
        Router,
        nn.Embedding,
        nn.Identity,
        nn.LayerNorm,
        nn.Linear,
        nn.ModuleList,
    }
)


class Expert(NamedTuple):
    """A feed-forward layer behind its LayerNorm; a dense layer is the only expert."""

    w_in_FD: Tensor
    b_in_F: Tensor
    w_out_DP: Tensor  # P: F, then one column for the bias, then padding


class Layer(NamedTuple):
    """One block."""

    eps1: float
    w_in_QD: Tensor  # Q: H*R query rows, then R latent rows
    b_in_Q: Tensor
    w_out_DP: Tensor  # P: H*R, then one column for the bias, then padding
    eps2: float
    router: tuple[Tensor, Tensor] | None  # (E, D) and its bias
    experts: list[Expert]


class Folded(NamedTuple):
    """A model's weights, folded. Shared by every stream and never written."""

    config: ModelConfig
    embed_VD: Tensor
    pos_TD: Tensor
    layers: list[Layer]
    eps: float | None  # None without a final norm
    head_VD: Tensor
    head_bias_V: Tensor


class Watched(NamedTuple):
    """What tells whether the weights that were folded are still the model's."""

    parameters: list[Tensor]
    places: list[tuple[Any, ...]]
    versioned: list[Tensor]  # tensors made in inference mode count no writes
    pieces: list[tuple[Tensor, Tensor]]  # the weights' bits and the coefficients that they are multiplied with


class Known(NamedTuple):
    """What is kept of a model."""

    watched: Watched
    state: list[int]
    folded: Folded


# Beside the models, not on them: a model is saved, copied and compared as if nothing had been folded.
_known: WeakKeyDictionary[TinyLM, Known] = WeakKeyDictionary()
_lock = threading.Lock()


class Decoder:
    """Reads one token at a time behind a cache, as `TinyLM` does for a single row, several times as fast.

    It holds the weights as they were when it was made, and buffers that every step overwrites: one decoder for each
    stream, and one thread at a time.
    """

    def __init__(self, folded: Folded) -> None:
        self._folded = folded
        config = folded.config
        n_rows = config.moe.top_k if config.moe else 1
        n_query = config.n_heads * config.d_latent
        self._h_D = torch.zeros(config.d_model)
        self._in_Q = torch.zeros(n_query + config.d_latent)
        self._q_HR = self._in_Q[:n_query].view(config.n_heads, config.d_latent)
        self._c_kv_R = self._in_Q[n_query:]
        self._attended_P = _with_one(n_query)
        self._attended_HR = self._attended_P[:n_query].view(config.n_heads, config.d_latent)
        self._scores_NE = torch.zeros(config.n_layers, config.moe.n_experts if config.moe else 0)
        self._scores_rows = self._scores_NE.unbind()
        self._z_kF = torch.zeros(n_rows, config.d_ff)
        self._erf_kF = torch.zeros(n_rows, config.d_ff)
        hidden_kP = torch.stack([_with_one(config.d_ff) for _ in range(n_rows)])
        self._hidden_kF = hidden_kP[:, : config.d_ff]
        self._z_rows, self._hidden_rows = self._z_kF.unbind(), hidden_kP.unbind()
        self._routes: list[tuple[list[int], list[float]]] = []
        self._cache: LatentCache | None = None
        self._store_NBSR: Tensor | None = None
        self._latents_SR: list[Tensor] = []

    @classmethod
    def of(cls, model: TinyLM) -> Decoder | None:
        """A decoder with the model's weights as they are now; they are folded anew only if they have changed.

        None where the model must run itself: weights that are not float32 on the CPU, parts of other classes, or
        hooks that want to be called. The folded weights live as long as the model.
        """
        parameters = _parameters(model)
        if parameters is None:
            return None
        places = [_place(parameter) for parameter in parameters]
        with _lock:
            known = _known.get(model)
        watched = known.watched if known is not None else None
        if watched is None or watched.places != places:
            watched = _watch(parameters, places)
            if watched is None:
                return None
        state = _state(watched)
        if known is None or known.watched is not watched or known.state != state:
            known = Known(watched, state, fold(model))
            with _lock:
                _known[model] = known
        return cls(known.folded)

    def step(self, token_id: int, cache: LatentCache) -> ModelOutput:
        """Read one token behind the cache: what `TinyLM.forward` returns for ids of shape (1, 1).

        The tensors returned are new, made in inference mode. Raises ValueError if the context is full, or if the
        cache has more rows than one, other sizes or types than the model, or no image in front where the model needs
        one; IndexError on an id outside the vocabulary.
        """
        with torch.inference_mode():
            logits_V = self.read(token_id, cache)
            return ModelOutput(logits_V[None, None], self.routings())

    def read(self, token_id: int, cache: LatentCache) -> Tensor:
        """The logits (V,) of `step`, for a caller in inference mode; `routings` has the rest."""
        folded = self._folded
        config = folded.config
        position = cache.length
        text_position = self._check(token_id, cache, position)
        end, n_model = position + 1, (config.d_model,)
        h_D, c_kv_R, q_HR, attended_HR = self._h_D, self._c_kv_R, self._q_HR, self._attended_HR
        z_kF, erf_kF, z_rows, hidden_rows = self._z_kF, self._erf_kF, self._z_rows, self._hidden_rows
        routes: list[tuple[list[int], list[float]]] = []
        scores_rows = self._scores_rows
        chosen, shares = [0], [1.0]
        torch.add(folded.embed_VD[token_id], folded.pos_TD[text_position], out=h_D)
        for latents_SR, layer in zip(self._latents_SR, folded.layers, strict=True):
            eps1, w_in_QD, b_in_Q, w_out_DP, eps2, router, experts = layer
            x_D = torch.layer_norm(h_D, n_model, eps=eps1)
            torch.addmv(b_in_Q, w_in_QD, x_D, out=self._in_Q)
            latents_SR[position].copy_(c_kv_R)
            c_kv_SR = latents_SR[:end]
            weights_HS = torch.softmax(torch.mm(q_HR, c_kv_SR.t()), -1)
            torch.mm(weights_HS, c_kv_SR, out=attended_HR)
            h_D.addmv_(w_out_DP, self._attended_P)
            x_D = torch.layer_norm(h_D, n_model, eps=eps2)
            if router is not None:
                logits_E = torch.addmv(router[1], router[0], x_D, out=scores_rows[len(routes)])
                chosen, shares = _route(logits_E, len(z_rows))
                routes.append((chosen, shares))
            for expert, z_F in zip(chosen, z_rows, strict=True):
                torch.addmv(experts[expert].b_in_F, experts[expert].w_in_FD, x_D, out=z_F)
            torch.erf(z_kF, out=erf_kF)
            torch.addcmul(z_kF, z_kF, erf_kF, out=self._hidden_kF)
            for expert, share, hidden_P in zip(chosen, shares, hidden_rows, strict=True):
                h_D.addmv_(experts[expert].w_out_DP, hidden_P, alpha=share)
        cache.advance(1)
        x_D = h_D if folded.eps is None else torch.layer_norm(h_D, n_model, eps=folded.eps)
        self._routes = routes
        return torch.addmv(folded.head_bias_V, folded.head_VD, x_D)

    def routings(self) -> tuple[Routing, ...]:
        """How the token read last was routed, one a layer, as new tensors; () when dense."""
        if not self._routes:
            return ()
        probs_N1E = torch.softmax(self._scores_NE, -1).unsqueeze(1)
        weights_N1k = torch.tensor([[shares] for _, shares in self._routes])
        expert_ids_N1k = torch.tensor([[chosen] for chosen, _ in self._routes])
        return tuple(map(Routing, probs_N1E.unbind(), weights_N1k.unbind(), expert_ids_N1k.unbind()))

    def _check(self, token_id: int, cache: LatentCache, position: int) -> int:
        """The token's position in the text, once everything is known to fit; binds the cache."""
        config = self._folded.config
        text_position = position - config.n_slots
        if text_position < 0:
            raise ValueError("this model reads an image first: prefill the cache with one")
        if text_position >= config.max_seq_len:
            raise ValueError(f"{text_position + 1} text positions exceed the context of {config.max_seq_len}")
        if not 0 <= token_id < config.vocab_size:
            raise IndexError(f"token id {token_id} is outside the vocabulary of {config.vocab_size}")
        if cache is not self._cache or cache.storage is not self._store_NBSR:
            self._bind(cache)
        return text_position

    def _bind(self, cache: LatentCache) -> None:
        """Take views of the cache's own tensor, one a layer, which later steps slice."""
        config = self._folded.config
        if cache.batch_size != 1:
            raise ValueError(f"the cache has {cache.batch_size} rows, the ids have 1")
        if cache.storage.shape[2] == 0:
            cache.write(0, torch.zeros(1, 1, config.d_latent))  # the first write allocates
        store_NBSR = cache.storage
        sizes = (config.n_layers, 1, config.n_slots + config.max_seq_len, config.d_latent)
        if store_NBSR.shape != sizes or store_NBSR.dtype != torch.float32 or store_NBSR.device.type != "cpu":
            raise ValueError(
                f"the cache holds {tuple(store_NBSR.shape)} of {store_NBSR.dtype} on {store_NBSR.device}; "
                f"the model needs {sizes} of torch.float32 on cpu"
            )
        self._latents_SR = list(store_NBSR[:, 0].unbind())
        self._cache, self._store_NBSR = cache, store_NBSR


def _route(scores_E: Tensor, top_k: int) -> tuple[list[int], list[float]]:
    """The chosen experts, likeliest first, and their weights; for so few numbers Python is faster than tensors."""
    scores = scores_E.tolist()
    chosen = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    ahead = [scores[expert] for expert in chosen[: top_k + 1]]
    # Which of equals comes first is the model's choice, and so is what numbers that are no numbers give.
    if not all(one > next_one for one, next_one in pairwise(ahead)):
        top_1k, expert_ids_1k = torch.softmax(scores_E[None], -1).topk(top_k)
        return expert_ids_1k[0].tolist(), (top_1k / top_1k.sum())[0].tolist()
    chosen = chosen[:top_k]
    odds = [math.exp(scores[expert] - ahead[0]) for expert in chosen]
    total = sum(odds)
    return chosen, [odd / total for odd in odds]


@torch.no_grad()
def fold(model: TinyLM) -> Folded:
    """The model's weights, folded in float64 and rounded once; copies, whatever happens to the model's own."""
    norm, embed_VD, bias_V = model.norm, model.embed.weight.double(), model.head_bias.double()
    eps = None
    if isinstance(norm, nn.LayerNorm):
        eps = norm.eps
        embed_VD, bias_V = _behind(norm, embed_VD, bias_V)
    return Folded(
        model.config,
        model.embed.weight.detach().clone(),
        model.pos_embed.weight.detach().clone(),
        [_fold_block(block) for block in model.blocks],  # type: ignore[arg-type]
        eps,
        _laid_out(embed_VD),
        bias_V.float(),
    )


def _fold_block(block: Block) -> Layer:
    attention, norm1, norm2 = block.attention, block.norm1, block.norm2
    n_heads, d_head = attention.n_heads, attention.d_head
    w_q_HKD = attention.w_q.weight.double().unflatten(0, (n_heads, d_head))
    w_uk_HKR = attention.w_uk.weight.double().unflatten(0, (n_heads, d_head))
    w_uv_HKR = attention.w_uv.weight.double().unflatten(0, (n_heads, d_head))
    w_o_DHK = attention.w_o.weight.double().unflatten(1, (n_heads, d_head))
    absorbed_HRD = w_uk_HKR.transpose(1, 2) @ w_q_HKD / math.sqrt(d_head)
    w_in_QD, b_in_Q = _behind(norm1, torch.cat([absorbed_HRD.flatten(0, 1), attention.w_dkv.weight.double()]))
    w_vo_DHR = torch.einsum("dhk,hkr->dhr", w_o_DHK, w_uv_HKR)
    router, experts = None, [block.ffn]
    if isinstance(block.ffn, MixtureOfExperts):
        w_ED, b_E = _behind(norm2, block.ffn.router.w.weight.double())
        router, experts = (w_ED.float(), b_E.float()), list(block.ffn.experts)  # type: ignore[arg-type]
    return Layer(
        norm1.eps,
        _laid_out(w_in_QD),
        b_in_Q.float(),
        _with_bias(w_vo_DHR.flatten(1), attention.w_o.bias),
        norm2.eps,
        router,
        [_fold_expert(expert, norm2) for expert in experts],  # type: ignore[arg-type]
    )


def _fold_expert(expert: FeedForward, norm: nn.LayerNorm) -> Expert:
    w_in_FD, b_in_F = _behind(norm, expert.w_in.weight.double(), expert.w_in.bias.double())
    w_out_DP = _with_bias(expert.w_out.weight.double() / math.sqrt(2), expert.w_out.bias)
    return Expert(_laid_out(w_in_FD / math.sqrt(2)), (b_in_F / math.sqrt(2)).float(), w_out_DP)


def _behind(norm: nn.LayerNorm, w_OI: Tensor, b_O: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Matrix and bias with the norm's gain and shift in them."""
    b_shift_O = w_OI @ norm.bias.double()
    return w_OI * norm.weight.double(), b_shift_O if b_O is None else b_O + b_shift_O


def _laid_out(w_OI: Tensor) -> Tensor:
    """In float32, in the order that the product was measured to read fastest: the longer side runs along memory."""
    w_OI = w_OI.float()
    return w_OI.t().contiguous().t() if w_OI.shape[0] > w_OI.shape[1] else w_OI.contiguous()


def _with_bias(w_OI: Tensor, b_O: Tensor) -> Tensor:
    """The matrix, then its bias as a column, then zeros, in float32; it meets what `_with_one` makes."""
    w_OP = w_OI.new_zeros(len(w_OI), len(_with_one(w_OI.shape[1])), dtype=torch.float32)
    w_OP[:, : w_OI.shape[1]] = w_OI
    w_OP[:, w_OI.shape[1]] = b_O
    return w_OP


def _with_one(n: int) -> Tensor:
    """Room for n values, then a 1, then zeros up to a whole number of cache lines."""
    values_P = torch.zeros((n // ALIGNMENT + 1) * ALIGNMENT)
    values_P[n] = 1
    return values_P


def _parameters(model: TinyLM) -> list[Tensor] | None:
    """Every weight that is folded, always in the same order; None if something in the model can't be folded."""
    found: list[Tensor] = []
    modules: list[nn.Module] = [model]
    while modules:
        module = modules.pop()
        if type(module) not in FOLDABLE or module._forward_hooks or module._forward_pre_hooks:
            return None
        found += [parameter for parameter in module._parameters.values() if parameter is not None]
        # The image encoder only runs at prefill, in the model itself.
        modules += [child for name, child in module._modules.items() if child is not None and name != "encoder"]
    return found


def _place(parameter: Tensor) -> tuple[Any, ...]:
    return id(parameter), parameter.data_ptr(), parameter.shape, parameter.stride()


@torch.no_grad()
def _watch(parameters: list[Tensor], places: list[tuple[Any, ...]]) -> Watched | None:
    """Views of the weights' memory, good as long as they stay in their places; None if they can't be folded."""
    coefficients = _coefficients()
    pieces = []
    for parameter in parameters:
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu" or not parameter.is_contiguous():
            return None
        for bits in parameter.detach().view(-1).view(torch.int32).split(CHUNK):
            pieces.append((bits, coefficients[: len(bits)]))
    return Watched(parameters, places, [p for p in parameters if not p.is_inference()], pieces)


@torch.no_grad()
def _state(watched: Watched) -> list[int]:
    """Numbers that change when a weight does.

    PyTorch counts most writes (`_version`), but none through `.data` or NumPy, so the values take part: the bits of
    the weights, as integers, times fixed odd coefficients. One changed weight always shows, since odd numbers have
    an inverse modulo 2^32; weights that have changed places show unless 32 bits agree by chance.
    """
    versions = [parameter._version for parameter in watched.versioned]
    return versions + [int(torch.dot(bits, coefficients)) for bits, coefficients in watched.pieces]


@cached
def _coefficients() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-(2**31), 2**31, (CHUNK,), generator=generator).to(torch.int32) | 1
