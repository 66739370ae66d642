"""The shipped run folders: whole, small enough, and able to do what the page shows with them."""

import json

import pytest
import torch
from conftest import ROOT

import tinylm
from tinylm.captioner import Captioner
from tinylm.data.flowers import caption
from tinylm.evaluation import completions, starts_with_answer
from tinylm.ui import caption as caption_tab
from tinylm.ui import complete as complete_tab
from tinylm.ui import routing as routing_tab

WEIGHTS = ROOT / "weights"
VARIANTS = ("text", "vision", "moe")
MAX_BYTES = 10_000_000


@pytest.fixture(scope="module")
def runs():
    return {variant: tinylm.load(WEIGHTS / variant) for variant in VARIANTS}


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_file_is_too_large_for_a_space(variant):
    sizes = {path.name: path.stat().st_size for path in (WEIGHTS / variant).iterdir()}
    assert set(sizes) == {"config.json", "model.safetensors", "tokenizer.json", "metrics.json", "README.md"}
    assert max(sizes.values()) < MAX_BYTES


@pytest.mark.parametrize("variant", VARIANTS)
def test_metrics_tell_of_the_weights_beside_them(runs, variant):
    run = runs[variant]
    assert run.info["variant"] == variant
    assert run.info["parameters"] == run.model.n_parameters()
    assert run.info["active_parameters"] == run.model.n_parameters(active=True)
    assert run.info["val_loss"] == run.info["history"][-1]["val_loss"]
    assert run.info["command"].startswith(f"python train.py {variant} ")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_model_card_states_the_command_and_the_figures(variant):
    info = json.loads((WEIGHTS / variant / "metrics.json").read_text(encoding="utf-8"))
    card = (WEIGHTS / variant / "README.md").read_text(encoding="utf-8")
    for stated in (info["command"], f"{info['parameters']:,}", f"{info['val_loss']:.3f}"):
        assert stated in card


@pytest.mark.parametrize("variant", ["text", "moe"])
@pytest.mark.parametrize("prompt", ["trees lose leaves in", "Trees lose their leaves in"])
def test_trees_lose_their_leaves_in_autumn(runs, variant, prompt):
    run = runs[variant]
    said = completions(run.model, run.tokenizer, [prompt])[0]
    assert said.strip(" .").lower() in ("autumn", "fall")


RIGHT = {
    "A baby cat is called a": "kitten",
    "A baby dog is called": "puppy",
    "The capital of France is": "Paris",
    "The opposite of hot is": "cold",
    "trees lose leaves in": "autumn",
    "bees make": "honey",
    "A spider has eight": "legs",
    "The sun rises in the": "east",
}


@pytest.mark.parametrize(("tab", "variant"), [(complete_tab, "text"), (routing_tab, "moe")])
def test_the_written_examples_of_the_page_are_completed_rightly(runs, tab, variant):
    """Remembers new weights that went on from an example of the page with "Bees make wax me snacks"."""
    run = runs[variant]
    prompts = [example if isinstance(example, str) else example[0] for example in tab.EXAMPLES]
    said = dict(zip(prompts, completions(run.model, run.tokenizer, prompts), strict=True))
    assert [prompt for prompt in prompts if not starts_with_answer(said[prompt], (RIGHT[prompt],))] == [], said


def test_the_drawn_examples_of_the_page_are_named(runs):
    run = runs["vision"]
    size = run.model.config.vision.image_size
    paths = caption_tab.draw_examples()
    images = [tinylm.image_to_tensor(tinylm.load_image(paths[kind]), size) for kind in caption_tab.EXAMPLES]
    captioner = Captioner.of(run)
    assert captioner.greedy(captioner.slots(torch.stack(images))) == [caption(kind) for kind in caption_tab.EXAMPLES]


@pytest.mark.parametrize("shade", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_a_grey_card_is_not_taken_for_a_flower(runs, shade):
    """Remembers a grey card that was called a dandelion with 82 %."""
    run = runs["vision"]
    size = run.model.config.vision.image_size
    card = torch.full((1, 3, size, size), shade)
    captioner = Captioner.of(run)
    (score,) = captioner.flower_scores(captioner.logprobs(captioner.slots(card))).tolist()
    assert score < captioner.flower_threshold


def test_every_expert_is_used(runs):
    loads = runs["moe"].info["expert_load"]
    assert len(loads) == runs["moe"].model.config.n_layers
    assert min(min(layer) for layer in loads) > 0.1
