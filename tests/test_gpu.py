"""What must hold on CUDA; run with `pytest -m gpu` where there is a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from conftest import MAX_SEQ_LEN, ROOT, lively, random_ids, random_images, tiny_config

import tinylm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]


@pytest.fixture(autouse=True)
def exact_convolutions(monkeypatch):
    """TF32, cuDNN's default, rounds the convolutions' inputs to 10 bits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def test_logits_on_cuda_equal_those_on_the_cpu(variant):
    model = lively(tiny_config(variant))
    ids = random_ids(2, MAX_SEQ_LEN)
    images = random_images(2) if model.config.vision else None
    expected = model(ids, images).logits
    on_cuda = model.cuda()
    found = on_cuda(ids.cuda(), None if images is None else images.cuda()).logits.cpu()
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_greedy_tokens_on_cuda_equal_those_on_the_cpu(variant):
    model = lively(tiny_config(variant))
    images = random_images(1) if model.config.vision else None
    expected = tinylm.generate(model, [1, 2, 3], images)
    assert tinylm.generate(model.cuda(), [1, 2, 3], images) == expected


@pytest.mark.parametrize("variant", ["text", "moe"])
def test_training_takes_cuda_by_itself(tmp_path, variant):
    command = [sys.executable, str(ROOT / "train.py"), variant, "--out", str(tmp_path / "run"), "--epochs", "0.2"]
    subprocess.run(command, check=True, cwd=tmp_path)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["device"] == torch.cuda.get_device_name()
    assert metrics["history"][-1]["val_loss"] < metrics["history"][0]["val_loss"]
