"""Tiny models of the four variants, with weights large enough that every part of them matters."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import reference
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

# No test waits for the Hub or leaves data in its cache; read when the libraries are imported.
HUB_CACHE = tempfile.mkdtemp(prefix="tinylm-tests-")
atexit.register(shutil.rmtree, HUB_CACHE, ignore_errors=True)
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": HUB_CACHE}

import tinylm  # noqa: E402

if TYPE_CHECKING:
    from gradio_client import Client
    from playwright.sync_api import Browser

# Tiny tensors gain nothing from threads, and the suite shares its machine.
torch.set_num_threads(1)

VARIANTS = ("text", "vision", "moe", "vision+moe")
VOCAB_SIZE, MAX_SEQ_LEN, IMAGE_SIZE, N_SLOTS = 31, 12, 6, 4


def extras(variant: str, n_experts: int = 3, image_size: int = IMAGE_SIZE) -> dict[str, int]:
    """What `reference.article_weights` needs beside the sizes to make a variant."""
    return {
        "n_experts": n_experts if "moe" in variant else 0,
        "image_size": image_size if "vision" in variant else 0,
    }


def random_images(n: int, size: int = IMAGE_SIZE, seed: int = 0) -> Tensor:
    """Noise (n, 3, size, size) with values in [0, 1]."""
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def random_ids(batch: int, length: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> Tensor:
    """Token ids (batch, length)."""
    return torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def tiny_config(variant: str, **changes: object) -> tinylm.ModelConfig:
    """Odd sizes; the pictures of `vision` go through the convolutional encoder, those of `vision+moe` through the
    plain one."""
    vision = None
    if "vision" in variant:
        encoder = "conv" if variant == "vision" else "mlp"
        vision = tinylm.VisionConfig(IMAGE_SIZE, N_SLOTS, encoder, d_trunk=14, d_hidden=11, channels=(5, 7))
    values: dict[str, object] = {
        "vocab_size": VOCAB_SIZE,
        "max_seq_len": MAX_SEQ_LEN,
        "d_model": 24,
        "n_layers": 3,
        "n_heads": 3,
        "d_latent": 5,
        "d_ff": 40,
        "moe": tinylm.MoEConfig(n_experts=3, top_k=2) if "moe" in variant else None,
        "vision": vision,
    }
    return tinylm.ModelConfig(**{**values, **changes})  # type: ignore[arg-type]


def lively(config: tinylm.ModelConfig, seed: int = 0) -> tinylm.TinyLM:
    """A model in evaluation mode whose weights are far from zero, so that nothing hides behind small numbers."""
    model = tinylm.TinyLM(config)
    generator = torch.Generator().manual_seed(seed)
    norms = (torch.nn.LayerNorm, torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)
    gains = {id(module.weight) for module in model.modules() if isinstance(module, norms)}
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter.copy_(0.3 * noise + (1.0 if id(parameter) in gains else 0.0))
            else:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
    return model.eval()


@pytest.fixture(scope="session", params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    """One of the four combinations."""
    return request.param


@pytest.fixture(scope="session")
def article(variant: str) -> dict[str, Tensor]:
    """Random weights in the article's layout, odd sizes."""
    return reference.article_weights(**extras(variant))


@pytest.fixture(scope="session")
def article_model(article: dict[str, Tensor]) -> tinylm.TinyLM:
    """The package's model with those weights."""
    return tinylm.article.from_state_dict(article, top_k=2)


@pytest.fixture(scope="session")
def model(variant: str) -> tinylm.TinyLM:
    """A lively model of the variant with the package's own layout. Shared: leave its weights alone."""
    return lively(tiny_config(variant))


@pytest.fixture(scope="session")
def images_for() -> Callable[[tinylm.TinyLM, int], Tensor | None]:
    """Images for a batch of a model, None where it takes none."""

    def images(model: tinylm.TinyLM, n: int, seed: int = 0) -> Tensor | None:
        return random_images(n, model.config.vision.image_size, seed) if model.config.vision else None

    return images


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sixty lines of one simple form."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    things = ["sky", "sea", "rose", "lime", "coal", "snow", "plum", "wheat", "mouse", "flame"]
    colours = ["blue", "green", "red", "white", "black", "grey"]
    path.write_text("".join(f"The {t} is {c}, they say.\n" for t in things for c in colours), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def address(weights: Path) -> Iterator[str]:
    """Of the app, served over the run folders of the module's own fixture `weights`."""
    from serve import serve

    with serve(weights) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Client:
    """A `gradio_client` of that app."""
    from gradio_client import Client  # only here: it takes a second to import

    return Client(address, verbose=False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium; see `browsing.open_browser`."""
    from browsing import open_browser  # only here: the other tests need no Playwright

    with open_browser() as browser:
        yield browser
