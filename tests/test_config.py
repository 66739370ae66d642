"""A config that can't work can't be made, and says why."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from conftest import VARIANTS, random_ids, tiny_config

from tinylm import ModelConfig, MoEConfig, TinyLM, VisionConfig
from tinylm.config import PRESETS, preset
from tinylm.data.batches import Batch
from tinylm.loop import Precision, Task, take_step
from tinylm.recipes import VARIANTS as VARIANTS_TO_TRAIN
from tinylm.recipes import Plan, make_optimizers, settle

COUNTS = ["vocab_size", "max_seq_len", "d_model", "n_layers", "n_heads", "d_latent", "d_ff"]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.5, "3", None, True, float("nan")])
def test_a_size_that_is_no_count_is_refused_by_name(name, value):
    values = {"vocab_size": 10, "max_seq_len": 10, name: value}
    with pytest.raises(ValueError, match=name):
        ModelConfig(**values)


@pytest.mark.parametrize("name", ["n_experts", "top_k"])
@pytest.mark.parametrize("value", [0, -1, 2.0, None])
def test_a_count_of_experts_that_is_none_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        MoEConfig(**{name: value})


@pytest.mark.parametrize("name", ["image_size", "n_slots", "d_trunk", "d_hidden"])
@pytest.mark.parametrize("value", [0, -1, 2.0])
def test_a_count_of_the_encoder_that_is_none_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        VisionConfig(**{name: value})


def test_errors_name_both_numbers():
    with pytest.raises(ValueError, match="d_model=128 must be a multiple of n_heads=3"):
        ModelConfig(10, 10, n_heads=3)
    with pytest.raises(ValueError, match="top_k=5 must not exceed n_experts=4"):
        MoEConfig(top_k=5)
    with pytest.raises(ValueError, match="encoder='vit' is unknown; choose one of mlp, conv"):
        VisionConfig(encoder="vit")
    with pytest.raises(ValueError, match="channels"):
        VisionConfig(channels=(8, 0))
    with pytest.raises(ValueError, match="channels"):
        VisionConfig(channels=())
    for blocks in ((1, 0), (1, 1, 1)):
        with pytest.raises(ValueError, match="n_blocks"):
            VisionConfig(channels=(8, 16), n_blocks=blocks)
    with pytest.raises(ValueError, match="mirrored"):
        VisionConfig(mirrored=1)
    for scales in ((), (0.0,), (1.0, 5.0), (float("nan"),), ("1",), (True,)):
        with pytest.raises(ValueError, match="scales"):
            VisionConfig(encoder="conv", scales=scales)
    assert VisionConfig(channels=(8, 16, 32), n_blocks=(2,)).n_blocks == (2, 1, 1)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_load_balancing_coefficient_that_is_no_weight_is_refused(value):
    with pytest.raises(ValueError, match="load_balancing_coef"):
        MoEConfig(load_balancing_coef=value)


@pytest.mark.parametrize("value", ["false", 1, None])
def test_a_switch_that_is_neither_true_nor_false_is_refused(value):
    with pytest.raises(ValueError, match="final_norm"):
        ModelConfig(10, 10, final_norm=value)


def test_a_nested_config_must_be_one():
    with pytest.raises(ValueError, match="moe must be None or a MoEConfig"):
        ModelConfig(10, 10, moe={"n_experts": 4})
    with pytest.raises(ValueError, match="vision must be None or a VisionConfig"):
        ModelConfig(10, 10, vision=MoEConfig())


@pytest.mark.parametrize("config", [tiny_config("text"), MoEConfig(), VisionConfig()])
def test_a_config_is_frozen(config):
    field = dataclasses.fields(config)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, field, 5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_config_comes_back_from_json(variant):
    config = tiny_config(variant)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"d_modle": 3}, "d_modle"),
        ({"moe": {"n_expert": 3}}, "n_expert"),
        ({"vision": {"slots": 3}}, "slots"),
        ({"moe": [4, 2]}, "moe config must be an object"),
        ({"vision": "conv"}, "vision config must be an object"),
        ({"moe": {"load_balancing_coef": "much"}}, "moe"),
        ({"vision": {"channels": 3}}, "vision"),
        ({"moe": {"n_experts": 2, "top_k": 3}}, "top_k=3"),
    ],
)
def test_unknown_keys_and_bad_values_are_refused_by_name(change, named):
    values = {**tiny_config("text").to_dict(), **change}
    with pytest.raises(ValueError, match=named):
        ModelConfig.from_dict(values)


@pytest.mark.parametrize("values", [3, None, [], "config", [[1, 2]]])
def test_a_config_that_is_no_object_is_refused(values):
    with pytest.raises(ValueError, match="config must be an object"):
        ModelConfig.from_dict(values)


def test_a_missing_key_is_named():
    values = tiny_config("text").to_dict()
    del values["vocab_size"]
    with pytest.raises(ValueError, match="vocab_size"):
        ModelConfig.from_dict(values)


def test_reading_a_config_leaves_its_source_alone():
    values = tiny_config("moe").to_dict()
    before = json.dumps(values)
    ModelConfig.from_dict(values)
    assert json.dumps(values) == before


def test_the_article_preset_has_the_articles_sizes():
    assert preset("article") == {"d_model": 128, "n_layers": 3, "n_heads": 2, "d_latent": 32, "d_ff": 512}
    config = ModelConfig(1250, 64)
    assert {name: getattr(config, name) for name in preset("article")} == preset("article")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_config(name):
    config = ModelConfig(1250, 64, **preset(name))
    assert config.d_head * config.n_heads == config.d_model
    preset(name)["d_model"] = 1
    assert preset(name)["d_model"] == config.d_model


def test_the_base_preset_has_about_a_hundred_million_parameters_and_trains_by_its_own_recipe():
    recipe, sizes = settle(Plan("text", Path("unused"), preset_name="base"))
    torch.manual_seed(0)
    model = TinyLM(ModelConfig(1250, 64, **sizes)).train()
    assert 95e6 < model.n_parameters() < 110e6
    optimizers = make_optimizers(model, recipe)
    assert [type(optimizer) for optimizer in optimizers] == [torch.optim.AdamW], "Muon takes too long at this width"
    task = Task(model, tokenizer=None, batches=None, source="random ids")
    ids = random_ids(2, 9, vocab_size=1250)
    batch = Batch(ids[:, :-1], ids[:, 1:])
    losses = [
        take_step(task, batch, list(model.parameters()), optimizers, recipe.clip, Precision(False, False)).nats.item()
        for _ in range(2)
    ]
    assert losses[0] == pytest.approx(math.log(1250), abs=0.3)
    assert losses[1] < losses[0]


@pytest.mark.parametrize("variant", VARIANTS_TO_TRAIN)
def test_a_preset_changes_the_default_recipe_alone_and_settings_go_on_top(variant):
    def settled(preset_name, recipe_name="default", **settings):
        return settle(Plan(variant, Path("unused"), recipe_name, preset_name, settings=settings))[0]

    assert settled("base") != settled("article") == settled("small")
    assert settled("base", "article") == settled("article", "article")
    changed = settled("base", learning_rate="0.5", optimizer="sgd")
    assert (changed.learning_rate, changed.optimizer) == (0.5, "sgd")
    assert changed.batch_size == settled("base").batch_size


def test_an_unknown_preset_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="unknown preset 'huge'; choose one of article"):
        preset("huge")
