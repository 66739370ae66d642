"""The table of a model's tensors is what the model has, and costs nothing however much a config asks for."""

import json
import time
from itertools import islice

import pytest
from conftest import ROOT, VARIANTS, tiny_config

import tinylm
from tinylm.config import PRESETS
from tinylm.shapes import tensor_shapes

ODD = {"vocab_size": 13, "max_seq_len": 7, "d_model": 10, "n_layers": 2, "n_heads": 5, "d_latent": 3, "d_ff": 17}
MLP = tinylm.VisionConfig(5, 3, "mlp", d_trunk=9)
# One stage; stages of several blocks; a stage that keeps its width; squeezed to one channel and to more.
CONV = [
    tinylm.VisionConfig(6, 1, "conv", channels=(5,), n_blocks=(3,)),
    tinylm.VisionConfig(9, 2, "conv", channels=(5, 7, 7, 24), n_blocks=(2, 1, 3)),
    tinylm.VisionConfig(8, 2, "conv", d_hidden=4, channels=(16, 16), mirrored=True, scales=(1.0, 1.25)),
]
MOE = [tinylm.MoEConfig(1, 1), tinylm.MoEConfig(5, 3)]
CONFIGS = [
    tinylm.ModelConfig(**ODD, moe=moe, vision=vision, final_norm=final_norm)
    for moe in (None, *MOE)
    for vision in (None, MLP, *CONV)
    for final_norm in (True, False)
]
CONFIGS += [tiny_config(variant) for variant in VARIANTS]


def shapes_of(model):
    return [(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_table_is_what_the_model_has_in_its_order(config):
    assert list(tensor_shapes(config)) == shapes_of(tinylm.TinyLM(config))


@pytest.mark.parametrize("name", ["article", "small"])
def test_the_table_is_what_a_preset_has(name):
    config = tinylm.ModelConfig(50, 20, **PRESETS[name])
    assert list(tensor_shapes(config)) == shapes_of(tinylm.TinyLM(config))


@pytest.mark.parametrize("variant", ["text", "vision", "moe"])
def test_the_table_is_what_the_shipped_models_have(variant):
    folder = ROOT / "weights" / variant
    config = tinylm.ModelConfig.from_dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    assert list(tensor_shapes(config)) == shapes_of(tinylm.load(folder).model)


def test_the_beginning_of_a_table_of_billions_comes_at_once():
    huge = dict.fromkeys(ODD, 10**12)
    moe, vision = tinylm.MoEConfig(n_experts=10**12), tinylm.VisionConfig(10**12, 10**12, d_trunk=10**12)
    deep = tinylm.VisionConfig(encoder="conv", channels=(10**12,), n_blocks=(10**12,))
    started = time.process_time()
    for config in (
        tinylm.ModelConfig(**huge, moe=moe),
        tinylm.ModelConfig(**huge, vision=vision),
        tinylm.ModelConfig(**huge, moe=moe, vision=deep),
    ):
        table = list(islice(tensor_shapes(config), 1000))
        assert len(table) == 1000
        assert table[1] == ("embed.weight", (10**12, 10**12))
    assert time.process_time() - started < 1
