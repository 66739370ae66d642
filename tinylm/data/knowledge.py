"""The built-in text corpus: small true facts, each said in several wordings, and honest held-out splits.

The facts live in `tables/<relation>.tsv`, one relation a file and one fact a line; free-standing sentences live in
`tables/*.txt`, one a line, some with ` | ` in front of what a visitor would leave to the model: "We smell with our |
nose." These are mostly said as a visitor types them. A table starts with its head:

    # domain: animals
    # columns: animal, young
    # answers: young
    # say: a baby {animal} is called {a young}.
    # low: a baby {animal} is {a young}
    # both: {a young} is a baby {animal}.
    # more: the {animal} takes care of her {young}
    * cat<TAB>kitten
    mouse/mice<TAB>pup

`say` is a sentence (capitals are put in; a question's answer stays small and has no full stop), `low` the same as a
visitor types it, in lower case and without the last full stop, and `both` gives the second and, for some facts, the
first too. `more` is typed like `low`, but said only of the facts that everybody knows, which have a star in front, and
of each of these for a share of the wordings: what people ask most is said in many more ways, and what they ask rarely
doesn't take the learning away from it. `answers` names the columns that the rest of the fact settles: only a phrasing
that ends in one of them can become a probe, and at least four do (the example above is shortened), so that a fact is
still taught that way round when one of its wordings is held out: a probe is a held-out wording whose very answer
("pup", not "pups") ends three lines of the same fact that are trained on. `# note:` is for the reader; any other `#`
line is an error.

A cell is a noun or any other text. `mouse/mice` gives the plural where the rule would fail; `~milk` marks a word
that is never counted and `+scissors` one that is always plural. In a phrasing `{x}` is the cell as it stands,
`{a x}` has a or an in front where the cell can be counted, `{s x}` is the plural. A verb is given twice,
`{is/are x}` or `{grows/grow x}`, and agrees with `{s x}` where that stands in the phrasing, else with `{a x}`.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tinylm.data.english import plural_of, with_article

TABLES = Path(__file__).parent / "tables"
FREE_PROMPTS = Path(__file__).parent / "free_prompts.tsv"
SHARE = 0.04
"""The share of the fact lines that goes to validation, and the same again to test."""
FREE_SHARE = 0.03
"""The share of the free-standing sentences that goes to validation, and the same again to test."""
MIN_PHRASINGS = 5
MIN_ENDINGS = 4
"""The least number of phrasings that end in each answer column."""
SENTENCE_SHARE = 0.2
"""The share of the `both` wordings that are said as a sentence beside the typed form, which visitors use more, and of
the `more` wordings that are said so instead."""
KEPT_NAMES = 0.4
"""The share of the typed lines that keep the capitals of their names ("the capital of France is Paris")."""
MORE_SHARE = 0.4
"""The share of the `more` wordings that is said of each well-known fact."""
MAX_ANSWERS = 3
"""A prompt with more right answers than this is no probe."""

_FIELD = re.compile(r"\{(?:(\w+|\w+/\w+) )?(\w+)\}")
_SIGN = re.compile(r"(?<=\d)\s*([-+=])\s*(?=\d|$)")
_MARK = re.compile(r"((?<!\S)[-+=](?!\S))|[^\w\s]")
_ASKS = re.compile(r"(did|do|have|has|can|could|is|are|will) ", re.IGNORECASE)
_SENTENCE_START = re.compile(r"(?:^|(?<=[.!] ))[a-z]")


@dataclass(frozen=True)
class Line:
    """One line of the corpus and where it comes from; `phrasing` is empty for a free-standing sentence."""

    text: str
    relation: str
    domain: str
    fact: str
    phrasing: str


@dataclass(frozen=True)
class Probe:
    """A held-out line cut right before its answer, with every answer that is right for that prompt.

    The line's own answer comes first; the others are those of other facts, and what other true lines go on with after
    the same words. `prompt` has no trailing space.
    """

    prompt: str
    answers: tuple[str, ...]
    relation: str
    domain: str
    line: Line


@dataclass(frozen=True)
class Corpus:
    """The lines to train on, the lines held out of training, and the probes cut from the held-out lines.

    `answer_starts` says at which character of each training line its answer starts, None where it has none.
    """

    train: tuple[str, ...]
    answer_starts: tuple[int | None, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    validation_probes: tuple[Probe, ...]
    test_probes: tuple[Probe, ...]


@dataclass(frozen=True)
class Cell:
    """A table cell: a text, its plural, and how it is counted ("one", "mass" or "plural")."""

    text: str
    plural: str
    number: str


@dataclass(frozen=True)
class Phrasing:
    """One way to say a relation; `kind` is "say", "low", "both" or "more"."""

    template: str
    kind: str

    @functools.cached_property
    def last_column(self) -> str:
        """The column that stands at the very end, "" if something else does."""
        found = re.search(r"(\w+)\}[.!?]?$", self.template)
        return found[1] if found else ""


@dataclass(frozen=True)
class Table:
    """One relation: its domain, its columns, the ways to say it, and its facts."""

    relation: str
    domain: str
    columns: tuple[str, ...]
    answers: tuple[str, ...]
    phrasings: tuple[Phrasing, ...]
    rows: tuple[tuple[Cell, ...], ...]
    well_known: frozenset[int]  # the numbers of the rows that have a star


@dataclass(frozen=True)
class _Said:
    """A line with the place of its answer, None where it has none to ask for."""

    line: Line
    cut: int | None


@functools.lru_cache(maxsize=2**18)  # a line is compared several times while a corpus is built
def normalise(text: str) -> str:
    """The text without case and punctuation, words one space apart: lines equal in this form count as one.

    A plus, a minus or an equals sign alone or behind a digit is a word, so "2+1" is "2 + 1" but not "2 - 1".
    """
    spaced = _SIGN.sub(r" \1 ", text.casefold().replace("'", ""))
    bare = _MARK.sub(lambda match: match[1] or " ", spaced)
    return " ".join(bare.split())


def read_table(path: Path) -> Table:
    """Reads one relation.

    Raises:
        ValueError: the head or a row is malformed; the message names the file, the line and what is wrong.
    """
    domain = ""
    columns: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    phrasings: list[Phrasing] = []
    rows: list[tuple[Cell, ...]] = []
    seen: set[tuple[str, ...]] = set()
    well_known: set[int] = set()
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        where = f"{path.name}, line {number}"
        if not raw.strip():
            continue
        if raw.startswith("#"):
            key, colon, value = raw[1:].partition(":")
            key, value = key.strip(), value.strip()
            if not colon or not value:
                raise ValueError(f"{where}: expected '# key: value', got {raw!r}")
            if rows:
                raise ValueError(f"{where}: the head must stand above the facts")
            if key == "domain":
                domain = value
            elif key == "columns":
                columns = tuple(name.strip() for name in value.split(","))
            elif key == "answers":
                answers = tuple(name.strip() for name in value.split(","))
                if not set(answers) <= set(columns):
                    raise ValueError(f"{where}: the answers {value!r} are not all columns")
            elif key in ("say", "low", "both", "more"):
                phrasings.append(_phrasing(value, key, columns, where))
            elif key != "note":
                raise ValueError(f"{where}: unknown key {key!r}")
            continue
        if not domain or not answers:
            raise ValueError(f"{where}: a fact before the domain, the columns and the answers are given")
        if raw.startswith("* "):
            well_known.add(len(rows))
        cells = tuple(raw.removeprefix("* ").split("\t"))
        if len(cells) != len(columns):
            raise ValueError(f"{where}: {len(cells)} columns, expected {len(columns)} ({', '.join(columns)})")
        if cells in seen:
            raise ValueError(f"{where}: the fact stands here twice")
        seen.add(cells)
        rows.append(tuple(_cell(text, where) for text in cells))
    usual = [phrasing for phrasing in phrasings if phrasing.kind != "more"]
    different = {normalise(phrasing.template) for phrasing in usual}
    if len(different) < MIN_PHRASINGS:
        raise ValueError(f"{path.name}: {len(different)} different phrasings, expected at least {MIN_PHRASINGS}")
    for column in answers:
        ending = {normalise(phrasing.template) for phrasing in usual if phrasing.last_column == column}
        if len(ending) < MIN_ENDINGS:
            raise ValueError(
                f"{path.name}: {len(ending)} phrasings end in the answer {column!r}, expected at least {MIN_ENDINGS}"
            )
    if not rows:
        raise ValueError(f"{path.name}: no facts")
    return Table(path.stem, domain, columns, answers, tuple(phrasings), tuple(rows), frozenset(well_known))


def read_tables(folder: Path = TABLES) -> tuple[Table, ...]:
    """Reads every relation in a folder, by name.

    Raises:
        ValueError: a table is malformed; the message names the file, the line and what is wrong.
    """
    return tuple(read_table(path) for path in sorted(folder.glob("*.tsv")))


def read_sentences(folder: Path = TABLES) -> tuple[Line, ...]:
    """Reads the free-standing sentences in a folder, one a line; each is its own fact.

    Raises:
        ValueError: a sentence has spaces too many or no mark at its end; the message names the file and the line.
    """
    return tuple(said.line for said in _read_sentences(folder))


def all_lines(folder: Path = TABLES) -> tuple[Line, ...]:
    """Every distinct line of a folder, fact lines first, in the order of the tables.

    Raises:
        ValueError: a file is malformed; the message names the file and the line.
    """
    return tuple(said.line for said in _all_said(folder))


def free_prompts(path: Path = FREE_PROMPTS) -> tuple[Probe, ...]:
    """Prompts as visitors type them, with their accepted answers; nothing is trained or chosen on them.

    One a line: domain, prompt and answers (with `|` between them), with tabs between the three.

    Raises:
        ValueError: a line is malformed; the message names the file and the line.
    """
    probes = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = text.split("\t")
        if len(fields) != 3 or not all(field.strip() for field in fields):
            raise ValueError(f"{path.name}, line {number}: expected domain, prompt and answers, got {text!r}")
        domain, prompt, answers = fields
        accepted = tuple(answer.strip() for answer in answers.split("|") if answer.strip())
        probes.append(Probe(prompt.strip(), accepted, "free", domain, Line(prompt.strip(), "free", domain, "", "")))
    return tuple(probes)


def kinds_of_words(folder: Path = TABLES) -> dict[str, str]:
    """For each single word that fills a cell the column that it stands in most often ("cat": "animal").

    Raises:
        ValueError: a table is malformed; the message names the file and the line.
    """
    columns: dict[str, Counter[str]] = {}
    for table in read_tables(folder):
        for row in table.rows:
            for column, cell in zip(table.columns, row, strict=True):
                for word in {cell.text.lower(), cell.plural.lower()}:
                    if word.isalpha():
                        columns.setdefault(word, Counter())[column] += 1
    return {word: min(counts, key=lambda name: (-counts[name], name)) for word, counts in columns.items()}


def build(seed: int = 0, folder: Path = TABLES) -> Corpus:
    """Builds the corpus and its splits; the same seed and tables always give the same corpus.

    For a share of the facts one whole phrasing is held out, with every line equal to it but for case and
    punctuation, while the fact stays in training in its other phrasings. The choice for one fact does not depend on
    the other facts, so a table can grow without moving the held-out lines of the rest.

    Raises:
        ValueError: a file is malformed; the message names the file and the line.
    """
    said = _all_said(folder)
    held = _held_out(said, seed)
    answers = _answers(said)
    cuts = {item.line.text: item.cut for item in said}
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    probes: dict[str, list[Probe]] = {"validation": [], "test": []}
    asked = [item for item in said if item.cut is not None and item.line.phrasing and normalise(item.line.text) in held]
    goes_on = _continuations(said, {normalise(_split_at(item)[0]) for item in asked})
    taught = Counter(
        (item.line.fact, normalise(_split_at(item)[1]))
        for item in said
        if item.cut is not None and normalise(item.line.text) not in held
    )
    for item in said:
        part = held.get(normalise(item.line.text), "train")
        parts[part].append(item.line.text)
        if part == "train" or item.cut is None or not item.line.phrasing:
            continue
        prompt, own = _split_at(item)
        if taught[item.line.fact, normalise(own)] < MIN_ENDINGS - 1:
            continue
        right = answers[normalise(prompt)]
        if len(right) <= MAX_ANSWERS:
            others = {normalise(text): text for text in right.values()} | goes_on[normalise(prompt)]
            others.pop(normalise(own), None)
            accepted = (own, *(others[key] for key in sorted(others)))
            probes[part].append(Probe(prompt, accepted, item.line.relation, item.line.domain, item.line))
    for lines in parts.values():
        lines.sort(key=lambda text: _unit(seed, "order", text))
    return Corpus(
        train=tuple(parts["train"]),
        answer_starts=tuple(cuts[text] for text in parts["train"]),
        validation=tuple(parts["validation"]),
        test=tuple(parts["test"]),
        validation_probes=tuple(probes["validation"]),
        test_probes=tuple(probes["test"]),
    )


def _held_out(said: Iterable[_Said], seed: int) -> dict[str, str]:
    """Which normalised lines are held out, and in which part."""
    facts: dict[str, dict[str, int]] = {}
    sentences: set[str] = set()
    for item in said:
        facts.setdefault(item.line.fact, {}).setdefault(normalise(item.line.text), 0)
        facts[item.line.fact][normalise(item.line.text)] += 1
        if not item.line.phrasing:
            sentences.add(item.line.fact)
    held: dict[str, str] = {}
    taken = _beginnings(wording for wordings in facts.values() for wording in wordings)
    for fact, wordings in facts.items():
        share = FREE_SHARE if fact in sentences else SHARE * len(wordings)
        draw = _unit(seed, "part", fact)
        part = "validation" if draw < share else "test" if draw < 2 * share else None
        free = [wording for wording in wordings if wording not in held and wording not in taken]
        if part is None or (fact not in sentences and len(free) < 2):
            continue
        if free:
            chosen = min(free, key=lambda wording: _unit(seed, "wording", fact, wording))
            held[chosen] = part
            taken.update(wordings)
    return held


def _beginnings(wordings: Iterable[str]) -> set[str]:
    """What a longer wording starts with: held out, it would still be read there."""
    found: set[str] = set()
    for wording in wordings:
        words = wording.split()
        found.update(" ".join(words[:end]) for end in range(2, len(words)))
    return found


def _answers(said: Iterable[_Said]) -> dict[str, dict[str, str]]:
    """For each normalised prompt every right answer over all tables: its normalised form and one spelling."""
    answers: dict[str, dict[str, str]] = {}
    for item in said:
        if item.cut is not None:
            prompt, answer = _split_at(item)
            answers.setdefault(normalise(prompt), {}).setdefault(normalise(answer), answer)
    return answers


def _continuations(said: Iterable[_Said], prompts: set[str]) -> dict[str, dict[str, str]]:
    """For each of the normalised prompts what any line goes on with: "a plum is a" with "fruit" and "kind of fruit"."""
    found: dict[str, dict[str, str]] = {prompt: {} for prompt in prompts}
    for item in said:
        words = normalise(item.line.text).split()
        for end in range(2, len(words)):
            prompt = " ".join(words[:end])
            if prompt in found:
                rest = " ".join(words[end:])
                found[prompt][rest] = rest
    return found


def _split_at(item: _Said) -> tuple[str, str]:
    """The prompt and the answer of a line that has a cut."""
    return item.line.text[: item.cut].rstrip(), item.line.text[item.cut :].rstrip(".!?")


def _unit(seed: int, *key: str) -> float:
    """A number in [0, 1) that depends on the seed and the key only, in every process."""
    digest = hashlib.sha256("\n".join((str(seed), *key)).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def _phrasing(template: str, kind: str, columns: tuple[str, ...], where: str) -> Phrasing:
    """Checks one phrasing of a head."""
    for form, column in _FIELD.findall(template):
        if column not in columns:
            raise ValueError(f"{where}: no column {column!r} (the columns are {', '.join(columns) or 'not given yet'})")
        if form not in ("", "a", "s") and "/" not in form:
            raise ValueError(f"{where}: unknown form {form!r}")
    if re.search(r"[{}]", _FIELD.sub("", template)):
        raise ValueError(f"{where}: a stray brace in {template!r}")
    if (template[-1] in ".!?") == (kind in ("low", "more")):
        ending = "a mark at its end" if kind in ("low", "more") else "no mark at its end"
        raise ValueError(f"{where}: a {kind!r} phrasing has {ending}")
    return Phrasing(template, kind)


def _cell(text: str, where: str) -> Cell:
    """Reads one cell of a row."""
    number = {"~": "mass", "+": "plural"}.get(text[:1], "one")
    bare = text if number == "one" else text[1:]
    single, slash, plural = bare.partition("/")
    if not single or single != " ".join(single.split()) or (slash and not plural) or (slash and number != "one"):
        raise ValueError(f"{where}: a malformed cell {text!r}")
    if re.search(r"[{}#~+]", bare) and not re.fullmatch(r"[\d +=-]+", bare):
        raise ValueError(f"{where}: a stray mark in the cell {text!r}")
    if number != "one":
        return Cell(single, single, number)
    return Cell(single, plural or plural_of(single), number)


def _fill(form: str, cell: Cell, many: bool) -> tuple[str, str]:
    """What a field of a phrasing becomes: an article that belongs to the prompt, and the word itself."""
    if "/" in form:
        return "", form.split("/")[cell.number == "plural" or (cell.number == "one" and many)]
    if form == "a" and cell.number == "one":
        article, _, noun = with_article(cell.text).partition(" ")
        return article + " ", noun
    return "", cell.plural if form == "s" else cell.text


def _say(phrasing: Phrasing, row: dict[str, Cell], answers: tuple[str, ...]) -> tuple[str, int | None]:
    """Fills one phrasing with one fact; also the place where the answer starts, if the line makes a probe."""
    text = ""
    column = ""
    position = 0
    cut = 0
    named = 0
    for match in _FIELD.finditer(phrasing.template):
        form, column = match[1] or "", match[2]
        article, word = _fill(form, row[column], many=f"{{s {column}}}" in phrasing.template)
        text += phrasing.template[position : match.start()] + article
        cut = len(text)
        text += word
        position = match.end()
        named += "/" not in form
    rest = phrasing.template[position:]
    answer = normalise(text[cut:])
    prompt = normalise(text[:cut])
    text += rest
    settled = column in answers and phrasing.last_column == column and named > 1
    trivial = len(prompt.split()) < 2 or f" {answer} " in f" {prompt} "
    return text, cut if settled and not trivial else None


def _all_said(folder: Path) -> tuple[_Said, ...]:
    """Every distinct line of a folder with the place of its answer."""
    seen: dict[str, _Said] = {}
    for table in read_tables(folder):
        for said in _table_said(table):
            seen.setdefault(said.line.text, said)
    for said in _read_sentences(folder):
        seen.setdefault(said.line.text, said)
    return tuple(seen.values())


def _read_sentences(folder: Path) -> Iterator[_Said]:
    """The free-standing sentences with the places of their answers."""
    for path in sorted(folder.glob("*.txt")):
        for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if not raw:
                continue
            start, mark, answer = raw.partition(" | ")
            text = f"{start} {answer}" if mark else raw
            is_question = bool(mark) and start.endswith("?")
            if "|" in text or text != " ".join(text.split()) or (text[-1] in ".!?") == is_question:
                raise ValueError(f"{path.name}, line {number}: not a clean sentence: {raw!r}")
            fact = f"sentences: {text}"
            if mark and _unit(0, "sentence", fact) >= SENTENCE_SHARE:
                text = re.sub(r"[.!]$", "", text).lower()
            yield _Said(Line(text, "sentences", path.stem, fact, ""), len(start) + 1 if mark else None)


def _table_said(table: Table) -> Iterator[_Said]:
    """Every line of one relation."""
    for number, row in enumerate(table.rows):
        fact = f"{table.relation}: {' | '.join(cell.text for cell in row)}"
        cells = dict(zip(table.columns, row, strict=True))
        for phrasing in table.phrasings:
            if phrasing.kind == "more" and (
                number not in table.well_known or _unit(0, "more", fact, phrasing.template) >= MORE_SHARE
            ):
                continue
            text, cut = _say(phrasing, cells, table.answers)
            forms = []
            as_sentence = _unit(0, "sentence", fact, phrasing.template) < SENTENCE_SHARE
            if phrasing.kind == "say" or (phrasing.kind != "low" and as_sentence):
                # The answer to a question stays small: a word in two guises takes twice the learning.
                said = re.sub(r"[.!]$", "", text) if "? " in text else text
                if said[-1] not in ".!" and "? " not in said:
                    said += "?" if _ASKS.match(said) else "."
                said = re.sub(r"\bi\b", "I", said)
                forms.append(_SENTENCE_START.sub(lambda match: match[0].upper(), said))
            if phrasing.kind != "say" and not (phrasing.kind == "more" and as_sentence):
                typed = re.sub(r"[.!]$", "", text)
                keeps_names = _unit(0, "names", fact, phrasing.template) < KEPT_NAMES
                forms.append(typed if keeps_names else typed.lower())
            for form in forms:
                yield _Said(Line(form, table.relation, table.domain, fact, phrasing.template), cut)
