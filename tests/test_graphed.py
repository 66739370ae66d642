"""Steps of fixed shapes decode as the model does, and what a graph replays is what was recorded, on new inputs.

There is no CUDA here: `recorded` stands in for a CUDA graph. It notes every call into PyTorch with the very tensors
that it read and wrote and makes the same calls again, so that whatever Python does once, at recording, stays as it was.
"""

from __future__ import annotations

import pytest
import torch
from conftest import MAX_SEQ_LEN, VOCAB_SIZE, lively, random_ids, random_images, tiny_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tinylm
from tinylm import graphed
from tinylm.generate import prefill
from tinylm.graphed import GraphedDecoder

WAITING = ("_local_scalar_dense", "nonzero", "bincount", "equal", "unique", "masked_select")


class Recording(TorchDispatchMode):
    """Notes calls; refuses those that wait for a GPU, as PyTorch does while it records one."""

    def __init__(self):
        super().__init__()
        self.calls, self.before, self.made = [], {}, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::").split(".")[0]
        if name in WAITING:
            raise RuntimeError(f"{name} waits for the device")
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for tensor in tensors((args, kwargs)):
                if memory(tensor) not in self.made:
                    self.before.setdefault(memory(tensor), (base(tensor), base(tensor).clone()))
        out = func(*args, **kwargs)
        read = {memory(tensor) for tensor in tensors((args, kwargs))}
        self.made |= {memory(tensor) for tensor in tensors(out)} - read
        self.calls.append((func, args, kwargs, out))
        return out

    def undo(self):
        for tensor, value in self.before.values():
            tensor.copy_(value)

    @torch.no_grad()
    def replay(self):
        for func, args, kwargs, out in self.calls:
            for old, new in zip(tensors(out), tensors(func(*args, **kwargs)), strict=True):
                if memory(old) != memory(new):
                    old.copy_(new)


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def memory(tensor):
    return tensor.untyped_storage().data_ptr()


def base(tensor):
    """All of the memory that a tensor lies in."""
    n = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((n,), (1,), 0)


def recorded(work, pool=None):
    """Stands in for `graphed.capture`."""
    work()
    with Recording() as recording:
        work()
    with torch.no_grad():
        recording.undo()
    return recording.replay


@pytest.fixture(params=["called", "replayed"])
def how(request, monkeypatch):
    """Whether a decoder's step runs as it is, as on the CPU, or is replayed as on CUDA."""
    if request.param == "replayed":
        monkeypatch.setattr(graphed, "records", lambda device: True)
        monkeypatch.setattr(graphed, "capture", recorded)
    return request.param


def test_logits_equal_the_models_at_every_position(variant, how):
    model = lively(tiny_config(variant))
    images = random_images(1) if model.config.vision else None
    ids = random_ids(1, MAX_SEQ_LEN)[0].tolist()
    cache = tinylm.LatentCache(model.config)
    with torch.no_grad():
        prefill(model, ids[:3], cache, images)
        expected = model(torch.tensor([ids]), images).logits[0]
    decoder = GraphedDecoder(model)
    for round_ in range(2):  # a second text with the same decoder finds nothing of the first
        decoder.start(cache)
        for position, token_id in enumerate(ids[3:], start=3):
            found = decoder.step(token_id)
            torch.testing.assert_close(found, expected[position], atol=1e-4, rtol=1e-4, msg=f"{round_}: {position}")
        with pytest.raises(ValueError, match=f"context of {MAX_SEQ_LEN} text positions is full"):
            decoder.step(0)


def test_greedy_tokens_equal_those_of_generate(variant, how):
    model = lively(tiny_config(variant))
    images = random_images(1) if model.config.vision else None
    decoder = GraphedDecoder(model)
    for prompt, most in (([1, 2, 3], 64), ([4], 5), ([5] * MAX_SEQ_LEN, 3), ([6, 7], 1), ([6, 7], 0)):
        expected = tinylm.generate(model, prompt, images, max_new_tokens=most)
        assert decoder.greedy(prompt, images, max_new_tokens=most) == expected
    expected = tinylm.generate(model, [1, 2, 3], images)
    assert decoder.greedy([1, 2, 3], images, eos_id=expected[4]) == expected[: expected.index(expected[4])]


def test_weights_written_in_place_or_replaced_show_at_the_next_text(how):
    model = lively(tiny_config("text"))
    decoder = GraphedDecoder(model)
    before = decoder.greedy([1, 2, 3])
    with torch.no_grad():
        model.embed.weight.copy_(model.embed.weight.roll(1, dims=0))
    in_place = decoder.greedy([1, 2, 3])
    assert in_place == tinylm.generate(model, [1, 2, 3]) != before
    model.embed.weight = torch.nn.Parameter(model.embed.weight.roll(1, dims=0))
    assert decoder.greedy([1, 2, 3]) == tinylm.generate(model, [1, 2, 3]) != in_place


def test_a_step_without_a_text_or_outside_the_vocabulary_is_refused():
    decoder = GraphedDecoder(lively(tiny_config("text")))
    with pytest.raises(ValueError, match="call start first"):
        decoder.step(0)
    with pytest.raises(ValueError, match="one filled row"):
        decoder.start(tinylm.LatentCache(tiny_config("text")))
    for token_id in (-1, VOCAB_SIZE):
        with pytest.raises(IndexError, match="outside the vocabulary"):
            decoder.step(token_id)


def test_the_stand_in_replays_what_was_recorded_and_no_more():
    x, total = torch.ones(3), torch.zeros(3)
    scale = [2.0]
    replay = recorded(lambda: total.add_(x * scale[0]))
    assert total.tolist() == [2, 2, 2], "the run before counts, the recording does not"
    x.fill_(5)
    scale[0] = 100.0  # a number in Python is as it was when recorded
    replay()
    assert total.tolist() == [12, 12, 12]
    with pytest.raises(RuntimeError, match="waits"):
        recorded(lambda: x.sum().item())
