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
    if info.get("caption_accuracy") is not None:
        parts.append(
            f"| captions right, held-out pictures | {info['caption_accuracy']:.1%} of {info['n_validation']} |"
        )
        parts.append(f"| label among the three likeliest | {info['top3_accuracy']:.1%} |")
        parts.append(f"| held-out pictures taken for flowers | {info['accepted_share']:.1%} |")
    if info.get("expert_load"):
        parts += ["", "## Expert loads", "", "Share of the held-out tokens that each expert takes, by layer.", ""]
        n_experts = len(info["expert_load"][0])
        parts.append("| layer | " + " | ".join(f"expert {e + 1}" for e in range(n_experts)) + " |")
        parts.append("|---|" + "---|" * n_experts)
        for layer, shares in enumerate(info["expert_load"]):
            parts.append(f"| {layer + 1} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    if info.get("expert_preferences"):
        parts += _preferences(info["expert_preferences"])
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
