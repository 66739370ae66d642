"""Run folders: what is saved is what is loaded, and what is broken says which file and why."""

import json
import os
import shutil
import time
import tracemalloc
from pathlib import Path

import pytest
import torch
from conftest import VARIANTS, VOCAB_SIZE, lively, random_ids, random_images, tiny_config
from safetensors.torch import load_file, save_file

import tinylm
from tinylm import Tokenizer, checkpoint

FILES = ["config.json", "model.safetensors", "tokenizer.json", "metrics.json", "README.md"]
INFO = {"variant": "text", "val_loss": 1.5, "history": [{"step": 1}], "labels": ["Ä", "你"]}
LFS_POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 12345\n"
)


def tokenizer_of(size: int) -> Tokenizer:
    return Tokenizer(
        [chr(ord("A") + i) for i in range(size - 3)] + ["<pad>", "<eos>", "<unk>"], ("<pad>", "<eos>", "<unk>")
    )


@pytest.fixture(scope="module", params=VARIANTS)
def saved(request, tmp_path_factory):
    """(the model, its run folder)"""
    model = lively(tiny_config(request.param), seed=1)
    folder = tmp_path_factory.mktemp("run")
    if request.param == "vision":
        # Statistics that are buffers, not parameters, must come along.
        model.train()
        model(random_ids(8, 3), random_images(8))
        model.eval()
    tinylm.save(folder, model, tokenizer_of(VOCAB_SIZE), INFO)
    return model, folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy to break."""
    shutil.copytree(saved[1], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def text_folder(tmp_path):
    """A text model's run folder to break."""
    tinylm.save(tmp_path / "run", lively(tiny_config("text")), tokenizer_of(VOCAB_SIZE), INFO)
    return tmp_path / "run"


def broken(folder):
    """The message of the ValueError that loading raises, which must come at once and cost nothing."""
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(ValueError) as error:
            tinylm.load(folder)
        assert time.process_time() - started < 2
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()
    return str(error.value)


@torch.no_grad()
def test_a_run_folder_gives_back_equal_logits(saved, images_for):
    # safetensors #98: the head's weight is the embedding, saved once.
    model, folder = saved
    run = tinylm.load(folder)
    ids, images = random_ids(2, 8), images_for(model, 2)
    assert torch.equal(run.model(ids, images).logits, model(ids, images).logits)
    assert run.model.config == model.config
    assert run.tokenizer.tokens == tokenizer_of(VOCAB_SIZE).tokens
    assert run.info == INFO
    assert not run.model.training
    assert sorted(os.listdir(folder)) == sorted(FILES)


def test_weights_stay_tied_after_loading(saved, images_for):
    model, folder = saved
    stored = load_file(folder / "model.safetensors")
    assert [name for name, tensor in stored.items() if tensor.shape == (VOCAB_SIZE, 24)] == ["embed.weight"]
    run = tinylm.load(folder)
    ids, images = torch.tensor([[1, 1]]), images_for(model, 1)
    with torch.no_grad():
        before = run.model(ids, images).logits
        run.model.embed.weight[2] += 1.0  # a token that is not read: only the head can tell
        after = run.model(ids, images).logits
    changed = (after - before).abs().amax(dim=(0, 1))
    assert changed[2] > 0
    assert changed[torch.arange(VOCAB_SIZE) != 2].max() < 1e-6


def test_a_loaded_model_can_be_trained_on(saved, images_for):
    run = tinylm.load(saved[1])
    run.model.train()
    ids, images = random_ids(3, 4), images_for(run.model, 3)
    run.model(ids, images).logits.square().mean().backward()
    assert run.model.embed.weight.grad.abs().sum() > 0


def test_saving_over_a_run_replaces_it(text_folder):
    other = lively(tiny_config("moe"), seed=9)
    tinylm.save(text_folder, other, tokenizer_of(VOCAB_SIZE), {"variant": "moe"}, card="# mine\n")
    run = tinylm.load(text_folder)
    assert run.model.config == other.config
    assert run.info == {"variant": "moe"}
    assert (text_folder / "README.md").read_text(encoding="utf-8") == "# mine\n"
    assert torch.equal(run.model.embed.weight, other.embed.weight)


@pytest.mark.parametrize("victim", range(5))
def test_a_save_that_is_cut_short_leaves_whole_files(text_folder, monkeypatch, victim):
    # lightning #688: a full disk at the nth file.
    before = {name: (text_folder / name).read_bytes() for name in FILES}
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == victim + 1:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        tinylm.save(text_folder, lively(tiny_config("text"), seed=5), tokenizer_of(VOCAB_SIZE), {"variant": "new"})
    monkeypatch.undo()
    assert sorted(os.listdir(text_folder)) == sorted(FILES)
    replaced = [name for name in FILES if (text_folder / name).read_bytes() != before[name]]
    assert len(replaced) <= victim
    tinylm.load(text_folder)


def test_weights_are_not_in_place_before_they_are_whole(text_folder, monkeypatch):
    # As if the process were killed inside the writer.
    before = (text_folder / "model.safetensors").read_bytes()

    real = Path.write_bytes

    def half(path, data):
        real(path, before[: len(before) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(KeyboardInterrupt):
        tinylm.save(text_folder, lively(tiny_config("text"), seed=5), tokenizer_of(VOCAB_SIZE), {})
    monkeypatch.undo()
    assert (text_folder / "model.safetensors").read_bytes() == before
    tinylm.load(text_folder)


def test_weights_can_be_read_by_whoever_the_umask_lets(text_folder):
    """Remembers weights that only their owner could read."""
    modes = {name: (text_folder / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(set(modes.values())) == 1


# Broken folders


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    message = broken(folder)
    assert name in message
    assert "missing" in message


def test_metrics_and_card_may_be_missing(text_folder):
    (text_folder / "metrics.json").unlink()
    (text_folder / "README.md").unlink()
    assert tinylm.load(text_folder).info == {}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "metrics.json"])
def test_a_git_lfs_pointer_is_called_one(folder, name):
    # transformers #8497
    (folder / name).write_text(LFS_POINTER)
    message = broken(folder)
    assert name in message
    assert "git lfs pull" in message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "metrics.json"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_named(text_folder, name, share):
    path = text_folder / name
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data.rstrip()))])
    assert name in broken(text_folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "metrics.json"])
@pytest.mark.parametrize("content", [b"\x00" * 64, b"[]", b"3", b'"text"', b"\xff\xfe\xfa", b"null"])
def test_a_file_of_something_else_is_named(text_folder, name, content):
    (text_folder / name).write_bytes(content)
    assert name in broken(text_folder)


def change_config(folder, **changes):
    path = folder / "config.json"
    values = json.loads(path.read_text())
    for key, value in changes.items():
        outer, _, inner = key.rpartition("__")
        (values[outer] if outer else values)[inner] = value
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("name", ["max_seq_len", "d_model", "n_layers", "d_latent", "d_ff"])
@pytest.mark.parametrize("value", [6, 48, 10**9, 10**30])
def test_a_config_of_another_shape_is_refused_without_allocating(folder, name, value):
    change_config(folder, **{name: value})
    message = broken(folder)
    assert "model.safetensors" in message or "config.json" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"n_experts": 10**5},
        {"n_experts": 4},
        {"n_experts": 2},
    ],
)
def test_a_config_of_other_experts_is_refused_without_building_them(tmp_path, changes):
    tinylm.save(tmp_path, lively(tiny_config("moe")), tokenizer_of(VOCAB_SIZE), INFO)
    change_config(tmp_path, **{f"moe__{key}": value for key, value in changes.items()})
    message = broken(tmp_path)
    assert "model.safetensors" in message


@pytest.mark.parametrize(
    "changes",
    [{"n_slots": 10**5}, {"n_slots": 5}, {"n_slots": 3}, {"image_size": 10**9}, {"d_trunk": 10**9}, {"d_hidden": 12}],
)
def test_a_config_of_another_encoder_is_refused_without_building_it(tmp_path, changes):
    tinylm.save(tmp_path, lively(tiny_config("vision+moe")), tokenizer_of(VOCAB_SIZE), INFO)
    change_config(tmp_path, **{f"vision__{key}": value for key, value in changes.items()})
    message = broken(tmp_path)
    assert "model.safetensors" in message


@pytest.mark.parametrize("changes", [{"n_blocks": [10**9]}, {"n_blocks": [2]}, {"channels": [5] * 10**5}])
def test_a_config_of_another_trunk_is_refused_without_building_it(tmp_path, changes):
    tinylm.save(tmp_path, lively(tiny_config("vision")), tokenizer_of(VOCAB_SIZE), INFO)
    change_config(tmp_path, **{f"vision__{key}": value for key, value in changes.items()})
    assert "model.safetensors" in broken(tmp_path)


def test_a_config_of_another_variant_is_refused(text_folder):
    change_config(text_folder, moe={"n_experts": 3, "top_k": 2, "load_balancing_coef": 0.01})
    assert "model.safetensors" in broken(text_folder)


MISFITS = {
    "text": [{"n_layers": 10**12}, {"n_layers": 2}, {"d_model": 3 * 10**9}, {"vision": {}}, {"final_norm": False}],
    "vision": [{"vision__n_blocks": [10**12]}, {"vision__channels": [5, 8]}, {"vision__n_slots": 3}, {"vision": None}],
    "moe": [{"moe__n_experts": 10**12}, {"moe__n_experts": 2}, {"moe": None}, {"n_layers": 4}],
}


@pytest.mark.parametrize(("variant", "changes"), [(name, changes) for name in MISFITS for changes in MISFITS[name]])
def test_nothing_is_built_from_a_config_that_the_weights_do_not_fit(tmp_path, monkeypatch, variant, changes):
    tinylm.save(tmp_path, lively(tiny_config(variant)), tokenizer_of(VOCAB_SIZE), INFO)
    change_config(tmp_path, **changes)

    def build(config):
        raise AssertionError("a model was built")

    monkeypatch.setattr(checkpoint, "TinyLM", build)
    message = broken(tmp_path)
    assert "model.safetensors can't be used: tensor " in message
    assert "config.json asks for" in message
    assert "\n" not in message


def test_loading_draws_no_random_numbers(saved):
    before = torch.get_rng_state()
    tinylm.load(saved[1])
    assert torch.equal(torch.get_rng_state(), before)
    # And what is made afterwards is filled as ever.
    assert tinylm.TinyLM(saved[0].config).pos_embed.weight.std().item() == pytest.approx(0.02, rel=0.2)


def test_every_tensor_of_a_loaded_model_is_the_files(saved):
    stored = load_file(saved[1] / "model.safetensors")
    loaded = tinylm.load(saved[1]).model
    assert sorted(stored) == sorted(loaded.state_dict())
    assert all(torch.equal(tensor, stored[name]) for name, tensor in loaded.state_dict().items())
    assert {name for name, _ in loaded.named_parameters()} == {name for name, _ in saved[0].named_parameters()}
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_an_unknown_config_key_is_named_with_its_file(text_folder):
    change_config(text_folder, d_modle=24)
    message = broken(text_folder)
    assert "config.json" in message
    assert "d_modle" in message


def test_a_tokenizer_of_another_size_is_refused_with_both_numbers(folder):
    tokenizer_of(VOCAB_SIZE + 2).save(folder / "tokenizer.json")
    message = broken(folder)
    assert "tokenizer.json has 33 tokens" in message
    assert "config.json says 31" in message


def test_weights_of_another_name_are_refused_by_name(text_folder):
    path = text_folder / "model.safetensors"
    tensors = load_file(path)
    tensors["embeddings"] = tensors.pop("embed.weight")
    save_file(tensors, path)
    message = broken(text_folder)
    assert "model.safetensors" in message
    assert "embed.weight" in message


def test_weights_that_the_config_does_not_ask_for_are_refused(text_folder):
    path = text_folder / "model.safetensors"
    save_file({**load_file(path), "extra.weight": torch.zeros(2)}, path)
    message = broken(text_folder)
    assert "model.safetensors" in message
    assert "extra.weight" in message


@pytest.mark.parametrize("name", ["nowhere", "no/such/folder", "/nonexistent", "../x", "a b/c"])
def test_a_folder_that_is_not_there_says_how_to_make_one(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    message = broken(name)
    assert repr(name) in message
    assert "train.py" in message


def test_an_empty_folder_names_the_first_missing_file(tmp_path):
    assert "config.json is missing" in broken(tmp_path)


# The Hub, played by a stand-in


def test_owner_and_name_are_looked_up_on_the_hub(saved, monkeypatch):
    asked = []

    def snapshot_download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(saved[1])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    run = tinylm.load("somebody/a-run")
    assert run.model.config == saved[0].config
    assert [name for name, _ in asked] == ["somebody/a-run"]
    assert set(FILES) == set(asked[0][1])


def test_a_hub_that_is_out_of_reach_is_told_in_one_line(monkeypatch):
    def snapshot_download(name, allow_patterns):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(
        ValueError, match=r"no run folder 'somebody/a-run', and the Hugging Face Hub gave none"
    ) as error:
        tinylm.load("somebody/a-run")
    assert "\n" not in str(error.value)


def test_the_words_new_to_a_run_are_told_by_the_run_and_by_its_tokenizer(tmp_path):
    tokenizer = Tokenizer.train(["Bees make honey."], 100)
    model = tinylm.TinyLM(tinylm.ModelConfig(tokenizer.vocab_size, 8, d_model=8, n_layers=1, d_latent=4, d_ff=8))
    tinylm.save(tmp_path, model, tokenizer, {})
    run = tinylm.load(tmp_path)
    assert tinylm.unknown_words(run, "Bees make wax") == tinylm.unknown_words(tokenizer, "Bees make wax") == ["wax"]
    with pytest.raises(TypeError, match="TinyLM"):
        tinylm.unknown_words(model, "Bees")
