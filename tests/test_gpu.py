"""What must hold on CUDA; run with `pytest -m gpu` where there is a GPU."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys

import pytest
import torch
from conftest import MAX_SEQ_LEN, ROOT, lively, random_ids, random_images, tiny_config
from test_compile import Learner, batch_of, batches_for

import tinylm
from tinylm import gpu_step
from tinylm.graphed import GraphedDecoder
from tinylm.loop import Precision

DEVICE = torch.device("cuda")
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
    on_cuda = model.to(DEVICE)
    found = on_cuda(ids.to(DEVICE), None if images is None else images.to(DEVICE)).logits.cpu()
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_greedy_tokens_on_cuda_equal_those_on_the_cpu(variant):
    model = lively(tiny_config(variant))
    images = random_images(1) if model.config.vision else None
    expected = tinylm.generate(model, [1, 2, 3], images)
    assert tinylm.generate(model.to(DEVICE), [1, 2, 3], images) == expected


def test_a_replayed_decoder_gives_the_tokens_and_logits_of_the_cpu(variant):
    model = lively(tiny_config(variant))
    images = random_images(1) if model.config.vision else None
    expected = [tinylm.generate(model, prompt, images) for prompt in ([1, 2, 3], [4], [5] * MAX_SEQ_LEN)]
    ids = random_ids(1, MAX_SEQ_LEN)[0].tolist()
    with torch.no_grad():
        logits = model(torch.tensor([ids]), images).logits[0]
    decoder = GraphedDecoder(model.to(DEVICE))
    assert [decoder.greedy(prompt, images) for prompt in ([1, 2, 3], [4], [5] * MAX_SEQ_LEN)] == expected
    cache = tinylm.LatentCache(model.config)
    with torch.no_grad():
        model(torch.tensor([ids[:2]], device=DEVICE), None if images is None else images.to(DEVICE), cache)
    decoder.start(cache)
    for position, token_id in enumerate(ids[2:], start=2):
        torch.testing.assert_close(decoder.step(token_id).cpu(), logits[position], atol=1e-3, rtol=1e-3)


def learner_on_the_gpu(variant, optimizer="sgd"):
    """Plain SGD: Muon and Adam blow up the rounding of small gradients."""
    learner = Learner(variant, optimizer)
    learner.modules.to(DEVICE)
    return learner


@pytest.mark.parametrize("variant", ["text", "vision", "moe", "vision+moe"])
def test_replayed_steps_equal_plain_ones_on_the_cpu(variant):
    plain, learner = Learner(variant, "sgd"), learner_on_the_gpu(variant)
    batches = 2 * batches_for(variant)
    torch.testing.assert_close(learner.on_gpu(batches).cpu(), plain.plainly(batches), atol=1e-3, rtol=1e-3)
    learner.modules.cpu()
    learner.assert_like(plain, atol=1e-3, rtol=1e-2)
    assert learner.warnings() == [], "no recording may fail"


@pytest.mark.parametrize("optimizer", ["muon", "adamw", "sgd"])
def test_no_step_waits_for_the_device(optimizer):
    for variant in ("text", "moe", "vision"):
        learner = learner_on_the_gpu(variant, optimizer)
        step, batches = learner.step(), batches_for(variant)
        for batch in 2 * batches:  # every shape is recorded, which may wait
            step(batch)
        plain = learner.step()
        plain._recording = False
        plain(batches[0])
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in batches:
                step(batch)
                plain(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert learner.warnings() == []


@pytest.mark.skipif(not Precision.of(DEVICE).whole, reason="this GPU has no bfloat16")
def test_steps_in_bfloat16_are_finite_and_close_to_float32_with_and_without_compilation(monkeypatch):
    batches = [batch_of(4, width, seed=width) for width in (8, 8, 8, 12, 12, 12)]
    expected = Learner("text", "sgd").plainly(batches)
    for least in (math.inf, 0):
        monkeypatch.setattr(gpu_step, "COMPILED_FROM", least)
        learner = learner_on_the_gpu("text")
        step = gpu_step.GpuStep(learner.model, None, learner.optimizers, 1.0, bf16=True, say=learner.said.append)
        told = []
        for i, batch in enumerate(batches):
            learner.set_rate(i)
            told.append(step(batch))
        found = torch.stack(told).cpu()
        assert found.isfinite().all()
        torch.testing.assert_close(found, expected, atol=0.05, rtol=0.02)
        failed = [line for line in learner.said if "failed" in line]
        assert failed == [], f"compiled from {least} parameters on"


def test_a_step_that_cannot_be_compiled_or_recorded_is_taken_all_the_same(monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("no compiler here")

    def waits(work, pool=None):
        return real(lambda: (work(), torch.ones(1, device=DEVICE).item()), pool)

    real = gpu_step.capture
    monkeypatch.setattr(gpu_step, "COMPILED_FROM", 0)
    monkeypatch.setattr(torch, "compile", fails)
    monkeypatch.setattr(gpu_step, "capture", waits)
    plain, learner = Learner("text", "sgd"), learner_on_the_gpu("text")
    batches = batches_for("text")
    torch.testing.assert_close(learner.on_gpu(batches).cpu(), plain.plainly(batches), atol=1e-3, rtol=1e-3)
    assert ["without torch.compile" in learner.said[-2], "without CUDA graphs" in learner.said[-1]] == [True, True]


@pytest.mark.parametrize("variant", ["text", "moe"])
def test_training_takes_cuda_by_itself(tmp_path, variant):
    command = [sys.executable, str(ROOT / "train.py"), variant, "--out", str(tmp_path / "run"), "--epochs", "0.2"]
    done = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert "failed" not in done.stdout + done.stderr
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["device"] == torch.cuda.get_device_name()
    assert metrics["history"][-1]["val_loss"] < metrics["history"][0]["val_loss"]


def test_an_interrupted_run_goes_on_to_the_loss_of_a_whole_one(tmp_path, monkeypatch):
    import train

    corpus = tmp_path / "corpus.txt"
    corpus.write_text(
        "".join(f"The {a} {b} {c}.\n" for a in "abcde" for b in "fghij" for c in "klmno"), encoding="utf-8"
    )
    args = [
        "text",
        "--corpus",
        str(corpus),
        "--device",
        DEVICE.type,
        "--epochs",
        "12",
        "--set",
        "batch_size=16",
        "d_model=24",
    ]
    args += ["d_ff=32", "d_latent=6", "n_layers=2", "optimizer=adamw", "learning_rate=0.003", "vocab_size=60"]
    real, calls = gpu_step.GpuStep.__call__, []

    def interrupting(self, batch):
        calls.append(1)
        if len(calls) == 31:
            signal.raise_signal(signal.SIGINT)
        return real(self, batch)

    monkeypatch.setattr(gpu_step.GpuStep, "__call__", interrupting)
    assert train.main([*args, "--out", str(tmp_path / "run")]) == 130
    assert len(calls) == 31
    assert train.main([*args, "--out", str(tmp_path / "run"), "--resume"]) == 0
    monkeypatch.undo()
    assert train.main([*args, "--out", str(tmp_path / "whole")]) == 0
    resumed, whole = (
        json.loads((tmp_path / name / "metrics.json").read_text(encoding="utf-8")) for name in ("run", "whole")
    )
    assert resumed["steps"] == whole["steps"] == len(calls)
    assert resumed["val_loss"] == pytest.approx(whole["val_loss"], abs=0.02)
    assert [entry["step"] for entry in resumed["history"]] == [entry["step"] for entry in whole["history"]]
