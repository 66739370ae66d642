"""The ways to run a model held against each other: right when they agree, and red when one of them is wrong."""

import copy
import math
import time

import pytest
import reference
import torch
from conftest import IMAGE_SIZE, MAX_SEQ_LEN, N_SLOTS, lively, random_ids, random_images, tiny_config

import tinylm
from tinylm import comparison, full_cache
from tinylm.comparison import Again, Folded, Full, Latent, against, compare, trial, ways
from tinylm.decoder import Decoder
from tinylm.full_cache import FullCache

NAMES = ["again", "latent", "folded", "full"]
PROMPT = [3, 1, 4]
LONG_PROMPT = [3, 1, 4, 1, 5, 9]  # read whole by the page's own decoding, which reads a short one token by token


def last(progress):
    *_, end = progress
    return end


def tried(way, ids=PROMPT, max_new_tokens=6, eos_id=None):
    """A way's trial, run to its end."""
    steps = trial(way, ids, max_new_tokens, eos_id)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


# A full cache


def test_a_full_cache_gives_the_models_logits_however_the_text_is_cut(model, images_for):
    ids, images = random_ids(1, MAX_SEQ_LEN), images_for(model, 1)
    with torch.no_grad():
        whole = model(ids, images).logits
        for sizes in ([MAX_SEQ_LEN], [1] * MAX_SEQ_LEN, [5, 1, 1, 4, 1]):
            cache = FullCache(model.config)
            pieces = [
                full_cache.read(model, piece, cache, images if i == 0 else None)
                for i, piece in enumerate(ids.split(sizes, dim=1))
            ]
            torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-4, rtol=0)
            assert cache.length == model.config.n_slots + MAX_SEQ_LEN


def test_a_full_cache_counts_the_bytes_of_every_key_and_value(model, images_for):
    cache, images = FullCache(model.config), images_for(model, 1)
    assert cache.nbytes == 0
    with torch.no_grad():
        full_cache.read(model, random_ids(1, 7), cache, images)
    kept = [cache.write(layer, *torch.zeros(2, 1, 3, 1, 8)) for layer in range(3)]
    sizes = [part[:, :, :-1].numel() * 4 for layer in kept for part in layer]
    assert cache.nbytes == sum(sizes) == 3 * (7 + model.config.n_slots) * 2 * 24 * 4


def test_a_full_cache_refuses_what_does_not_fit(images_for):
    model = lively(tiny_config("text"))
    cache = FullCache(model.config)
    with torch.no_grad():
        full_cache.read(model, random_ids(1, MAX_SEQ_LEN), cache)
        with pytest.raises(ValueError, match=f"{MAX_SEQ_LEN + 1} text positions exceed the context of {MAX_SEQ_LEN}"):
            full_cache.read(model, random_ids(1, 1), cache)
    with pytest.raises(ValueError, match=f"holds {MAX_SEQ_LEN} positions; {MAX_SEQ_LEN + 1} don't fit"):
        cache.write(0, *torch.zeros(2, 1, 3, 1, 8))


# Right when they agree


@pytest.mark.parametrize("prompt", [PROMPT, LONG_PROMPT], ids=["short prompt", "long prompt"])
def test_every_way_gives_what_the_textbook_gives(variant, article, article_model, images_for, prompt):
    images = images_for(article_model, 1)
    image = None if images is None else images[0]
    right_ids = reference.greedy(article, prompt, 5, image)
    right = [reference.textbook_model(article, [*prompt, *right_ids[:n]], image)[0][-1] for n in range(5)]
    runnable = ways(article_model, images)
    assert list(runnable) == NAMES
    for make in runnable.values():
        found = tried(make(), prompt, 5)
        assert found.token_ids == right_ids
        torch.testing.assert_close(found.logits_PV.double(), torch.stack(right), atol=1e-4, rtol=0)


def test_a_comparison_says_so_and_measures_what_is_kept(model, images_for):
    config, images = model.config, images_for(model, 1)
    end = last(compare(model, PROMPT, images, 6))
    assert end.running is None and [row.way for row in end.rows] == NAMES
    right = tinylm.generate(model, PROMPT, images, 6)
    n_read = config.n_slots + len(PROMPT) + 6 - 1  # the last token is chosen, not read
    kept = {"again": 0, "latent": config.d_latent, "folded": config.d_latent, "full": 2 * config.d_model}
    for row in end.rows:
        assert row.same and row.token_ids == right and row.n_compared == 6
        assert row.largest_difference < 1e-4
        assert row.nbytes == n_read * config.n_layers * kept[row.way] * 4
        assert row.ms_per_token > 0
    assert end.rows[0].largest_difference == 0
    assert any(row.largest_difference > 0 for row in end.rows)  # other sums, rounded elsewhere: not one and the same


def test_a_comparison_ends_where_a_stream_ends(model, images_for):
    images = images_for(model, 1)
    free = tinylm.generate(model, PROMPT, images, MAX_SEQ_LEN)
    assert len(free) == MAX_SEQ_LEN - len(PROMPT) + 1  # until the context is full
    assert all(row.token_ids == free for row in last(compare(model, PROMPT, images, 64)).rows)
    eos_id = free[3]
    ended = free[: free.index(eos_id)]
    for row in last(compare(model, PROMPT, images, 64, eos_id)).rows:
        assert row.same and row.token_ids == ended == tinylm.generate(model, PROMPT, images, 64, eos_id=eos_id)
        assert row.n_compared == len(ended) + 1  # the step that chose the end too
    full = last(compare(model, random_ids(1, MAX_SEQ_LEN)[0].tolist(), images, 64))
    assert all(row.same and len(row.token_ids) == 1 for row in full.rows)


def test_a_model_that_cannot_be_folded_is_run_the_other_ways():
    model = lively(tiny_config("text")).double()
    assert [row.way for row in last(compare(model, PROMPT, None, 3)).rows] == ["again", "latent", "full"]


@pytest.mark.parametrize(
    ("ids", "max_new_tokens", "words"),
    [
        (PROMPT, 0, "max_new_tokens=0 must be 1 or more"),
        ([1] * (MAX_SEQ_LEN + 1), 5, f"{MAX_SEQ_LEN + 1} text positions exceed the context of {MAX_SEQ_LEN}"),
        ([], 5, "at least one position"),
    ],
)
def test_what_cannot_be_compared_is_refused(ids, max_new_tokens, words):
    with pytest.raises(ValueError, match=words):
        next(compare(lively(tiny_config("text")), ids, None, max_new_tokens))


def test_a_comparison_can_be_left_after_any_step(model, images_for, monkeypatch):
    read = []
    plain = Again.read
    monkeypatch.setattr(Again, "read", lambda self, ids: read.append(ids) or plain(self, ids))
    steps = compare(model, PROMPT, images_for(model, 1), 6)
    assert next(steps) == ((), "again")
    steps.close()
    assert read == [PROMPT]


def test_times_are_those_of_the_steps_behind_the_prompt_after_a_run_that_warms_up(monkeypatch):
    made = []

    class Slow:
        """Takes 20 ms for each prompt and in its first run, else 1 ms."""

        nbytes = 0

        def __init__(self, name):
            made.append(name)
            self.first, self.reads = made.count(name) == 1, 0

        def read(self, ids):
            self.reads += 1
            time.sleep(0.02 if self.first or self.reads == 1 else 0.001)
            return torch.tensor([0.0, 1.0])

    model = lively(tiny_config("text"))
    monkeypatch.setattr(comparison, "ways", lambda *_: {"again": lambda: Slow("a"), "full": lambda: Slow("b")})
    for max_new_tokens, n_rounds in ((9, 3), (2, 20)):  # 8 steps a round; one step a round, until there are 20
        made.clear()
        *answers, end = compare(model, PROMPT, None, max_new_tokens)
        assert made == ["a", "b"] * (1 + n_rounds)
        assert all(1 <= row.ms_per_token < 8 for row in end.rows)
        assert all(row.ms_per_token is None for progress in answers for row in progress.rows)
    assert [row.ms_per_token for row in last(compare(model, PROMPT, None, 1)).rows] == [None, None]


# Red when one is wrong


def broken_ways(model, images=None):
    """Faults that caching code has had, by name."""
    flat = copy.deepcopy(model)
    with torch.no_grad():
        flat.pos_embed.weight[:] = model.pos_embed.weight[0]
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.blocks[1].attention.w_uk.weight.mul_(1.3)

    class ForgottenOffset(Latent):
        """Tokens behind the prompt all stand at position 0."""

        def read(self, ids):
            logits_V = super().read(ids)
            self._model = flat
            return logits_V

    class StaleLatent(Latent):
        """The newest position's latent is that of an older one."""

        def read(self, ids):
            logits_V = super().read(ids)
            self._cache.latents[:, :, -1] = self._cache.latents[:, :, -2].clone()
            return logits_V

    class OffByOne(Full):
        """A position too many is counted behind the prompt."""

        def read(self, ids):
            logits_V = super().read(ids)
            if len(ids) > 1:
                for layer in range(3):
                    self._cache.write(layer, *torch.zeros(2, 1, 3, 1, 8))
                self._cache.advance(1)
            return logits_V

    class ForgottenImage(Again):
        """Another picture than the visitor's."""

        def __init__(self, model, images):
            super().__init__(model, None if images is None else 1 - images)

    broken = {
        "position offset forgotten": lambda: ForgottenOffset(model, images),
        "stale latent": lambda: StaleLatent(model, images),
        "position off by one": lambda: OffByOne(model, images),
        "stale folded weights": lambda: Folded(Decoder.of(other), model, images),
    }
    if images is not None:
        broken["another image"] = lambda: ForgottenImage(model, images)
    return broken


def test_a_broken_way_is_found_out(model, images_for):
    images = images_for(model, 1)
    right = tried(Again(model, images))
    for name, make in broken_ways(model, images).items():
        row = against(right, tried(make()), "latent")
        assert row.largest_difference > 0.01, name
        assert row.same == (row.token_ids == right.token_ids)


def test_a_broken_way_that_says_something_else_is_not_called_the_same():
    model = lively(tiny_config("text"), seed=1)
    with torch.no_grad():  # else it says one token over and over, whatever is broken
        model.pos_embed.weight.mul_(4)
        model.head_bias.zero_()
        model.norm.bias.zero_()
    right = tried(Again(model), max_new_tokens=9)
    rows = {
        name: against(right, tried(make(), max_new_tokens=9), "latent") for name, make in broken_ways(model).items()
    }
    for name in ("position offset forgotten", "stale latent", "position off by one"):
        assert not rows[name].same, name
    for row in rows.values():
        assert row.same == (row.token_ids == right.token_ids)
        assert row.n_compared < 9 or row.same


def test_logits_are_compared_only_where_the_same_text_was_read():
    class Scripted:
        """Chooses given tokens; whatever is read behind another token has logits far off."""

        nbytes = 0

        def __init__(self, chosen, sizes):
            self.steps = iter(zip(chosen, sizes, strict=True))

        def read(self, ids):
            chosen, size = next(self.steps)
            return torch.nn.functional.one_hot(torch.tensor(chosen), 5).float() * size

    right = tried(Scripted([1, 2, 3, 4], [1, 1, 1, 1]), max_new_tokens=4)
    found = against(right, tried(Scripted([1, 4, 3, 4], [1, 1.5, 1000, 1000]), max_new_tokens=4), "full")
    assert (found.same, found.n_compared, found.largest_difference) == (False, 2, 1.5)
    shorter = against(right, tried(Scripted([1, 2, 0], [1, 1, 2]), max_new_tokens=4, eos_id=0), "full")
    assert (shorter.same, shorter.token_ids, shorter.n_compared, shorter.largest_difference) == (False, [1, 2], 3, 2)


def test_logits_that_are_no_numbers_are_not_called_equal():
    class Nothing(Latent):
        def read(self, ids):
            return super().read(ids) * math.nan

    model = lively(tiny_config("text"))
    row = against(tried(Again(model)), tried(Nothing(model)), "latent")
    assert math.isnan(row.largest_difference)


def test_the_comparison_itself_tells_a_broken_cache(monkeypatch):
    model = lively(tiny_config("vision+moe"))
    images = random_images(1, IMAGE_SIZE)
    write = tinylm.LatentCache.write

    def stale(cache, layer, c_kv_BTR):
        found = write(cache, layer, c_kv_BTR)
        if cache.length > N_SLOTS:
            found[:, -1] = found[:, 0]
        return found

    monkeypatch.setattr(tinylm.LatentCache, "write", stale)
    rows = {row.way: row for row in last(comparison.compare(model, LONG_PROMPT, images, 6)).rows}
    assert rows["latent"].largest_difference > 0.01
    assert rows["full"].same and rows["full"].largest_difference < 1e-4
