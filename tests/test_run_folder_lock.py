"""One run at a time writes into a run folder; everybody may read it meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import HUB_CACHE, ROOT

import tinylm
from tinylm import durable, training

SIZES = {"d_model": "16", "n_layers": "1", "d_ff": "16", "d_latent": "4", "vocab_size": "60", "batch_size": "4"}
# Takes the lock of the folder it is given, says so, and holds it until it is killed.
HOLDER = """
import sys, time
from pathlib import Path
from tinylm import durable
with durable.locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"The {t} is {c}.\n" for t in ("sky", "sea", "sun") for c in ("blue", "red", "grey")))
    return path


@pytest.fixture
def plan(tmp_path, corpus):
    return training.Plan("text", tmp_path / "run", corpus=str(corpus), device="cpu", settings={**SIZES, "epochs": "1"})


@pytest.fixture
def holder(tmp_path):
    """Another process that writes into the folder."""
    (tmp_path / "run").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_that_another_run_writes_into_is_refused_in_one_line_and_left_alone(plan, holder, capsys):
    import train

    (plan.out / training.STATE).write_bytes(b"the other run's")
    (plan.out / (training.STATE + ".tmp")).write_bytes(b"being written by it")
    sizes = [f"{key}={value}" for key, value in SIZES.items()]
    status = train.main(["text", "--corpus", plan.corpus, "--device", "cpu", "--out", str(plan.out), "--set", *sizes])
    said = capsys.readouterr()
    assert status == 1
    assert said.out == ""
    assert said.err.splitlines() == [
        f"text: another run is being trained into {plan.out}; wait for its end or give another --out"
    ]
    assert sorted(os.listdir(plan.out)) == [training.STATE, training.STATE + ".tmp"]


def test_the_lock_of_a_killed_process_is_gone_with_it_and_leaves_nothing(plan, holder):
    with pytest.raises(durable.InUse):
        training.train(plan)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert os.listdir(plan.out) == []
    training.train(plan)
    assert tinylm.load(plan.out).info["variant"] == "text"


def test_a_second_run_in_the_same_process_is_refused_too_and_one_after_the_other_is_not(plan):
    plan.out.mkdir()
    with durable.locked(plan.out), pytest.raises(durable.InUse, match="another run"):
        training.train(plan)
    training.train(plan)
    training.train(plan)


def test_two_runs_into_two_folders_do_not_mind_each_other(plan, tmp_path):
    (tmp_path / "other").mkdir()
    with durable.locked(tmp_path / "other"), durable.locked(tmp_path):  # nor a lock on the folder around
        training.train(plan)


def test_a_lock_is_lifted_when_the_run_fails(plan, corpus):
    corpus.write_text("too short")
    with pytest.raises(ValueError, match="too few"):
        training.train(plan)
    with durable.locked(plan.out):
        pass


def test_a_folder_loads_while_a_run_is_being_trained_into_it(plan, holder):
    holder.kill()
    holder.wait()
    training.train(plan)
    before = tinylm.load(plan.out).info
    copy = plan.out.with_name("copy")
    shutil.copytree(plan.out, copy)
    with durable.locked(plan.out):
        assert tinylm.load(plan.out).info == before
        assert tinylm.load(copy).info == before


def test_where_folders_cannot_be_locked_nobody_is_refused(plan, monkeypatch):
    def no_locks(*_args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(durable.fcntl, "flock", no_locks)
    with durable.locked(plan.out.parent):
        training.train(plan)
    monkeypatch.setattr(durable, "fcntl", None)  # Windows
    with durable.locked(plan.out.parent):
        training.train(plan)


def test_two_real_train_py_at_once_one_trains_and_one_is_refused(plan):
    args = [sys.executable, str(ROOT / "train.py"), "text", "--corpus", plan.corpus, "--device", "cpu"]
    args += ["--out", str(plan.out), "--epochs", "100000", "--save-every", "0"]
    args += ["--set", *(f"{key}={value}" for key, value in SIZES.items())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": HUB_CACHE}
    first = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        deadline = time.monotonic() + 60
        while not (plan.out / training.STATE).exists():
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        second = subprocess.run(args, capture_output=True, text=True, env=environment, timeout=60)
        assert second.returncode == 1
        assert second.stderr.count("\n") == 1 and str(plan.out) in second.stderr
        assert first.poll() is None
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=60) == 130
    finally:
        first.kill()
        first.wait()
