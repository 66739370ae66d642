"""tinylm: three tiny language models to question and to retrain."""

from tinylm import article
from tinylm.cache import LatentCache
from tinylm.checkpoint import Run, load, save, unknown_words
from tinylm.config import ModelConfig, MoEConfig, VisionConfig
from tinylm.generate import Step, Stream, decode, generate, prefill, sample, stream
from tinylm.model import ModelOutput, TinyLM
from tinylm.moe import Routing, load_balancing_loss
from tinylm.tokenizer import Tokenizer
from tinylm.vision import image_to_tensor, load_image

__version__ = "0.1.0"

__all__ = [
    "LatentCache",
    "MoEConfig",
    "ModelConfig",
    "ModelOutput",
    "Routing",
    "Run",
    "Step",
    "Stream",
    "TinyLM",
    "Tokenizer",
    "VisionConfig",
    "article",
    "decode",
    "generate",
    "image_to_tensor",
    "load",
    "load_balancing_loss",
    "load_image",
    "prefill",
    "sample",
    "save",
    "stream",
    "unknown_words",
]
