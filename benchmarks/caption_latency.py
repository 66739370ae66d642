"""Time from a photo of 12 megapixels to its whole caption, and write where it goes.

python benchmarks/caption_latency.py [--threads 1 2]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL
import torch
from PIL import Image, ImageChops

sys.path.insert(0, str(Path(__file__).parents[1]))

import tinylm
from tinylm.captioner import Captioner
from tinylm.data import painter

WIDTH, HEIGHT, QUALITY = 4000, 3000, 92
DRAFT_SIZE = 64  # pixels a side, at which a picture decoded at a smaller scale is compared with the whole one
TARGET_MODEL_MS, TARGET_ALL_MS = 150, 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", default="weights/vision", help="run folder (default: weights/vision)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="CPU threads (default: 1 2)")
    parser.add_argument("--runs", type=int, default=15, help="runs, of which the median is taken (default: 15)")
    parser.add_argument("--out", default="benchmarks/results/caption_latency.json", help="JSON file to write")
    args = parser.parse_args()

    captioner = Captioner.of(tinylm.load(args.weights))
    load = round(os.getloadavg()[0], 1)
    photo = photo_bytes()
    by_threads = {}
    for threads in args.threads:
        torch.set_num_threads(threads)
        by_threads[str(threads)] = medians(captioner, photo, args.runs)
    report = {
        "weights": args.weights,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_before": load,  # what else ran: with more than nothing, two threads wait for each other
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pillow": PIL.__version__,
        "photo": f"{WIDTH} x {HEIGHT} JPEG, quality {QUALITY}, {len(photo) / 1e6:.1f} MB",
        "n_labels": len(captioner.labels),
        "runs": args.runs,
        "median_ms_by_threads": by_threads,
        "draft": draft(photo, args.runs),
        "targets_ms": {"model": TARGET_MODEL_MS, "all": TARGET_ALL_MS},
    }
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    Path(args.out).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")

    print(f"{report['photo']}; {report['machine']}, load {load}, median of {args.runs} runs, ms")
    print("step".ljust(34) + "".join(f"{threads} thread(s)".rjust(13) for threads in by_threads))
    for step in next(iter(by_threads.values())):
        print(step.ljust(34) + "".join(f"{of_step[step]:13.1f}" for of_step in by_threads.values()))
    print(f"wanted: model under {TARGET_MODEL_MS}, all under {TARGET_ALL_MS}")
    print(f"decoding at a smaller scale: {report['draft']}")


def photo_bytes() -> bytes:
    """A drawn flower as a phone's photo: enlarged, with the noise of a sensor."""
    flower = painter.paint("rose", 0, 600).convert("RGB").resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    generator = torch.Generator().manual_seed(0)
    # Around 128, which `add` takes off again.
    noise = torch.randn(HEIGHT, WIDTH, 3, generator=generator).mul_(6).add_(128).clamp_(0, 255).to(torch.uint8)
    grain = Image.frombuffer("RGB", (WIDTH, HEIGHT), noise.numpy().tobytes(), "raw", "RGB", 0, 1)
    file = io.BytesIO()
    ImageChops.add(flower, grain, offset=-128).save(file, format="JPEG", quality=QUALITY)
    return file.getvalue()


def medians(captioner: Captioner, photo: bytes, n_runs: int) -> dict[str, float]:
    """Milliseconds of each step, the median of the runs; a first run, not counted, warms up."""
    runs = [one_run(captioner, photo) for _ in range(1 + n_runs)][1:]
    return {step: round(statistics.median(run[step] for run in runs), 2) for step in runs[0]}


def one_run(captioner: Captioner, photo: bytes) -> dict[str, float]:
    """Milliseconds of each step from the file to the caption."""
    vision = captioner.model.config.vision
    assert vision is not None
    times: dict[str, float] = {}
    picture = timed(times, "decoding, RGB, upright", lambda: tinylm.load_image(io.BytesIO(photo)))
    images = timed(times, "shrinking", lambda: tinylm.image_to_tensor(picture, vision.image_size)[None])
    slots_BSD = timed(times, "slots", lambda: captioner.slots(images))
    timed(times, "likelihoods of all labels", lambda: captioner.logprobs(slots_BSD))
    timed(times, "greedy caption", lambda: captioner.greedy(slots_BSD))
    steps = list(times.values())
    return times | {"model (the last three)": sum(steps[2:]), "all": sum(steps)}


def timed(times: dict[str, float], step: str, call: Callable[[], Any]) -> Any:
    """The call's result; its time in ms goes into `times`."""
    start = time.perf_counter()
    result = call()
    times[step] = (time.perf_counter() - start) * 1000
    return result


def draft(photo: bytes, n_runs: int) -> dict[str, float]:
    """What decoding the JPEG at a smaller scale would save, and the grey levels that it would change."""

    def decoded(smallest: int | None) -> tuple[Image.Image, float]:
        start = time.perf_counter()
        image = Image.open(io.BytesIO(photo))
        if smallest:
            image.draft("RGB", (smallest, smallest))
        image.load()
        return image, (time.perf_counter() - start) * 1000

    whole, _ = decoded(None)
    right = tinylm.image_to_tensor(whole, DRAFT_SIZE)
    found: dict[str, float] = {"whole_ms": round(statistics.median(decoded(None)[1] for _ in range(n_runs)), 1)}
    for smallest in (8 * DRAFT_SIZE, 4 * DRAFT_SIZE):
        image, _ = decoded(smallest)
        difference = (tinylm.image_to_tensor(image, DRAFT_SIZE) - right).abs().mul(255)
        name = f"to_{image.width}x{image.height}"
        found[f"{name}_ms"] = round(statistics.median(decoded(smallest)[1] for _ in range(n_runs)), 1)
        found[f"{name}_largest_grey_levels_off"] = round(float(difference.max()), 1)
    return found


if __name__ == "__main__":
    main()
