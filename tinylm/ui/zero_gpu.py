"""The one entry that asks for a GPU on Hugging Face's ZeroGPU Spaces; anywhere else it is a plain generator.

The shipped models answer on a CPU before a GPU would have been handed over, so only large ones take this way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from tinylm.ui.limits import MAX_SECONDS
from tinylm.ui.models import RunFolders
from tinylm.ui.service import Service, Update
from tinylm.ui.service.complete import complete as complete_text

LARGE = 50_000_000
"""Parameters from which on a model takes the GPU."""

F = TypeVar("F", bound=Callable[..., Any])


def _gpu(function: F) -> F:
    try:
        import spaces
    except ImportError:
        return function
    return spaces.GPU(duration=int(MAX_SECONDS))(function)


@_gpu
def complete_on_gpu(weights: str, *inputs: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The completion in a process of its own that has a GPU: plain values go in and come out."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for update in complete_text(Service(RunFolders(weights, device)), *inputs):
        yield update.result, update.page


def complete(service: Service, *inputs: Any) -> Iterator[Update]:
    """The completion, on a GPU where one can be asked for and the model is large enough to gain from it."""
    name = inputs[1] if len(inputs) > 1 else "text"
    on_zero_gpu = bool(os.environ.get("SPACES_ZERO_GPU"))
    if on_zero_gpu and name in service.runs.text_names() and service.runs.get(name).model.n_parameters() >= LARGE:
        with service.slots.take():
            for result, page in complete_on_gpu(str(service.runs.folder), *inputs):
                yield Update(result, page)
        return
    yield from complete_text(service, *inputs)
