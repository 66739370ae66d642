"""Properties of the built-in text corpus: true splits, clean lines, readable tables."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tinylm.data import english, knowledge

ROOT = Path(__file__).parent.parent
CORPUS = knowledge.build()
LINES = knowledge.all_lines()
TABLES = knowledge.read_tables()
PARTS = {"train": CORPUS.train, "validation": CORPUS.validation, "test": CORPUS.test}
HELD_OUT = {part: {knowledge.normalise(line) for line in lines if part != "train"} for part, lines in PARTS.items()}
PROBES = CORPUS.validation_probes + CORPUS.test_probes

HEAD = """# domain: animals
# columns: animal, young
# answers: young
# both: a baby {animal} is called {a young}.
# say: {a young} is a baby {animal}.
# say: {s animal} have {s young}.
# low: what is a baby {animal} called? {a young}
# say: the young of {a animal} is {a young}.
"""


def digest(corpus: knowledge.Corpus) -> str:
    return hashlib.sha256(repr(corpus).encode()).hexdigest()


def write(folder: Path, text: str) -> Path:
    path = folder / "young.tsv"
    path.write_text(text, encoding="utf-8")
    return path


# The splits


def test_the_same_seed_gives_the_same_corpus_in_every_process():
    code = (
        "import hashlib; from tinylm.data import english, knowledge;"
        "print(hashlib.sha256(repr(knowledge.build()).encode()).hexdigest())"
    )
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        assert result.stdout.strip() == digest(CORPUS), f"another corpus with PYTHONHASHSEED={hash_seed}"


def test_another_seed_holds_out_other_lines():
    other = knowledge.build(seed=1)
    assert set(other.test) != set(CORPUS.test)
    assert {line for part in (other.train, other.validation, other.test) for line in part} == {
        line for part in PARTS.values() for line in part
    }


def test_building_takes_seconds():
    start = time.process_time()
    knowledge.build()
    assert time.process_time() - start < 6


def test_every_line_is_in_exactly_one_part():
    together = [line for lines in PARTS.values() for line in lines]
    assert len(together) == len(set(together))
    assert set(together) == {line.text for line in LINES}


def test_no_held_out_line_is_in_training_even_without_case_and_punctuation():
    train = {knowledge.normalise(line) for line in CORPUS.train}
    assert not train & HELD_OUT["validation"]
    assert not train & HELD_OUT["test"]
    assert not HELD_OUT["validation"] & HELD_OUT["test"]


def test_no_probe_and_its_answer_start_a_training_line():
    starts = Counter()
    for line in CORPUS.train:
        words = knowledge.normalise(line).split()
        starts.update(" ".join(words[:end]) for end in range(1, len(words) + 1))
    leaks = [probe.line.text for probe in PROBES if starts[knowledge.normalise(probe.line.text)]]
    assert not leaks


def test_validation_and_test_hold_about_four_percent_each():
    for part in ("validation", "test"):
        assert 0.03 < len(PARTS[part]) / len(LINES) < 0.05, part


def test_a_grown_table_keeps_the_held_out_lines_of_the_old_facts(tmp_path):
    rows = [f"beast{number}\tcub{number}" for number in range(200)]
    write(tmp_path, HEAD + "\n".join(rows[:150]))
    before = knowledge.build(folder=tmp_path)
    write(tmp_path, HEAD + "\n".join(rows))
    after = knowledge.build(folder=tmp_path)
    assert before.test
    assert set(before.test) <= set(after.test)
    assert set(before.train) <= set(after.train)


# The probes


def test_a_probe_and_its_own_answer_start_its_line():
    for probe in PROBES:
        assert probe.line.text.startswith(probe.prompt), probe
        assert probe.line.text[len(probe.prompt) :].lstrip().startswith(probe.answers[0]), probe
        assert probe.prompt == probe.prompt.strip()


def test_the_fact_of_a_probe_is_in_training_in_another_phrasing():
    train = set(CORPUS.train)
    taught = {line.fact for line in LINES if line.text in train}
    assert [probe.line.text for probe in PROBES if probe.line.fact not in taught] == []


def test_the_answer_of_a_probe_ends_three_other_lines_of_its_fact():
    # A wording that alone asks for the plural, or the other way round, is no question of knowing it.
    train = set(CORPUS.train)
    taught = Counter()
    for line in LINES:
        if line.text in train and line.phrasing:
            words = knowledge.normalise(line.text).split()
            taught.update((line.fact, " ".join(words[start:])) for start in range(1, len(words)))
    few = [p.line.text for p in PROBES if taught[p.line.fact, knowledge.normalise(p.answers[0])] < 3]
    assert few == []


def test_a_probe_has_a_prompt_of_two_words_and_few_answers_not_given_away():
    for probe in PROBES:
        prompt = f" {knowledge.normalise(probe.prompt)} "
        assert len(prompt.split()) >= 2, probe
        assert len(probe.answers) >= 1, probe
        assert all(probe.answers), probe
        assert f" {knowledge.normalise(probe.answers[0])} " not in prompt, probe


def test_a_probe_accepts_every_answer_that_any_table_gives_for_its_prompt():
    ends: dict[str, set[str]] = {}
    for line in LINES:
        words = knowledge.normalise(line.text).split()
        for cut in range(2, len(words)):
            ends.setdefault(" ".join(words[:cut]), set()).add(" ".join(words[cut:]))
    tables = {table.relation: table for table in TABLES}
    for probe in PROBES:
        known = {knowledge.normalise(answer) for answer in probe.answers}
        column = re.findall(r"(\w+)\}\W*$", probe.line.phrasing)[0]
        table = tables[probe.relation]
        values = {knowledge.normalise(row[table.columns.index(column)].text) for row in table.rows}
        values |= {knowledge.normalise(row[table.columns.index(column)].plural) for row in table.rows}
        missing = (ends[knowledge.normalise(probe.prompt)] & values) - known
        assert not missing, (probe, missing)


def test_a_probe_accepts_what_another_true_line_goes_on_with(tmp_path):
    rows = "".join(f"beast{number}\tcub{number}\n" for number in range(300))
    write(tmp_path, HEAD + "# both: {animal} has {young}.\n# both: {animal} has a baby, {young}.\n" + rows)
    corpus = knowledge.build(folder=tmp_path)
    probes = [p for p in (*corpus.test_probes, *corpus.validation_probes) if p.prompt.endswith(" has")]
    assert len(probes) > 5
    for probe in probes:
        cub = "cub" + re.sub(r"\D", "", probe.prompt)
        assert [answer.casefold() for answer in probe.answers] == [cub, f"a baby {cub}"], probe


def test_probes_have_few_answers():
    assert sum(len(probe.answers) for probe in PROBES) / len(PROBES) < 2.5


def test_probes_come_from_most_relations():
    assert len(PROBES) >= 800
    assert len({probe.relation for probe in PROBES}) >= 0.9 * len(TABLES)


# The lines


def test_the_corpus_is_of_the_expected_size():
    texts = {line.text for line in LINES}
    assert len(texts) == len(LINES) >= 36_000
    assert sum(len(table.rows) for table in TABLES) >= 6_000
    assert len({table.domain for table in TABLES}) >= 40
    assert sum(not line.phrasing for line in LINES) >= 700


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.relation)
def test_every_relation_is_said_in_at_least_five_ways(table):
    assert len({knowledge.normalise(phrasing.template) for phrasing in table.phrasings}) >= 5


def test_an_answer_stays_taught_in_other_wordings_when_one_is_held_out():
    train = set(CORPUS.train)
    taught = Counter((line.fact, knowledge.normalise(line.text)) for line in LINES if line.text in train)
    endings = {(table.relation, p.template): p.last_column for table in TABLES for p in table.phrasings}
    left: dict[tuple[str, str], set[str]] = {}
    for line in LINES:
        if line.phrasing and taught[line.fact, knowledge.normalise(line.text)]:
            column = endings[line.relation, line.phrasing]
            left.setdefault((line.fact, column), set()).add(line.phrasing)
    for probe in PROBES:
        column = endings[probe.relation, probe.line.phrasing]
        assert len(left.get((probe.line.fact, column), ())) >= 2, probe


def test_the_place_of_an_answer_is_where_a_training_lines_answer_starts():
    starts = list(zip(CORPUS.train, CORPUS.answer_starts, strict=True))
    assert sum(start is not None for _, start in starts) > 0.7 * len(starts)
    place = dict(starts)
    assert place.get("Paris is the capital of France.", 24) == 24
    for text, start in starts:
        assert start is None or (0 < start < len(text) and text[start].isalnum()), text


def test_trees_lose_their_leaves_in_autumn():
    lines = [line for line in CORPUS.train if "leaves" in line.lower() and "autumn" in line.lower()]
    assert len(lines) >= 30
    assert sum(knowledge.normalise(line).endswith("in autumn") for line in lines) >= 10
    assert sum(knowledge.normalise(line).startswith("in autumn") for line in lines) >= 5


LETTERS = {"letter_after", "letter_place", "vowel", "word_start"}  # "A is a vowel"


def test_articles_fit_the_sound_of_the_next_word():
    wrong = []
    for line in LINES:
        for article, word in re.findall(r"\b([Aa]n?) ([A-Za-z-]+)", line.text):
            sound = re.match(r"(?i)hour|honest|heir|honour|x-ray", word) or (
                word[0].lower() in "aeiou" and not re.match(r"(?i)uni(?!n)|use|usu|uk|ut|eu|ewe|one\b|once", word)
            )
            if (article.lower() == "an") != bool(sound) and not (len(word) == 1 or line.relation in LETTERS):
                wrong.append(line.text)
    assert not wrong


def test_lines_are_clean():
    bad = {
        "two spaces or a space at an end": lambda text: text != " ".join(text.split()),
        "a space before a mark": lambda text: re.search(r"\s[.,!?:;]", text),
        "an unfilled field": lambda text: re.search(r"[{}|#/~\t]", text),
        "a doubled word": lambda text: re.search(r"\b(the|a|an|is|are|in|of|to|and|on|we|it|our) \1\b", text, re.I),
        "two marks": lambda text: re.search(r"[.,!?:;]{2}", re.sub(r"J\. M\. ", "", text)),
        "longer than 90 characters": lambda text: len(text) > 90,
        "not ASCII": lambda text: not text.isascii(),
        "a sentence that starts small": lambda text: text[-1] in ".!?" and text[0].islower(),
        "a small I": lambda text: text[-1] in ".!?" and re.search(r"\bi\b", text),
    }
    # A question that a statement asks at its end is typed small, and keeps its mark: "hello, how are you?"
    typed = {line.text for line in LINES if line.relation == "sentences" and line.text[-1] == "?"}
    for what, rule in bad.items():
        checked = [line for line in LINES if line.relation not in LETTERS]
        if what in ("a sentence that starts small", "a small I"):
            checked = [line for line in checked if line.text not in typed]
        found = [line.text for line in checked if rule(line.text)]
        assert found == [], what


def test_most_lines_are_short():
    assert sum(len(line.text) > 60 for line in LINES) < 0.02 * len(LINES)


def test_spelling_is_british():
    american = r"\b(color|center|gray|favorite|meter|liter|neighbor|mom|airplane|truck|cookie|sidewalk)s?\b"
    # "Airplane" is a word that readers may know; that it means a plane is a fact. The statements that have an answer
    # are what visitors from everywhere type, and may be American.
    answered = {said.line.fact for said in knowledge._all_said(knowledge.TABLES) if said.cut is not None}
    lines = [line.text for line in LINES if line.relation != "same" and (line.phrasing or line.fact not in answered)]
    assert [text for text in lines if re.search(american, text, re.IGNORECASE)] == []


# The tables


def test_a_noun_gets_its_article_and_its_plural():
    nouns = ["apple", "dog", "hour", "unicorn", "umbrella", "uniform", "uncle", "ewe", "ukulele", "onion"]
    articles = [english.with_article(noun).split()[0] for noun in nouns]
    assert articles == ["an", "a", "an", "a", "an", "a", "an", "a", "a", "an"]
    assert [english.plural_of(noun) for noun in ("cat", "box", "berry", "boy", "bush")] == [
        "cats",
        "boxes",
        "berries",
        "boys",
        "bushes",
    ]


def test_normalise_takes_away_case_and_punctuation_only():
    assert knowledge.normalise("What do bees make?  Honey.") == "what do bees make honey"
    assert knowledge.normalise("Your mother's mother") == "your mothers mother"
    assert knowledge.normalise("2 + 1 = 3.") == "2 + 1 = 3" != knowledge.normalise("2 - 1 = 3")
    assert knowledge.normalise("2+1=") == "2 + 1 =" and knowledge.normalise("well-known") == "well known"
    assert knowledge.normalise("bees make honey") != knowledge.normalise("bees makes honey")


def test_a_phrasing_agrees_with_its_nouns(tmp_path):
    head = "# domain: d\n# columns: thing\n# answers: thing\n# say: {a thing} {is/are thing} here.\n"
    head += "# say: one {thing}.\n# say: two {thing}.\n# say: no {thing}.\n# say: {s thing}.\n"
    write(tmp_path, head + "apple\n~milk\n+scissors\nmouse/mice\n")
    texts = [line.text for line in knowledge.all_lines(tmp_path)]
    for text in ("An apple is here.", "Milk is here.", "Scissors are here.", "A mouse is here.", "Mice.", "Apples."):
        assert text in texts
    write(tmp_path, head.replace("{a thing} {is/are thing} here", "{s thing} {is/are thing} there") + "apple\n~milk\n")
    texts = [line.text for line in knowledge.all_lines(tmp_path)]
    assert "Apples are there." in texts and "Milk is there." in texts


def test_both_says_every_fact_as_typed_and_some_as_a_sentence_too(tmp_path):
    rows = "".join(f"Beast{number}\tCub{number}\n" for number in range(300))
    head = HEAD.replace("say:", "both:").replace("low:", "both:").replace("? {a young}\n", "? {a young}.\n")
    write(tmp_path, head + rows)
    texts = [line.text for line in knowledge.all_lines(tmp_path)]
    sentences = [text for text in texts if text.endswith(".") or text.startswith("What")]
    typed = [text for text in texts if text not in set(sentences)]
    assert len(typed) == 300 * 5
    names = sum("Cub" in text for text in typed)
    assert 0.8 < names / (knowledge.KEPT_NAMES * len(typed)) < 1.2
    assert 0.8 < len(sentences) / (knowledge.SENTENCE_SHARE * len(typed)) < 1.2
    # The answer to a question stays as it is typed.
    assert all(text.endswith(".") != ("? a Cub" in text) for text in sentences)


def test_more_wordings_are_said_of_well_known_facts_alone_and_of_each_a_share(tmp_path):
    rows = "".join(f"{'* ' if number % 2 else ''}Beast{number}\tCub{number}\n" for number in range(400))
    more = "".join(f"# more: {verb} {{a animal}} love {{a young}}\n" for verb in ("did", "does", "so", "and", "oh"))
    write(tmp_path, HEAD + more + rows)
    lines = [line for line in knowledge.all_lines(tmp_path) if " love " in line.text]
    of_fact = Counter(line.fact for line in lines)
    assert all(int(re.search(r"Beast(\d+)", line.text, re.I)[1]) % 2 for line in lines)
    assert 0.9 < len(lines) / (knowledge.MORE_SHARE * 5 * 200) < 1.1
    assert len(of_fact) > 180 and max(of_fact.values()) <= 5
    sentences = [line.text for line in lines if line.text[-1] in ".?"]
    assert 0.8 < len(sentences) / (knowledge.SENTENCE_SHARE * len(lines)) < 1.2
    assert all((text[-1] == "?") == text.startswith("Did") for text in sentences if not text.startswith("Does"))
    assert knowledge.read_tables(tmp_path)[0].well_known == frozenset(range(1, 400, 2))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (HEAD + "cat\tkitten\ndog\n", 10, "1 columns, expected 2"),
        (HEAD + "cat\tkitten\textra\n", 9, "3 columns, expected 2"),
        (HEAD + "cat\t\n", 9, "malformed cell"),
        (HEAD + "cat \tkitten\n", 9, "malformed cell"),
        (HEAD + "cat\t{kitten}\n", 9, "stray mark"),
        (HEAD + "cat\tkitten\ncat\tkitten\n", 10, "twice"),
        (HEAD + "cat\tkitten\n# note: late\n", 10, "above the facts"),
        (HEAD + "# sy: {animal}.\n", 9, "unknown key 'sy'"),
        (HEAD + "# just words\n", 9, "expected '# key: value'"),
        (HEAD + "# say: {food}.\n", 9, "no column 'food'"),
        (HEAD + "# say: {an animal}.\n", 9, "unknown form 'an'"),
        (HEAD + "# say: {animal.\n", 9, "stray brace"),
        (HEAD + "# say: {animal}\n", 9, "no mark at its end"),
        (HEAD + "# low: {animal}.\n", 9, "a mark at its end"),
        (HEAD + "# more: {animal}.\n", 9, "a mark at its end"),
        (HEAD + "# answers: food\n", 9, "not all columns"),
        ("cat\tkitten\n", 1, "before the domain"),
    ],
)
def test_a_broken_table_is_refused_with_its_file_and_line(tmp_path, text, line, problem):
    with pytest.raises(ValueError, match=rf"young\.tsv, line {line}: .*{re.escape(problem)}"):
        knowledge.read_table(write(tmp_path, text))


def test_a_table_with_few_phrasings_or_no_facts_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"young\.tsv: no facts"):
        knowledge.read_table(write(tmp_path, HEAD))
    with pytest.raises(ValueError, match=r"young\.tsv: 4 different phrasings, expected at least 5"):
        knowledge.read_table(write(tmp_path, "\n".join(HEAD.splitlines()[:-1]) + "\ncat\tkitten\n"))


def test_a_table_that_rarely_ends_in_its_answer_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"young\.tsv: 1 phrasings end in the answer 'animal', expected at least 4"):
        knowledge.read_table(write(tmp_path, HEAD.replace("answers: young", "answers: animal") + "cat\tkitten\n"))


def test_free_prompts_are_read_with_all_their_answers(tmp_path):
    path = tmp_path / "prompts.tsv"
    path.write_text("food\tbees make\thoney|wax \n", encoding="utf-8")
    (probe,) = knowledge.free_prompts(path)
    assert (probe.domain, probe.prompt, probe.answers) == ("food", "bees make", ("honey", "wax"))
    path.write_text("food\tbees make\thoney\nfood\tcows eat\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"prompts\.tsv, line 2"):
        knowledge.free_prompts(path)


def test_there_are_free_prompts_of_many_kinds():
    prompts = knowledge.free_prompts()
    assert len({knowledge.normalise(probe.prompt) for probe in prompts}) == len(prompts) >= 300
    assert len({probe.domain for probe in prompts}) >= 30
    assert all(1 <= len(probe.prompt.split()) <= 12 for probe in prompts)


def test_a_word_is_of_the_kind_whose_column_it_fills_most(tmp_path):
    write(tmp_path, HEAD + "cat\tkitten\nmouse/mice\tpup\npolar bear\tcub\n")
    kinds = knowledge.kinds_of_words(tmp_path)
    assert kinds["cat"] == kinds["mice"] == "animal" and kinds["kittens"] == "young" and "polar bear" not in kinds


@pytest.mark.parametrize(
    "sentence",
    ["No  good.", "No mark", "Two | marks | here.", "What is it? | a nose.", "We smell with our |nose.", " | nose."],
)
def test_a_broken_sentence_is_refused_with_its_file_and_line(tmp_path, sentence):
    (tmp_path / "home.txt").write_text(f"Fine.\n{sentence}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"home\.txt, line 2"):
        knowledge.read_sentences(tmp_path)


def test_a_sentence_with_an_answer_is_mostly_typed_and_its_answer_is_where_the_mark_stood(tmp_path):
    write(tmp_path, HEAD + "".join(f"beast{number}\tcub{number}\n" for number in range(20)))
    known = [f"In room {number} we meet {number} of our | friends." for number in range(300)]
    asked = [f"Who lives in house number {number}? | a friend" for number in range(300)]
    (tmp_path / "home.txt").write_text("\n".join([*known, *asked, "It rains."]) + "\n", encoding="utf-8")
    corpus = knowledge.build(folder=tmp_path)
    starts = dict(zip(corpus.train, corpus.answer_starts, strict=True))
    said = [text for text in corpus.train if "friend" in text]
    assert len(said) > 500 and starts.get("It rains.") is None
    for text in said:
        assert text[starts[text] :].rstrip(".") in ("friends", "a friend")
    sentences = [text for text in said if text[0].isupper()]
    assert 0.7 < len(sentences) / (knowledge.SENTENCE_SHARE * len(said)) < 1.3
    assert all((text[-1] == ".") == (text[0].isupper() and "? " not in text) for text in said)
    # What was read nowhere can't be asked for.
    assert not [probe for probe in corpus.validation_probes + corpus.test_probes if "friend" in probe.line.text]


def test_importing_reads_no_table():
    code = (
        "import sys; opened = [];"
        "sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == 'open' else None);"
        "import tinylm.data.knowledge; assert not [path for path in opened if 'tables' in path], opened"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
