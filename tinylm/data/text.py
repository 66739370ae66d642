"""Text corpora: the built-in one, a user's file, or a data set on the Hugging Face Hub; one example a line."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tinylm.data import knowledge
from tinylm.data.knowledge import Line, Probe
from tinylm.files import open_file

BUILT_IN = "built-in"
VALIDATION_SHARE = 0.05
MOST_HELD_OUT = 5_000  # lines set aside; they are read twenty times a run
N_LAST_WORD_PROBES = 300
LAST_WORD = "last word"
MOST_BYTES = 1_000_000_000  # of a text file
# How files begin that are no text in UTF-8 though they may be taken for it.
_NO_TEXT = {
    b"\xff\xfe\0\0": "UTF-32 text",
    b"\0\0\xfe\xff": "UTF-32 text",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"\x1f\x8b": "compressed by gzip",
    b"PK\x03\x04": "a zip archive or an office document",
    b"%PDF-": "a PDF",
}


@dataclass(frozen=True)
class TextCorpus:
    """Lines to train on and held-out lines; `probes` ask for what the held-out lines say.

    The built-in corpus also says at which character of each training line its answer starts, and has `free_prompts`,
    written apart from it, and `kinds` of words.
    """

    source: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = field(default=(), repr=False)
    answer_starts: tuple[int | None, ...] = field(default=(), repr=False)
    free_prompts: tuple[Probe, ...] = field(default=(), repr=False)
    kinds: Mapping[str, str] = field(default_factory=dict, repr=False)


def load_corpus(source: str = BUILT_IN, test_file: str | None = None, seed: int = 0) -> TextCorpus:
    """Lines from `built-in`, a file, or `hub:ID` (a text column, through `datasets`).

    Held-out lines come from `test_file`, or from the data set's own test split; where there is neither, 5 % of the
    lines are set aside, at most 5,000. Raises ValueError, in a sentence that names the file, on anything that can't be
    trained on.
    """
    if not source or test_file == "":
        raise ValueError("the name given to --corpus or --test-corpus is empty; give a text file")
    if source == BUILT_IN:
        if test_file is not None:
            raise ValueError("--test-corpus goes with --corpus FILE; the built-in corpus has its own test lines")
        built = knowledge.build()
        return TextCorpus(
            BUILT_IN,
            built.train,
            built.validation,
            built.test,
            built.test_probes,
            built.answer_starts,
            knowledge.free_prompts(),
            knowledge.kinds_of_words(),
        )
    if source.startswith("hub:"):
        lines, test_lines = _hub_lines(source.removeprefix("hub:"))
    else:
        lines, test_lines = read_lines(source), []
    if test_file is not None:
        test_lines = read_lines(test_file)
    lines = _distinct(lines)
    if test_lines:
        known = set(lines)
        validation = [line for line in _distinct(test_lines) if line not in known]
        if not validation:
            raise ValueError(f"every line of the test text is in {source} too; give lines that are not trained on")
    else:
        shuffled = random.Random(seed).sample(lines, len(lines))
        n_validation = min(max(1, round(VALIDATION_SHARE * len(lines))), MOST_HELD_OUT)
        validation, lines = shuffled[:n_validation], shuffled[n_validation:]
    if len(lines) < 2:
        raise ValueError(f"{source} has too few different lines to train on; give at least 3, one example a line")
    return TextCorpus(readable(source), tuple(lines), tuple(validation), (), last_word_probes(validation))


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """The file's lines, stripped, empty ones left out; they end in LF, CR LF or CR.

    Raises ValueError, naming the file and where there is one the line, if it can't be read as UTF-8 text.
    """
    try:
        with open_file(path) as file:
            large = os.fstat(file.fileno()).st_size > MOST_BYTES
            data = b"" if large else file.read(MOST_BYTES)
    except (OSError, ValueError) as error:  # of a name with a NUL in it
        raise ValueError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from None
    if large:
        raise ValueError(f"{path} has more than {MOST_BYTES // 10**6} MB, the most that is read")
    for beginning, kind in _NO_TEXT.items():
        if data.startswith(beginning):
            raise ValueError(f"{path} is {kind}, as its line 1 begins; give plain text in UTF-8")
    lines = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        if b"\0" in line:
            raise ValueError(f"{path} is not plain text: line {number} has a NUL byte in it")
        try:
            lines.append(line.decode("utf-8").strip())
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8 text: line {number} has other bytes") from None
    lines = [line for line in lines if line]
    if not lines:
        raise ValueError(f"{path} has no text in it; give one example a line")
    return lines


def readable(text: str) -> str:
    """`text` as any file can hold it: bytes of a file's or folder's name that are not UTF-8 become U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)  # as which Python hands them out


def last_word_probes(lines: Iterable[str]) -> tuple[Probe, ...]:
    """Each line of at least three words, cut before its last word; at most 300."""
    probes = []
    for line in lines:
        *words, last = line.split()
        if len(words) >= 2 and last.rstrip(".!?"):
            source = Line(line, LAST_WORD, LAST_WORD, fact="", phrasing="")
            probes.append(Probe(" ".join(words), (last.rstrip(".!?"),), LAST_WORD, LAST_WORD, source))
    return tuple(probes[:N_LAST_WORD_PROBES])


def _hub_lines(name: str) -> tuple[list[str], list[str]]:
    from tinylm.data.hub import load_hub_dataset  # only here: `datasets` takes a second to import

    splits = load_hub_dataset(name, "give a text file with --corpus FILE, or leave --corpus out")
    train = splits["train"]
    columns = [column for column, feature in train.features.items() if getattr(feature, "dtype", "") == "string"]
    if not columns:
        raise ValueError(f"hub:{name} has no text column; its columns are {', '.join(train.features)}")
    column = "text" if "text" in columns else columns[0]

    def lines_of(split: str) -> list[str]:
        texts = splits[split][column] if split in splits else []
        return [line.strip() for text in texts if text for line in text.splitlines() if line.strip()]

    lines = lines_of("train")
    if not lines:
        raise ValueError(f"hub:{name} has no text in its column {column!r}")
    return lines, lines_of("test") or lines_of("validation")


def _distinct(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
