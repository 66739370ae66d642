"""The pictures of the captions' benchmark, drawn with matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
from PIL import Image
from torch import Tensor

matplotlib.use("Agg")
sys.path.insert(0, str(Path(__file__).parents[1]))

from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap, PowerNorm

from tinylm.data.english import with_article

DPI = 100
INK, QUIET, RULE = "#1b1b1b", "#5c5c5c", "#d9d9d9"
WRONG = "#a63603"  # dark orange: apart from black for colour-blind readers too, and marked by a word as well
TOLD_FROM = 0.05  # shares of a row from here on are written into their cells
PICTURES_A_ROW = 6


class DrawnExample(NamedTuple):
    """A drawing and what the model says of it."""

    kind: str
    picture: Image.Image
    caption: str
    probability: float | None  # of the caption; None if it is no label's
    right: bool
    known: bool  # taken for a flower the model knows


def draw_confusions(predicted: Tensor, label_ids: Tensor, labels: Sequence[str], path: Path) -> None:
    """The confusion matrix of labels (B,) as a PNG: a row a label, its colours the shares that each label was said."""
    present = sorted(set(label_ids.tolist()))
    n, rows = len(labels), len(present)
    counts = torch.zeros(n, n)
    counts.index_put_((label_ids, predicted), torch.ones(len(label_ids)), accumulate=True)
    counts = counts[present]
    shares = counts / counts.sum(dim=1, keepdim=True)

    left, right, top, bottom, cell = 1.75, 0.85, 2.05, 0.35, 0.235  # inches
    width, height = left + n * cell + right, top + rows * cell + bottom
    figure = plt.figure(figsize=(width, height), dpi=DPI)
    axes = figure.add_axes((left / width, bottom / height, n * cell / width, rows * cell / height))
    # Never is white and once is clearly blue; on an even scale small shares would be lost.
    blues = ListedColormap(plt.get_cmap("Blues")(torch.linspace(0.18, 1, 256).numpy()))
    image = axes.imshow(shares.where(shares > 0, torch.nan), cmap=blues, norm=PowerNorm(0.5, 0, 1), aspect="auto")
    axes.set_xticks(range(n), labels, rotation=90, fontsize=8.5)
    axes.set_yticks(range(rows), [f"{labels[i]}  {int(counts[r].sum())}" for r, i in enumerate(present)], fontsize=8.5)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0, pad=4, colors=INK)
    axes.set_xticks([i - 0.5 for i in range(1, n)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, rows)], minor=True)
    axes.grid(which="minor", color="#ececec", linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_color(RULE)
    for r, row in enumerate(shares.tolist()):
        for c, share in enumerate(row):
            if share >= TOLD_FROM:
                ink = "white" if share > 0.3 else INK
                axes.text(c, r, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color=ink)
    hits = sum(counts[r, i] for r, i in enumerate(present))
    figure.text(
        0.15 / width,
        1 - 0.2 / height,
        f"Which kind is said of the photos of each kind: {float(hits / counts.sum()):.1%} of "
        f"{len(label_ids):,} named rightly",
        fontsize=14,
        color=INK,
        va="top",
    )
    figure.text(
        0.15 / width,
        1 - 0.55 / height,
        "A row is the photos of one kind, with their number; a column is the likeliest label. Colour: share of the "
        "row; in the cells: per cent, from 5 on.",
        fontsize=10,
        color=QUIET,
        va="top",
    )
    bar_axes = figure.add_axes(
        ((left + n * cell + 0.15) / width, bottom / height, 0.14 / width, rows * cell / height / 3)
    )
    bar = figure.colorbar(image, cax=bar_axes, ticks=[0.02, 0.1, 0.25, 0.5, 1])
    bar.ax.set_yticklabels(["2 %", "10 %", "25 %", "50 %", "100 %"], fontsize=8, color=INK)
    bar.ax.tick_params(length=2)
    bar.outline.set_edgecolor(RULE)
    _save(figure, path)


def draw_examples(examples: Sequence[DrawnExample], prompt: str, path: Path) -> None:
    """Drawings with their captions beneath as a PNG. The captions' common beginning `prompt` is told once, above."""
    if not examples:
        return
    side = examples[0].picture.width
    across, down, head, margin = side + 16, side + 60, 78, 14  # pixels
    columns, rows = PICTURES_A_ROW, -(-len(examples) // PICTURES_A_ROW)
    width, height = columns * across + 2 * margin - 16, head + rows * down + margin
    figure = plt.figure(figsize=(width / DPI, height / DPI), dpi=DPI)

    def write(x: float, y: float, text: str, size: float, colour: str) -> None:
        figure.text(x / width, 1 - y / height, text, fontsize=size, color=colour, va="top")

    n_right = sum(example.right for example in examples)
    write(margin, 12, f"Drawings that training never saw: {n_right} of {len(examples)} captioned rightly", 12, INK)
    legend = f"Every caption begins “{prompt} …”; the percentage is its probability."
    if not all(example.known for example in examples):
        legend += " Refused: taken for no flower that the model knows."
    write(margin, 38, legend, 9, QUIET)
    for i, example in enumerate(examples):
        x, y = margin + i % columns * across, head + i // columns * down
        axes = figure.add_axes((x / width, 1 - (y + side) / height, side / width, side / height))
        axes.imshow(example.picture, interpolation="none")
        axes.axis("off")
        colour = INK if example.right else WRONG
        write(x, y + side + 5, f"… {example.caption.removeprefix(prompt).strip()}", 8.5, colour)
        sure = "no label" if example.probability is None else _per_cent(example.probability)
        write(x, y + side + 21, sure if example.known else f"{sure}, refused", 8, QUIET)
        if not example.right:
            write(x, y + side + 36, f"but it is {with_article(example.kind)}", 8, WRONG)
    _save(figure, path)


def _per_cent(share: float) -> str:
    return "over 99 %" if share > 0.995 else f"{100 * share:.0f} %"


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, dpi=DPI, pil_kwargs={"optimize": True})
    plt.close(figure)
