"""Lines whose answers are known are read less often; a stopped run goes on with the same lines."""

from __future__ import annotations

import json
import math
import signal

import pytest
import torch

import tinylm
import train
from tinylm import loop, training
from tinylm.data.known import KNOWN, Known
from tinylm.data.text import TextCorpus


def readings(known, epoch, seed=0):
    return known.readings(epoch, torch.Generator().manual_seed(seed)).bincount(minlength=len(known._nats)).tolist()


def test_before_anything_is_noted_every_line_is_read_once():
    assert readings(Known(50, 0.3), 0) == [1] * 50


def test_an_epoch_reads_as_many_lines_as_there_are_in_a_random_order():
    known = Known(1000, 0.25)
    known.note(torch.arange(1000), torch.rand(1000, generator=torch.Generator().manual_seed(1)))
    for epoch in range(3):
        rows = known.readings(epoch, torch.Generator().manual_seed(epoch))
        assert len(rows) == 1000
        assert rows.tolist() != sorted(rows.tolist())


def test_a_known_answer_is_read_so_many_times_as_rarely():
    known = Known(4000, 0.25)
    nats = torch.full((4000,), 9.0)
    nats[:2000] = 0.0
    nats[2000:3000] = KNOWN / 2
    known.note(torch.arange(4000), nats)
    counts = torch.tensor([readings(known, epoch, seed=epoch) for epoch in range(40)]).float().mean(dim=0)
    perfectly, half, not_at_all = (float(part.mean()) for part in (counts[:2000], counts[2000:3000], counts[3000:]))
    assert perfectly == pytest.approx(not_at_all / 4, rel=0.02)
    assert half == pytest.approx(not_at_all / 2, rel=0.02)


def test_no_line_is_forgotten_and_none_is_read_much_more_often_than_its_share():
    known = Known(100, 0.2)
    nats = torch.full((100,), 0.0)
    nats[:10] = 5.0
    known.note(torch.arange(100), nats)
    counts = [readings(known, epoch, seed=epoch) for epoch in range(10)]
    share = 100 / (10 + 90 * 0.2)
    assert all(count in (math.floor(share), math.ceil(share)) for epoch in counts for count in epoch[:10])
    assert min(map(sum, zip(*counts, strict=True))) > 0


def test_a_line_without_an_answer_is_read_as_often_as_the_others_on_average():
    known = Known(3000, 0.25)
    nats = torch.full((3000,), math.nan)
    nats[:1000], nats[1000:2000] = 0.0, 9.0
    known.note(torch.arange(3000), nats)
    counts = torch.tensor([readings(known, epoch, seed=epoch) for epoch in range(20)]).float().mean(dim=0)
    assert float(counts[2000:].mean()) == pytest.approx(1, abs=0.02)
    known.note(torch.arange(3000), torch.full((3000,), math.nan))  # a text without any answers
    assert readings(known, 20) == [1] * 3000


def test_the_last_reading_counts_and_an_epoch_that_was_begun_stays_the_same():
    known = Known(400, 0.3)
    known.note(torch.arange(400), torch.zeros(400))
    known.note(torch.arange(200), torch.full((200,), 3.0))
    before = readings(known, 1)
    assert sum(before[:200]) > sum(before[200:])
    known.note(torch.arange(400), torch.linspace(0, 1, 400))
    assert readings(known, 1) == before
    assert readings(known, 2) != before


def test_another_texts_state_is_refused():
    with pytest.raises(ValueError, match="knows 5 lines, there are 6"):
        Known(6, 0.3).load_state_dict(Known(5, 0.3).state_dict())


# In a run

ANIMALS = ["cow", "hen", "pig", "dog", "owl", "bee"]
EASY = [f"{start} {animal} eats grass" for animal in ANIMALS for start in ("the", "my", "every", "a")]
NEVER_KNOWN = [f"the fox wants {food}" for food in ("bones", "fish", "corn", "bread", "roots", "hay", "mice", "flies")]
LINES = EASY + NEVER_KNOWN
CORPUS = TextCorpus(
    "animals", tuple(LINES), ("that cow eats grass",), answer_starts=tuple(line.rindex(" ") + 1 for line in LINES)
)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Train on the animals with more settings; the exit status."""
    monkeypatch.setattr(training, "load_corpus", lambda *_args: CORPUS)
    sizes = ["d_model=16", "n_layers=1", "d_ff=32", "d_latent=4", "vocab_size=90", "batch_size=8"]

    def start(name, *settings):
        args = ["text", "--out", str(tmp_path / name), "--epochs", "40", "--set", *sizes]
        resume = ["--resume"] if "--resume" in settings else []
        status = train.main([*args, *(s for s in settings if s != "--resume"), *resume])
        capsys.readouterr()
        return status

    return start


def test_a_run_reads_the_lines_that_it_does_not_know_more_often(run, tmp_path, monkeypatch):
    read = {share: torch.zeros(len(LINES)) for share in ("0.1", "1")}
    real = loop.take_step
    for share, counts in read.items():
        taken = []

        def step(task, batch, *args, taken=taken, counts=counts):
            taken.append(task.known)
            counts[batch.rows[batch.rows < len(LINES)]] += 1
            return real(task, batch, *args)

        monkeypatch.setattr(loop, "take_step", step)
        assert run(share, f"known_share={share}") == 0
        assert (taken[0] is None) == (share == "1")
    easy, never_known = (slice(0, len(EASY)), slice(len(EASY), None))
    assert read["1"][never_known].mean() == pytest.approx(float(read["1"][easy].mean()), rel=0.05)
    assert read["0.1"][never_known].mean() > 1.5 * read["0.1"][easy].mean()


def test_a_stopped_run_goes_on_bit_for_bit_in_the_middle_of_an_epoch(run, tmp_path, monkeypatch):
    real, calls = loop.training_loss, []

    def interrupting(*args):
        calls.append(1)
        if len(calls) == 123:  # of four or five steps an epoch
            signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(loop, "training_loss", interrupting)
    assert run("run", "known_share=0.1") == 130
    monkeypatch.setattr(loop, "training_loss", real)
    assert run("run", "known_share=0.1", "--resume") == 0
    assert run("whole", "known_share=0.1") == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert weights[0] == weights[1]
    histories = [json.loads((tmp_path / name / "metrics.json").read_text())["history"] for name in ("run", "whole")]
    assert [entry["val_loss"] for entry in histories[0]] == [entry["val_loss"] for entry in histories[1]]
    assert tinylm.load(tmp_path / "run").info["recipe_values"]["known_share"] == 0.1
