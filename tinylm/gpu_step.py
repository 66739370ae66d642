"""One update of the weights as a GPU takes it fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from tinylm.data.batches import IGNORED, Batch
from tinylm.graphed import capture
from tinylm.losses import LabelHead, Loss, training_loss
from tinylm.model import TinyLM

COMPILED_FROM = 20_000_000  # parameters; a smaller model is trained before its compilation would have paid
POSITIONS_AT_ONCE = 2**13  # read in one part, for the sake of memory
WIDTH_STEP = 8  # widths of batches are rounded up to multiples of it
MOST_GRAPHS = 128  # further shapes of batches are not recorded


class Recorded(NamedTuple):
    """Forward and backward of one shape of batch as a CUDA graph."""

    replay: Callable[[], None]
    batch: Batch  # what it reads
    grads: list[Tensor | None]  # what it writes, one a parameter


class GpuStep:
    """Training steps on CUDA, where a tiny model's kernels are over sooner than the next one is launched.

    Forward and backward of each shape of batch are recorded as a CUDA graph when the shape comes for the second time,
    and replayed from then on; widths are rounded up, so that there are few shapes. Models whose kernels are large
    enough for it are compiled too. Where recording or compiling fails, one line says so and the same step is taken
    without it. Large batches are read in parts whose gradients are added up. Nothing waits for the device.
    """

    def __init__(
        self,
        model: TinyLM,
        label_head: LabelHead | None,
        optimizers: list[torch.optim.Optimizer],
        clip: float,
        bf16: bool,
        say: Callable[[str], None] = tqdm.write,
    ) -> None:
        """`bf16` computes in bfloat16 under autocast; `say` gets the lines for the user."""
        self._model, self._label_head, self._optimizers = model, label_head, optimizers
        modules: list[nn.Module] = [model] if label_head is None else [model, label_head]
        self._parameters = [parameter for module in modules for parameter in module.parameters()]
        self._buffers = [buffer for module in modules for buffer in module.buffers()]
        self._clip, self._bf16, self._say = clip, bf16, say
        self._device = model.head_bias.device
        if not bf16:
            say("this GPU has no bfloat16: training in float32")
        self._loss_of: Callable[..., Loss] = training_loss
        self._compiled = sum(parameter.numel() for parameter in self._parameters) >= COMPILED_FROM
        self._recording = True
        self._met: dict[Hashable, list[bool]] = {}  # by shape of batch: which parameters got a gradient
        self._recorded: dict[Hashable, Recorded] = {}
        self._pool: Any = None
        self._grads: list[Tensor] = []  # shared by all graphs
        self._nats = torch.zeros((), device=self._device)

    def __call__(self, batch: Batch) -> Tensor:
        """One update from a batch on the CPU; the loss in nats a token, which nothing has waited for yet."""
        batch = widened(batch, self._model.config.max_seq_len)
        nats = self._replayed(batch)
        if nats is None:
            nats = self._plain(batch)
        for optimizer in self._optimizers:
            optimizer.step()
        return nats

    def _plain(self, batch: Batch) -> Tensor:
        """Gradients without a graph, by compiled code if that works."""
        there = self._copied(batch)
        try:
            if self._compiled and self._loss_of is training_loss:
                self._say("compiling the training step; this takes a minute or so")
                # Once for all widths, and without the compiler's own graphs: recording is done here, of all together.
                self._loss_of = torch.compile(training_loss, dynamic=True)
            self._clear()
            nats = self._add_gradients(there)
        except Exception as error:  # compilers fail in many ways
            if not self._compiled:
                raise
            self._say(f"training goes on without torch.compile, which failed: {_first_line(error)}")
            self._compiled, self._loss_of = False, training_loss
            self._clear()
            nats = self._add_gradients(there)
        self._met[_shape(batch)] = [parameter.grad is not None for parameter in self._parameters]
        return nats

    def _replayed(self, batch: Batch) -> Tensor | None:
        """Gradients from a graph; None if there is none for this shape."""
        shape = _shape(batch)
        if shape not in self._recorded:
            if not self._recording or shape not in self._met or len(self._recorded) == MOST_GRAPHS:
                return None
            try:
                self._recorded[shape] = self._record(batch, self._met[shape])
            except Exception as error:  # libraries fail in many ways while they are recorded
                more = "further " if self._recorded else ""
                self._say(f"training goes on without {more}CUDA graphs, which failed: {_first_line(error)}")
                self._recording = False
                return None
        recorded = self._recorded[shape]
        self._copy(batch, recorded.batch)
        recorded.replay()
        for parameter, grad in zip(self._parameters, recorded.grads, strict=True):
            parameter.grad = grad
        return self._nats.clone()  # the next replay writes over it

    def _record(self, batch: Batch, has_gradient: list[bool]) -> Recorded:
        if not self._grads:
            self._grads = [torch.zeros_like(parameter) for parameter in self._parameters]
            self._pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        read = self._copied(batch)
        grads = [grad if has else None for grad, has in zip(self._grads, has_gradient, strict=True)]
        for parameter, grad in zip(self._parameters, grads, strict=True):
            parameter.grad = grad  # where there is one, the backward pass adds to it in place

        def work() -> None:
            for grad in grads:
                if grad is not None:
                    grad.zero_()
            self._nats.copy_(self._add_gradients(read))

        # What a batch norm remembers changes in the run before the recording; it must change once a batch.
        before = [buffer.clone() for buffer in self._buffers]
        try:
            return Recorded(capture(work, self._pool), read, grads)
        finally:
            for buffer, value in zip(self._buffers, before, strict=True):
                buffer.copy_(value)

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _add_gradients(self, batch: Batch) -> Tensor:
        """Add a batch's gradients to those there are and clip the sums; the loss in nats a token."""
        nats = torch.zeros((), device=self._device)
        for part, share, share_of_nats in parts(batch, POSITIONS_AT_ONCE):
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
                loss = self._loss_of(self._model, part, self._label_head, self._bf16)
            (loss.total * share).backward()
            # Without its graph: a recording must not meet nodes of earlier steps, which ran on another stream.
            nats = nats + loss.nats.detach() * share_of_nats
        if self._clip:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        return nats

    def _copied(self, batch: Batch) -> Batch:
        """The batch in new tensors on the device."""
        new = (
            None if part is None else torch.empty(part.shape, dtype=part.dtype, device=self._device) for part in batch
        )
        there = Batch(*new)  # type: ignore[arg-type]
        self._copy(batch, there)
        return there

    def _copy(self, batch: Batch, there: Batch) -> None:
        """Write the batch over another on the device, without waiting until it has arrived."""
        for part, place in zip(batch, there, strict=True):
            if part is not None and place is not None:
                part = part.contiguous()
                # Only from pinned memory does a copy not wait.
                place.copy_(part.pin_memory() if self._device.type == "cuda" else part, non_blocking=True)


def widened(batch: Batch, max_seq_len: int) -> Batch:
    """The batch padded to a width that is a multiple of eight, as far as the context goes."""
    width = batch.ids.shape[1]
    more = min(math.ceil(width / WIDTH_STEP) * WIDTH_STEP, max_seq_len) - width
    if more <= 0:
        return batch
    weights = None if batch.weights is None else F.pad(batch.weights, (0, more))
    ids, targets = F.pad(batch.ids, (0, more)), F.pad(batch.targets, (0, more), value=IGNORED)
    return batch._replace(ids=ids, targets=targets, weights=weights)


def parts(batch: Batch, most_positions: int) -> Iterator[tuple[Batch, Tensor | float, Tensor | float]]:
    """The batch cut into parts of so many positions at most, each with its share of the loss and of the nats a token.

    Pictures are not cut: batch norm compares those of a batch.
    """
    n_rows = max(1, most_positions // batch.ids.shape[1])
    if batch.images is not None or len(batch.ids) <= n_rows:
        yield batch, 1.0, 1.0
        return
    real_BT = (batch.targets != IGNORED).float()
    counted_BT = real_BT if batch.weights is None else real_BT * batch.weights
    for first in range(0, len(batch.ids), n_rows):
        rows = slice(first, first + n_rows)
        part = Batch(*(None if tensor is None else tensor[rows] for tensor in batch))  # type: ignore[arg-type]
        share, share_of_nats = (of_BT[rows].sum() / of_BT.sum().clamp(min=1) for of_BT in (counted_BT, real_BT))
        yield part, share, share_of_nats


def _shape(batch: Batch) -> Hashable:
    return tuple(None if part is None else part.shape for part in batch)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
