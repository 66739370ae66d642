"""The served app, called as `gradio_client` calls it, against the library called directly."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

import pytest
import torch
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image
from serve import CONTEXT, LABELS, ROOT, make_weights, serve

import tinylm
from tinylm.captioner import Captioner
from tinylm.data.flowers import CAPTION_PROMPT
from tinylm.ui.limits import MAX_CHARACTERS, Refused, Slots
from tinylm.ui.models import RunFolders, Unavailable
from tinylm.ui.service import Service
from tinylm.ui.service.caption import caption
from tinylm.ui.service.complete import complete

PROMPT = "A baby cat is called"
MARKUP = "<b>x</b> <img src=x onerror=alert(1)> ${alert(1)} {{x}} `"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_weights(tmp_path_factory.mktemp("served") / "weights")


@pytest.fixture
def service(weights: Path) -> Service:
    return Service(RunFolders(weights))


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "flower.png"
    image = Image.new("RGB", (40, 30), (30, 120, 40))
    image.paste((220, 40, 90), (12, 6, 28, 22))
    image.save(path)
    return path


def call(address: str, name: str, data: list) -> dict:
    """The last object of a raw call, for what `gradio_client` would not send."""
    body = json.dumps({"data": data}).encode()
    request = urllib.request.Request(f"{address}gradio_api/call/{name}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{address}gradio_api/call/{name}/{event}", timeout=30) as stream:
        events = stream.read().decode()
    assert "event: complete" in events, events
    return json.loads([line for line in events.splitlines() if line.startswith("data:")][-1].removeprefix("data:"))[0]


def test_complete_says_what_the_library_says(client: Client, weights: Path) -> None:
    result = client.predict(PROMPT, "text", 0, 0, 1, 40, 0, api_name="/complete")
    run = tinylm.load(weights / "text")
    ids, config = run.tokenizer.encode(PROMPT), run.model.config
    steps = list(tinylm.stream(run.model, ids, max_new_tokens=40, eos_id=run.tokenizer.eos_id))
    assert [token["id"] for token in result["tokens"]] == [step.token_id for step in steps]
    assert result["text"] == PROMPT + run.tokenizer.decode([step.token_id for step in steps])
    assert result["stopped"] == "length" and result["unknown"] == []
    for token, step in zip(result["tokens"], steps, strict=True):
        assert token["text"] == run.tokenizer.decode([token["id"]])
        assert token["probability"] == pytest.approx(math.exp(step.logprob), abs=1e-4)
        assert [p for _, p in token["alternatives"]] == pytest.approx([p for _, p in step.alternatives], abs=1e-4)
        assert len(token["alternatives"]) == 10
    n_read = len(ids) + len(steps) - 1
    assert result["cache_bytes"] == steps[-1].cache_nbytes == config.n_layers * n_read * config.d_latent * 4
    assert result["full_cache_bytes"] == 2 * config.d_model * config.n_layers * n_read * 4


def test_complete_has_the_defaults_it_promises(client: Client) -> None:
    whole = client.predict(PROMPT, "text", 0, 0, 1, 40, 0, api_name="/complete")
    assert client.predict(prompt=PROMPT, api_name="/complete") == whole
    endpoint = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    names = {name: [p["parameter_name"] for p in endpoint[name]["parameters"]] for name in endpoint}
    assert names == {
        "/complete": ["prompt", "model", "temperature", "top_k", "top_p", "max_new_tokens", "seed"],
        "/caption": ["image"],
        "/route": ["prompt", "temperature", "max_new_tokens", "seed"],
    }
    assert [p["parameter_default"] for p in endpoint["/complete"]["parameters"]][1:] == ["text", 0, 0, 1, 40, 0]
    assert [p["parameter_default"] for p in endpoint["/route"]["parameters"]][1:] == [0, 40, 0]


def test_complete_draws_with_the_seed(client: Client, weights: Path) -> None:
    run = tinylm.load(weights / "moe")
    expected = tinylm.generate(run.model, run.tokenizer.encode(PROMPT), None, 20, 1.5, 12, 0.9, seed=7)
    result = client.predict(PROMPT, "moe", 1.5, 12, 0.9, 20, 7, api_name="/complete")
    assert [token["id"] for token in result["tokens"]] == expected


def test_complete_streams_a_list_that_grows(client: Client) -> None:
    job = client.submit(PROMPT, "deep", 0, 0, 1, 60, 0, api_name="/complete")
    seen = [[token["id"] for token in result["tokens"]] for result in job]
    assert len(seen) > 5 and len(seen[0]) < 5 and len(seen[-1]) == 60
    assert all(after[: len(before)] == before for before, after in itertools.pairwise(seen))


def test_route_gives_each_token_its_experts(client: Client, weights: Path) -> None:
    result = client.predict(PROMPT, 0, 12, 0, api_name="/route")
    run = tinylm.load(weights / "moe")
    ids = run.tokenizer.encode(PROMPT)
    ids += tinylm.generate(run.model, ids, max_new_tokens=12)
    with torch.inference_mode():
        routings = run.model(torch.tensor([ids])).routings
    texts = [run.tokenizer.decode([i]) or run.tokenizer.tokens[i] for i in ids]  # a special token by its name
    assert [token["text"] for token in result["tokens"]] == texts
    assert result["text"] == run.tokenizer.decode(ids) and result["n_experts"] == 4
    for layer, routing in enumerate(routings):
        assert [token["experts"][layer] for token in result["tokens"]] == routing.expert_ids.tolist()
        for name, values in (("weights", routing.weights), ("probs", routing.probs)):
            found = torch.tensor([token[name][layer] for token in result["tokens"]])
            torch.testing.assert_close(found, values, atol=1e-4, rtol=0)
        share = routing.expert_ids.flatten().bincount(minlength=4) / routing.expert_ids.numel()
        assert result["load"][layer] == pytest.approx(share.tolist(), abs=1e-5)
    loss = sum(float(tinylm.load_balancing_loss(routing)) for routing in routings) / len(routings)
    assert result["load_balancing_loss"] == pytest.approx(loss, abs=1e-4)


def test_caption_says_what_the_library_says(client: Client, weights: Path, picture: Path) -> None:
    result = client.predict(handle_file(str(picture)), api_name="/caption")
    run = tinylm.load(weights / "vision")
    image = tinylm.image_to_tensor(tinylm.load_image(picture), 16)[None]
    steps = list(tinylm.stream(run.model, run.tokenizer.encode(CAPTION_PROMPT), image, 24, eos_id=run.tokenizer.eos_id))
    scores = Captioner.of(run).ranked(image)
    assert result["caption"] == CAPTION_PROMPT + run.tokenizer.decode([step.token_id for step in steps])
    assert result["probability"] == pytest.approx(math.exp(sum(step.logprob for step in steps)), abs=1e-4)
    assert [label for label, _ in result["labels"]] == [label for label, _ in scores]
    assert [p for _, p in result["labels"]] == pytest.approx([p for _, p in scores], abs=1e-4)
    assert result["flower_score"] == pytest.approx(scores[0][1], abs=1e-4)
    assert result["is_flower"] == (scores[0][1] >= 0.5)
    assert result["label"] == scores[0][0]  # random weights name none of the labels


def test_caption_gives_the_calibrated_probabilities_of_the_run_folder(
    weights: Path, picture: Path, tmp_path: Path
) -> None:
    run = tinylm.load(weights / "vision")
    image = tinylm.image_to_tensor(tinylm.load_image(picture), 16)[None]
    logprobs = Captioner.of(run).logprobs(run.model.encoder(image).detach())[0].tolist()
    scores = []
    for temperature in (None, 2.5):
        info = {**run.info, "flower_threshold": 0.3}
        if temperature is not None:
            info["caption_temperature"] = temperature
        tinylm.save(tmp_path / "weights" / "vision", run.model, run.tokenizer, info)
        *_, update = caption(Service(RunFolders(tmp_path / "weights")), str(picture))
        powers = [math.exp(logprob / (temperature or 1)) for logprob in logprobs]
        right = {label: power / sum(powers) for label, power in zip(LABELS, powers, strict=True)}
        assert dict(update.result["labels"]) == pytest.approx(right, abs=1e-5)
        assert update.result["flower_score"] == pytest.approx(max(right.values()), abs=1e-5)
        assert update.result["is_flower"] == (max(right.values()) >= 0.3)
        assert (update.page["threshold"], update.page["n_labels"]) == (0.3, len(LABELS))
        scores.append(update.result["flower_score"])
    assert scores[1] < scores[0]


@pytest.mark.parametrize("lacking", ["labels", "flower_threshold"])
def test_caption_names_what_the_run_folder_lacks(weights: Path, picture: Path, tmp_path: Path, lacking: str) -> None:
    run = tinylm.load(weights / "vision")
    info = {key: value for key, value in run.info.items() if key != lacking}
    tinylm.save(tmp_path / "weights" / "vision", run.model, run.tokenizer, info)
    with pytest.raises(Refused, match=f"names no {lacking}"):
        next(caption(Service(RunFolders(tmp_path / "weights")), str(picture)))


def test_caption_of_what_is_no_picture(client: Client, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="choose a picture"):
        client.predict(None, api_name="/caption")
    text = tmp_path / "text.jpg"
    text.write_text("not a picture")
    with pytest.raises(AppError, match="JPEG, PNG"):
        client.predict(handle_file(str(text)), api_name="/caption")


def test_a_huge_picture_is_refused_before_it_is_decoded(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "huge.png"
    Image.new("1", (20_000, 10_000)).save(path)
    with pytest.raises(AppError, match="at most 50 million"):
        client.predict(handle_file(str(path)), api_name="/caption")


def test_a_picture_inside_the_request_is_captioned_too(address: str, picture: Path) -> None:
    url = "data:image/png;base64," + b64encode(picture.read_bytes()).decode()
    result = call(address, "caption", [{"url": url, "meta": {"_type": "gradio.FileData"}}])
    assert result["caption"].startswith(CAPTION_PROMPT)


def test_the_servers_own_files_are_no_pictures(address: str, weights: Path) -> None:
    own = Image.new("RGB", (8, 8))
    own.save(weights / "own.png")
    for path in (str(weights / "own.png"), "app.py", "/etc/hostname"):
        with pytest.raises(AssertionError, match="event: error"):
            call(address, "caption", [{"path": path, "meta": {"_type": "gradio.FileData"}}])


@pytest.mark.parametrize("prompt", ["", " ", "\n"])
def test_an_empty_prompt_starts_from_nothing(client: Client, weights: Path, prompt: str) -> None:
    run = tinylm.load(weights / "text")
    expected = tinylm.generate(run.model, [run.tokenizer.eos_id], max_new_tokens=5)
    result = client.predict(prompt, "text", 0, 0, 1, 5, 0, api_name="/complete")
    assert [token["id"] for token in result["tokens"]] == expected
    assert result["text"] == run.tokenizer.decode(expected)
    assert len(client.predict(prompt, 0, 5, 0, api_name="/route")["tokens"]) == 6


@pytest.mark.parametrize("prompt", [MARKUP, "Zürich? 你好 🎉 €", "<eos> and <pad>"])
def test_a_prompt_comes_back_as_it_is(client: Client, weights: Path, prompt: str) -> None:
    tokenizer = tinylm.load(weights / "text").tokenizer
    result = client.predict(prompt, "text", 0, 0, 1, 3, 0, api_name="/complete")
    assert result["text"].startswith(prompt)
    assert result["unknown"] == tokenizer.unknown_characters(prompt) != []
    assert result["unknown_words"] == tokenizer.unknown_words(prompt) != []
    tokens = client.predict(prompt, 0, 3, 0, api_name="/route")["tokens"]
    assert "".join(token["text"] for token in tokens).startswith(prompt)


def test_a_lone_surrogate_and_nul_do_not_end_the_stream(address: str) -> None:
    result = call(address, "complete", ["A \ud800 \0 baby", "text", 0, 0, 1, 3, 0])
    assert result["text"].startswith("A \ufffd \ufffd baby") and len(result["tokens"]) == 3


def test_a_prompt_longer_than_the_context_is_refused_in_words(client: Client) -> None:
    with pytest.raises(AppError, match=rf"The prompt has 500 tokens; this model reads at most {CONTEXT}"):
        client.predict("?" * 500, api_name="/complete")
    with pytest.raises(AppError, match=f"at most {CONTEXT}"):
        client.predict("?" * 500, api_name="/route")


@pytest.mark.parametrize("n_prompt", [CONTEXT - 1, CONTEXT])
def test_a_prompt_that_fills_the_context_says_so(client: Client, n_prompt: int) -> None:
    result = client.predict("?" * n_prompt, "text", 0, 0, 1, 40, 0, api_name="/complete")
    assert result["stopped"] == "context" and len(result["tokens"]) == CONTEXT - n_prompt + 1
    routed = client.predict("?" * n_prompt, 0, 40, 0, api_name="/route")
    assert len(routed["tokens"]) == CONTEXT  # the last token was chosen but never read


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": -1},
        {"temperature": 100},
        {"temperature": "hot"},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 1.1},
        {"top_p": True},
        {"max_new_tokens": 0},
        {"max_new_tokens": 10**6},
        {"seed": -1},
        {"seed": 10**30},
        {"model": "../text"},
        {"model": "vision"},
        {"prompt": 7},
        {"prompt": "x" * (MAX_CHARACTERS + 1)},
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(service: Service, setting: dict) -> None:
    with pytest.raises(Refused, match=r"^[A-Z].*\.$"):
        list(complete(service, **{"prompt": PROMPT, **setting}))


@pytest.mark.parametrize(
    "setting",
    [{"temperature": 1e-6}, {"temperature": 2, "top_k": 10**6}, {"temperature": 1, "top_p": 0}, {"seed": None}],
)
def test_odd_but_sensible_settings_run(service: Service, setting: dict) -> None:
    *_, update = complete(service, PROMPT, max_new_tokens=4, **setting)
    assert len(update.result["tokens"]) == 4


def test_a_refusal_reaches_the_client(client: Client) -> None:
    with pytest.raises(AppError, match="Temperature must be a number from 0 to 2"):
        client.predict(PROMPT, "text", 100, api_name="/complete")


def test_the_way_past_the_queue_is_closed(address: str) -> None:
    for name in ("complete", "caption", "route"):
        request = urllib.request.Request(
            f"{address}gradio_api/run/{name}", b'{"data": ["x"]}', {"Content-Type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=10)
        assert refusal.value.code in (401, 403, 404)


def test_two_visitors_do_not_mix(address: str) -> None:
    prompts = ["A baby", "Bees make"]
    alone = [Client(address, verbose=False) for _ in prompts]
    expected = [c.predict(p, "deep", 1, 0, 1, 40, 3, api_name="/complete") for c, p in zip(alone, prompts, strict=True)]
    together: dict[int, dict] = {}

    def ask(i: int) -> None:
        together[i] = alone[i].predict(prompts[i], "deep", 1, 0, 1, 40, 3, api_name="/complete")

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [together[i] for i in range(2)] == expected


def test_a_dropped_run_gives_its_place_back(weights: Path) -> None:
    service = Service(RunFolders(weights), Slots(1))
    for _ in range(3):
        updates = complete(service, PROMPT, "deep")
        next(updates)
        updates.close()
    *_, update = complete(service, PROMPT, max_new_tokens=2)
    assert len(update.result["tokens"]) == 2


def test_missing_weights_are_named_with_the_command(tmp_path: Path) -> None:
    with serve(tmp_path / "weights") as address:
        with urllib.request.urlopen(address, timeout=10) as answer:
            page = answer.read().decode()
        assert "python train.py text --out weights/text" in page and str(tmp_path) not in page
        client = Client(address, verbose=False)
        for name, variant in (("/complete", "text"), ("/route", "moe")):
            with pytest.raises(AppError, match=rf"weights/{variant}/model.safetensors is missing.*train\.py {variant}"):
                client.predict(PROMPT, api_name=name)
        make_weights(tmp_path / "weights")  # weights that come later are found without a restart
        assert client.predict(PROMPT, api_name="/complete")["tokens"]


def test_broken_weights_are_named_with_the_command(tmp_path: Path) -> None:
    weights = make_weights(tmp_path / "weights")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (weights / "text" / "model.safetensors").write_bytes(pointer)
    config = json.loads((weights / "moe" / "config.json").read_text())
    (weights / "moe" / "config.json").write_text(json.dumps(config | {"d_ff": 99}))
    (weights / "vision" / "tokenizer.json").write_text("{}")
    runs = RunFolders(weights)
    for name, reason in (("text", "git lfs pull"), ("moe", "config.json asks for"), ("vision", "tokenizer.json")):
        with pytest.raises(Unavailable, match=reason) as refusal:
            runs.get(name)
        assert f"python train.py {name} --out weights/{name}" in str(refusal.value)
        assert str(tmp_path) not in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_port_in_use_is_one_clear_line(address: str) -> None:
    port = address.rstrip("/").rpartition(":")[2]
    ended = subprocess.run(
        [sys.executable, "app.py", "--port", port], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode != 0 and ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1 and f"127.0.0.1:{port}" in ended.stderr
