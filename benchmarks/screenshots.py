"""Pictures of every tab for the README, light and dark, wide and narrow, from the page that runs.

python benchmarks/screenshots.py [--chromium PATH]

Serves the shipped weights on 127.0.0.1, opens the page in a headless Chromium, waits until each tab's finished
example stands, and writes docs/<tab>_<light or dark>_<width>.png in 256 colours.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from browser import FLAGS, chromium
from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
TABS = ("Complete", "Caption", "Routing", "Training")
WINDOWS = [("light", 1440), ("dark", 1440), ("light", 390), ("dark", 390)]
SETTLING_MS = 3000  # an attention map and an occlusion map are asked for when they come into view


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", metavar="PATH", default=chromium(), help="browser (default: the first on PATH)")
    parser.add_argument("--port", type=int, default=7869, help="port of 127.0.0.1 for the app (default: 7869)")
    args = parser.parse_args()
    if args.chromium is None:
        sys.exit("screenshots.py: no Chromium found; name one with --chromium PATH")
    with served(args.port) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.chromium, args=list(FLAGS))
        for theme, width in WINDOWS:
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.goto(f"{address}?__theme={theme}")
            page.wait_for_selector("#complete-panel .tl-chip")
            for tab in TABS:
                take(page, tab, ROOT / "docs" / f"{tab.lower()}_{theme}_{width}.png")
            page.close()
        browser.close()


def take(page: Page, tab: str, path: Path) -> None:
    """The whole of a tab, once everything on it has been in view."""
    page.get_by_role("tab", name=tab, exact=True).click()
    height = page.evaluate("document.documentElement.scrollHeight")
    for top in range(0, height, 600):
        page.evaluate("top => scrollTo(0, top)", top)
        page.wait_for_timeout(150)
    page.wait_for_timeout(SETTLING_MS)
    page.evaluate("scrollTo(0, 0)")
    picture = Image.open(BytesIO(page.screenshot(full_page=True))).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {picture.width} x {picture.height}, {path.stat().st_size / 1000:.0f} kB")


@contextmanager
def served(port: int) -> Iterator[str]:
    """The address of the app, ended by its own process id afterwards."""
    process = subprocess.Popen([sys.executable, "app.py", "--port", str(port)], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}/"
        end = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit("screenshots.py: the app did not start")
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(15)


if __name__ == "__main__":
    main()
