"""Substring tokenizer: the most frequent pieces of words, matched greedily, longest first."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tinylm.files import parse_json, read_text, shown

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
REPLACEMENT = "\ufffd"

# What no token reaches beyond: a word with the one space in front of it, or any other white space alone.
_PIECE = re.compile(r" ?\S+|\s")
# A token that holds white space elsewhere than as its first character, or another one than a space there. Training
# makes none; a vocabulary from elsewhere may have them.
_CROSSES_PIECES = re.compile(r"(?s:.)\s|\A[^\S ](?s:.)")
MAX_TOKEN_LENGTH = 128  # characters; each is tried at every place of a text
MAX_BYTES = 16_000_000  # of a tokenizer's file
MAX_WORDS_BYTES = 8_000_000  # of its words; what comes of more text than that has about all words there are
MAX_PIECES = 65_536  # remembered at most; a public page sees words of all kinds
MAX_PIECE_LENGTH = 32  # characters; longer ones are hardly words
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


class Tokenizer:
    """A vocabulary of substrings; `encode` takes the longest token that matches at each position.

    `tokens` are the strings by id, longest first, the special tokens last. A special token's string in a text is
    plain text: only its id is special. `words` are the words of the corpus, whatever their case; they play no part
    in encoding.
    """

    def __init__(self, tokens: list[str], special_tokens: tuple[str, ...], words: Iterable[str] = ()) -> None:
        """Take a vocabulary as it is. Raises ValueError on repeated, empty or overlong tokens, or without `<pad>`."""
        if PAD not in special_tokens:
            raise ValueError(f"special_tokens must hold {PAD!r}, got {shown(special_tokens)}")
        n_plain = len(tokens) - len(special_tokens)
        if n_plain < 0 or tuple(tokens[n_plain:]) != tuple(special_tokens):
            raise ValueError("the special tokens must be the last tokens, in their order")
        if not all(tokens):
            raise ValueError("a token must not be empty")
        if max(map(len, tokens)) > MAX_TOKEN_LENGTH:
            raise ValueError(f"a token has more than {MAX_TOKEN_LENGTH} characters")
        if len(set(special_tokens)) != len(special_tokens):
            raise ValueError(f"special_tokens hold a token twice: {shown(special_tokens)}")
        self.tokens = list(tokens)
        self.special_tokens = tuple(special_tokens)
        self._ids = {token: i for i, token in enumerate(tokens[:n_plain])}
        if len(self._ids) != n_plain:
            raise ValueError("the vocabulary holds a token twice")
        self._special_ids = {token: n_plain + i for i, token in enumerate(special_tokens)}
        self._skipped = {self._special_ids[t] for t in (PAD, EOS) if t in self._special_ids}
        self._max_token_length = max((len(token) for token in self._ids), default=1)
        self.words = frozenset(words)
        self._pieces: dict[str, list[int]] = {}
        self._splits = not any(map(_CROSSES_PIECES.search, self._ids))

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocab_size: int = 1250,
        max_token_length: int = 8,
        special_tokens: tuple[str, ...] = (PAD, EOS, UNK),
    ) -> Tokenizer:
        """Keep the most frequent substrings of the corpus's words.

        Each line is stripped and split on whitespace; every word but the line's first gets one leading space; every
        substring of 1..`max_token_length` characters is counted once per occurrence, ties going to the one seen
        first. With `<unk>` among the special tokens every single character of the corpus is kept, however rare.

        Raises ValueError if `vocab_size` leaves no room for them or `max_token_length` is not 1 to 128.
        """
        special_tokens = tuple(special_tokens)
        if not 1 <= max_token_length <= MAX_TOKEN_LENGTH:
            raise ValueError(f"max_token_length={max_token_length} must be 1 to {MAX_TOKEN_LENGTH}")
        room = vocab_size - len(special_tokens)
        if room < 1:
            raise ValueError(f"vocab_size={vocab_size} leaves no room beside {len(special_tokens)} special tokens")

        # A substring's rank needs its count and where it was first seen. Distinct chunks in order of appearance
        # give both: a substring is first seen in the first chunk that holds it.
        counts: Counter[str] = Counter()
        chunks = _count_chunks(lines)
        for chunk, times in chunks.items():
            length = len(chunk)
            for start in range(length):
                for end in range(start + 1, min(start + max_token_length, length) + 1):
                    counts[chunk[start:end]] += times
        # sorted() is stable and the dict remembers insertion, so equal counts stay in the order seen.
        ranked = sorted(counts, key=counts.__getitem__, reverse=True)
        kept = ranked[:room]
        if UNK in special_tokens:
            kept = _keep_characters(ranked, room, vocab_size)
        kept.sort(key=len, reverse=True)
        words = {_plain(word) for chunk in chunks for word in _WORD.findall(chunk)}
        return cls([*kept, *special_tokens], special_tokens, words)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, whitespace included. A character that no token covers becomes `<unk>`, or else `<pad>`."""
        if not self._splits:
            return self._encode_piece(text)
        ids: list[int] = []
        known = self._pieces.get
        for piece in _PIECE.findall(text):
            ids += known(piece) or self._remembered(piece)
        return ids

    def _remembered(self, piece: str) -> list[int]:
        """The ids of a new piece, kept for when it comes again."""
        ids = self._encode_piece(piece)
        if len(piece) <= MAX_PIECE_LENGTH:
            if len(self._pieces) >= MAX_PIECES:
                self._pieces = {}
            self._pieces[piece] = ids
        return ids

    def _encode_piece(self, text: str) -> list[int]:
        unknown = self.pad_id if self.unk_id is None else self.unk_id
        return [unknown if token_id is None else token_id for token_id, _ in self._match(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; `<pad>` and `<eos>` are left out, `<unk>` becomes U+FFFD.

        Raises ValueError on an id outside the vocabulary.
        """
        parts = []
        for token_id in map(int, ids):
            if not 0 <= token_id < len(self.tokens):
                raise ValueError(f"token id {token_id} is outside the vocabulary of {len(self.tokens)}")
            if token_id == self.unk_id:
                parts.append(REPLACEMENT)
            elif token_id not in self._skipped:
                parts.append(self.tokens[token_id])
        return "".join(parts)

    def unknown_characters(self, text: str) -> list[str]:
        """The characters of `text` that no token covers where they stand, each once, in order."""
        return list(dict.fromkeys(text[start] for token_id, start in self._match(text) if token_id is None))

    def unknown_words(self, text: str) -> list[str]:
        """The words of `text` that the corpus did not have in any case, each once, as written, in order.

        A vocabulary that was saved without its words finds none. A word that `text` ends in may be the beginning of a
        longer one ("ele"), and is named all the same.
        """
        if not self.words:
            return []
        new: dict[str, str] = {}
        for word in _WORD.findall(text):
            if _plain(word) not in self.words:
                new.setdefault(_plain(word), word)
        return list(new.values())

    def _match(self, text: str) -> Iterator[tuple[int | None, int]]:
        """(token id, start) of each longest match; the id is None for a character that no token covers."""
        lookup, longest, end = self._ids.get, self._max_token_length, len(text)
        start = 0
        while start < end:
            for length in range(min(longest, end - start), 0, -1):
                token_id = lookup(text[start : start + length])
                if token_id is not None:
                    yield token_id, start
                    start += length
                    break
            else:
                yield None, start
                start += 1

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return len(self.tokens)

    @property
    def pad_id(self) -> int:
        """Id of `<pad>`."""
        return self._special_ids[PAD]

    @property
    def eos_id(self) -> int | None:
        """Id of `<eos>`, None where the vocabulary has none."""
        return self._special_ids.get(EOS)

    @property
    def unk_id(self) -> int | None:
        """Id of `<unk>`, None where the vocabulary has none."""
        return self._special_ids.get(UNK)

    def to_json(self) -> str:
        """The vocabulary as JSON text; `from_json` reads it back."""
        values: dict[str, object] = {"special_tokens": self.special_tokens, "tokens": self.tokens}
        words = " ".join(sorted(self.words))  # one line instead of thousands
        if 0 < len(words.encode()) <= MAX_WORDS_BYTES:
            values["words"] = words
        return json.dumps(values, ensure_ascii=False, indent=0)

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Read `to_json`'s form. Raises ValueError if it is anything else."""
        values = parse_json(text)
        if not isinstance(values, dict) or not {"tokens", "special_tokens"} <= values.keys():
            raise ValueError("not a tinylm tokenizer: expected an object with 'tokens' and 'special_tokens'")
        tokens, special_tokens, words = values["tokens"], values["special_tokens"], values.get("words", "")
        lists = isinstance(tokens, list) and isinstance(special_tokens, list)
        if not lists or not all(isinstance(token, str) for token in [*tokens, *special_tokens]):
            raise ValueError("not a tinylm tokenizer: 'tokens' and 'special_tokens' must be lists of strings")
        if not isinstance(words, str):
            raise ValueError("not a tinylm tokenizer: 'words' must be one string")
        return cls(tokens, tuple(special_tokens), words.split())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary to `path` as JSON."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read what `save` wrote. Raises ValueError if the file is something else, OSError if it can't be read."""
        return cls.from_json(read_text(path, MAX_BYTES))


def _plain(word: str) -> str:
    """The word in small letters, without a possessive's end."""
    return re.sub(r"['’]s$", "", word.casefold())


def _count_chunks(lines: Iterable[str]) -> Counter[str]:
    """Distinct words with their counts; every word but a line's first carries one leading space."""
    chunks: Counter[str] = Counter()
    for line in lines:
        words = line.split()
        chunks.update(words[:1])
        chunks.update(" " + word for word in words[1:])
    return chunks


def _keep_characters(ranked: list[str], room: int, vocab_size: int) -> list[str]:
    """The first `room` substrings, the last of them giving way to single characters ranked below."""
    characters = [token for token in ranked if len(token) == 1]
    if len(characters) > room:
        raise ValueError(f"vocab_size={vocab_size} is too small for the corpus's {len(characters)} characters")
    rare = [token for token in ranked[room:] if len(token) == 1]
    kept = ranked[:room]
    for position in range(len(kept) - 1, -1, -1):
        if not rare:
            break
        if len(kept[position]) > 1:
            del kept[position]
            rare_token = rare.pop(0)
            kept.append(rare_token)
    return kept
