"""The tokenizer equals a slow one that counts everything and looks at the whole vocabulary."""

import json
import random
import time

import pytest
import reference

from tinylm import Tokenizer

ODD_TEXTS = [
    "",
    " ",
    "\n",
    "\t",
    "   two  spaces   and\ttabs \n",
    "Zürich? 你好 🎉 €",  # nanoGPT #434, #169
    "a\u0301 combined and e\u200bzero width",
    "<pad><eos><unk>",
    "The cat sat on the mat.",
    "thethethethe",
    "ZZZ",
    "🎉🎉",
    "\ud800 a lone surrogate",
]
CORPUS = [
    "The cat sat on the mat.",
    "  The   cat\tate the rat, and the rat ate the cat  ",
    "",
    "   ",
    "Zürich is a city; 你好 is hello.",
    "a aa aaa aaaa aaaaa aaaaaa",
    "the the the the",
    "Ένα δύο τρία",
    "<pad> is written <eos> here <unk>",
]


def random_corpus(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join("".join(rng.choices("abcé🎉", k=rng.randint(1, 6))) for _ in range(rng.randint(0, 6)))
        for _ in range(25)
    ]


@pytest.mark.parametrize("special_tokens", [("<pad>", "<eos>", "<unk>"), ("<pad>",), ("<pad>", "<eos>")])
@pytest.mark.parametrize(("vocab_size", "max_token_length"), [(50, 8), (80, 3), (200, 8), (45, 1), (10_000, 20)])
def test_the_vocabulary_equals_counting_every_substring(vocab_size, max_token_length, special_tokens):
    ours = Tokenizer.train(CORPUS, vocab_size, max_token_length, special_tokens)
    assert ours.tokens == reference.vocabulary(CORPUS, vocab_size, max_token_length, special_tokens)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("special_tokens", [("<pad>", "<eos>", "<unk>"), ("<pad>",)])
def test_the_vocabulary_of_random_corpora_equals_counting(seed, special_tokens):
    # Few letters and short words: ties in nearly every rank.
    lines = random_corpus(seed)
    ours = Tokenizer.train(lines, 30, 4, special_tokens)
    assert ours.tokens == reference.vocabulary(lines, 30, 4, special_tokens)


@pytest.mark.parametrize("special_tokens", [("<pad>", "<eos>", "<unk>"), ("<pad>",)])
@pytest.mark.parametrize("text", [*ODD_TEXTS, *CORPUS])
def test_encoding_equals_a_scan_of_the_whole_vocabulary(text, special_tokens):
    tokenizer = Tokenizer.train(CORPUS, 90, 6, special_tokens)
    assert tokenizer.encode(text) == reference.encode(text, tokenizer.tokens, special_tokens)


SPACES = [" ", "  ", "\t", "\n", " \n ", "\u00a0", "\u2003", "\x1c", "\x85"]


@pytest.mark.parametrize("seed", range(5))
def test_encoding_word_by_word_equals_a_scan_whatever_the_white_space(seed):
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcde", k=rng.randint(1, 6))) for _ in range(40)]
    tokenizer = Tokenizer.train([" ".join(rng.choices(words, k=5)) for _ in range(30)], 60, 4)
    for _ in range(100):
        text = "".join(rng.choice(SPACES) + rng.choice([*words, "", "é", "x" * 50]) for _ in range(rng.randint(0, 8)))
        expected = reference.encode(text, tokenizer.tokens, tokenizer.special_tokens)
        assert tokenizer.encode(text) == expected == tokenizer.encode(text), repr(text)


@pytest.mark.parametrize("token", ["a b", " a ", "\ta", "  ", "b\u00a0"])
def test_tokens_that_reach_over_white_space_are_found_too(token):
    tokenizer = Tokenizer([token, *sorted({*"ab \t\u00a0"} - {token}), "<pad>"], ("<pad>",))
    for text in (token, f"a{token}b", f"b {token} a{token}"):
        assert tokenizer.encode(text) == reference.encode(text, tokenizer.tokens, tokenizer.special_tokens)
    assert tokenizer.encode(token) == [0]


def test_words_that_are_remembered_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("tinylm.tokenizer.MAX_PIECES", 10)
    tokenizer = Tokenizer.train(["a b c"])
    for n in range(100):
        assert len(tokenizer.encode(f"w{n} " + "a" * 1000)) == len(f"w{n} ") + 1000
        assert len(tokenizer._pieces) <= 10 and all(len(piece) <= 32 for piece in tokenizer._pieces)
    # What comes back is the caller's own.
    tokenizer.encode("abc").append(5)
    assert tokenizer.encode("abc") == tokenizer.encode("abcabc")[:3]


def test_ties_go_to_the_substring_seen_first_and_ids_to_the_longest():
    # Every substring of "ba" then " ab" occurs once but "a" and "b", which occur twice each.
    tokenizer = Tokenizer.train(["ba ab"], 8, 3, ("<pad>",))
    assert tokenizer.tokens == [" ab", "ba", " a", "ab", "b", "a", " ", "<pad>"]
    fewer = Tokenizer.train(["ba ab"], 4, 3, ("<pad>",))
    assert fewer.tokens == ["ba", "b", "a", "<pad>"]


def test_a_word_takes_its_space_along_and_the_first_word_has_none():
    tokenizer = Tokenizer.train(["cat dog", "\tdog cat  "], 100, 8)
    assert "cat" in tokenizer.tokens
    assert " dog" in tokenizer.tokens
    assert not [token for token in tokenizer.tokens if " " in token[1:] or "\t" in token]


def test_a_small_corpus_gives_a_smaller_vocabulary():
    tokenizer = Tokenizer.train(["ab"], 1250)
    assert tokenizer.tokens == ["ab", "a", "b", "<pad>", "<eos>", "<unk>"]
    assert tokenizer.vocab_size == 6
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id) == (3, 4, 5)


def test_unk_keeps_every_character_of_the_corpus_however_rare():
    lines = ["common words here " * 50, "€ 你 🎉 ß"]
    characters = set("".join(lines))
    kept = Tokenizer.train(lines, 40)
    assert characters <= set(kept.tokens)
    assert kept.vocab_size == 40
    assert kept.unk_id not in kept.encode("€ 你 🎉 ß")
    without = Tokenizer.train(lines, 40, special_tokens=("<pad>",))
    assert not characters <= set(without.tokens)


def test_a_vocabulary_too_small_for_the_characters_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match="vocab_size=8 is too small for the corpus's 6 characters"):
        Tokenizer.train(["abc def"[:7].replace(" ", "")], 8)
    with pytest.raises(ValueError, match="vocab_size=3 leaves no room beside 3 special tokens"):
        Tokenizer.train(["abc"], 3)
    with pytest.raises(ValueError, match="max_token_length=0"):
        Tokenizer.train(["abc"], 30, 0)


def test_text_of_known_characters_comes_back_whole_whitespace_included():
    tokenizer = Tokenizer.train(CORPUS, 120, 8)
    for text in ["The  cat", " mat ", "Zürich 你好", "  ", "the the"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_unknown_characters_are_one_token_each_and_decode_as_the_replacement_character():
    tokenizer = Tokenizer.train(["plain words"], 100)
    ids = tokenizer.encode("pl🎉ain\t€")
    assert ids.count(tokenizer.unk_id) == 3
    assert tokenizer.decode(ids) == "pl\ufffdain\ufffd\ufffd"
    assert tokenizer.unknown_characters("🎉 words € 🎉\t") == ["🎉", "€", "\t"]
    assert tokenizer.unknown_characters("plain") == []


def test_without_unk_an_unknown_character_becomes_pad_and_decodes_to_nothing():
    tokenizer = Tokenizer.train(["plain words"], 100, special_tokens=("<pad>",))
    assert tokenizer.unk_id is None
    assert tokenizer.eos_id is None
    ids = tokenizer.encode("pl🎉ain")
    assert ids.count(tokenizer.pad_id) == 1
    assert tokenizer.decode(ids) == "plain"


@pytest.mark.parametrize("special", ["<pad>", "<eos>", "<unk>"])
def test_a_special_tokens_string_in_a_text_is_plain_text(special):
    # LlamaFactory #370, gemma #770: in the corpus as well as in the prompt.
    for lines in (["<pad> is <eos> and <unk> here", "<pad>"] * 5, ["p a d e o s u n k < >"]):
        tokenizer = Tokenizer.train(lines, 60, 8)
        specials = {tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id}
        ids = tokenizer.encode(f"{special}")
        assert ids
        assert not specials & set(ids)
        assert tokenizer.decode(ids) == special


def test_decoding_leaves_out_pad_and_eos_only():
    tokenizer = Tokenizer.train(["ab"], 100)
    pad, eos, unk = tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id
    assert tokenizer.decode([pad, *tokenizer.encode("ab"), eos, unk, *tokenizer.encode("a"), pad]) == "ab\ufffda"
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("token_id", [-1, 6, 10**9])
def test_decoding_an_id_outside_the_vocabulary_is_an_error_that_names_it(token_id):
    tokenizer = Tokenizer.train(["ab"], 100)
    with pytest.raises(ValueError, match=f"{token_id} is outside the vocabulary of 6"):
        tokenizer.decode([0, token_id])


@pytest.mark.parametrize("special_tokens", [("<pad>", "<eos>", "<unk>"), ("<pad>",)])
def test_saving_and_loading_gives_the_same_tokenizer(tmp_path, special_tokens):
    tokenizer = Tokenizer.train(CORPUS, 120, 8, special_tokens)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.tokens == tokenizer.tokens
    assert loaded.special_tokens == special_tokens
    for text in ODD_TEXTS:
        assert loaded.encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json",
        "[]",
        "3",
        "{}",
        '{"tokens": "abc", "special_tokens": ["<pad>"]}',
        '{"tokens": [1, "<pad>"], "special_tokens": ["<pad>"]}',
        '{"tokens": ["a"], "special_tokens": ["<pad>"]}',
        '{"tokens": ["a", "a", "<pad>"], "special_tokens": ["<pad>"]}',
        '{"tokens": ["", "<pad>"], "special_tokens": ["<pad>"]}',
        '{"tokens": ["a", "<eos>"], "special_tokens": ["<eos>"]}',
        '{"tokens": ["a", "<pad>", "<pad>"], "special_tokens": ["<pad>", "<pad>"]}',
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError):
        Tokenizer.load(path)


def test_the_file_is_plain_json_with_the_tokens_by_id(tmp_path):
    tokenizer = Tokenizer.train(CORPUS, 120)
    tokenizer.save(tmp_path / "tokenizer.json")
    assert json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["tokens"] == tokenizer.tokens


def test_training_counts_distinct_words_once():
    # 200,000 words of which 100 are distinct: counting each occurrence's substrings takes over a second.
    words = [f"word{i}number" for i in range(100)]
    lines = [" ".join(words)] * 2000
    started = time.process_time()
    tokenizer = Tokenizer.train(lines, 300)
    assert time.process_time() - started < 0.6
    assert tokenizer.tokens == Tokenizer.train([" ".join(words)], 300).tokens


def test_encoding_takes_no_longer_with_a_larger_vocabulary():
    rng = random.Random(0)
    lines = ["".join(rng.choices("abcdefghij", k=8)) for _ in range(9000)]
    text = "".join(rng.choices("abcdefghij", k=20_000))
    seconds = []
    for vocab_size in (200, 40_000):
        tokenizer = Tokenizer.train(lines, vocab_size)
        assert tokenizer.vocab_size == vocab_size
        started = time.process_time()
        tokenizer.encode(text)
        seconds.append(time.process_time() - started)
    assert seconds[1] < 20 * seconds[0] + 0.05


def test_a_word_is_new_if_the_corpus_never_had_it_whatever_the_case_and_the_marks():
    tokenizer = Tokenizer.train(["The cat's well-known.", "It is 5 o'clock!"], 200)
    assert tokenizer.unknown_words("the CAT'S well-known, IS it?") == []
    assert tokenizer.unknown_words("A Zebu and the cat; a ZEBU, 6 cats") == ["A", "Zebu", "and", "6", "cats"]
    assert tokenizer.unknown_words(" ... ?!") == []


def test_the_words_of_the_corpus_are_saved_with_the_vocabulary(tmp_path):
    tokenizer = Tokenizer.train(["Bees make honey."], 100)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.words == tokenizer.words == {"bees", "make", "honey"}
    assert loaded.unknown_words("bees make wax") == ["wax"]


def test_a_vocabulary_without_its_words_calls_none_new():
    tokenizer = Tokenizer(["a", "b", "<pad>"], ("<pad>",))
    assert tokenizer.unknown_words("ab ba") == []
    assert '"words"' not in tokenizer.to_json()
