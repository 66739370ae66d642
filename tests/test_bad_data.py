"""Data and settings that can't be trained on end in one clear line; those that look odd but can, in a sensible run."""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import signal
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

import tinylm
from tinylm import loop, recipes, training
from tinylm.data.batches import Lines
from tinylm.data.painter import paint
from tinylm.data.text import load_corpus, read_lines
from tinylm.tokenizer import Tokenizer

THINGS, COLOURS = ("sky", "sea", "rose", "lime", "coal"), ("blue", "red", "grey", "white")
GOOD = "".join(f"The {thing} is {colour}, they say.\n" for thing in THINGS for colour in COLOURS)
SIZES = ["d_model=16", "n_layers=1", "d_ff=16", "d_latent=4", "vocab_size=120", "batch_size=8", "stored_size=16"]
ENCODER = ["vision.channels=4,8", "vision.n_blocks=1,2", "vision.image_size=16"]


@pytest.fixture(autouse=True)
def in_time():
    """Nothing here may wait for somebody or read for ever."""

    def too_long(_signal, _frame):
        raise AssertionError("it takes too long")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def train_py(tmp_path, capsys):
    """train.py's main on a tiny model: (exit status, its lines on stdout, on stderr without the progress bars)."""
    import train

    def run(variant, *args, sizes=(), epochs="1"):
        capsys.readouterr()
        encoder = ENCODER if variant == "vision" else []
        where = ["--device", "cpu", "--out", str(tmp_path / "run"), "--epochs", epochs]
        status = train.main([variant, *map(str, args), *where, "--set", *SIZES, *encoder, *sizes])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        told = [line for line in err.splitlines() if line.strip() and "%|" not in line and "reading " not in line]
        return status, out.splitlines(), told

    return run


@pytest.fixture
def corpus(tmp_path):
    """Writes a text file; its path."""

    def write(content, name="mine.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return str(path)

    return write


def refused(result):
    """The one line with which a run is refused."""
    status, out, err = result
    assert status == 1
    assert out == []
    assert len(err) == 1
    return err[0]


def zipped(folder):
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("a.txt", GOOD)
    return (folder / "a.zip").read_bytes()


# Text that can't be trained on


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "has no text in it"),
        (" \n\t\n\u3000\n\r\n", "has no text in it"),
        (b"\xef\xbb\xbf", "has no text in it"),
        ("one line\n", "too few different lines"),
        ("one line\n" * 100, "too few different lines"),
        ("a" * 500, "too few different lines"),
        (b"fine\nfine too\nbad \xff\xfe\n", "line 3 has other bytes"),
        (b"fine\r\nfine too\r\ncaf\xe9\r\n", "line 3 has other bytes"),
        (b"fine\rcut \xe2\x82\rfine", "line 2 has other bytes"),
        (GOOD.encode() + b"nu\0l\n", "line 21 has a NUL byte"),
        (GOOD.encode("utf-16"), "is UTF-16 text"),
        (b"\xfe\xff" + GOOD.encode("utf-16-be"), "is UTF-16 text"),
        (GOOD.encode("utf-32"), "is UTF-32 text"),
        (GOOD.encode("utf-16-le"), "line 1 has a NUL byte"),
        (gzip.compress(GOOD.encode()), "is compressed by gzip"),
        (b"%PDF-1.7\nwords", "is a PDF"),
        (zipped, "is a zip archive"),
    ],
)
def test_a_text_that_cannot_be_trained_on_is_refused_with_the_file_and_the_line(
    train_py, corpus, tmp_path, content, named
):
    path = corpus(content(tmp_path) if callable(content) else content)
    told = refused(train_py("text", "--corpus", path))
    assert path in told and named in told
    # As a test file it is refused for the same reason, but for having few lines.
    if "too few" not in named:
        good = corpus("x y z\n" + GOOD, "good.txt")
        told = refused(train_py("text", "--corpus", good, "--test-corpus", path))
        assert path in told and named in told


def test_what_is_no_ordinary_file_is_refused_without_waiting_or_reading_for_ever(train_py, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    os.symlink("/dev/zero", tmp_path / "link")
    for path, named in [
        (tmp_path, "it is a folder"),
        (tmp_path / "pipe", "no ordinary file"),
        ("/dev/zero", "no ordinary file"),
        (tmp_path / "link", "no ordinary file"),
        (tmp_path / "loop", "symbolic links"),
        (tmp_path / "none", "No such file"),
        (sys.executable, "is not plain text: line 1"),
    ]:
        told = refused(train_py("text", "--corpus", path))
        assert str(path) in told and named in told


def test_an_empty_name_is_refused_and_not_taken_for_the_default(train_py, corpus):
    # As `--corpus "$MINE"` gives it.
    assert "is empty; give a text file" in refused(train_py("text", "--corpus", ""))
    assert "is empty; give a text file" in refused(train_py("text", "--corpus", corpus(GOOD), "--test-corpus", ""))
    assert "there is no folder ''" in refused(train_py("vision", "--flowers", ""))


def test_a_file_too_large_is_refused_before_it_fills_the_memory(train_py, tmp_path):
    with open(tmp_path / "large.txt", "wb") as file:
        file.truncate(2_000_000_000)  # a hole, which takes no room
    started = time.monotonic()
    told = refused(train_py("text", "--corpus", tmp_path / "large.txt"))
    assert "large.txt has more than 1000 MB" in told
    assert time.monotonic() - started < 20


def test_a_test_file_equal_to_the_training_file_is_refused(train_py, corpus):
    path = corpus(GOOD)
    told = refused(train_py("text", "--corpus", path, "--test-corpus", path))
    assert path in told and "every line of the test text" in told


def test_a_line_break_in_a_files_name_does_not_break_the_line(train_py, tmp_path):
    assert "no such" in refused(train_py("text", "--corpus", tmp_path / "no\nsuch"))


# Text that looks odd


def trained(result):
    status, out, err = result
    assert (status, err) == (0, []), err
    return out


@pytest.mark.parametrize("ends", ["\r\n", "\r", "\n\r\n", " \t\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks_of_all_systems_give_the_same_lines(corpus, ends, mark):
    assert read_lines(corpus(mark + GOOD.replace("\n", ends))) == GOOD.splitlines()


def test_a_corpus_smaller_than_a_batch_is_trained_on(train_py, corpus, tmp_path):
    out = trained(train_py("text", "--corpus", corpus("one line\ntwo lines\nthree of them\n"), epochs="3"))
    assert "3 steps" in out[0]
    assert math.isfinite(tinylm.load(tmp_path / "run").info["val_loss"])


def test_lines_longer_than_the_context_are_cut_and_counted(train_py, corpus, tmp_path):
    long = ["word " * 20_000, "x" * 100_000, "ab " * 33_000]
    out = trained(train_py("text", "--corpus", corpus("\n".join([*long, GOOD])), "--seed", 3))
    assert "lines are cut after 512 tokens, the context" in out[0]
    run = tinylm.load(tmp_path / "run")
    assert run.model.config.max_seq_len == 512
    assert run.info["n_lines"]["train"] + run.info["n_lines"]["validation"] == 23


def test_a_context_asked_for_that_is_shorter_than_the_lines_grows_to_them(train_py, corpus, tmp_path):
    trained(train_py("text", "--corpus", corpus(GOOD), sizes=["max_seq_len=2"]))
    run = tinylm.load(tmp_path / "run")
    assert run.model.config.max_seq_len == 1 + max(len(run.tokenizer.encode(line)) for line in GOOD.splitlines()[:20])


@pytest.mark.parametrize(
    "content", ["\n".join("a" * i for i in range(1, 40)), "\n".join("abcdefghijklm"), "a\x01b\nc\x1b[1m\n\u202ed\n"]
)
def test_one_character_repeated_single_characters_and_control_characters_are_trained_on(
    train_py, corpus, tmp_path, content
):
    trained(train_py("text", "--corpus", corpus(content)))
    metrics = (tmp_path / "run" / "metrics.json").read_text(encoding="utf-8")
    assert math.isfinite(json.loads(metrics, parse_constant=pytest.fail)["val_loss"])


def test_without_an_end_token_lines_of_one_token_teach_nothing(train_py, corpus):
    path = corpus("\n".join("abcdefghijklm"))
    told = refused(train_py("text", "--corpus", path, "--recipe", "article"))
    assert path in told and "every line is a single token" in told
    # Among others they are harmless, even in a batch of their own.
    path = corpus("\n".join([*"abcdefghijklm", *(f"{a} {b}{a}" for a in "abcd" for b in "efgh")]))
    trained(
        train_py("text", "--corpus", path, "--recipe", "article", sizes=["batch_size=2", "bucket=true"], epochs="2")
    )


def test_a_million_short_lines_are_read_in_a_time_that_grows_with_their_number(corpus):
    rng = random.Random(0)
    words = [f"w{i}" for i in range(3000)]
    lines = [" ".join(rng.choices(words, k=4)) for _ in range(100_000)]

    def seconds(n):
        path = corpus("\n".join(lines[:n]), f"{n}.txt")
        started = time.process_time()
        text = load_corpus(path)
        tokenizer = Tokenizer.train(text.train, 500)
        Lines.encode(text.train, tokenizer, 64)
        return time.process_time() - started

    seconds(5000)
    few, many = seconds(10_000), seconds(100_000)
    assert many < 30 * few  # a square would be 100
    assert many < 12  # two minutes for a million
    assert len(load_corpus(corpus("\n".join(f"line {i}" for i in range(200_000)))).validation) == 5000


def test_encoded_lines_are_those_of_the_slow_way():
    tokenizer = Tokenizer.train(GOOD.splitlines(), 60)
    lines = [*GOOD.splitlines(), "", "a", "??", "The sky " * 9]
    found = Lines.encode(lines, tokenizer, 20)
    for line, ids, length in zip(lines, found.ids.tolist(), found.lengths.tolist(), strict=True):
        wanted = [*tokenizer.encode(line), tokenizer.eos_id][:20]
        assert length == len(wanted)
        assert ids == [tokenizer.eos_id, *wanted] + [tokenizer.pad_id] * (len(ids) - 1 - length)


def test_a_name_that_is_no_text_does_not_cost_the_run_at_its_end(train_py, tmp_path):
    # Non-UTF-8 bytes in a name arrive as half characters, which no file in UTF-8 can hold.
    name = os.fsdecode(os.fsencode(str(tmp_path)) + b"/caf\xe9.txt")
    Path(name).write_text(GOOD, encoding="utf-8")
    trained(train_py("text", "--corpus", name, "--note", "my \udcff note"))
    info = tinylm.load(tmp_path / "run").info
    assert "caf\ufffd" in info["data"] and "\ufffd" in info["data_note"] and "caf" in info["command"]


# Pictures


@pytest.fixture
def pictures(tmp_path):
    """Writes a folder: names (bytes or text) with drawings, bytes, or what makes something else at that place."""

    def write(files):
        root = os.fsencode(tmp_path / "pictures")
        os.mkdir(root)
        for name, content in files.items():
            path = root + b"/" + (name if isinstance(name, bytes) else name.encode())
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if callable(content):
                content(path)
            elif isinstance(content, bytes):
                Path(os.fsdecode(path)).write_bytes(content)
            else:
                paint(*content, 24).save(os.fsdecode(path), format="PNG")
        return os.fsdecode(root)

    return write


TWO = {f"{kind}/{i}.png": (kind, i) for kind in ("rose", "iris") for i in range(4)}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({}, "holds no labelled pictures"),
        ({"rose": os.mkdir, "iris": os.mkdir}, "holds no labelled pictures"),
        ({name: content for name, content in TWO.items() if "rose" in name}, "has 1 label(s)"),
        ({"rose/1.png": ("rose", 1), "iris/1.png": ("iris", 1)}, "at least one label needs 3"),
        ({"rose/1.png": b"x", "iris/1.png": b""}, "can be read"),
    ],
)
def test_a_picture_folder_that_cannot_be_trained_on_is_refused(train_py, pictures, files, named):
    folder = pictures(files)
    status, _, err = train_py("vision", "--flowers", folder)
    assert status == 1
    assert len(err) == 1 and folder in err[0] and named in err[0]


def test_what_is_no_picture_among_good_ones_is_counted_named_and_passed_over(train_py, pictures, tmp_path):
    bad = {
        "rose/cut.png": b"\x89PNG\r\n\x1a\n",
        "iris/empty.jpg": b"",
        "rose/loop.png": lambda path: os.symlink(path, path),
        "iris/pipe.png": os.mkfifo,
    }
    out = trained(train_py("vision", "--flowers", pictures({**TWO, **bad})))
    assert out[0].startswith("passed over 4 file(s) that can't be read: ")
    assert all(name in out[0] for name in bad)
    assert tinylm.load(tmp_path / "run").info["labels"] == ["iris", "rose"]


def test_folders_that_are_linked_into_each_other_are_not_read_for_ever(train_py, pictures, tmp_path):
    around = {"rose/up": lambda path: os.symlink("..", path), "self": lambda path: os.symlink(".", path)}
    out = trained(train_py("vision", "--flowers", pictures({**TWO, **around})))
    assert tinylm.load(tmp_path / "run").info["labels"] == ["iris", "rose"]
    assert "no readable picture in self" in out[0]


def test_names_with_spaces_line_breaks_and_bytes_that_are_no_text_are_read(train_py, pictures, tmp_path):
    files = {
        **{f" two  words \n/{i} \n.png": ("rose", i) for i in range(4)},
        **{b"caf\xe9/caf\xe9%d.png" % i: ("iris", i) for i in range(4)},
        b"caf\xe9/bad\xff\n.png": b"no picture",
    }
    out = trained(train_py("vision", "--flowers", pictures(files)))
    assert out[0].startswith("passed over 1 file(s) that can't be read: caf\ufffd")
    assert len(out) < 10
    assert tinylm.load(tmp_path / "run").info["labels"] == ["caf\ufffd", "two words"]


def test_pictures_of_other_things_are_read_with_the_same_care(train_py, pictures, tmp_path):
    others = tmp_path / "others"
    others.mkdir()
    for i in range(4):
        paint("rose", i, 24).save(others / f"{i}.png")
    os.mkfifo(others / "pipe.png")
    os.symlink("loop", others / "loop")
    out = trained(train_py("vision", "--flowers", pictures(TWO), "--not-flowers", others))
    assert out[0] == "passed over 2 file(s) that can't be read: loop, pipe.png"


# Settings


NUMBERS = sorted(recipes._BOUNDS)
NO_SIZE = ["nan", "inf", "-inf", "-1", "", "1e400", "9" * 40]


@pytest.mark.parametrize("key", NUMBERS)
def test_no_value_of_a_recipe_is_taken_that_cannot_work(key):
    for value in NO_SIZE:
        if key == "clip" and value == "9" * 40:
            continue
        with pytest.raises(ValueError) as error:
            recipes.settle(training.Plan("vision", Path("unused"), settings={key: value}))
        assert key in str(error.value) and "\n" not in str(error.value)


def test_every_number_of_a_recipe_has_bounds_that_hold_the_recipes_themselves():
    recipe = recipes.RECIPES["default"]["vision"]
    numbers = {
        name for name, value in vars(recipe).items() if not isinstance(value, (bool, str)) and name != "special_tokens"
    }
    assert numbers == set(recipes._BOUNDS)


@pytest.mark.parametrize("key", ["d_model", "n_layers", "n_heads", "d_latent", "d_ff", "moe.n_experts", "moe.top_k"])
@pytest.mark.parametrize("value", ["nan", "-1", "0", "", "1000000000000", "9" * 40])
def test_no_size_of_a_model_is_taken_that_cannot_be_built(train_py, corpus, key, value):
    started = time.process_time()
    told = refused(train_py("moe", "--corpus", corpus(GOOD), sizes=[f"{key}={value}"]))
    assert "\n" not in told
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("option", "value"),
    [("--seed", "-1"), ("--seed", "9" * 30), ("--save-every", "-1"), ("--save-every", "nan"), ("--save-every", "inf")],
)
def test_a_number_on_the_command_line_that_cannot_work_is_refused_by_name(train_py, corpus, option, value):
    assert option in refused(train_py("text", "--corpus", corpus(GOOD), option, value))


# A loss that is no number


def test_a_loss_that_is_no_number_names_the_step_and_says_what_to_do(train_py, corpus, monkeypatch):
    spoil_the_loss(monkeypatch, 5)
    status, _, err = train_py("text", "--corpus", corpus(GOOD), epochs="10")
    assert status == 1
    assert err[-1] == (
        "text: the loss is nan at step 5; nothing of it was saved; "
        "start again with a smaller rate: --set learning_rate=0.001"
    )


def spoil_the_loss(monkeypatch, step):
    real, calls = loop.training_loss, []

    def spoiling(*args):
        calls.append(1)
        loss = real(*args)
        return type(loss)(*(part if part is None else part * math.nan for part in loss)) if len(calls) == step else loss

    monkeypatch.setattr(loop, "training_loss", spoiling)


def test_after_a_loss_that_is_no_number_the_run_goes_on_from_its_last_good_state(
    train_py, corpus, tmp_path, monkeypatch
):
    path = corpus(GOOD)
    trained(train_py("text", "--corpus", path))
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    spoil_the_loss(monkeypatch, 7)
    status, _, err = train_py("text", "--corpus", path, "--save-every", 0, epochs="10")
    monkeypatch.undo()
    assert status == 1
    assert "the loss is nan at step 7; its state at step 6 is kept" in err[-1]
    assert "--resume --set learning_rate=0.001" in err[-1]
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    state = torch.load(tmp_path / "run" / training.STATE, weights_only=True)
    assert state["progress"]["step"] == 6
    assert all(bool(tensor.isfinite().all()) for tensor in state["model"].values())
    trained(train_py("text", "--corpus", path, "--resume", sizes=["learning_rate=0.001"], epochs="10"))
    info = tinylm.load(tmp_path / "run").info
    assert info["steps"] == 30 and info["recipe_values"]["learning_rate"] == 0.001


def test_weights_that_are_no_numbers_do_not_replace_a_good_state(train_py, corpus, tmp_path, monkeypatch):
    # The loss is read before the step that spoils the weights, and nobody reads another before they are saved.
    real = loop.take_step

    def spoiling(task, *args):
        nats = real(task, *args)
        if len(list((tmp_path / "run").glob(training.STATE))):
            with torch.no_grad():
                task.model.head_bias[0] = math.inf
        return nats

    monkeypatch.setattr(loop, "take_step", spoiling)
    status, _, err = train_py("text", "--corpus", corpus(GOOD), "--save-every", 0, epochs="20")
    assert status == 1
    assert "the weights are no numbers any more at step 2; its state at step 1 is kept" in err[-1]
    state = torch.load(tmp_path / "run" / training.STATE, weights_only=True)
    assert all(bool(tensor.isfinite().all()) for tensor in state["model"].values())


def test_a_state_that_is_broken_or_of_other_data_is_refused_in_one_line(train_py, corpus, tmp_path, monkeypatch):
    path = corpus(GOOD)
    spoil_the_loss(monkeypatch, 3)
    assert train_py("text", "--corpus", path, "--save-every", 0, epochs="10")[0] == 1
    monkeypatch.undo()
    state = tmp_path / "run" / training.STATE
    whole = state.read_bytes()
    lines = GOOD.splitlines()
    corpus("\n".join([*lines[1:], lines[0]]))  # the same words, in another order
    status, _, err = train_py("text", "--corpus", path, "--resume", epochs="10")
    assert status == 1 and "data was" in err[-1]
    corpus(GOOD)
    for broken in (b"", b"no state", whole[: len(whole) // 2]):
        state.write_bytes(broken)
        status, _, err = train_py("text", "--corpus", path, "--resume", epochs="10")
        assert status == 1
        assert "training.pt can't be used" in err[-1] and len(err) == 1
    state.write_bytes(whole)
    trained(train_py("text", "--corpus", path, "--resume", epochs="10"))


def test_memory_that_is_not_enough_ends_the_run_in_a_line_that_says_what_to_do(train_py, corpus, monkeypatch):
    monkeypatch.setattr(loop, "training_loss", lambda *_args: torch.empty(2**60))
    status, _, err = train_py("text", "--corpus", corpus(GOOD))
    assert status == 1
    assert "memory is not enough" in err[-1] and "--set batch_size=2" in err[-1]
