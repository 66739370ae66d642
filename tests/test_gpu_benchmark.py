"""The GPU benchmark counts what a step needs, runs where it can be tried out, and says so where there is no GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import gpu
import pytest
import torch
from conftest import ROOT, random_ids, tiny_config
from measure import RESULTS
from torch.utils.flop_counter import FlopCounterMode

from tinylm.data.batches import Batch
from tinylm.losses import training_loss
from tinylm.model import TinyLM


def products_alone(config, lengths):
    """`step_flops` without its scores, which grow with the square of the length."""
    ones = torch.ones(int(lengths.sum()), dtype=torch.long)
    return gpu.step_flops(config, ones) - len(ones) * 3 * 2 * config.n_layers * 2 * config.d_model


def test_the_counted_products_are_those_that_pytorch_counts_in_a_step():
    config = tiny_config("text")
    model, ids = TinyLM(config), random_ids(5, 8)
    with FlopCounterMode(display=False) as counter:
        training_loss(model, Batch(ids[:, :-1], ids[:, 1:])).total.backward()
    products = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm)
    counted = sum(n for op, n in counter.get_flop_counts()["Global"].items() if op in products)
    assert products_alone(config, torch.full((5,), 7)) == counted


@pytest.mark.parametrize("variant", ["text", "moe"])
def test_the_counted_products_are_six_for_each_weight_of_a_matrix_that_a_token_meets(variant):
    config = tiny_config(variant)
    met = 0.0
    for name, parameter in TinyLM(config).named_parameters():
        if parameter.dim() == 2 and name != "pos_embed.weight":
            met += parameter.numel() * (2 / 3 if ".experts." in name else 1)  # two of three experts
    assert products_alone(config, torch.tensor([4, 1])) == pytest.approx(5 * 6 * met)


def test_scores_are_counted_for_each_pair_that_may_be_seen():
    config, lengths = tiny_config("text"), [1, 5, 9]
    pairs = sum(1 for n in lengths for query in range(n) for key in range(n) if key <= query)
    a_pair = 3 * config.n_layers * config.n_heads * 2 * (2 * config.d_head)  # a score and a weighted value
    lengths_B = torch.tensor(lengths)
    assert gpu.step_flops(config, lengths_B) - products_alone(config, lengths_B) == pairs * a_pair


def run(*arguments):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)


def test_the_benchmark_runs_and_writes_its_figures(tmp_path):
    out = tmp_path / "tried"
    options = ("--device", "cpu", "--seconds", 0.05, "--rounds", 1, "--cases", "moe:article", "--out", out)
    done = run("benchmarks/gpu.py", *options)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "tried.json").read_text(encoding="utf-8"))
    assert report["machine"]["device"] == "cpu"
    assert {"torch", "commit", "cores"} <= set(report["machine"])
    training, decoding = report["training"]["moe:article"], report["decoding"]["moe:article"]
    for name in ("tinylm", "plain"):
        assert training[name]["tokens_per_second"] > 0
        assert 0 < training[name]["share_of_peak"] < 10
    assert decoding["graph"] > 0 and decoding["generate"] > 0
    assert "real tokens/s" in done.stdout and f"{decoding['graph']:,}" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("script", ["gpu.sh", "gpu.py"])
def test_without_cuda_the_scripts_say_so_in_one_line_and_fail(script):
    path = ROOT / "benchmarks" / script
    before = {p: p.stat().st_mtime_ns for p in RESULTS.glob("*.json")}
    if script.endswith(".sh"):
        done = subprocess.run(
            ["bash", str(path)],
            capture_output=True,
            text=True,
            timeout=120,
            env={"PYTHON": sys.executable, "PATH": "/bin:/usr/bin"},
        )
    else:
        done = run(path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and "no CUDA device" in done.stderr
    assert before == {p: p.stat().st_mtime_ns for p in RESULTS.glob("*.json")}
