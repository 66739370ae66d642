"""Muon against a slow textbook version."""

from __future__ import annotations

import pytest
import torch

from tinylm.muon import N_STEPS, NEWTON_SCHULZ, Muon, orthogonalised


def quintic(values: torch.Tensor) -> torch.Tensor:
    """What the Newton-Schulz steps do to one singular value."""
    a, b, c = NEWTON_SCHULZ
    for _ in range(N_STEPS):
        values = a * values + b * values**3 + c * values**5
    return values


def by_singular_values(matrix: torch.Tensor) -> torch.Tensor:
    """The same through a singular value decomposition, in float64."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    return u @ torch.diag(quintic(s / s.norm())) @ v


@pytest.mark.parametrize("form", [(8, 8), (4, 16), (32, 128)])
def test_orthogonalising_maps_the_singular_values_and_leaves_their_vectors(form):
    torch.manual_seed(0)
    batch = torch.randn(3, *form) * torch.logspace(0, -2, form[0])[:, None]
    found = orthogonalised(batch)
    for matrix, result in zip(batch, found, strict=True):
        torch.testing.assert_close(result.double(), by_singular_values(matrix), atol=2e-4, rtol=0)


def test_singular_values_come_close_to_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(1, 16, 64))[0])
    assert values.min() > 0.6 and values.max() < 1.3


def test_a_matrix_of_zeros_stays_finite():
    assert torch.equal(orthogonalised(torch.zeros(1, 4, 8)), torch.zeros(1, 4, 8))


@pytest.mark.parametrize("form", [(6, 6), (4, 12), (12, 4), (5, 2, 3, 3), (20, 2, 2, 2)])
def test_steps_equal_a_slow_version_for_one_matrix_at_a_time(form):
    torch.manual_seed(1)
    parameters = [torch.nn.Parameter(torch.randn(form)) for _ in range(2)]
    expected = [parameter.detach().clone() for parameter in parameters]
    momenta = [torch.zeros(form) for _ in parameters]
    optimizer = Muon(parameters, lr=0.01, momentum=0.9, weight_decay=0.5)
    for _ in range(3):
        for i, parameter in enumerate(parameters):
            parameter.grad = torch.randn(form)
            momenta[i] = 0.9 * momenta[i] + 0.1 * parameter.grad
            matrix = (0.1 * parameter.grad + 0.9 * momenta[i]).reshape(form[0], -1)
            update = by_singular_values(matrix).float().reshape(form)
            expected[i] = expected[i] * (1 - 0.01 * 0.5) - 0.01 * 0.2 * max(matrix.shape) ** 0.5 * update
        optimizer.step()
    for parameter, right in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), right, atol=1e-4, rtol=0)


def test_an_update_is_about_as_large_as_one_of_adamw():
    torch.manual_seed(2)
    parameter = torch.nn.Parameter(torch.zeros(32, 128))
    parameter.grad = 1000 * torch.randn(32, 128)
    Muon([parameter], lr=1.0, weight_decay=0.0).step()
    assert 0.1 < float(parameter.detach().square().mean().sqrt()) < 0.3


def test_a_parameter_without_a_gradient_stays():
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    Muon([parameter], weight_decay=0.5).step()
    assert torch.equal(parameter, torch.ones(2, 3))


def test_a_parameter_that_is_no_matrix_is_refused_with_its_shape():
    with pytest.raises(ValueError, match=r"\(3,\)"):
        Muon([torch.nn.Parameter(torch.zeros(3))])
