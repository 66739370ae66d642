"""`train.py` from the outside: run folders, seeds, Ctrl-C and --resume, and what it says when it can't."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import HUB_CACHE, ROOT, lively, random_images, tiny_config
from PIL import Image

import tinylm
from tinylm import loop, recipes, training
from tinylm.data.painter import paint
from tinylm.tokenizer import Tokenizer

SIZES = ["d_model=32", "n_layers=1", "d_ff=48", "d_latent=8", "vocab_size=150", "batch_size=8", "stored_size=32"]
METRICS = {
    "variant", "device", "steps", "seconds", "tokens_per_second", "parameters", "active_parameters", "train_loss",
    "val_loss", "val_bits_per_character", "history",
}  # fmt: skip
METRICS_OF = {
    "text": {"recall"},
    "moe": {"recall", "expert_load"},
    "vision": {"caption_accuracy", "labels"},
}
SMALL_ENCODER = {
    "conv": ["vision.channels=4,8", "vision.n_blocks=1,2", "vision.image_size=16"],
    "mlp": ["vision.encoder=mlp", "vision.d_trunk=20"],
}


@pytest.fixture(scope="session")
def flower_folder(tmp_path_factory):
    """Three kinds of drawn flowers, eight each."""
    folder = tmp_path_factory.mktemp("flowers")
    for kind in ("iris", "rose", "water lily"):
        (folder / kind.replace(" ", "-")).mkdir()
        for i in range(8):
            paint(kind, i, 32).save(folder / kind.replace(" ", "-") / f"{i}.png")
    return str(folder)


def environment():
    return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": HUB_CACHE, "OMP_NUM_THREADS": "1"}


def train_py(*args, cwd=None):
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *map(str, args)],
        capture_output=True, text=True, timeout=120, env=environment(), cwd=cwd or ROOT,
    )  # fmt: skip


def in_process(capsys, *args):
    """train.py's main here: (exit status, stdout, stderr)."""
    import train

    capsys.readouterr()
    status = train.main([str(arg) for arg in args])
    return status, *capsys.readouterr()


def arguments(variant, corpus_file, flower_folder, encoder="conv"):
    data = ["--flowers", flower_folder] if variant == "vision" else ["--corpus", corpus_file]
    extra = SMALL_ENCODER[encoder] if variant == "vision" else ["moe.n_experts=3"] if variant == "moe" else []
    return [variant, *data, "--device", "cpu", "--set", *SIZES, *extra]


def one_line(text):
    """The message on stderr: one line, no traceback."""
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


# Run folders


def check_run_folder(folder, variant):
    run = tinylm.load(folder)
    assert sorted(os.listdir(folder)) == [
        "README.md",
        "config.json",
        "metrics.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    info = run.info
    assert METRICS | METRICS_OF[variant] <= set(info)
    assert info["variant"] == variant
    assert info["parameters"] == sum(p.numel() for p in run.model.parameters())
    assert info["steps"] == info["history"][-1]["step"] > 0
    for entry in info["history"]:
        assert {"step", "seconds", "train_loss", "val_loss"} <= set(entry)
    assert [e["step"] for e in info["history"]] == sorted({e["step"] for e in info["history"]})
    # The last figure of the curve is that of the weights that were saved.
    assert info["history"][-1]["val_loss"] == pytest.approx(info["val_loss"], abs=1e-3)
    assert run.model.config.d_model == 32
    assert (run.model.config.moe is not None) == (variant == "moe")
    assert (run.model.config.vision is not None) == (variant == "vision")
    card = (folder / "README.md").read_text(encoding="utf-8")
    for figure in (f"{info['parameters']:,}", f"{info['val_loss']:.3f}", info["command"]):
        assert figure in card
    json.loads((folder / "metrics.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)  # no NaN
    return run


@pytest.mark.parametrize("variant", ["text", "moe", "vision"])
def test_the_command_trains_a_run_folder_that_loads_and_generates(tmp_path, corpus_file, flower_folder, variant):
    args = arguments(variant, corpus_file, flower_folder)
    done = train_py(*args, "--epochs", 2, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    run = check_run_folder(tmp_path / "run", variant)
    assert str(tmp_path / "run") in done.stdout
    assert f"{run.info['val_loss']:.3f}" in done.stdout
    images = random_images(1, 16) if variant == "vision" else None
    ids = run.tokenizer.encode("This flower" if variant == "vision" else "The sky is")
    assert len(tinylm.generate(run.model, ids, images, max_new_tokens=3)) == 3
    if variant == "vision":
        assert run.info["labels"] == ["iris", "rose", "water lily"]
    if variant == "moe":
        for layer in run.info["expert_load"]:
            assert sum(layer) == pytest.approx(1, abs=1e-3)
            assert len(layer) == 3


def test_captions_are_reported_on_test_pictures_other_things_and_another_run(tmp_path, capsys, flower_folder):
    others, test = tmp_path / "others", tmp_path / "flowers"
    for i in range(6):
        path = others / ("test" if i < 2 else "train") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (40 * i, 0, 0)).save(path)
    for label in ("iris", "water_lily", "cactus"):
        (test / label).mkdir(parents=True)
        paint(label.replace("_", " ") if label != "cactus" else "rose", 7, 24).save(test / label / "1.png")
    args = arguments("vision", "", flower_folder)
    pictures = ["--not-flowers", others, "--test-flowers", test, "--epochs", 1]
    status, _, err = in_process(capsys, *args, "vision.encoder=mlp", *pictures, "--out", tmp_path / "mlp")
    assert status == 0, err
    status, out, err = in_process(capsys, *args, *pictures, "--beside", tmp_path / "mlp", "--out", tmp_path / "conv")
    assert status == 0, err
    assert "cactus" in err + out
    info = tinylm.load(tmp_path / "conv").info
    other = tinylm.load(tmp_path / "mlp").info
    assert info["test"]["captions"]["n"] == 2 and set(info["test"]["captions"]["accuracy_by_label"]) == {
        "iris",
        "water lily",
    }
    assert info["test"]["not_flowers"]["n_others"] == 2 and info["not_flowers"]["n_others"] == 1
    assert info["beside"]["captions"] == other["test"]["captions"] and info["beside"]["encoder"] == "mlp"
    assert f"{info['test']['captions']['caption_accuracy']:.1%} of the test pictures" in out
    card = (tmp_path / "conv" / "README.md").read_text(encoding="utf-8")
    assert "## Captions of the 2 test pictures" in card and "mlp encoder" in card
    for figures in (info["test"], other["test"]):
        assert f"{figures['captions']['top1']:.1%}" in card
        assert f"{figures['not_flowers']['auroc']:.3f}" in card
    assert f"| slot 3 | {info['test']['slots']['muted'][2]['accuracy']:.1%} |" in card


@pytest.mark.parametrize(
    ("option", "named"), [("--not-flowers", "no folder"), ("--test-flowers", "no folder"), ("--beside", "nowhere")]
)
def test_a_report_that_cannot_be_made_is_refused_before_training(tmp_path, capsys, flower_folder, option, named):
    args = arguments("vision", "", flower_folder)
    status, _, err = in_process(capsys, *args, option, tmp_path / "nowhere", "--out", tmp_path / "run")
    assert status == 1 and named in err.splitlines()[-1] and "Traceback" not in err


def test_a_run_has_its_least_number_of_steps_unless_epochs_are_asked_for(tmp_path, capsys, flower_folder):
    args = [*arguments("vision", "", flower_folder), "min_steps=7", "batch_size=12"]
    status, _, err = in_process(capsys, *args, "epochs=0.5", "--out", tmp_path / "least")
    assert status == 0, err
    assert tinylm.load(tmp_path / "least").info["steps"] == 7
    without = [arg for arg in args if arg != "min_steps=7"]
    status, _, err = in_process(capsys, *without, "--epochs", 2, "--out", tmp_path / "asked")
    assert status == 0, err
    assert tinylm.load(tmp_path / "asked").info["steps"] == 4
    recipe = dataclasses.replace(training.RECIPES["default"]["vision"], epochs=3.0, batch_size=10, min_steps=100)
    assert training.run_epochs(recipe, 200) == 5.0
    assert training.run_epochs(recipe, 400) == 3.0


def test_all_trains_the_three_into_a_folder_each(tmp_path, capsys, corpus_file, flower_folder):
    status, out, err = in_process(
        capsys, "all", "--corpus", corpus_file, "--flowers", flower_folder, "--device", "cpu", "--out", tmp_path,
        "--epochs", 0.3, "--set", *SIZES,
    )  # fmt: skip
    assert status == 0, err
    for variant in ("text", "vision", "moe"):
        check_run_folder(tmp_path / variant, variant)
        assert str(tmp_path / variant) in out


@pytest.mark.parametrize("variant", ["text", "moe", "vision"])
def test_the_articles_recipe_trains_the_articles_model(tmp_path, capsys, corpus_file, flower_folder, variant):
    args = arguments(variant, corpus_file, flower_folder, encoder="mlp")
    status, _, err = in_process(capsys, *args, "--recipe", "article", "--epochs", 0.5, "--out", tmp_path / "run")
    assert status == 0, err
    run = check_run_folder(tmp_path / "run", variant)
    assert run.model.config.final_norm is False
    assert run.tokenizer.special_tokens == ("<pad>",)
    if variant == "vision":
        assert run.model.config.vision.encoder == "mlp"
        assert run.model.config.vision.image_size == 32
    # PyTorch's own first weights: embeddings of standard deviation 1.
    assert float(run.model.embed.weight.detach().std()) == pytest.approx(1, abs=0.1)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("variant", ["text", "moe", "vision"])
def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    tmp_path, capsys, corpus_file, flower_folder, variant
):
    args = arguments(variant, corpus_file, flower_folder)
    for name, seed in [("a", 4), ("b", 4), ("c", 5)]:
        torch.manual_seed(hash(name) % 1000)
        status, _, err = in_process(capsys, *args, "--epochs", 1, "--seed", seed, "--out", tmp_path / name)
        assert status == 0, err
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert weights(tmp_path / "a") != weights(tmp_path / "c")


def test_minutes_end_the_run_in_time(tmp_path, capsys, corpus_file, flower_folder):
    started = time.monotonic()
    args = arguments("text", corpus_file, flower_folder)
    status, _, err = in_process(capsys, *args, "--minutes", 0.02, "--out", tmp_path / "run")
    assert status == 0, err
    assert time.monotonic() - started < 30
    info = check_run_folder(tmp_path / "run", "text").info
    assert 1.2 <= info["seconds"] < 5


def test_some_hundred_steps_lower_the_validation_loss_on_the_built_in_corpus(tmp_path):
    sizes = {"d_model": "32", "n_layers": "1", "d_ff": "64", "d_latent": "16", "batch_size": "32", "epochs": "0.8"}
    info = training.train(training.Plan("text", tmp_path / "run", device="cpu", settings=sizes))
    losses = [entry["val_loss"] for entry in info["history"]]
    assert info["steps"] > 200
    # Guessing costs ln 1250 = 7.1 nats.
    assert losses[-1] < 5.2
    assert losses[-1] < losses[0] - 1
    assert losses[len(losses) // 2] < losses[0]


def test_training_learns_to_tell_two_flowers_apart(tmp_path):
    folder = tmp_path / "flowers"
    for label, colour in [("rose", (220, 30, 40)), ("iris", (90, 60, 220))]:
        (folder / label).mkdir(parents=True)
        for i in range(12):
            picture = paint(label, i, 32)
            picture.paste(colour, (8, 8, 24, 24))
            picture.save(folder / label / f"{i}.png")
    settings = {
        "d_model": "32", "n_layers": "1", "d_ff": "64", "d_latent": "16", "batch_size": "8", "epochs": "40",
        "rest_rate": "1", "mixed_share": "0",
        "stored_size": "32", "vision.channels": "8,16", "vision.n_blocks": "1", "vision.image_size": "16",
        "learning_rate": "0.004",
    }  # fmt: skip
    info = training.train(
        training.Plan("vision", tmp_path / "run", flowers=(str(folder),), device="cpu", settings=settings)
    )
    assert info["caption_accuracy"] == 1.0
    assert info["captions"]["accuracy_by_label"] == {"rose": 1.0, "iris": 1.0}


# Ctrl-C and --resume


def interrupted(command, log, wait_for=r"\b[1-9]\d*/\d+ steps"):
    """Run `command`, send Ctrl-C once a step is done, and give back the exit status and what it said."""
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment(), cwd=ROOT)
        try:
            deadline = time.monotonic() + 60
            while not re.search(wait_for, log.read_text()):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            return process.wait(timeout=60), log.read_text()
        finally:
            process.kill()


@pytest.mark.parametrize("variant", ["text", "vision"])
def test_an_interrupted_run_goes_on_to_the_same_weights_bit_for_bit(
    tmp_path, capsys, corpus_file, flower_folder, variant
):
    args = [*arguments(variant, corpus_file, flower_folder), "--epochs", "60" if variant == "text" else "30"]
    status, log = interrupted(
        [sys.executable, str(ROOT / "train.py"), *args, "--out", str(tmp_path / "run")], tmp_path / "log"
    )
    assert status == 130
    assert "Traceback" not in log
    assert "go on with: python train.py" in log
    assert "--resume" in log
    state = torch.load(tmp_path / "run" / training.STATE, weights_only=True)
    assert state["progress"]["step"] > 0
    assert not (tmp_path / "run" / "model.safetensors").exists()
    status, _, err = in_process(capsys, *args, "--out", tmp_path / "run", "--resume")
    assert status == 0, err
    status, _, err = in_process(capsys, *args, "--out", tmp_path / "whole")
    assert status == 0, err
    resumed, whole = check_run_folder(tmp_path / "run", variant), check_run_folder(tmp_path / "whole", variant)
    assert state["progress"]["step"] < whole.info["steps"]
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    for key in ("steps", "train_loss", "val_loss"):
        assert resumed.info[key] == whole.info[key]
    assert [(e["step"], e["val_loss"]) for e in resumed.info["history"]] == [
        (e["step"], e["val_loss"]) for e in whole.info["history"]
    ]


def test_resume_goes_on_in_the_middle_of_an_epoch_with_experts_too(tmp_path, capsys, monkeypatch, corpus_file):
    # Interrupted at an exact step, in-process: as Ctrl-C does it.
    args = [*arguments("moe", corpus_file, ""), "--epochs", "3"]
    real, handler = loop.training_loss, signal.getsignal(signal.SIGINT)
    calls = []

    def interrupting(*args):
        calls.append(1)
        if len(calls) == 11:
            signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(loop, "training_loss", interrupting)
    status, _, err = in_process(capsys, *args, "--out", tmp_path / "run")
    monkeypatch.undo()
    assert status == 130
    assert str(tmp_path / "run") in err
    state = torch.load(tmp_path / "run" / training.STATE, weights_only=True)
    assert state["progress"]["step"] == 11  # the step in hand is finished
    assert in_process(capsys, *args, "--out", tmp_path / "run", "--resume")[0] == 0
    assert in_process(capsys, *args, "--out", tmp_path / "whole")[0] == 0
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_interrupt_before_anything_is_saved_does_not_promise_otherwise(tmp_path, capsys, monkeypatch, corpus_file):
    def load_corpus(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "load_corpus", load_corpus)
    status, _, err = in_process(capsys, *arguments("text", corpus_file, ""), "--out", tmp_path / "run")
    assert status == 130
    assert "nothing was saved" in err
    assert "--resume" not in err


def test_resume_without_an_unfinished_run_says_so(tmp_path, capsys, corpus_file):
    args = [*arguments("text", corpus_file, ""), "--epochs", "0.2", "--out", tmp_path / "run"]
    status, _, err = in_process(capsys, *args, "--resume")
    assert status == 1
    assert "holds no unfinished run" in one_line(err)


def interrupt_at_once(capsys, monkeypatch, *args):
    """Start a run in this process and press Ctrl-C in its first step."""
    real = loop.training_loss

    def interrupting(*args):
        signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(loop, "training_loss", interrupting)
    assert in_process(capsys, *args)[0] == 130
    monkeypatch.undo()


@pytest.mark.parametrize(("change", "named"), [(["--seed", "9"], "seed was 0"), (["--set", "d_ff=50"], "settings was")])
def test_resume_with_other_settings_is_refused_by_name(tmp_path, capsys, monkeypatch, corpus_file, change, named):
    args = [*arguments("text", corpus_file, ""), "--epochs", "1", "--out", tmp_path / "run"]
    interrupt_at_once(capsys, monkeypatch, *args)
    status, _, err = in_process(capsys, *args, *change, "--resume")
    assert status == 1
    assert named in err
    assert "Traceback" not in err


def test_a_loss_that_is_no_number_stops_the_run_in_one_line_and_keeps_the_old_run(tmp_path, capsys, corpus_file):
    args = [*arguments("text", corpus_file, ""), "--out", tmp_path / "run"]
    assert in_process(capsys, *args, "--epochs", "0.5")[0] == 0
    before = weights(tmp_path / "run")
    status, _, err = in_process(
        capsys, *args, "--recipe", "article", "--set", "learning_rate=1e30", "clip=0", "--epochs", "10"
    )
    assert status == 1
    assert "Traceback" not in err
    assert "the loss is" in err and "learning_rate" in err
    assert weights(tmp_path / "run") == before


# What it says when it can't


def refused(capsys, tmp_path, *args):
    status, out, err = in_process(capsys, *args, "--device", "cpu", "--out", tmp_path / "run")
    assert status == 1
    assert out == ""
    return one_line(err)


def test_the_hub_without_a_network_ends_in_one_line_that_names_the_other_ways(tmp_path):
    done = train_py("vision", "--flowers", "hub", "--out", tmp_path / "run")
    assert done.returncode == 1
    message = one_line(done.stderr)
    assert "--flowers drawn" in message
    assert "--flowers DIR" in message
    done = train_py("text", "--corpus", "hub:nobody/nothing", "--out", tmp_path / "run")
    assert done.returncode == 1
    message = one_line(done.stderr)
    assert "nobody/nothing" in message
    assert "--corpus FILE" in message


@pytest.mark.parametrize(
    ("content", "named"),
    [(b"", "no text"), (b"one line\n", "too few"), (b"good\nbad \xff\n", "line 2"), (None, "can't be read")],
)
def test_a_bad_corpus_ends_in_one_line_with_its_name(tmp_path, capsys, content, named):
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_bytes(content)
    message = refused(capsys, tmp_path, "text", "--corpus", path)
    assert "mine.txt" in message
    assert named in message


def test_an_unknown_setting_lists_those_there_are(tmp_path, capsys):
    message = refused(capsys, tmp_path, "moe", "--set", "lerning_rate=1")
    for known in ("lerning_rate", "learning_rate", "d_model", "batch_size", "moe.n_experts", "moe.top_k"):
        assert known in message
    assert "vision." not in message


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["text", "--set", "d_model=many"], "d_model=many"),
        (["text", "--set", "bucket=maybe"], "bucket=maybe"),
        (["text", "--set", "d_model=33"], "d_model=33"),
        (["text", "--set", "batch_size=0"], "batch_size=0"),
        (["text", "--set", "vocab_size=10"], "vocab_size=10"),
        (["text", "--set", "optimizer=adam"], "muon, adamw or sgd"),
        (["text", "--preset", "huge"], "article, small, base"),
        (["moe", "--set", "moe.top_k=9"], "top_k=9"),
        (["vision", "--flowers", "no/such/folder"], "no/such/folder"),
    ],
)
def test_a_setting_that_cannot_work_ends_in_one_line(tmp_path, capsys, corpus_file, args, named):
    extra = [] if args[0] == "vision" else ["--corpus", corpus_file]
    assert named in refused(capsys, tmp_path, *args, *extra)


def test_a_run_folder_that_cannot_be_written_is_refused_before_training(tmp_path, capsys, corpus_file):
    (tmp_path / "run").write_text("a file")
    assert "run" in refused(capsys, tmp_path, "text", "--corpus", corpus_file)


@pytest.mark.parametrize(
    "args", [["poetry"], ["text", "--epochs", "0"], ["text", "--set", "d_model"], ["text", "--minutes", "nan"]]
)
def test_a_command_line_that_makes_no_sense_is_refused_with_the_usage(capsys, args):
    import train

    with pytest.raises(SystemExit) as stop:
        train.main(args)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


# The loss and the rate


def test_the_rate_warms_up_and_falls_to_its_last_share():
    recipe = training.Recipe(epochs=1, batch_size=1, learning_rate=2.0, warmup=0.1, final_rate=0.05)
    rates = [recipes.learning_rate(recipe, done / 1000) for done in range(1001)]
    assert rates[50] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(2.0)
    assert rates[550] == pytest.approx((2.0 + 0.1) / 2)
    assert rates[1000] == pytest.approx(0.1)
    assert rates[:101] == sorted(rates[:101])
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert min(rates) > 0


def test_the_articles_rate_never_changes():
    recipe = training.RECIPES["article"]["text"]
    assert {recipes.learning_rate(recipe, done / 10) for done in range(11)} == {3e-4}


def test_weight_decay_pulls_on_matrices_alone():
    model = lively(tiny_config("vision+moe"))
    recipe = training.RECIPES["default"]["vision"]
    for optimizer in ("adamw", "muon"):
        recipe = dataclasses.replace(recipe, optimizer=optimizer)
        groups = [group for made in recipes.make_optimizers(model, recipe) for group in made.param_groups]
        decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
        assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
        for name, parameter in model.named_parameters():
            assert decay[id(parameter)] == (recipe.weight_decay if parameter.dim() >= 2 else 0), name


def test_beside_muon_adamw_goes_at_its_share_of_the_rate(tmp_path, monkeypatch, capsys, corpus_file):
    made, rates = recipes.make_optimizers, []

    def watched(*args):
        optimizers = made(*args)
        step = optimizers[0].step
        optimizers[0].step = lambda: (rates.append([o.param_groups[-1]["lr"] for o in optimizers]), step())
        return optimizers

    monkeypatch.setattr(training, "make_optimizers", watched)
    args = [*arguments("text", corpus_file, ""), "optimizer=muon", "rest_rate=0.25", "--epochs", 1, "--out", tmp_path]
    status, _, err = in_process(capsys, *args)
    assert status == 0, err
    assert len(rates) > 3 and rates[0] != rates[-1]
    for adamw, muon in rates:
        assert adamw == pytest.approx(0.25 * muon)


def test_muon_takes_the_matrices_and_filters_inside_the_network_alone():
    for variant in ("vision+moe", "vision"):
        model = lively(tiny_config(variant))
        recipe = dataclasses.replace(training.RECIPES["default"]["moe"], optimizer="muon")
        adamw, muon = recipes.make_optimizers(model, recipe)
        assert isinstance(adamw, torch.optim.AdamW)
        taken = {id(p) for group in muon.param_groups for p in group["params"]}
        names = {name for name, parameter in model.named_parameters() if id(parameter) in taken}
        in_blocks = {name.rsplit(".", 2)[1] for name in names if name.startswith("blocks.")}
        assert in_blocks == {"w_dkv", "w_q", "w_uk", "w_uv", "w_o", "w_in", "w_out"}
        in_encoder = {name for name in names if name.startswith("encoder.")}
        assert names == in_encoder | {name for name in names if name.startswith("blocks.")}
        matrices = {name for name, p in model.named_parameters() if name.startswith("encoder.") and p.dim() >= 2}
        assert in_encoder == {name for name in matrices if ".stem." not in name} != set()


def test_joined_lines_are_whole_lines_that_fit_the_context():
    lines = ("a b", "c d e", "f")
    tokenizer = Tokenizer.train(lines, 40, 4)
    joined = training.join_lines(lines, 4.0, tokenizer, 12, seed=0)
    assert len(joined) == 12
    assert joined == training.join_lines(lines, 4.0, tokenizer, 12, seed=0)
    assert joined != training.join_lines(lines, 4.0, tokenizer, 12, seed=1)
    for example in joined:
        assert re.fullmatch(r"(a b|c d e|f)( (a b|c d e|f))*", example)
        assert len(tokenizer.encode(example)) < 12
    assert any(len(example) > 5 for example in joined)


def test_all_with_resume_keeps_what_is_finished_and_goes_on_with_the_rest(tmp_path, capsys, monkeypatch, corpus_file):
    """Remembers `all --resume` stopping at the first run, because that one was finished."""
    args = [*arguments("text", corpus_file, ""), "--epochs", "2"]
    args = ["all", *args[1:], "--flowers", "drawn", "--out", tmp_path]
    trained = []

    def stands_in(plan):
        trained.append((plan.variant, plan.resume))
        return {"variant": plan.variant}

    monkeypatch.setattr(training, "train", stands_in)
    monkeypatch.setattr(training, "summary", lambda info, folder: "")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "metrics.json").write_text("{}")
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / training.STATE).write_bytes(b"")
    assert in_process(capsys, *args, "--resume")[0] == 0
    assert trained == [("vision", True), ("moe", False)]


def test_resume_after_the_text_has_changed_is_refused(tmp_path, capsys, monkeypatch, corpus_file):
    """Remembers weights going on with another vocabulary's ids, without a word."""
    changed = tmp_path / "corpus.txt"
    changed.write_text(Path(corpus_file).read_text(encoding="utf-8"), encoding="utf-8")
    args = [*arguments("text", changed, ""), "--epochs", "3", "--out", tmp_path / "run"]
    interrupt_at_once(capsys, monkeypatch, *args)
    with changed.open("a", encoding="utf-8") as file:
        file.write("xylophones quiver zealously\n" * 5)
    status, _, err = in_process(capsys, *args, "--resume")
    assert status == 1
    assert "vocabulary" in err


@pytest.mark.slow
def test_the_default_recipe_learns_facts_in_other_wordings(tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), "text", "--out", str(tmp_path / "text")]
    subprocess.run(command, check=True)
    metrics = json.loads((tmp_path / "text" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["recall"] > 0.75
