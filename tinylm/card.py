"""The model card that goes into a run folder, written from the run's own metrics."""

from __future__ import annotations

from typing import Any

from tinylm.data.text import BUILT_IN

_TITLES = {
    "text": "text completion with multi-head latent attention",
    "moe": "text completion with a mixture of experts",
    "vision": "flower captions from image slots",
}

_BUILT_IN_NOTE = "The built-in corpus: sentences of everyday knowledge, written for this project and under its licence."


def model_card(info: dict[str, Any]) -> str:
    """The card's text; `info` is what `metrics.json` holds."""
    parts = [
        f"# tinylm {info['variant']}: {_TITLES.get(info['variant'], '')}",
        "",
        "Written by the training script from `metrics.json`, which holds every figure below and the loss curve.",
        "",
        "## Made by",
        "",
        f"    {info['command']}",
        "",
        f"Data: {info['data']}. Seed {info['seed']}. {info['steps']:,} steps, {info['seconds']:.0f} s of training on "
        f"{info['device']} (PyTorch {info['torch']}), {info['tokens_per_second']:,} tokens/s, padding not counted.",
        "",
        "## Figures",
        "",
        "| | |",
        "|---|---|",
        f"| parameters | {info['parameters']:,} |",
        f"| active for a token | {info['active_parameters']:,} |",
        f"| training loss | {info['train_loss']:.3f} nats a token |",
        f"| validation loss | {info['val_loss']:.3f} nats a token |",
        f"| validation | {info['val_bits_per_character']:.3f} bits a character |",
    ]
    if info.get("recall") is not None:
        parts.append(f"| recall of held-out wordings | {info['recall']:.1%} of {info['n_probes']} |")
    if info.get("free_recall") is not None:
        parts.append(
            f"| right on prompts as visitors type them | {info['free_recall']:.1%} of {info['n_free_prompts']} |"
        )
        parts.append(
            f"| completions that are whole training lines | {info['copied_share']:.1%} of {info['n_copy_prompts']} |"
        )
        parts.append(f"| newly composed completions | {1 - info['copied_share']:.1%} of {info['n_copy_prompts']} |")
    if info.get("captions"):
        parts.append(
            f"| captions right, held-out pictures | {info['caption_accuracy']:.1%} of {info['captions']['n']} |"
        )
    if info.get("expert_load"):
        parts += ["", "## Expert loads", "", "Share of the held-out tokens that each expert takes, by layer.", ""]
        n_experts = len(info["expert_load"][0])
        parts.append("| layer | " + " | ".join(f"expert {e + 1}" for e in range(n_experts)) + " |")
        parts.append("|---|" + "---|" * n_experts)
        for layer, shares in enumerate(info["expert_load"]):
            parts.append(f"| {layer + 1} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    if info.get("expert_preferences"):
        parts += _preferences(info["expert_preferences"])
    if info.get("captions"):
        parts += _captions(info)
    for name, title in (("recall", "Recall of held-out wordings"), ("free_recall", "Right on visitors' prompts")):
        by_domain = info.get(f"{name}_by_domain") or {}
        if len(by_domain) > 1:
            told = ", ".join(f"{domain} {share:.0%}" for domain, share in by_domain.items())
            parts += ["", f"## {title}, by domain", "", told + "."]
    if info.get("labels"):
        parts += ["", "## Labels", "", ", ".join(info["labels"]) + "."]
    note = info.get("data_note") or (_BUILT_IN_NOTE if info["data"] == BUILT_IN else None)
    if note:
        parts += ["", "## Data", "", note]
    parts += [
        "",
        "## Use",
        "",
        "```python",
        "import tinylm",
        "",
        'run = tinylm.load("this folder")',
        "```",
        "",
    ]
    return "\n".join(parts)


def _captions(info: dict[str, Any]) -> list[str]:
    """How well pictures are named, how sure the model is, what the slots carry, and what is told from flowers."""
    tested = info.get("test")
    told, where = (tested, "test") if tested else (info, "held-out")
    captions, slots, others = told["captions"], told["slots"], told["not_flowers"]
    beside = info.get("beside")
    columns: list[tuple[str, dict[str, Any], dict[str, Any]]] = [("this model", info, told)]
    if beside:
        columns.append((f"{beside['encoder']} encoder", beside, beside))
    rows = [
        ("parameters", lambda run, _: f"{run['parameters']:,}"),
        ("training", lambda run, _: f"{run['seconds']:.0f} s"),
        ("caption right to the letter", lambda _, told: f"{told['captions']['caption_accuracy']:.1%}"),
        ("likeliest label right", lambda _, told: f"{told['captions']['top1']:.1%}"),
        ("label among the three likeliest", lambda _, told: f"{told['captions']['top3']:.1%}"),
        ("likeliest label right, ten largest kinds", lambda _, told: f"{told['captions']['ten_largest']:.1%}"),
        ("caption is that of the likeliest label", lambda _, told: f"{told['captions']['greedy_is_likeliest']:.1%}"),
        ("expected calibration error", lambda _, told: f"{told['captions']['expected_calibration_error']:.3f}"),
    ]
    if others:
        rows += [
            ("flower told from another thing (AUROC)", lambda _, told: _of(told, "auroc", ".3f")),
            ("flowers turned away", lambda _, told: _of(told, "flowers_turned_away", ".1%")),
            ("other things refused", lambda _, told: _of(told, "others_refused", ".1%")),
        ]
    lines = ["", f"## Captions of the {captions['n']} {where} pictures", ""]
    lines.append("| | " + " | ".join(name for name, _, _ in columns) + " |")
    lines.append("|---|" + "---|" * len(columns))
    lines += [f"| {name} | " + " | ".join(show(run, told) for _, run, told in columns) + " |" for name, show in rows]
    lines += [
        "",
        f"The probabilities of the labels are the likelihoods of their captions, at a temperature of "
        f"{info['caption_temperature']:.2f} that was fitted on the held-out pictures. A picture whose likeliest label "
        f"has less than {info['flower_threshold']:.2f} is said to be no flower that the model knows."
        + (f" Other things are {others['n_others']} pictures." if others else ""),
        "",
        f"The ten largest kinds: {', '.join(captions['largest_labels'])}.",
        "",
        "Commonest mistakes: "
        + ", ".join(f"{right} taken for {said} ({count})" for right, said, count in captions["confusions"])
        + ".",
        "",
        f"By kind: {', '.join(f'{label} {share:.0%}' for label, share in captions['accuracy_by_label'].items())}.",
        "",
        "## What the slots carry",
        "",
        f"Over {slots['n']} of these pictures; {slots['accuracy']:.1%} of the captions are right with all slots. A "
        "muted slot is zeros in place of its embedding.",
        "",
        "| muted | captions right | mean change of the right caption's log-probability | likeliest label stays |",
        "|---|---|---|---|",
    ]
    by_slot = {tuple(row["slots"]): row["accuracy"] for row in slots["muted"]}
    for alone in slots["alone"]:
        right = by_slot[(alone["slot"],)]
        lines.append(
            f"| slot {alone['slot'] + 1} | {right:.1%} | {alone['logprob']:+.2f} | {alone['label_stays']:.1%} |"
        )
    for n_muted, share in slots["accuracy_by_n_muted"].items():
        lines.append(f"| any {n_muted} | {share:.1%} | | |")
    return lines


def _of(told: dict[str, Any], name: str, form: str) -> str:
    """A figure of the pictures of other things; words where a run was given none."""
    return format(told["not_flowers"][name], form) if told["not_flowers"] else "not measured"


def _preferences(layers: list[list[dict[str, Any]]]) -> list[str]:
    """What each expert takes more than its share of."""
    lines = [
        "",
        "## What each expert prefers",
        "",
        "Tokens and kinds of words of the held-out lines that an expert takes more often than chance would; a kind is "
        "a column of the tables of facts, or told by the word's form. The number "
        "is how many times as often. A token's own leading space is shown as `_`.",
        "",
        "| layer | expert | tokens | kinds of words |",
        "|---|---|---|---|",
    ]
    for layer, experts in enumerate(layers, start=1):
        for expert, preference in enumerate(experts, start=1):
            tokens = ", ".join(f"`{token.replace(' ', '_')}` {lift:.1f}" for token, lift in preference["tokens"])
            kinds = ", ".join(f"{kind} {lift:.1f}" for kind, lift in preference["kinds"])
            lines.append(f"| {layer} | {expert} | {tokens or 'none'} | {kinds or 'none'} |")
    return lines
