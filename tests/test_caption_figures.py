"""The figures of a captioner equal what slow loops over pictures find."""

import itertools
import json
import math
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from conftest import lively, random_images, tiny_config
from torch import Tensor

from tinylm import Tokenizer
from tinylm import caption_figures as figures
from tinylm.captioner import Captioner, mute
from tinylm.data.flowers import caption

LABELS = ("aster", "iris", "lily of the valley", "rose", "tulip")
N_SLOTS, WIDTH = 3, 4


@dataclass(frozen=True)
class Linear:
    """A captioner whose labels' scores are linear in its slots, and whose slots are the pictures' own values.

    A picture whose first value is above 0.9 gets a greedy caption that ends wrongly.
    """

    weights: Tensor  # (slots, width, labels)
    labels: tuple[str, ...] = LABELS
    temperature: float = 1.0
    flower_threshold: float = 0.0

    def slots(self, images):
        return images.reshape(len(images), *self.weights.shape[:2])

    def logprobs(self, slots_BSD):
        return torch.einsum("bsd,sdl->bl", slots_BSD, self.weights).log_softmax(dim=-1)

    def greedy(self, slots_BSD):
        best = self.logprobs(slots_BSD).argmax(dim=-1).tolist()
        odd = (slots_BSD[:, 0, 0] > 0.9).tolist()
        return [caption(self.labels[i]) + "?" * o for i, o in zip(best, odd, strict=True)]

    def probabilities(self, logprobs_BL):
        return (logprobs_BL / self.temperature).softmax(dim=-1)

    def flower_scores(self, logprobs_BL):
        return self.probabilities(logprobs_BL).max(dim=-1).values


def real(variant):
    """A captioner with a tiny model."""
    tokenizer = Tokenizer.train([caption(label) for label in LABELS], 120, 8)
    model = lively(tiny_config(variant, vocab_size=tokenizer.vocab_size, max_seq_len=40))
    return Captioner(model, tokenizer, LABELS)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def captioner():
    # The last slot says least.
    return Linear(drawn(N_SLOTS, WIDTH, len(LABELS)) * torch.tensor([6.0, 4.0, 0.5])[:, None, None], temperature=1.3)


def pictures(captioner, n=60, seed=1):
    """Images, and labels that are mostly the likeliest one."""
    images = torch.rand(n, N_SLOTS, WIDTH, 1, generator=torch.Generator().manual_seed(seed))
    logprobs = captioner.logprobs(captioner.slots(images))
    label_ids = (logprobs + 2.5 * drawn(n, len(LABELS), seed=seed)).argmax(dim=-1)
    return images, label_ids


def rows(tensor):
    return tensor.double().tolist()


def likeliest(row):
    return max(range(len(row)), key=lambda i: row[i])


# Functions of scores


def negative_log_likelihood(logprobs, label_ids, temperature):
    total = 0.0
    for row, right in zip(rows(logprobs), label_ids.tolist(), strict=True):
        total -= row[right] / temperature - math.log(sum(math.exp(value / temperature) for value in row))
    return total


@pytest.mark.parametrize(("true", "n"), [(0.3, 1500), (1.0, 1500), (3.0, 1500), (0.7, 4)])
def test_no_other_temperature_gives_the_right_labels_more_likelihood(true, n):
    # Labels drawn from the scores at a known temperature.
    logprobs = (3 * drawn(n, 7)).log_softmax(dim=-1)
    generator = torch.Generator().manual_seed(2)
    label_ids = torch.multinomial((logprobs / true).softmax(dim=-1), 1, generator=generator)[:, 0]
    found = figures.fit_temperature(logprobs, label_ids)
    least = negative_log_likelihood(logprobs, label_ids, found)
    for other in [10 ** (i / 20) for i in range(-20, 21)] + [found * 0.99, found * 1.01]:
        assert least <= negative_log_likelihood(logprobs, label_ids, other) + 1e-9, (found, other)
    if n > 100:
        assert found == pytest.approx(true, rel=0.15)
    assert figures.fit_temperature(logprobs, label_ids) == found


def test_a_temperature_comes_out_where_there_is_no_best_one():
    logprobs = torch.tensor([[5.0, 0.0, 1.0], [0.0, 4.0, 1.0]]).log_softmax(dim=-1)
    assert figures.fit_temperature(logprobs, torch.tensor([0, 1])) == 1.0  # all right
    always_wrong = figures.fit_temperature(logprobs, torch.tensor([1, 0]))
    assert always_wrong == pytest.approx(figures.MAX_TEMPERATURE)
    # An impossible label is as good as none, and as bad as can be where it is the right one.
    label_ids = torch.tensor([0, 0, 0, 1, 1])
    few = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    impossible = torch.cat([few, torch.full((5, 1), -math.inf)], dim=1)
    assert figures.fit_temperature(impossible, label_ids) == figures.fit_temperature(few, label_ids)
    assert figures.fit_temperature(impossible, label_ids + 1) == pytest.approx(figures.MAX_TEMPERATURE)


def calibration_by_hand(probs, label_ids, n_bins):
    bins = [[] for _ in range(n_bins)]
    for row, right in zip(rows(probs), label_ids.tolist(), strict=True):
        sure = max(row)
        for i, held in enumerate(bins):
            if i / n_bins < sure <= (i + 1) / n_bins:
                held.append((sure, likeliest(row) == right))
    assert sum(map(len, bins)) == len(label_ids)
    total = 0.0
    for held in bins:
        if held:
            mean_sure = sum(sure for sure, _ in held) / len(held)
            total += len(held) / len(label_ids) * abs(mean_sure - sum(hit for _, hit in held) / len(held))
    return total


@pytest.mark.parametrize("n_bins", [1, 4, 15])
def test_calibration_error_is_the_bins_weighted_distance_of_surety_and_success(n_bins):
    probs = (2 * drawn(200, 5)).softmax(dim=-1)
    label_ids = (2 * drawn(200, 5) + drawn(200, 5, seed=3)).argmax(dim=-1)
    found = figures.expected_calibration_error(probs, label_ids, n_bins)
    assert found == pytest.approx(calibration_by_hand(probs, label_ids, n_bins), abs=1e-9)


def test_calibration_error_is_zero_or_one_at_the_extremes():
    certain = torch.eye(3)
    assert figures.expected_calibration_error(certain, torch.tensor([0, 1, 2])) == 0
    assert figures.expected_calibration_error(certain, torch.tensor([1, 2, 0])) == 1
    # Right as often as it says; a bin's upper end belongs to it.
    half = torch.tensor([[0.5, 0.3, 0.2]] * 2)
    assert figures.expected_calibration_error(half, torch.tensor([0, 1]), 2) == pytest.approx(0)
    mixed = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.2, 0.2]])  # right, wrong: 0.5 and 0.6 off if apart, 0.1 together
    assert figures.expected_calibration_error(mixed, torch.tensor([0, 1]), 2) == pytest.approx((0.5 + 0.6) / 2)


@pytest.mark.parametrize("decimals", [1, 6])  # many ties, few
def test_auroc_is_the_share_of_pairs_in_order_with_ties_as_halves(decimals):
    flowers = torch.sigmoid(drawn(40) + 0.7).round(decimals=decimals)
    others = torch.sigmoid(drawn(23, seed=5)).round(decimals=decimals)
    points = [1.0 if f > o else 0.5 if f == o else 0.0 for f in flowers.tolist() for o in others.tolist()]
    assert (0.5 in points) == (decimals == 1)
    assert figures.auroc(flowers, others) == pytest.approx(sum(points) / len(points), abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 30, 200, 201, 1000])
@pytest.mark.parametrize("accepted", [0.5, 0.55, 0.965, 1.0])
@pytest.mark.parametrize("decimals", [1, 6])
def test_a_threshold_is_the_highest_that_the_wanted_share_reaches(n, accepted, decimals):
    scores = torch.rand(n, generator=torch.Generator().manual_seed(n)).round(decimals=decimals)
    values = scores.tolist()
    reached = [t for t in values if sum(v >= t for v in values) / n >= accepted - 1e-12]
    assert figures.threshold_for(scores, accepted) == max(reached)


def test_confusions_are_the_commonest_mistakes_first():
    right = torch.tensor([3, 3, 3, 2, 2, 4, 1, 1, 0, 0, 0])
    said = torch.tensor([4, 0, 0, 4, 4, 4, 0, 1, 1, 0, 1])
    expected = [
        ("aster", "iris", 2),
        ("lily of the valley", "tulip", 2),
        ("rose", "aster", 2),
        ("iris", "aster", 1),
        ("rose", "tulip", 1),
    ]
    assert figures.confusions(said, right, LABELS) == expected
    assert figures.confusions(said, right, LABELS, n=2) == expected[:2]
    assert figures.confusions(right, right, LABELS) == []


def test_labels_with_most_pictures_come_first():
    label_ids = torch.tensor([3, 3, 3, 0, 2, 2, 2, 4])
    assert figures.most_pictured(label_ids, LABELS, 3) == ["lily of the valley", "rose", "aster"]
    assert figures.most_pictured(torch.tensor([0, 1, 2]), LABELS, 2, torch.tensor([2, 2, 1])) == [LABELS[2], LABELS[1]]
    assert figures.most_pictured(label_ids, LABELS, 9) == ["lily of the valley", "rose", "aster", "tulip", "iris"]


# Figures of a captioner


def test_label_figures_equal_those_of_a_loop_over_pictures(captioner, monkeypatch):
    monkeypatch.setattr(figures, "N_LARGEST", 2)
    images, label_ids = pictures(captioner)
    largest = [LABELS[i] for i, _ in Counter(sorted(label_ids.tolist())).most_common(2)]
    letter, top1, top3, agree, large, by_label = [], [], [], [], [], {}
    probabilities = []
    for image, right in zip(images, label_ids.tolist(), strict=True):
        slots = captioner.slots(image[None])
        scores = captioner.logprobs(slots)[0].tolist()
        order = sorted(range(len(LABELS)), key=lambda i: -scores[i])
        said = captioner.greedy(slots)[0]
        letter.append(said == caption(LABELS[right]))
        top1.append(order[0] == right)
        top3.append(right in order[:3])
        agree.append(said == caption(LABELS[order[0]]))
        by_label.setdefault(LABELS[right], []).append(top1[-1])
        if LABELS[right] in largest:
            large.append(top1[-1])
        warm = [math.exp(score / captioner.temperature) for score in scores]
        probabilities.append([value / sum(warm) for value in warm])

    def mean(hits):
        return pytest.approx(sum(hits) / len(hits))

    found = figures.label_figures(captioner, images, label_ids)
    assert found["caption_accuracy"] == mean(letter)
    assert found["top1"] == mean(top1)
    assert found["top3"] == mean(top3)
    assert found["greedy_is_likeliest"] == mean(agree)
    assert found["ten_largest"] == mean(large)
    assert found["largest_labels"] == largest
    assert found["accuracy_by_label"] == {label: mean(hits) for label, hits in by_label.items()}
    assert found["n"] == 60
    error = calibration_by_hand(torch.tensor(probabilities), label_ids, 15)
    assert found["expected_calibration_error"] == pytest.approx(error, abs=1e-5)
    # All of them apart from each other, so that none stands in for another.
    names = ("caption_accuracy", "top1", "top3", "greedy_is_likeliest", "ten_largest")
    assert len({found[name] for name in names}) == len(names)
    assert figures.label_figures(captioner, images, label_ids, figures.read(captioner, images)) == found


def test_the_largest_labels_can_be_those_of_the_training_pictures(captioner):
    images, label_ids = pictures(captioner, 60)
    reading = figures.read(captioner, images)
    chosen = [LABELS[3], LABELS[1]]
    found = figures.figures(captioner, images, label_ids, reading=reading, slot_pictures=4, largest=chosen)["captions"]
    of_chosen = (label_ids == 3) | (label_ids == 1)
    hits = reading.logprobs.argmax(dim=1)[of_chosen] == label_ids[of_chosen]
    assert found["largest_labels"] == chosen
    assert found["ten_largest"] == pytest.approx(hits.float().mean().item(), abs=1e-4)


def test_labels_without_pictures_have_no_accuracy(captioner):
    images, _ = pictures(captioner, 6)
    label_ids = torch.tensor([1, 1, 4, 4, 4, 1])
    found = figures.label_figures(captioner, images, label_ids)
    assert set(found["accuracy_by_label"]) == {"iris", "tulip"}
    assert found["largest_labels"][:2] == ["iris", "tulip"] and found["ten_largest"] == found["top1"]


def test_with_two_labels_all_are_among_the_three_likeliest(captioner):
    few = Linear(captioner.weights[:, :, :2], LABELS[:2])
    found = figures.label_figures(few, random_images(8, 2), torch.tensor([0, 1] * 4))
    assert found["top3"] == 1


def test_a_slot_carries_what_the_caption_loses_without_it(captioner):
    images, label_ids = pictures(captioner)
    rights = label_ids.tolist()

    def without(image, subset):
        slots = captioner.slots(image[None]).clone()
        for slot in subset:
            slots[0, slot] = 0
        return slots

    def scores(subset):
        return [captioner.logprobs(without(image, subset))[0].tolist() for image in images]

    def accuracy(subset):
        said = [captioner.greedy(without(image, subset))[0] for image in images]
        return sum(text == caption(LABELS[right]) for text, right in zip(said, rights, strict=True)) / 60

    found = figures.slot_report(captioner, images, label_ids)
    assert found["n"] == 60
    assert found["accuracy"] == pytest.approx(accuracy(()))
    assert [entry["slot"] for entry in found["alone"]] == list(range(N_SLOTS))
    whole = scores(())
    for entry in found["alone"]:
        muted = scores((entry["slot"],))
        changes = [new[right] - old[right] for new, old, right in zip(muted, whole, rights, strict=True)]
        stays = [likeliest(new) == likeliest(old) for new, old in zip(muted, whole, strict=True)]
        assert entry["logprob"] == pytest.approx(sum(changes) / 60, abs=1e-4)
        assert entry["label_stays"] == pytest.approx(sum(stays) / 60)
    # The slot that was made to say least.
    assert max(found["alone"], key=lambda entry: entry["label_stays"])["slot"] == N_SLOTS - 1
    by_size = {}
    subsets = [subset for size in (1, 2, 3) for subset in itertools.combinations(range(N_SLOTS), size)]
    assert [entry["slots"] for entry in found["muted"]] == [list(subset) for subset in subsets]
    for entry in found["muted"]:
        assert entry["accuracy"] == pytest.approx(accuracy(entry["slots"]))
        by_size.setdefault(str(len(entry["slots"])), []).append(entry["accuracy"])
    means = {size: pytest.approx(sum(shares) / len(shares)) for size, shares in by_size.items()}
    assert found["accuracy_by_n_muted"] == means


def test_the_pictures_of_the_slot_report_are_drawn_from_all_over(captioner):
    images, label_ids = pictures(captioner, 50)
    found = figures.slot_report(captioner, images, label_ids, n_pictures=20)
    chosen = [i * 50 // 20 for i in range(20)]
    assert chosen[-1] > 45
    assert len(set(chosen)) == 20
    assert found == figures.slot_report(captioner, images[chosen], label_ids[chosen])
    assert found != figures.slot_report(captioner, images[:20], label_ids[:20])
    assert figures.figures(captioner, images, label_ids, slot_pictures=20)["slots"]["n"] == 20


def test_of_many_slots_only_sizes_with_few_subsets_are_muted():
    n_slots = figures.MAX_SUBSETS + 2
    many = Linear(drawn(n_slots, 2, len(LABELS)))
    found = figures.slot_report(many, torch.rand(3, n_slots, 2), torch.tensor([0, 1, 2]))
    assert [len(entry["slots"]) for entry in found["muted"]] == [1] * n_slots + [n_slots]
    assert set(found["accuracy_by_n_muted"]) == {"1", str(n_slots)}
    assert [entry["slot"] for entry in found["alone"]] == list(range(n_slots))


def test_not_a_flower_figures_compare_scores_with_each_other_and_with_the_threshold(captioner):
    images, _ = pictures(captioner)
    others = 0.3 * pictures(captioner, 25, seed=9)[0]
    captioner = Linear(captioner.weights, temperature=1.3, flower_threshold=0.8)
    flowers = captioner.flower_scores(captioner.logprobs(captioner.slots(images)))
    found = figures.not_flower_figures(captioner, flowers, others)
    scores = [float(captioner.flower_scores(captioner.logprobs(captioner.slots(o[None])))) for o in others]
    points = [1.0 if f > o else 0.5 if f == o else 0.0 for f in flowers.tolist() for o in scores]
    assert found["auroc"] == pytest.approx(sum(points) / len(points), abs=1e-6)
    assert found["flowers_turned_away"] == pytest.approx(sum(f < 0.8 for f in flowers.tolist()) / 60)
    assert found["others_refused"] == pytest.approx(sum(o < 0.8 for o in scores) / 25)
    assert (found["n_flowers"], found["n_others"]) == (60, 25)
    assert 0 < found["flowers_turned_away"] < found["others_refused"] < 1
    at_threshold = torch.tensor([0.8, 0.9], dtype=torch.double)
    assert figures.not_flower_figures(captioner, at_threshold, others)["flowers_turned_away"] == 0


def test_calibration_is_fitted_on_the_given_pictures_and_its_threshold_at_its_temperature(captioner):
    images, label_ids = pictures(captioner, 200)
    uncalibrated = Linear(captioner.weights, temperature=7.0, flower_threshold=0.99)
    found = figures.calibrated(uncalibrated, images, label_ids)
    assert (uncalibrated.temperature, uncalibrated.flower_threshold) == (7.0, 0.99)
    logprobs = captioner.logprobs(captioner.slots(images))
    least = negative_log_likelihood(logprobs, label_ids, found.temperature)
    for factor in (0.98, 1.02):
        assert least < negative_log_likelihood(logprobs, label_ids, found.temperature * factor)
    scores = found.flower_scores(logprobs).tolist()
    accepted = sum(score >= found.flower_threshold for score in scores)
    assert accepted == 193  # 0.965 of 200
    # What is written to a file and read again is the same.
    assert found.temperature == round(found.temperature, 4)
    assert found.flower_threshold == round(found.flower_threshold, 6)


def test_all_figures_are_gathered_rounded_and_survive_json(captioner):
    images, label_ids = pictures(captioner)
    others = 0.3 * pictures(captioner, 25, seed=9)[0]
    captioner = Linear(captioner.weights, temperature=1.2345, flower_threshold=0.456789)
    found = figures.figures(captioner, images, label_ids, others)
    assert json.loads(json.dumps(found, allow_nan=False)) == found

    def near(value):
        if isinstance(value, dict):
            return {key: near(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [near(part) for part in value]
        return pytest.approx(value, abs=5.001e-5) if isinstance(value, float) else value

    def floats(value):
        if isinstance(value, (dict, list)):
            for part in value.values() if isinstance(value, dict) else value:
                yield from floats(part)
        elif isinstance(value, float):
            yield value

    reading = figures.read(captioner, images)
    said = reading.logprobs.argmax(dim=-1)
    named = figures.label_figures(captioner, images, label_ids)
    wrong = figures.confusions(said, label_ids, LABELS)
    assert wrong
    assert found["caption_accuracy"] == found["captions"]["caption_accuracy"]
    assert found["caption_temperature"] == 1.2345
    assert found["flower_threshold"] == 0.456789
    assert found["captions"] == {**near(named), "confusions": [list(pair) for pair in wrong]}
    assert found["slots"] == near(figures.slot_report(captioner, images, label_ids))
    scores = captioner.flower_scores(reading.logprobs)
    assert found["not_flowers"] == near(figures.not_flower_figures(captioner, scores, others))
    for name in ("captions", "slots", "not_flowers"):
        assert all(value == round(value, 4) for value in floats(found[name]))
    assert figures.figures(captioner, images, label_ids)["not_flowers"] is None


def test_a_reading_in_hand_is_not_read_again(captioner):
    images, label_ids = pictures(captioner)
    reading = figures.read(captioner, images)
    mistaken = figures.Reading(reading.logprobs.roll(1, dims=1), ["nothing"] * 60)
    found = figures.figures(captioner, images, label_ids, reading=mistaken)["captions"]
    assert found["caption_accuracy"] == 0
    assert found["top1"] == pytest.approx(
        float((mistaken.logprobs.argmax(dim=1) == label_ids).double().mean()), abs=1e-4
    )


@pytest.mark.parametrize("variant", ["vision", "vision+moe"])
def test_no_pictures_are_refused(variant):
    captioner = real(variant)
    none, no_labels = random_images(0), torch.empty(0, dtype=torch.long)
    images, label_ids = random_images(4), torch.tensor([0, 1, 2, 3])
    scores = torch.empty(0, len(LABELS))
    some = torch.ones(3)
    for refused in (
        lambda: figures.fit_temperature(scores, no_labels),
        lambda: figures.expected_calibration_error(scores, no_labels),
        lambda: figures.auroc(some, some[:0]),
        lambda: figures.auroc(some[:0], some),
        lambda: figures.threshold_for(some[:0]),
        lambda: figures.threshold_for(some, 0),
        lambda: figures.threshold_for(some, 1.01),
        lambda: figures.calibrated(captioner, none, no_labels),
        lambda: figures.label_figures(captioner, none, no_labels),
        lambda: figures.label_figures(captioner, images, label_ids[:3]),
        lambda: figures.slot_report(captioner, none, no_labels),
        lambda: figures.not_flower_figures(captioner, some, none),
    ):
        with pytest.raises(ValueError, match=r"at least one (picture|flower)|some scores|don't fit"):
            refused()


@pytest.mark.parametrize("variant", ["vision", "vision+moe"])
def test_the_figures_of_a_real_captioner_are_those_of_its_own_answers(variant):
    images, others = random_images(9), random_images(5, seed=4)
    label_ids = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3])
    captioner = figures.calibrated(real(variant), images, label_ids)
    found = figures.figures(captioner, images, label_ids, others)
    ranked = [captioner.ranked(image[None]) for image in images]
    right = [LABELS[i] for i in label_ids.tolist()]
    hits = [row[0][0] == label for row, label in zip(ranked, right, strict=True)]
    assert found["captions"]["top1"] == pytest.approx(sum(hits) / 9, abs=1e-4)
    away = [row[0][1] < captioner.flower_threshold - 1e-5 for row in ranked]
    assert found["not_flowers"]["flowers_turned_away"] == pytest.approx(sum(away) / 9, abs=1e-4)
    slots_BSD = captioner.slots(images)
    for entry in found["slots"]["muted"]:
        said = captioner.greedy(mute(slots_BSD, entry["slots"]))
        assert entry["accuracy"] == pytest.approx(sum(map(str.__eq__, said, map(caption, right))) / 9, abs=1e-4)
    assert [len(entry["slots"]) for entry in found["slots"]["muted"]] == [1] * 4 + [2] * 6 + [3] * 4 + [4]
    json.dumps(found, allow_nan=False)
