"""The Muon optimizer: updates of weight matrices with their singular values made alike.

Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024); the scale of the updates is
that of Liu et al., "Muon is scalable for LLM training" (2025), eq. 4, so that one learning rate fits Muon and AdamW.

PyTorch has one from 2.9 on. This one works with older versions too, orthogonalises all matrices of one form at once
and iterates on the small Gram matrix: on the tiny matrices here that costs far less.

n rows, m columns, n <= m.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al.: the steepest quintic that still converges, to about 0.7-1.2
N_STEPS = 5


class Muon(torch.optim.Optimizer):
    """For matrices and filters inside a network; embeddings, heads, gains and biases belong to AdamW.

    The filters of a convolution (out, in, k, k) count as a matrix (out, in k k).
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 4e-3, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        """Nesterov momentum, decoupled weight decay; `params` are tensors or groups, of two dimensions or more.

        Raises ValueError for a parameter of fewer.
        """
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() < 2:
                    raise ValueError(
                        f"Muon is for matrices and filters, got a parameter of shape {tuple(parameter.shape)}"
                    )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
        for group in self.param_groups:
            by_form: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                wide = _wide(parameter.grad.lerp(state["momentum"], group["momentum"]).flatten(1))
                by_form.setdefault((wide.shape[0], wide.shape[1]), []).append((parameter, wide))
            for (_, m), members in by_form.items():
                updates = orthogonalised(torch.stack([wide for _, wide in members]))
                for (parameter, _), update in zip(members, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    scale = 0.2 * m**0.5  # an update's root mean square is 0.2, as AdamW's is
                    tall = parameter.shape[0] > parameter[0].numel()
                    update = update.mT if tall else update
                    parameter.add_(update.reshape(parameter.shape), alpha=-group["lr"] * scale)


def orthogonalised(x: Tensor) -> Tensor:
    """Matrices (..., n, m) with n <= m and their singular values brought close to 1, singular vectors as they are.

    Each Newton-Schulz step maps X to p X with p = a + b G + c G^2 and G = X X^T. The product of the p's is gathered
    in (n, n), and X is read twice only.
    """
    a, b, c = NEWTON_SCHULZ
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    gram = x @ x.mT
    product = None
    for i in range(N_STEPS):
        p = b * gram + c * (gram @ gram)
        p.diagonal(dim1=-2, dim2=-1).add_(a)
        product = p if product is None else p @ product
        if i + 1 < N_STEPS:
            gram = p @ gram @ p
    assert product is not None
    return product @ x


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
