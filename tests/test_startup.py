"""The start: what is not used is not imported, loading costs little, and the page is served by a tidy process."""

import subprocess
import sys

import pytest
from conftest import ROOT
from serve import free_port

# For training, for other formats, or for what torch can do beside running a model; each takes a good part of a second.
UNUSED = ("sympy", "torchvision", "datasets", "transformers", "matplotlib", "scipy", "plotly", "torch._dynamo")
PAGE_ONLY = ("gradio", "gradio_client", "pandas", "huggingface_hub")

LOAD = "import tinylm\nruns = {name: tinylm.load(f'weights/{name}') for name in ('text', 'vision', 'moe')}\n"
GENERATE = """
import torch
for run in runs.values():
    vision = run.model.config.vision
    images = torch.zeros(1, 3, vision.image_size, vision.image_size) if vision else None
    assert tinylm.generate(run.model, [5, 6], images, max_new_tokens=3)
"""
PAGE = """
from tinylm.ui import page
demo = page.build("weights")
values = [getattr(block, "value", None) for block in demo.blocks.values()]
states = [value["state"] for value in values if isinstance(value, dict) and "state" in value]
assert states and set(states) == {"done"}, states
"""


def said_by(script):
    """What a fresh process prints that runs a script in the repository's root. Fails with what went wrong in it."""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("script", "unused"),
    [
        ("import tinylm", UNUSED + PAGE_ONLY),
        (LOAD + GENERATE, UNUSED + PAGE_ONLY),
        ("from tinylm.ui import page", UNUSED),
        (PAGE, UNUSED),
    ],
    ids=["import", "load and generate", "import of the page", "page with its examples"],
)
def test_what_is_not_used_is_not_imported(script, unused):
    assert said_by(f"{script}\nimport sys\nprint(*sorted(set({unused!r}) & set(sys.modules)))").split() == []


def test_loading_all_three_models_takes_a_fraction_of_importing_torch():
    """CPU seconds of one process, so that a busy machine makes both longer."""
    script = f"""
import time
started = time.process_time()
import torch, safetensors.torch, PIL.Image
imported = time.process_time()
import tinylm
began = time.process_time()
{LOAD}
print(imported - started, time.process_time() - began)
"""
    importing, loading = map(float, said_by(script).split())
    assert loading < importing / 3


def test_garbage_is_collected_again_once_the_page_is_served():
    """`app.py` with a stand-in for the page, which tells how the process stands while it is built and served."""
    script = f"""
import gc, sys, types
import app
class Demo:
    def launch(self, **options):
        return None, "an address", None
    def block_thread(self):
        print("serving", gc.isenabled(), gc.get_freeze_count() > 1000)
def build(weights):
    print("building", gc.isenabled())
    return Demo()
sys.modules["tinylm.ui.page"] = types.SimpleNamespace(build=build)
app.main(["--port", "{free_port()}"])
"""
    lines = said_by(script).splitlines()
    assert [lines[0], lines[-1]] == ["building False", "serving True True"]
