"""Data: batches whose targets are the next tokens, corpora and flower folders that say what is wrong with them."""

import dataclasses
import io
import itertools
import math
import random
from pathlib import Path

import datasets
import pytest
import torch
from PIL import Image

from tinylm import Tokenizer, image_to_tensor
from tinylm.data import augment as augment_module
from tinylm.data import painter
from tinylm.data.augment import augment
from tinylm.data.batches import IGNORED, Batch, Lines, PictureBatches, TextBatches, Views, resized
from tinylm.data.flowers import FlowerData, caption, clean_label, load_flowers
from tinylm.data.painter import paint
from tinylm.data.text import last_word_probes, load_corpus, read_lines

LINES = ["the cat", "a", "the dog ate the cat", "cats", "dogs ate a cat and a dog", "the end"]
WITH_EOS, WITHOUT = ("<pad>", "<eos>", "<unk>"), ("<pad>",)


@pytest.fixture(scope="module", params=[WITH_EOS, WITHOUT], ids=["eos", "pad alone"])
def tokenizer(request):
    return Tokenizer.train(LINES, 30, 4, request.param)


def examples(batch):
    """Each row as its list of (token read, token to predict), padding left out."""
    rows = []
    for ids, targets in zip(batch.ids.tolist(), batch.targets.tolist(), strict=True):
        rows.append([(i, t) for i, t in zip(ids, targets, strict=True) if t != IGNORED])
        real = len(rows[-1])
        assert targets[real:] == [IGNORED] * (len(targets) - real)  # padding on the right alone
    return rows


def pairs(tokens):
    return list(itertools.pairwise(tokens))


def ended(tokenizer, line):
    return [*tokenizer.encode(line), *([] if tokenizer.eos_id is None else [tokenizer.eos_id])]


# Lines


@pytest.mark.parametrize("full_width", [False, True])
def test_targets_are_the_next_tokens_and_the_line_ends_with_eos(tokenizer, full_width):
    lines = Lines.encode(LINES, tokenizer, 50)
    rows = torch.tensor([4, 0, 2])
    batch = lines.batch(rows, full_width=full_width)
    assert examples(batch) == [pairs(ended(tokenizer, LINES[i])) for i in rows.tolist()]
    assert batch.n_tokens == sum(len(row) for row in examples(batch))


def test_a_batch_from_the_start_predicts_the_first_token_too(tokenizer):
    start = tokenizer.pad_id if tokenizer.eos_id is None else tokenizer.eos_id
    batch = Lines.encode(LINES, tokenizer, 50).batch(torch.arange(6), from_start=True)
    assert examples(batch) == [pairs([start, *ended(tokenizer, line)]) for line in LINES]


def test_a_line_is_cut_at_the_context(tokenizer):
    lines = Lines.encode(LINES, tokenizer, 5)
    batch = lines.batch(torch.arange(6), from_start=True)
    assert batch.ids.shape[1] == 5
    start = tokenizer.pad_id if tokenizer.eos_id is None else tokenizer.eos_id
    assert examples(batch) == [pairs([start, *ended(tokenizer, line)[:5]]) for line in LINES]


def test_pad_tokens_in_a_line_are_learned_like_any_other():
    # Without <unk> an unknown character is <pad>: only what lies behind the line's end is padding.
    tokenizer = Tokenizer.train(["abc"], 30, 4, WITHOUT)
    batch = Lines.encode(["a?b", "abc?ccc"], tokenizer, 50).batch(torch.arange(2))
    assert examples(batch)[0] == pairs([*tokenizer.encode("a"), tokenizer.pad_id, *tokenizer.encode("b")])


def test_a_batch_is_as_wide_as_its_longest_line_or_as_the_longest_of_all(tokenizer):
    lines = Lines.encode(LINES, tokenizer, 50)
    longest = max(len(ended(tokenizer, line)) for line in LINES)
    short = torch.tensor([0, 5])
    assert lines.batch(short, full_width=True).ids.shape[1] == longest - 1
    assert lines.batch(short).ids.shape[1] == max(len(ended(tokenizer, LINES[i])) for i in (0, 5)) - 1


def test_routed_positions_are_the_slots_and_the_real_tokens():
    targets = torch.tensor([[5, 6, IGNORED], [7, IGNORED, IGNORED]])
    batch = Batch(torch.zeros(2, 3), targets)
    assert batch.routed(0).tolist() == [True, True, False, True, False, False]
    assert batch.routed(2).tolist() == [True, True, True, True, False, True, True, True, False, False]


# Text batches


def many_lines(n=137):
    rng = random.Random(0)
    return [" ".join(rng.choices(["cat", "dog", "the", "a"], k=rng.randint(2, 12))) + f" {i}" for i in range(n)]


def text_batches(lines, tokenizer, **options):
    encoded = Lines.encode(lines, tokenizer, 80)
    return TextBatches(encoded, Lines.encode(lines[:20], tokenizer, 80), **{"batch_size": 8, "seed": 3, **options})


def rows_of(batches):
    return [row for batch in batches for row in examples(batch)]


@pytest.mark.parametrize("bucket", [True, False])
def test_an_epoch_holds_every_line_once(tokenizer, bucket):
    lines = many_lines()
    source = text_batches(lines, tokenizer, bucket=bucket)
    batches = list(source.epoch(0))
    assert len(batches) == source.n_batches() == math.ceil(137 / 8)
    assert sorted(rows_of(batches)) == sorted(pairs(ended(tokenizer, line)) for line in lines)


def test_the_order_hangs_on_seed_and_epoch_alone(tokenizer):
    lines = many_lines()
    first = rows_of(text_batches(lines, tokenizer).epoch(4))
    source = text_batches(lines, tokenizer)
    torch.manual_seed(99)
    list(source.epoch(0))
    assert rows_of(source.epoch(4)) == first
    assert rows_of(source.epoch(5)) != first
    assert rows_of(text_batches(lines, tokenizer, seed=4).epoch(4)) != first


def test_batches_of_like_length_hold_less_padding(tokenizer):
    lines = many_lines()

    def padding(bucket):
        return sum(int((b.targets == IGNORED).sum()) for b in text_batches(lines, tokenizer, bucket=bucket).epoch(0))

    assert padding(True) < padding(False) / 3


def test_short_lines_do_not_all_come_first(tokenizer):
    widths = [batch.ids.shape[1] for batch in text_batches(many_lines(), tokenizer).epoch(0)]
    assert widths != sorted(widths)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_the_batches_begins_with_the_start_token(share):
    tokenizer = Tokenizer.train(LINES, 30, 4)
    source = text_batches(many_lines(800), tokenizer, start_share=share)
    started = [bool((batch.ids[:, 0] == tokenizer.eos_id).all()) for e in range(4) for batch in source.epoch(e)]
    assert sum(started) / len(started) == pytest.approx(share, abs=0.08 if 0 < share < 1 else 0)


def test_validation_holds_every_held_out_line_once_in_a_fixed_order(tokenizer):
    lines = many_lines()
    source = text_batches(lines, tokenizer)
    found = rows_of(source.validation())
    assert sorted(found) == sorted(pairs(ended(tokenizer, line)) for line in lines[:20])
    assert rows_of(source.validation()) == found


# Picture batches


def flat_flowers(counts=(20, 6, 3), size=8):
    """Pictures of one brightness each, 10 a label and one more a picture."""
    images, labels = [], []
    for label, count in enumerate(counts):
        for i in range(count):
            images.append(torch.full((3, size, size), 60 * label + 2 * i, dtype=torch.uint8))
            labels.append(label)
    stacked, ids = torch.stack(images), torch.tensor(labels)
    return FlowerData("test", ("iris", "rose", "water lily"), stacked, ids, stacked[::4], ids[::4])


def picture_batches(data, tokenizer, **options):
    names = {field.name for field in dataclasses.fields(Views)}
    views = Views(**{"augmented": False, **{key: value for key, value in options.items() if key in names}})
    rest = {key: value for key, value in options.items() if key not in names}
    options = {"image_size": 8, "max_seq_len": 60, "batch_size": 4, "seed": 1, **rest}
    return PictureBatches(data, tokenizer, views=views, **options)


@pytest.fixture(scope="module")
def caption_tokenizer():
    return Tokenizer.train([caption(label) for label in ("iris", "rose", "water lily")], 120, 8)


def test_every_picture_comes_once_an_epoch_with_its_own_caption(caption_tokenizer):
    data = flat_flowers()
    source = picture_batches(data, caption_tokenizer)
    shades = []
    batches = list(source.epoch(2))
    assert [len(batch.ids) for batch in batches] == [4] * 6 + [5]  # the one left over is not alone
    assert len(batches) == source.n_batches()
    for batch in batches:
        for image, row in zip(batch.images, examples(batch), strict=True):
            shade = round(float(image.mean()) * 255)
            shades.append(shade)
            assert row == pairs(ended(caption_tokenizer, caption(data.labels[shade // 60])))
    assert sorted(shades) == sorted(60 * label + 2 * i for label, n in enumerate((20, 6, 3)) for i in range(n))


def test_validation_pictures_come_in_order_with_their_captions(caption_tokenizer):
    data = flat_flowers()
    (batch,) = picture_batches(data, caption_tokenizer, augmented=True).validation()
    assert torch.equal(batch.images, data.validation_images.float() / 255)
    for label, row in zip(data.validation_labels.tolist(), examples(batch), strict=True):
        assert row == pairs(ended(caption_tokenizer, caption(data.labels[label])))


@pytest.mark.parametrize(("balance", "shares"), [(0.0, (20, 6, 3)), (0.5, (4.47, 2.45, 1.73)), (1.0, (1, 1, 1))])
def test_balance_evens_out_how_often_labels_come(caption_tokenizer, balance, shares):
    source = picture_batches(flat_flowers(), caption_tokenizer, balance=balance)
    seen = [0, 0, 0]
    for epoch in range(150):
        for batch in source.epoch(epoch):
            for image in batch.images:
                seen[round(float(image.mean()) * 255) // 60] += 1
    for count, share in zip(seen, shares, strict=True):
        assert count / sum(seen) == pytest.approx(share / sum(shares), abs=0.03)


@pytest.mark.parametrize("augmented", [True, False])
def test_pictures_of_an_epoch_hang_on_seed_and_epoch_alone(caption_tokenizer, augmented):
    data = flat_flowers()

    def epoch(number, seed=1):
        batches = picture_batches(data, caption_tokenizer, augmented=augmented, balance=0.5, seed=seed).epoch(number)
        return torch.cat([batch.images for batch in batches])

    first = epoch(3)
    torch.manual_seed(123)
    assert torch.equal(epoch(3), first)
    assert not torch.equal(epoch(4), first)
    assert not torch.equal(epoch(3, seed=2), first)


# Views


def views(images, size=24, seed=0):
    return augment(images, size, torch.Generator().manual_seed(seed))


def test_a_view_shows_one_picture_only():
    images = torch.randint(256, (3, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = views(images)
    changed = images.clone()
    changed[1] = 255 - changed[1]
    after = views(changed)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert not torch.equal(after[1], before[1])


@pytest.mark.parametrize("size", [16, 40, 64])
def test_views_have_the_models_size_and_stay_in_range(size):
    images = torch.randint(256, (16, 3, 40, 40), dtype=torch.uint8)
    found = views(images, size)
    assert found.shape == (16, 3, size, size)
    assert found.dtype == torch.float32
    assert found.min() >= 0 and found.max() <= 1
    assert images.dtype == torch.uint8


def test_half_of_the_views_are_mirrored_and_none_stands_on_its_head():
    image = torch.zeros(1, 3, 40, 40, dtype=torch.uint8)
    image[:, :, :, :20] = 60  # the left half
    image[:, :, :20, :] += 120  # the upper half, more so
    found = views(image.expand(400, -1, -1, -1))
    left = found[..., :12].mean(dim=(1, 2, 3)) > found[..., 12:].mean(dim=(1, 2, 3))
    upright = found[..., :12, :].mean(dim=(1, 2, 3)) > found[..., 12:, :].mean(dim=(1, 2, 3))
    assert 0.4 < float(left.float().mean()) < 0.6
    assert upright.float().mean() > 0.97


def test_views_differ_in_light_but_not_beyond_recognition():
    image = torch.full((1, 3, 40, 40), 128, dtype=torch.uint8)
    means = views(image.expand(300, -1, -1, -1)).mean(dim=(1, 2, 3))
    assert means.std() > 0.03
    assert means.min() > 0.5 * 0.7 and means.max() < 0.5 * 1.3


@pytest.mark.parametrize("size", [32, 24, 48])
def test_stored_pictures_are_shrunk_as_the_intake_shrinks_them(size):
    picture = paint("tulip", 3, 48)
    stored = image_to_tensor(picture, 48).mul(255).round().byte()[None]
    difference = (resized(stored, size)[0] - image_to_tensor(picture, size)).abs()
    assert difference.max() < 0.02


# Captions


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("tulip", "This flower is obviously a tulip!"),
        ("iris", "This flower is obviously an iris!"),
        ("orchid", "This flower is obviously an orchid!"),
        ("Anthurium", "This flower is obviously an Anthurium!"),
        ("water lily", "This flower is obviously a water lily!"),
        ("hour flower", "This flower is obviously an hour flower!"),
        ("unicorn plant", "This flower is obviously a unicorn plant!"),
        ("eucalyptus", "This flower is obviously a eucalyptus!"),
        ("umbrella plant", "This flower is obviously an umbrella plant!"),
    ],
)
def test_captions_say_a_or_an_by_the_sound(label, text):
    assert caption(label) == text


@pytest.mark.parametrize(
    ("folder", "label"), [("water-lily", "water lily"), ("Black_Eyed__Susan", "black eyed susan"), (" rose ", "rose")]
)
def test_folder_names_become_labels_as_people_say_them(folder, label):
    assert clean_label(folder) == label


# Corpora


def write(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def told(*args, **options):
    """The one-line message with which a corpus is refused."""
    with pytest.raises(ValueError) as error:
        load_corpus(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_is_read_a_line_an_example_with_or_without_bom_and_carriage_returns(tmp_path):
    path = write(tmp_path / "c.txt", "\ufeff  Zürich ist schön \r\n\r\n你好 🎉\r\n   \nlast\u2028line".encode())
    assert read_lines(path) == ["Zürich ist schön", "你好 🎉", "last\u2028line"]


def test_lines_are_set_aside_once_each_and_never_trained_on(tmp_path):
    lines = [f"line {i} ends here" for i in range(100)]
    path = write(tmp_path / "c.txt", "\n".join([*lines, *lines[:30]]))
    corpus = load_corpus(path, seed=5)
    assert sorted([*corpus.train, *corpus.validation]) == sorted(lines)
    assert len(corpus.validation) == 5
    assert load_corpus(path, seed=5) == corpus
    assert load_corpus(path, seed=6).validation != corpus.validation
    assert [p.prompt for p in corpus.probes] == [line.rsplit(" ", 1)[0] for line in corpus.validation]
    assert {p.answers for p in corpus.probes} == {("here",)}


def test_a_test_file_is_the_validation_text_without_the_lines_trained_on(tmp_path):
    path = write(tmp_path / "c.txt", "a b c\nd e f\ng h i\n")
    test = write(tmp_path / "t.txt", "x y z\nd e f\nx y z\n")
    corpus = load_corpus(path, test)
    assert corpus.train == ("a b c", "d e f", "g h i")
    assert corpus.validation == ("x y z",)
    assert "every line of the test text" in told(path, write(tmp_path / "same.txt", "a b c\n"))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "has no text in it"),
        ("\n \n\t\n", "has no text in it"),
        ("one line alone", "too few different lines"),
        ("twice\ntwice\ntwice\n", "too few different lines"),
        (b"good\nstill good\n\xff\xfe bad\n", "line 3"),
        ("Grüße".encode("utf-16"), "line 1"),
        (b"caf\xe9 au lait\n", "line 1"),
    ],
)
def test_a_file_that_cannot_be_trained_on_is_refused_by_name(tmp_path, content, named):
    path = write(tmp_path / "corpus.txt", content)
    message = told(path)
    assert path in message
    assert named in message


def test_a_corpus_that_cannot_be_read_is_refused_by_name(tmp_path):
    assert "missing.txt" in told(str(tmp_path / "missing.txt"))
    assert str(tmp_path) in told(str(tmp_path))
    good = write(tmp_path / "good.txt", "a b\nc d\ne f\n")
    assert "missing.txt" in told(good, str(tmp_path / "missing.txt"))
    assert "--test-corpus goes with --corpus FILE" in told("built-in", good)


def test_the_built_in_corpus_holds_out_lines_and_asks_about_them():
    corpus = load_corpus()
    assert len(corpus.train) > 5000
    assert not set(corpus.train) & set(corpus.validation)
    assert not set(corpus.train) & set(corpus.test)
    assert len(corpus.probes) > 100
    trained = set(corpus.train)
    for probe in corpus.probes:
        assert probe.prompt == probe.prompt.strip()
        assert probe.line.text not in trained
        assert f"{probe.prompt} {probe.answers[0]}." not in trained


def test_last_word_probes_ask_for_the_last_word_of_lines_long_enough():
    probes = last_word_probes(["the rose is red.", "too short", "one", "is it so?"])
    assert [(p.prompt, p.answers) for p in probes] == [("the rose is", ("red",)), ("is it", ("so",))]
    assert len(last_word_probes(["a b c"] * 1000)) == 300


# The Hub, played by a stand-in


def on_the_hub(monkeypatch, splits):
    def load_dataset(name):
        if isinstance(splits, Exception):
            raise splits
        return {split: datasets.Dataset.from_dict(columns) for split, columns in splits.items()}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


def test_text_from_the_hub_is_its_text_column_by_lines(monkeypatch):
    columns = {"id": [1, 2, 3], "title": ["x", "y", "z"], "text": ["a b\n\n c d ", "", "e f"]}
    on_the_hub(monkeypatch, {"train": columns, "test": {**columns, "text": ["g h", "", ""]}})
    corpus = load_corpus("hub:some/set")
    assert (corpus.train, corpus.validation) == (("a b", "c d", "e f"), ("g h",))


@pytest.mark.parametrize(
    ("splits", "named"),
    [
        (ConnectionError("no\nroute"), "--corpus FILE"),
        ({"test": {"text": ["a"]}}, "no train split"),
        ({"train": {"number": [1, 2]}}, "no text column"),
        ({"train": {"text": ["", " \n "]}}, "no text in its column"),
    ],
)
def test_a_hub_set_that_cannot_be_trained_on_is_refused_by_name(monkeypatch, splits, named):
    on_the_hub(monkeypatch, splits)
    message = told("hub:some/set")
    assert "some/set" in message
    assert named in message


# Flower folders


@pytest.fixture(scope="module")
def flower_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flowers")
    for label, kind, count in [("Water-Lily", "water lily", 4), ("iris", "iris", 12), ("rose", "rose", 2)]:
        (folder / label).mkdir()
        for i in range(count):
            paint(kind, i, 40).save(folder / label / f"{i}.png")
    return folder


def test_a_folder_gives_its_pictures_with_their_folders_names(flower_folder):
    data = load_flowers([str(flower_folder)], 24)
    assert data.labels == ("iris", "rose", "water lily")
    assert data.train_labels.bincount().tolist() == [11, 2, 3]
    assert data.validation_labels.bincount(minlength=3).tolist() == [1, 0, 1]
    every = {}
    for images, labels in [(data.train_images, data.train_labels), (data.validation_images, data.validation_labels)]:
        assert images.shape[1:] == (3, 24, 24)
        for image, label in zip(images, labels.tolist(), strict=True):
            every[image.numpy().tobytes()] = data.labels[label]
    right = {
        image_to_tensor(paint(kind, i, 40), 24).mul(255).round().byte().numpy().tobytes(): kind
        for kind, n in [("iris", 12), ("rose", 2), ("water lily", 4)]
        for i in range(n)
    }
    assert every == right


def test_the_split_of_a_folder_hangs_on_the_seed(flower_folder):
    def held_out(seed):
        return load_flowers([str(flower_folder)], 24, seed).validation_images

    assert torch.equal(held_out(1), held_out(1))
    assert len({held_out(seed).numpy().tobytes() for seed in range(6)}) > 1


def test_a_file_that_cannot_be_read_is_named_and_passed_over(tmp_path, flower_folder):
    for label in ("iris", "rose"):
        (tmp_path / label).mkdir()
        for i in range(4):
            paint(label, i, 32).save(tmp_path / label / f"{i}.jpg")
    (tmp_path / "iris" / "broken.jpg").write_bytes(b"no picture")
    whole = (tmp_path / "iris" / "0.jpg").read_bytes()
    (tmp_path / "rose" / "short.jpg").write_bytes(whole[: len(whole) // 2])
    warnings = []
    data = load_flowers([str(tmp_path)], 24, warn=warnings.append)
    assert len(data.train_labels) + len(data.validation_labels) == 8
    assert len(warnings) == 1
    assert "2 file(s)" in warnings[0]
    assert "broken.jpg" in warnings[0] and "short.jpg" in warnings[0]


def test_turned_photos_in_a_folder_are_stored_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for label in ("iris", "rose"):
        (tmp_path / label).mkdir()
        for i in range(3):
            picture = paint(label, i, 32)
            picture.transpose(Image.Transpose.ROTATE_90).save(tmp_path / label / f"{i}.png", exif=exif)
    data = load_flowers([str(tmp_path)], 32)
    right = {paint(label, i, 32).tobytes() for label in ("iris", "rose") for i in range(3)}
    every = torch.cat([data.train_images, data.validation_images]).permute(0, 2, 3, 1)
    assert {image.contiguous().numpy().tobytes() for image in every} == right


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({}, "no labelled pictures"),
        ({"1.png": "rose", "2.png": "iris"}, "no labelled pictures"),
        ({"rose/1.png": "rose", "rose/2.png": "rose", "rose/3.png": "rose"}, "has 1 label(s)"),
        ({"rose/1.png": "rose", "iris/1.png": "iris"}, "at least one label needs 3"),
        ({"rose/1.png": "rose", "rose/2.png": "rose"}, "has 1 label(s)"),
        ({"rose/1.png": None, "iris/1.png": None}, "can be read"),
        ({"rose/notes.txt": None, "iris/notes.txt": None}, "no labelled pictures"),
    ],
)
def test_a_folder_that_cannot_be_trained_on_is_refused_by_name(tmp_path, files, named):
    for name, kind in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if kind is None:
            path.write_text("no picture")
        else:
            paint(kind, 0, 32).save(path)
    with pytest.raises(ValueError) as error:
        load_flowers([str(tmp_path)], 24, warn=lambda _: None)
    message = str(error.value)
    assert str(tmp_path) in message
    assert named in message
    assert "\n" not in message


def test_a_folder_that_is_not_there_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(ValueError, match="there is no folder"):
            load_flowers([str(path)], 24)


@pytest.fixture
def lay_out(tmp_path):
    """Writes a folder: each name with the kind and the number of the drawing in it, or with bytes."""

    def write_files(files, root="photos"):
        folder = tmp_path / root
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir()
            elif isinstance(content, bytes):
                path.write_bytes(content)
            else:
                paint(*content, 32).convert("RGB").save(path, format="PNG")
        return str(folder)

    return write_files


def several(folder, kind, n=3, ending=".png"):
    return {f"{folder}/{i}{ending}": (kind, i) for i in range(n)}


def labels_by_picture(folder):
    """What a folder gives: the label of each drawing, by (kind, number), and the lines of warning."""
    warnings = []
    data = load_flowers([folder], 32, warn=warnings.append)
    drawn = {paint(kind, i, 32).tobytes(): (kind, i) for kind in ("rose", "iris", "tulip", "daisy") for i in range(4)}
    found = {}
    for images, labels in [(data.train_images, data.train_labels), (data.validation_images, data.validation_labels)]:
        for image, label in zip(images.permute(0, 2, 3, 1), labels.tolist(), strict=True):
            found[drawn[image.contiguous().numpy().tobytes()]] = data.labels[label]
    assert all("\n" not in line for line in warnings)
    return found, warnings


ROSES_AND_IRISES = {**several("rose", "rose"), **several("iris", "iris")}
RIGHT = {(kind, i): kind for kind in ("rose", "iris") for i in range(3)}


@pytest.mark.parametrize("name", ["thorns & [roses] *", "Ünï 花", "train_test", "a b"])
def test_a_folder_of_any_name_is_read(lay_out, name):
    assert labels_by_picture(lay_out(ROSES_AND_IRISES, name)) == (RIGHT, [])


def test_endings_count_in_any_case_and_the_content_tells_the_format(lay_out):
    files = {**several("rose", "rose", ending=".JPG"), **several("iris", "iris", ending=".Jpeg")}
    assert labels_by_picture(lay_out(files)) == (RIGHT, [])


def test_what_systems_leave_in_folders_is_passed_over_in_silence(lay_out):
    picture = io.BytesIO()
    paint("tulip", 0, 32).save(picture, format="PNG")
    junk = [".DS_Store", "rose/.DS_Store", "rose/Thumbs.db", "iris/desktop.ini", "rose/._1.png", ".git/x/1.png"]
    junk += ["__MACOSX/rose/1.png", ".hidden.png", "iris/.ipynb_checkpoints/1.png"]
    files = {name: picture.getvalue() for name in junk}
    assert labels_by_picture(lay_out({**ROSES_AND_IRISES, **files})) == (RIGHT, [])


def test_what_is_no_picture_is_named(lay_out):
    files = {"rose/IMG_1.HEIC": b"x", "notes.txt": b"x", "iris/all.zip": b"no archive", "iris/9.jpg": b"x"}
    files |= {"metadata.csv": b"file_name,label\nrose/1.png,iris\n"}
    found, warnings = labels_by_picture(lay_out({**ROSES_AND_IRISES, **files}))
    assert found == RIGHT
    assert len(warnings) == 1
    assert warnings[0].startswith("passed over 5 file(s) that can't be read: ")
    assert all(name in warnings[0] for name in files)


def test_pictures_beside_the_labels_folders_get_no_label(lay_out):
    found, warnings = labels_by_picture(lay_out({**ROSES_AND_IRISES, "a.png": ("tulip", 0), "b.png": ("rose", 3)}))
    assert found == RIGHT
    assert warnings == ["passed over 2 picture(s) that are in no label's folder: a.png, b.png"]


def test_pictures_in_deeper_folders_get_the_outermost_folders_label_and_are_named(lay_out):
    files = {**several("rose/2024/may", "rose"), **several("iris", "iris")}
    found, warnings = labels_by_picture(lay_out(files))
    assert found == RIGHT
    assert len(warnings) == 1
    assert "outermost folder's label: rose/2024/may/0.png" in warnings[0]


def test_folders_one_too_deep_are_refused(lay_out):
    folder = lay_out({f"flowers/{name}": content for name, content in ROSES_AND_IRISES.items()})
    with pytest.raises(ValueError, match=r"has 1 label\(s\).* a folder each"):
        load_flowers([folder], 24, warn=lambda _: None)


@pytest.mark.parametrize("nothing", [None, b"no picture"])
def test_a_label_without_a_readable_picture_is_named_and_left_out(lay_out, nothing):
    files = {"tulip" if nothing is None else "tulip/1.jpg": nothing}
    found, warnings = labels_by_picture(lay_out({**ROSES_AND_IRISES, **files}))
    assert found == RIGHT
    assert warnings[-1] == "no readable picture in tulip; left out of the labels"


@pytest.mark.parametrize("names", [("train", "test"), ("Train", "Valid"), ("training", "validation"), ("train", "x")])
def test_of_a_data_set_in_parts_the_training_part_alone_is_read(lay_out, names):
    files = {f"{names[0]}/{name}": content for name, content in ROSES_AND_IRISES.items()}
    files |= {f"{names[1]}/tulip/{i}.png": ("tulip", i) for i in range(3)}
    folder = lay_out(files)
    found, warnings = labels_by_picture(folder)
    assert found == RIGHT
    assert warnings == ([f"read {folder}/train alone; passed over x beside it"] if names[1] == "x" else [])


def test_parts_without_one_for_training_are_refused_instead_of_becoming_labels(lay_out):
    folder = lay_out({f"{part}/{name}": c for part in ("test", "val") for name, c in ROSES_AND_IRISES.items()})
    with pytest.raises(ValueError, match="test, val and no part called train; give the folder that has") as error:
        load_flowers([folder], 24)
    assert folder in str(error.value)
    assert labels_by_picture(folder + "/val") == (RIGHT, [])


def test_a_label_may_be_called_as_a_part_is(lay_out):
    found, warnings = labels_by_picture(lay_out({**several("test", "rose"), **several("train", "iris")}))
    assert found == {(kind, i): label for kind, label in (("rose", "test"), ("iris", "train")) for i in range(3)}
    assert warnings == []


@pytest.mark.parametrize("n", [1, 2])
def test_labels_of_one_or_two_pictures_are_trained_on_and_not_set_aside(lay_out, n):
    folder = lay_out({**several("rose", "rose", 3), **several("iris", "iris", n)})
    data = load_flowers([folder], 24)
    assert data.train_labels.bincount().tolist() == [n, 2]
    assert data.validation_labels.tolist() == [1]


def test_two_spellings_of_a_label_are_one(lay_out):
    files = {"Water-Lily/1.png": ("rose", 0), "water_lily/2.png": ("rose", 1), "---/3.png": ("iris", 0)}
    found, _ = labels_by_picture(lay_out({**files, "---/4.png": ("iris", 1), "---/5.png": ("iris", 2)}))
    assert found == {**{("rose", i): "water lily" for i in (0, 1)}, **{("iris", i): "---" for i in range(3)}}


def test_reading_a_folder_twice_after_a_change_shows_the_change(lay_out):
    folder = lay_out(ROSES_AND_IRISES)
    assert labels_by_picture(folder)[0] == RIGHT
    lay_out({"tulip/1.png": ("tulip", 1)})
    (Path(folder) / "rose" / "0.png").unlink()
    found, _ = labels_by_picture(folder)
    assert found == {**{key: kind for key, kind in RIGHT.items() if key != ("rose", 0)}, ("tulip", 1): "tulip"}


def test_as_many_flowers_are_drawn_as_asked_for(monkeypatch):
    monkeypatch.setattr(painter, "KINDS", ("rose", "iris"))
    data = load_flowers(["drawn:3"], 24)
    assert data.train_labels.bincount().tolist() == [3, 3]
    assert torch.equal(data.train_images[0], image_to_tensor(paint("rose", 0), 24).mul(255).round().byte())
    for source in ("drawn:0", "drawn:many", "drawn:-1"):
        with pytest.raises(ValueError, match=f"{source}: expected a number"):
            load_flowers([source], 24)


def test_several_sources_add_up(tmp_path, flower_folder):
    (tmp_path / "tulip").mkdir()
    for i in range(5):
        paint("tulip", i, 32).save(tmp_path / "tulip" / f"{i}.png")
    (tmp_path / "rose").mkdir()
    paint("rose", 50, 32).save(tmp_path / "rose" / "1.png")
    data = load_flowers([str(flower_folder), str(tmp_path)], 24)
    assert data.labels == ("iris", "rose", "tulip", "water lily")
    assert data.train_labels.bincount().tolist() == [11, 3, 4, 3]


def test_hub_flowers_take_their_names_from_the_label_column(monkeypatch):
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["Rose", "Water_Lily"])}
    )

    def load_dataset(name):
        assert name == "somebody/flowers"
        rows = {"image": [paint("rose", i, 32) for i in range(8)], "label": [0, 1] * 4}
        return {"train": datasets.Dataset.from_dict(rows, features=features)}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_flowers(["hub:somebody/flowers"], 24)
    assert data.labels == ("rose", "water lily")
    assert data.train_labels.bincount().tolist() == [3, 3]


def test_a_hub_out_of_reach_names_the_ways_without_it(monkeypatch):
    on_the_hub(monkeypatch, ConnectionError("no\nroute"))
    with pytest.raises(ValueError) as error:
        load_flowers(["hub"], 24)
    assert "--flowers drawn" in str(error.value)
    assert "--flowers DIR" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_mixed_picture_belongs_to_two_labels_by_area_and_has_no_caption():
    labels = ("iris", "rose")
    stored = torch.zeros(60, 3, 10, 10, dtype=torch.uint8)
    stored[30:] = 255
    ids = torch.tensor([0] * 30 + [1] * 30)
    data = FlowerData("test", labels, stored, ids, stored[:1], ids[:1])
    tokenizer = Tokenizer.train([caption(label) for label in labels])
    n_two = 0
    for epoch in range(20):
        views = Views(augmented=False, mixed_share=0.5)
        for batch in PictureBatches(data, tokenizer, 10, 32, 20, 0, views).epoch(epoch):
            white = batch.images.mean(dim=(1, 2, 3))
            torch.testing.assert_close(batch.shares, torch.stack([1 - white, white], dim=1))
            two = (white > 0) & (white < 1)
            assert not bool(two[10:].any())
            n_two += int(two.sum())
            assert len(batch.ids) == 10
            for row, share in zip(batch.targets, white[10:].tolist(), strict=True):
                text = tokenizer.decode([*tokenizer.encode(caption("iris"))[:1], *row[row != IGNORED].tolist()])
                assert text == caption(labels[round(share)])
    assert n_two > 100


@pytest.mark.parametrize("n", [1, 2, 5])
def test_at_least_one_picture_of_a_batch_has_a_caption(caption_tokenizer, n):
    source = picture_batches(flat_flowers((n, n, n)), caption_tokenizer, batch_size=n, mixed_share=1.0)
    assert all(len(batch.ids) >= 1 for batch in source.epoch(0))


def test_half_of_the_pictures_of_no_flower_are_of_other_things_where_there_are_some(caption_tokenizer):
    data = flat_flowers((40, 20, 20))
    others = torch.full((7, 3, 8, 8), 255, dtype=torch.uint8) - torch.arange(7, dtype=torch.uint8)[:, None, None, None]
    source = picture_batches(data, caption_tokenizer, batch_size=20, nothing_share=0.3, others=others)
    seen = set()
    for epoch in range(4):
        for batch in source.epoch(epoch):
            none = (batch.shares == 1 / 3).all(dim=1)
            assert none.tolist() == [False] * 14 + [True] * 6
            shades = batch.images.flatten(1)
            flat = (shades.amax(dim=1) == shades.amin(dim=1)) & (shades[:, 0] > 248 / 255)
            assert int(flat[14:17].sum()) == 3 and int(flat[17:].sum()) < 2
            seen |= {round(float(shade) * 255) for shade in shades[14:17, 0]}
    assert seen == set(range(249, 256))


def test_views_grow_over_the_run_and_end_at_the_last_side(caption_tokenizer):
    source = picture_batches(flat_flowers(), caption_tokenizer, sides=(4, 6, 8), n_epochs=6.0)
    assert [next(source.epoch(epoch)).images.shape[-1] for epoch in range(8)] == [4, 4, 6, 6, 8, 8, 8, 8]
    timed = picture_batches(flat_flowers(), caption_tokenizer, sides=(4, 6))
    assert next(timed.epoch(0)).images.shape[-1] == 6
    assert next(timed.validation()).images.shape[-1] == 8


def test_pictures_of_nothing_are_flat_blended_noise_or_words_and_often_grey():
    pictures = augment_module.nothing(60, 16, torch.Generator().manual_seed(0))
    assert pictures.shape == (60, 3, 16, 16)
    assert float(pictures.min()) >= 0 and float(pictures.max()) <= 1
    spread = pictures.flatten(1).std(dim=1)
    grey = (pictures - pictures.mean(dim=1, keepdim=True)).abs().amax(dim=(1, 2, 3)) < 1e-6
    flat = pictures.flatten(2).std(dim=2).amax(dim=1) < 1e-6
    assert 0.3 < float(grey.float().mean()) < 0.7
    assert 0.1 < float(flat.float().mean()) < 0.4
    assert float(spread.max()) > 0.2


def test_a_share_of_each_batch_are_pictures_of_nothing_that_belong_to_all_labels_alike():
    """Remembers a grey card that was called a dandelion with 82 %."""
    labels = ("iris", "lily", "rose", "tulip")
    stored = torch.full((80, 3, 12, 12), 255, dtype=torch.uint8)  # all white: whatever is not white is nothing
    ids = torch.zeros(80, dtype=torch.long)
    data = FlowerData("test", labels, stored, ids, stored[:1], ids[:1])
    tokenizer = Tokenizer.train([caption(label) for label in labels])
    batches = PictureBatches(data, tokenizer, 12, 32, 20, 0, Views(augmented=False, nothing_share=0.25))
    seen = set()
    for batch in batches.epoch(0):
        blank = batch.images.flatten(1).amin(dim=1) < 1
        assert int(blank.sum()) == 5
        assert bool((batch.shares[blank] == 0.25).all())
        assert batch.shares[~blank].tolist() == [[1, 0, 0, 0]] * 15
        for row, is_blank in zip(batch.targets, blank.tolist(), strict=True):
            text = tokenizer.decode([*tokenizer.encode(caption("iris"))[:1], *row[row != IGNORED].tolist()])
            assert is_blank or text == caption("iris")
            if is_blank:
                seen.add(text)
    assert seen == {caption(label) for label in labels}
    assert all(bool((batch.images == 1).all()) for batch in batches.validation())
