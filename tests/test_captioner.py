"""What a captioner says equals whole captions read one by one; its answers equal pictures and slots changed by hand."""

import math

import pytest
import torch
from conftest import lively, random_images, tiny_config

import tinylm.captioner
from tinylm import Run, Tokenizer, VisionConfig, stream
from tinylm.captioner import MAX_CAPTION_TOKENS, Captioner, mute, occlusion_map, slot_effects
from tinylm.data.flowers import CAPTION_PROMPT, caption

LABELS = ("rose", "iris", "bird of paradise", "tulip", "water lily", "poppy", "azalea")
SPECIALS = {"with <eos>": ("<pad>", "<eos>", "<unk>"), "without <eos>": ("<pad>",)}
vision_variants = pytest.mark.parametrize("variant", ["vision", "vision+moe"])


@pytest.fixture(scope="module", params=SPECIALS)
def tokenizer(request):
    return tokenizer_with(SPECIALS[request.param])


def colourful_images(n, size=6, seed=0):
    """Noise in colours far apart, so that pictures differ in what is said of them."""
    colours = torch.rand(n, 3, 1, 1, generator=torch.Generator().manual_seed(seed + 100))
    return 6 * colours**2 * random_images(n, size, seed)


def tokenizer_with(special_tokens=SPECIALS["with <eos>"]):
    return Tokenizer.train([caption(label) for label in LABELS], 90, 8, special_tokens)


def make(variant="vision", tokenizer=None, seed=1, labels=LABELS, **settings):
    tokenizer = tokenizer or tokenizer_with()
    model = lively(tiny_config(variant, vocab_size=tokenizer.vocab_size, max_seq_len=40), seed)
    with torch.no_grad():
        for head in model.encoder.slot_heads:
            head[-1].weight.mul_(3)  # what is said hangs on the picture
        if tokenizer.unk_id is not None:
            model.head_bias[tokenizer.unk_id] -= 9
    return Captioner(model, tokenizer, labels, **settings)


@torch.no_grad()
def whole_logprob(captioner, image, label, slots=None):
    """Log-likelihood of a whole caption behind its fixed beginning: no cache, one row, every token looked up.

    `slots` (S, D) are put into the encoder's output by hand.
    """
    encode, eos = captioner.tokenizer.encode, captioner.tokenizer.eos_id
    ids = encode(caption(label)) + ([] if eos is None else [eos])
    hook = captioner.model.encoder.register_forward_hook(lambda _m, _i, out: out if slots is None else slots[None])
    logits = captioner.model(torch.tensor([ids[:-1]]), image[None]).logits[0].double()
    hook.remove()
    logprobs = logits.log_softmax(dim=-1)
    return sum(float(logprobs[t - 1, ids[t]]) for t in range(len(encode(CAPTION_PROMPT)), len(ids)))


def whole_logprobs(captioner, image, slots=None):
    return [whole_logprob(captioner, image, label, slots) for label in captioner.labels]


def shares(logprobs, temperature=1.0):
    powers = [math.exp((logprob - max(logprobs)) / temperature) for logprob in logprobs]
    return [power / sum(powers) for power in powers]


# What it says


@vision_variants
def test_a_labels_likelihood_is_that_of_its_whole_caption_read_alone(variant, tokenizer):
    captioner, images = make(variant, tokenizer), colourful_images(3)
    lengths = {len(tokenizer.encode(caption(label))) for label in LABELS}
    assert 1 < len(lengths) < len(LABELS)  # captions of one length are read together
    found = captioner.logprobs(captioner.slots(images))
    right = torch.tensor([whole_logprobs(captioner, image) for image in images])
    torch.testing.assert_close(found, right, atol=1e-3, rtol=0)
    assert (right[0] - right[1]).abs().max() > 0.1


@vision_variants
def test_greedy_captions_equal_generation_one_by_one(variant, tokenizer):
    prompt, eos = tokenizer.encode(CAPTION_PROMPT), tokenizer.eos_id
    end = tokenizer.encode("!")[0] if eos is None else eos
    lengths = set()
    for seed in range(6):
        captioner, images = make(variant, tokenizer, seed), colourful_images(6, seed=seed)
        with torch.no_grad():
            captioner.model.head_bias[end] += 2.0
        for image, text in zip(images, captioner.greedy(captioner.slots(images)), strict=True):
            steps = stream(captioner.model, prompt, image[None], MAX_CAPTION_TOKENS, eos_id=eos)
            right = CAPTION_PROMPT + tokenizer.decode([step.token_id for step in steps])
            if eos is None and "!" in right:  # a model that never stops by itself
                right = right[: right.index("!") + 1]
            assert text == right
            lengths.add(len(text))
    assert len(lengths) > 4


@vision_variants
def test_pictures_do_not_mix_whatever_is_read_together(monkeypatch, variant):
    captioner, images = make(variant), colourful_images(7)
    alone = [captioner.slots(image[None]) for image in images]
    logprobs = torch.cat([captioner.logprobs(slots) for slots in alone])
    texts = [captioner.greedy(slots)[0] for slots in alone]
    assert len(set(texts)) > 1
    for n_pictures, n_captions in ((256, 1024), (3, 2 * len(LABELS)), (1, 1)):
        monkeypatch.setattr(tinylm.captioner, "MAX_PICTURES", n_pictures)
        monkeypatch.setattr(tinylm.captioner, "MAX_CAPTIONS", n_captions)
        slots = captioner.slots(images)
        torch.testing.assert_close(slots, torch.cat(alone), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(captioner.logprobs(slots), logprobs, atol=1e-3, rtol=0)
        assert captioner.greedy(slots) == texts


@pytest.mark.parametrize(("n_captions", "parts"), [(1, [1] * 8), (3 * len(LABELS) + 1, [3, 3, 2]), (10**6, [8])])
def test_no_more_captions_are_read_at_once_than_memory_is_kept_for(monkeypatch, n_captions, parts):
    captioner = make()
    slots, read = captioner.slots(colourful_images(8)), []
    monkeypatch.setattr(tinylm.captioner, "MAX_CAPTIONS", n_captions)

    def note(_model, inputs, named, _output):
        if named.get("slots") is not None:
            read.append(len(inputs[0]))

    captioner.model.register_forward_hook(note, with_kwargs=True)
    captioner.logprobs(slots)
    assert read == parts


def test_the_model_may_be_training_and_is_left_as_it_was():
    captioner, images = make(), colourful_images(4)
    slots = captioner.slots(images)
    for mode in (True, False):
        captioner.model.train(mode)
        before = {name: tensor.clone() for name, tensor in captioner.model.state_dict().items()}
        assert torch.equal(captioner.slots(images), slots)
        captioner.logprobs(slots)
        captioner.greedy(slots)
        with pytest.raises(RuntimeError):
            captioner.slots(images.long())
        assert all(module.training is mode for module in captioner.model.modules())
        assert all(torch.equal(tensor, before[name]) for name, tensor in captioner.model.state_dict().items())


def test_slots_can_be_changed_and_trained_on_by_the_caller():
    captioner = make()
    slots = captioner.slots(colourful_images(2))
    shift = torch.zeros(24, requires_grad=True)
    captioner.model(torch.tensor([[1], [2]]), slots=slots + shift).logits.sum().backward()
    assert shift.grad.abs().sum() > 0
    slots[0] = 0


# How sure it is


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_probabilities_are_the_likelihoods_at_the_temperature(temperature):
    captioner = make(temperature=temperature)
    logprobs = torch.tensor(
        [[-1.0, -3.0, -0.5, -9.0, -2.0, -2.5, -4.0], [-40.0, -41.0, -42.0, -50.0, -45.0, -49.0, -90.0]]
    )
    found = captioner.probabilities(logprobs)
    for row, right in zip(found.tolist(), logprobs.tolist(), strict=True):
        assert row == pytest.approx(shares(right, temperature), abs=1e-5)
    assert captioner.flower_scores(logprobs).tolist() == pytest.approx([max(row) for row in found.tolist()], abs=1e-6)


def test_the_temperature_changes_probabilities_but_not_their_order_nor_what_is_said():
    images = colourful_images(3)
    plain = make()
    slots = plain.slots(images)
    for temperature in (0.2, 5.0):
        scaled = make(temperature=temperature)
        assert torch.equal(scaled.logprobs(slots), plain.logprobs(slots))
        assert scaled.greedy(slots) == plain.greedy(slots)
        for image in images:
            ours, theirs = scaled.ranked(image[None]), plain.ranked(image[None])
            assert [label for label, _ in ours] == [label for label, _ in theirs]
            assert (ours[0][1] > theirs[0][1]) == (temperature < 1)


@vision_variants
def test_ranked_labels_come_likeliest_first_with_their_own_probabilities(variant):
    captioner = make(variant, temperature=2.0)
    orders = set()
    for image in colourful_images(4):
        right = dict(zip(LABELS, shares(whole_logprobs(captioner, image), 2.0), strict=True))
        found = captioner.ranked(image[None])
        assert [label for label, _ in found] == sorted(LABELS, key=lambda label: -right[label])
        assert dict(found) == pytest.approx(right, abs=1e-4)
        orders.add(tuple(label for label, _ in found))
    assert len(orders) > 1


# What it says it from


def test_muted_slots_are_zeros_and_the_others_stay():
    slots = torch.randn(2, 4, 24)
    kept = slots.clone()
    found = mute(slots, (1, 3))
    assert (found[:, [1, 3]] == 0).all()
    assert torch.equal(found[:, [0, 2]], kept[:, [0, 2]])
    assert torch.equal(slots, kept)
    assert torch.equal(mute(slots, ()), kept)
    assert (mute(slots, iter(range(4))) == 0).all()
    with pytest.raises(IndexError):
        mute(slots, [4])


@vision_variants
@pytest.mark.parametrize("swapped", [False, True])
@torch.no_grad()
def test_slot_effects_equal_the_model_run_by_hand_with_those_slots(variant, swapped):
    captioner = make(variant, temperature=1.5)
    image, other = colourful_images(2, seed=4)
    whole = captioner.model.encoder(image[None])[0]
    new = captioner.model.encoder(other[None])[0] if swapped else torch.zeros_like(whole)
    for label in ("tulip", "bird of paradise"):
        found = slot_effects(captioner, image[None], label, other[None] if swapped else None)
        assert [effect.slot for effect in found] == [0, 1, 2, 3]
        before = whole_logprob(captioner, image, label)
        for slot, effect in enumerate(found):
            changed = torch.stack([new[s] if s == slot else whole[s] for s in range(4)])
            logprobs = whole_logprobs(captioner, image, changed)
            assert effect.logprob == pytest.approx(logprobs[LABELS.index(label)] - before, abs=1e-3)
            best = max(range(len(LABELS)), key=lambda i: logprobs[i])
            assert effect.label == LABELS[best]
            assert effect.probability == pytest.approx(shares(logprobs, 1.5)[best], abs=1e-4)
        assert max(abs(effect.logprob) for effect in found) > 0.1


def test_swapping_a_slot_with_the_same_picture_changes_nothing():
    captioner, image = make(), colourful_images(1)
    for effect in slot_effects(captioner, image, "iris", image):
        assert effect.logprob == pytest.approx(0, abs=1e-4)
        assert [effect.label, effect.probability] == pytest.approx(captioner.ranked(image)[0], abs=1e-5)


def one_pixel_captioner(row, column):
    """A captioner of pictures of 16 x 16 that sees one pixel and is blind to all others."""
    vision = VisionConfig(16, 4, "mlp", d_trunk=14, d_hidden=11)
    config = tiny_config("vision", vocab_size=tokenizer_with().vocab_size, max_seq_len=40, vision=vision)
    model = lively(config)
    with torch.no_grad():
        first = model.encoder.trunk[1].weight  # over (3, 16, 16), flattened
        seen = torch.zeros(3, 16, 16)
        seen[:, row, column] = 4.0
        first.mul_(seen.flatten()).sign_().mul_(2.0)
    return Captioner(model, tokenizer_with(), LABELS)


def test_an_occlusion_map_points_at_the_only_place_that_matters():
    row, column = 5, 10
    captioner, image = one_pixel_captioner(row, column), colourful_images(1, 16, seed=2)
    image[:, :, row, column] = torch.tensor([1.0, 0.0, 0.9])
    greyed = image.clone()
    greyed[:, :, row, column] = 0.5
    for label in ("rose", "water lily"):
        loss = whole_logprob(captioner, image[0], label) - whole_logprob(captioner, greyed[0], label)
        assert abs(loss) > 0.1
        found = occlusion_map(captioner, image, label, n_cells=4)
        assert found.shape == (4, 4)
        for i in range(4):
            for j in range(4):
                # The patch reaches one cell (4 pixels) to each side of its cell's middle.
                covered = abs(row + 0.5 - (4 * i + 2)) < 4 and abs(column + 0.5 - (4 * j + 2)) < 4
                assert float(found[i, j]) == pytest.approx(loss if covered else 0.0, abs=1e-3)
        assert (found.abs() > 0.05).sum() == 4


@pytest.mark.parametrize(("size", "n_cells"), [(6, 1), (6, 3), (6, 4), (6, 6), (9, 2), (9, 8), (16, 5)])
def test_occluding_patches_are_grey_two_cells_wide_and_around_their_cells_middle(monkeypatch, size, n_cells):
    vision = VisionConfig(size, 4, "mlp", d_trunk=14, d_hidden=11)
    config = tiny_config("vision", vocab_size=tokenizer_with().vocab_size, max_seq_len=40, vision=vision)
    captioner, image = Captioner(lively(config), tokenizer_with(), LABELS), colourful_images(1, size)
    seen = []
    captioner.model.encoder.register_forward_hook(lambda _m, inputs, _out: seen.append(inputs[0].clone()))
    kept = image.clone()
    occlusion_map(captioner, image, "rose", n_cells)
    (pictures,) = seen  # in one batch
    assert torch.equal(image, kept)
    assert torch.equal(pictures[0], image[0])
    assert len(pictures) == 1 + n_cells**2
    cell = size / n_cells
    for number, picture in enumerate(pictures[1:]):
        patch = (picture != image[0]).any(dim=0)
        assert (picture[:, patch] == 0.5).all()
        rows, columns = patch.any(dim=1).nonzero()[:, 0].tolist(), patch.any(dim=0).nonzero()[:, 0].tolist()
        assert int(patch.sum()) == len(rows) * len(columns)
        for pixels, place in ((rows, number // n_cells), (columns, number % n_cells)):
            middle = (place + 0.5) * cell
            first, last = middle - cell, middle + cell
            # Whole pixels, no more than what it takes to hold the patch within the picture.
            assert pixels == [p for p in range(size) if p + 1 > first + 1e-9 and p < last - 1e-9]


# Refusals


def info(**changes):
    whole = {"labels": list(LABELS), "flower_threshold": 0.4, "caption_temperature": 1.7}
    return {key: value for key, value in {**whole, **changes}.items() if value is not None}


def run_of(values, variant="vision"):
    tokenizer = tokenizer_with()
    return Run(lively(tiny_config(variant, vocab_size=tokenizer.vocab_size, max_seq_len=40)), tokenizer, values)


def test_a_run_folder_says_what_its_captioner_needs():
    run = run_of(info())
    captioner = Captioner.of(run)
    assert (captioner.model, captioner.tokenizer, captioner.labels) == (run.model, run.tokenizer, LABELS)
    assert (captioner.temperature, captioner.flower_threshold) == (1.7, 0.4)
    assert Captioner.of(run_of(info(caption_temperature=None))).temperature == 1.0
    assert Captioner.of(run_of(info(flower_threshold=0.0))).flower_threshold == 0.0


@pytest.mark.parametrize(
    ("values", "variant", "named"),
    [
        (info(labels=None), "vision", "names no labels"),
        (info(labels=[]), "vision", "names no labels"),
        (info(flower_threshold=None), "vision", "names no flower_threshold"),
        (info(caption_temperature=0), "vision", "temperature=0.0 must be a finite number above 0"),
        (info(caption_temperature=float("nan")), "vision", "temperature=nan"),
        (info(), "text", "no vision"),
    ],
)
def test_a_run_folder_that_cannot_caption_is_refused_in_words(values, variant, named):
    with pytest.raises(ValueError, match=named):
        Captioner.of(run_of(values, variant))


def test_a_captioner_without_labels_is_refused():
    with pytest.raises(ValueError, match="at least one label"):
        make(labels=())


@pytest.mark.parametrize("shape", [(3, 6, 6), (1, 3, 8, 8), (1, 1, 6, 6), (1, 6, 6, 3)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"images must have shape \(batch, 3, 6, 6\), got"):
        make().slots(torch.zeros(shape))


def test_questions_that_cannot_be_answered_are_refused():
    captioner, image = make(), colourful_images(1)
    for ask in (slot_effects, occlusion_map):
        with pytest.raises(ValueError, match="knows no label 'oak'"):
            ask(captioner, image, "oak")
        with pytest.raises(ValueError, match="one image is questioned at a time, got 2"):
            ask(captioner, colourful_images(2), "rose", 2 if ask is occlusion_map else None)
    with pytest.raises(ValueError, match="one image is questioned at a time, got 2"):
        slot_effects(captioner, image, "rose", colourful_images(2))
    for n_cells in (0, -1, 7):
        with pytest.raises(ValueError, match=f"n_cells={n_cells} must be between 1 and the image's 6 pixels"):
            occlusion_map(captioner, image, "rose", n_cells)
