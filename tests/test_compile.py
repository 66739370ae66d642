"""Steps as a GPU takes them change the weights as plain steps do, whatever fails on the way.

There is no CUDA here: `recorded` stands in for a CUDA graph, and compiled code is traced but not generated.
"""

from __future__ import annotations

import pytest
import torch
from conftest import IMAGE_SIZE, MAX_SEQ_LEN, N_SLOTS, VOCAB_SIZE, lively, random_images, tiny_config
from test_graphed import Recording, recorded
from torch._dynamo.testing import CompileCounterWithBackend

from tinylm import gpu_step
from tinylm.config import preset
from tinylm.data.batches import IGNORED, Batch
from tinylm.gpu_step import GpuStep, parts, widened
from tinylm.losses import LabelHead, training_loss
from tinylm.model import TinyLM
from tinylm.recipes import Recipe, make_optimizers

N_LABELS = 3


def batch_of(rows, width, seed=0, vision=False, weighted=True):
    """Random lines with padding, some of them with a pad alone behind their first token."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB_SIZE, (rows, width), generator=generator)
    targets = torch.randint(VOCAB_SIZE, (rows, width), generator=generator)
    lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
    targets = targets.masked_fill(torch.arange(width) >= lengths, IGNORED)
    if vision:
        shares = torch.rand(rows, N_LABELS, generator=generator).softmax(dim=1)
        return Batch(ids, targets, random_images(rows, IMAGE_SIZE, seed), shares)
    return Batch(ids, targets, weights=1 + 7 * torch.rand(rows, width, generator=generator) if weighted else None)


def batches_for(variant):
    """Two shapes in turn, one of another number of rows, one that comes once."""
    sizes = [(4, 6), (4, 9), (4, 7), (4, 12), (2, 8), (4, 8), (4, 11), (2, 7), (2, 6), (3, 5), (4, 5)]
    return [
        batch_of(*size, seed, "vision" in variant, seed % 5 > 0 or "moe" in variant) for seed, size in enumerate(sizes)
    ]


class Learner:
    """A model with all that trains it."""

    def __init__(self, variant, optimizer="muon", **changes):
        self.model = lively(tiny_config(variant, **changes)).train()
        self.head = LabelHead(self.model.encoder, N_LABELS, 1.0, 0.1) if self.model.encoder is not None else None
        if self.head is not None:
            torch.nn.init.constant_(self.head.w.weight, 0.01)
            torch.nn.init.zeros_(self.head.w.bias)
        self.modules = torch.nn.ModuleList([self.model] if self.head is None else [self.model, self.head])
        self.parameters = list(self.modules.parameters())
        recipe = Recipe(epochs=1, batch_size=4, learning_rate=0.02, optimizer=optimizer)
        self.optimizers = make_optimizers(self.modules, recipe)
        self.said: list[str] = []

    def set_rate(self, step):
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 0.02 / (1 + step)

    def plainly(self, batches, clip=1.0):
        """The obvious loop; the losses."""
        told = []
        for step, batch in enumerate(batches):
            self.set_rate(step)
            loss = training_loss(self.model, batch, self.head)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss.total.backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, clip)
            for optimizer in self.optimizers:
                optimizer.step()
            told.append(loss.nats.detach())
        return torch.stack(told)

    def step(self, clip=1.0):
        return GpuStep(self.model, self.head, self.optimizers, clip, bf16=False, say=self.said.append)

    def on_gpu(self, batches, clip=1.0):
        step, told = self.step(clip), []
        for i, batch in enumerate(batches):
            self.set_rate(i)
            told.append(step(batch))
        return torch.stack(told)

    def warnings(self):
        """What the user is told, but for the bfloat16 that is never asked for here."""
        return [line for line in self.said if "bfloat16" not in line]

    def assert_like(self, other, **tolerance):
        """Weights, and what batch norms remember, are the same."""
        for (name, found), expected in zip(
            self.modules.state_dict().items(), other.modules.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(found, expected, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.fixture
def graphs(monkeypatch):
    """Steps are recorded and replayed; the list of recordings."""
    made = []

    def capture(work, pool=None):
        made.append(recorded(work, pool))
        return made[-1]

    monkeypatch.setattr(gpu_step, "capture", capture)
    return made


@pytest.mark.parametrize("optimizer", ["muon", "adamw", "sgd"])
@pytest.mark.parametrize("variant", ["text", "vision"])
def test_replayed_steps_equal_plain_ones_while_batches_shapes_and_rates_change(graphs, variant, optimizer):
    plain, replayed = Learner(variant, optimizer), Learner(variant, optimizer)
    batches = 2 * batches_for(variant)
    torch.testing.assert_close(replayed.on_gpu(batches), plain.plainly(batches), atol=1e-5, rtol=1e-5)
    replayed.assert_like(plain, atol=1e-5, rtol=1e-4)
    # 4 rows of 8 and 12, 2 of 8, 3 of 8; with text also 4 of 8 without weights
    assert (replayed.warnings(), len(graphs)) == ([], 5 if variant == "text" else 4)


def test_experts_are_replayed_or_the_run_goes_on_without_graphs(graphs):
    # Muon would blow up the rounding of an expert that got few tokens.
    plain, replayed = Learner("moe", "sgd"), Learner("moe", "sgd")
    batches = batches_for("moe")
    torch.testing.assert_close(replayed.on_gpu(batches), plain.plainly(batches), atol=1e-5, rtol=1e-5)
    replayed.assert_like(plain, atol=1e-5, rtol=1e-4)
    told = " ".join(replayed.warnings())
    assert len(graphs) == 3 or ("without CUDA graphs, which failed" in told and "waits for the device" in told)


def test_a_recording_that_fails_costs_nothing_but_one_line(monkeypatch):
    def fail(work, pool=None):
        work()
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(gpu_step, "capture", fail)
    plain, failed = Learner("vision"), Learner("vision")
    batches = 2 * batches_for("vision")
    torch.testing.assert_close(failed.on_gpu(batches), plain.plainly(batches), atol=1e-5, rtol=1e-5)
    failed.assert_like(plain, atol=1e-5, rtol=1e-4)
    assert failed.warnings() == [
        "training goes on without CUDA graphs, which failed: operation not permitted when stream is capturing"
    ]


def compile_that_is_missing(*args, **kwargs):
    raise RuntimeError("torch.compile is not supported here\nfor some reason")


def compile_that_fails_at_its_use(function, **kwargs):
    def use(*args):
        function(*args)  # as far as a compiler may come
        raise RuntimeError("torch.compile is not supported here\nfor some reason")

    return use


def compile_that_fails_on_the_way_back(function, **kwargs):
    def use(model, *args):
        def fail(_gradient):
            hook.remove()
            raise RuntimeError("torch.compile is not supported here\nfor some reason")

        hook = model.blocks[0].norm1.weight.register_hook(fail)  # later layers have their gradients by then
        return function(model, *args)

    return use


@pytest.mark.parametrize(
    "failing", [compile_that_is_missing, compile_that_fails_at_its_use, compile_that_fails_on_the_way_back]
)
def test_a_compilation_that_fails_costs_nothing_but_one_line(monkeypatch, graphs, failing):
    monkeypatch.setattr(gpu_step, "COMPILED_FROM", 0)
    monkeypatch.setattr(torch, "compile", failing)
    plain, failed = Learner("text"), Learner("text")
    batches = batches_for("text")
    torch.testing.assert_close(failed.on_gpu(batches), plain.plainly(batches), atol=1e-5, rtol=1e-5)
    failed.assert_like(plain, atol=1e-5, rtol=1e-4)
    assert failed.warnings() == [
        "compiling the training step; this takes a minute or so",
        "training goes on without torch.compile, which failed: torch.compile is not supported here",
    ]
    assert len(graphs) == 3


def test_an_error_of_the_step_itself_is_not_hidden():
    learner = Learner("text")
    with pytest.raises(IndexError):
        learner.step()(batch_of(2, 5)._replace(ids=torch.full((2, 5), VOCAB_SIZE)))
    assert learner.warnings() == [], "nothing is blamed on a compiler that was not there"


@pytest.fixture
def tracing(monkeypatch):
    """`torch.compile` traces whole functions without generating code; counts the traces."""
    torch._dynamo.reset()
    counter, real = CompileCounterWithBackend("aot_eager"), torch.compile
    monkeypatch.setattr(gpu_step, "COMPILED_FROM", 0)
    monkeypatch.setattr(torch, "compile", lambda f, **given: real(f, backend=counter, fullgraph=True, **given))
    yield counter
    torch._dynamo.reset()


def test_one_compilation_serves_all_widths_and_computes_the_same(tracing, monkeypatch):
    monkeypatch.setattr(gpu_step.GpuStep, "_replayed", lambda self, batch: None)
    plain, compiled = (Learner("text", n_layers=1, max_seq_len=24) for _ in range(2))
    batches = [batch_of(rows, width, seed=width) for rows, width in ((4, 5), (4, 12), (3, 9), (3, 20), (4, 2))]
    torch.testing.assert_close(compiled.on_gpu(batches), plain.plainly(batches), atol=1e-4, rtol=1e-4)
    compiled.assert_like(plain, atol=1e-4, rtol=1e-3)
    assert compiled.warnings() == ["compiling the training step; this takes a minute or so"]
    assert tracing.frame_count <= 2


def test_only_large_models_are_compiled(monkeypatch):
    assert not Learner("text").step()._compiled
    with torch.device("meta"):
        sizes = {name: TinyLM(tiny_config("text", **preset(name))).n_parameters() for name in ("article", "base")}
    assert sizes["article"] < gpu_step.COMPILED_FROM < sizes["base"]


@pytest.mark.parametrize("variant", ["text", "vision"])
def test_no_step_waits_for_the_device(variant, graphs):
    learner = Learner(variant)
    step = learner.step()
    for batch in batches_for(variant):
        with Recording():  # refuses what waits; recording is done inside of it, and replaying too
            assert step(batch).grad_fn is None
    assert learner.warnings() == []


@pytest.mark.parametrize("weighted", [False, True])
def test_parts_of_a_batch_add_up_to_its_loss_and_gradient(weighted):
    learner = Learner("text")
    batch = batch_of(7, 10, weighted=weighted)
    whole = training_loss(learner.model, batch)
    expected = torch.autograd.grad(whole.total, learner.parameters, allow_unused=True)
    cut = list(parts(batch, most_positions=25))
    assert [len(part.ids) for part, _, _ in cut] == [2, 2, 2, 1]
    losses = [(training_loss(learner.model, part), share, of_nats) for part, share, of_nats in cut]
    total = sum(loss.total * share for loss, share, _ in losses)
    torch.testing.assert_close(sum(loss.nats * of_nats for loss, _, of_nats in losses), whole.nats)
    torch.testing.assert_close(total, whole.total)
    found = torch.autograd.grad(total, learner.parameters, allow_unused=True)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_a_step_in_parts_equals_one_of_the_whole_batch(monkeypatch, graphs):
    monkeypatch.setattr(gpu_step, "POSITIONS_AT_ONCE", 16)
    plain, cut = Learner("text"), Learner("text")
    batches = batches_for("text")
    torch.testing.assert_close(cut.on_gpu(batches), plain.plainly(batches), atol=1e-5, rtol=1e-5)
    cut.assert_like(plain, atol=1e-5, rtol=1e-4)


def test_pictures_and_batches_that_fit_are_not_cut():
    for batch in (batch_of(4, 6, vision=True), batch_of(4, 6)):
        most = 6 if batch.images is not None else 24
        assert [(part is batch, share, of_nats) for part, share, of_nats in parts(batch, most)] == [(True, 1.0, 1.0)]
    assert [len(part.ids) for part, _, _ in parts(batch_of(3, 6), most_positions=2)] == [1, 1, 1]


@pytest.mark.parametrize("variant", ["text", "moe", "vision"])
def test_widening_changes_neither_loss_nor_gradient(variant):
    learner = Learner(variant)
    learner.model.eval()
    narrow = batch_of(4, 5, vision="vision" in variant)
    wide = widened(narrow, MAX_SEQ_LEN)
    assert wide.ids.shape == wide.targets.shape == (4, 8)
    assert wide.n_tokens == narrow.n_tokens
    assert wide.routed(N_SLOTS).sum() == narrow.routed(N_SLOTS).sum()
    losses = [training_loss(learner.model, batch, learner.head) for batch in (narrow, wide)]
    torch.testing.assert_close(losses[1], losses[0], atol=1e-5, rtol=1e-5)
    grads = [torch.autograd.grad(loss.total, learner.parameters, allow_unused=True) for loss in losses]
    torch.testing.assert_close(grads[1], grads[0], atol=1e-5, rtol=1e-4)


def test_widths_go_up_to_the_next_multiple_of_eight_and_never_past_the_context():
    assert [widened(batch_of(2, width), 20).ids.shape[1] for width in (1, 7, 8, 9, 16, 17, 20)] == [
        8,
        8,
        8,
        16,
        16,
        20,
        20,
    ]
