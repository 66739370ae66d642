"""What experts prefer, against counting token by token."""

import pytest
import torch
from conftest import lively, random_images, tiny_config

from tinylm import Tokenizer
from tinylm.data.batches import IGNORED, Batch, Lines
from tinylm.experts import MIN_SHARE_OF_TOKENS, expert_preferences, token_kinds

LINES = ["the cat sat", "a dog", "the dog sat on the cat", "2 cats and a dog?", "a"]
KINDS = {"cat": "animal", "cats": "animal", "dog": "animal"}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(LINES, 40, 4)


def test_a_token_is_of_the_kind_of_its_word(tokenizer):
    ids = [tokenizer.eos_id, *tokenizer.encode("The dogs sat: what cat, 22 hats?"), tokenizer.eos_id]
    text = [tokenizer.tokens[i] for i in ids]
    kinds = token_kinds(tokenizer, ids, {"cat": "animal", "dogs": "animal"})
    words = {"dogs": "animal", "cat": "animal", "sat": "other word", "22": "digits", "hats": "other word"}
    assert len(kinds) == len(ids) and kinds[0] == kinds[-1] == "end of text"
    for word, kind in words.items():
        found = [k for t, k in zip(text, kinds, strict=True) if t.strip() and t.strip() in word and k == kind]
        assert found, (word, list(zip(text, kinds, strict=True)))
    assert kinds[-2] == "mark" or tokenizer.tokens[ids[-2]] == "<unk>"


def test_a_piece_of_a_word_is_of_the_whole_words_kind():
    tokenizer = Tokenizer(["c", "a", "t", " c", "s", ".", "<pad>"], ("<pad>",))
    ids = tokenizer.encode("cat. cats")
    assert (
        token_kinds(tokenizer, ids, {"cat": "animal", "cats": "animals"}) == ["animal"] * 3 + ["mark"] + ["animals"] * 4
    )


@pytest.mark.parametrize("variant", ["moe", "vision+moe"])
@torch.no_grad()
def test_lifts_equal_counting_token_by_token(variant, tokenizer):
    model = lively(tiny_config(variant, vocab_size=tokenizer.vocab_size, max_seq_len=30))
    n_slots, n_layers, n_experts = model.config.n_slots, model.config.n_layers, model.config.moe.n_experts
    batches, taken = [], [[[] for _ in range(n_experts)] for _ in range(n_layers)]
    encoded = Lines.encode(LINES, tokenizer, 30)
    for rows in torch.arange(len(LINES)).split(2):
        batch = encoded.batch(rows)
        images = random_images(len(rows)) if n_slots else None
        batches.append(Batch(batch.ids, batch.targets, images))
        for row in range(len(rows)):
            n = int((batch.targets[row] != IGNORED).sum())
            ids = batch.ids[row, :n].tolist()
            kinds = token_kinds(tokenizer, ids, KINDS)
            alone = model(batch.ids[row : row + 1, :n], None if images is None else images[row : row + 1])
            for layer, routing in enumerate(alone.routings):
                for t in range(n):
                    for expert in routing.expert_ids[n_slots + t].tolist():
                        taken[layer][expert].append((tokenizer.tokens[ids[t]], kinds[t]))
    found = expert_preferences(model, tokenizer, batches, KINDS)
    seen = 0
    for layer in range(n_layers):
        everything = [pair for expert in taken[layer] for pair in expert]
        for expert in range(n_experts):
            for what, place in (("tokens", 0), ("kinds", 1)):
                own = [pair[place] for pair in taken[layer][expert]]
                all_names = [pair[place] for pair in everything]
                for name, lift in found[layer][expert][what]:
                    right = (own.count(name) / len(own)) / (all_names.count(name) / len(all_names))
                    assert lift == pytest.approx(right, abs=0.006) and lift > 1
                    assert all_names.count(name) >= MIN_SHARE_OF_TOKENS * len(all_names)
                    seen += 1
    assert seen > 10
