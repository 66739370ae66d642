"""The package's layout: who may import whom, and imports that do nothing but define."""

import ast
import re
import subprocess
import sys

import pytest
from conftest import ROOT

PACKAGE = ROOT / "tinylm"
# A file may import only files above it; a folder's own files may import each other.
ORDER = [
    "tinylm.files",
    "tinylm.config",
    "tinylm.tokenizer",
    "tinylm.cache",
    "tinylm.attention",
    "tinylm.moe",
    "tinylm.vision",
    "tinylm.shapes",
    "tinylm.model",
    "tinylm.decoder",
    "tinylm.generate",
    "tinylm.full_cache",
    "tinylm.comparison",
    "tinylm.surgery",
    "tinylm.graphed",
    "tinylm.durable",
    "tinylm.checkpoint",
    "tinylm.article",
    "tinylm.data.english",
    "tinylm.data.painter",
    "tinylm.data.knowledge",
    "tinylm.data.hub",
    "tinylm.data.text",
    "tinylm.data.flowers",
    "tinylm.data.others",
    "tinylm.data.augment",
    "tinylm.data.known",
    "tinylm.data.batches",
    "tinylm.captioner",
    "tinylm.caption_figures",
    "tinylm.evaluation",
    "tinylm.experts",
    "tinylm.card",
    "tinylm.muon",
    "tinylm.losses",
    "tinylm.recipes",
    "tinylm.gpu_step",
    "tinylm.loop",
    "tinylm.report",
    "tinylm.resume",
    "tinylm.training",
    "tinylm.ui",
]
FOLDERS = ("tinylm.data.painter", "tinylm.ui")


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def place(name):
    """Where in ORDER a module stands; a folder's files share its place."""
    for folder in FOLDERS:
        if name == folder or name.startswith(folder + "."):
            return ORDER.index(folder)
    return ORDER.index(name)


def imports_of(path):
    """Dotted names that a file imports anywhere in it, inside functions too; a module's own names are cut off."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return found


def test_every_file_of_the_package_has_its_place():
    outside = {"tinylm", "tinylm.data"}  # the collections of names
    placed = {name for name in MODULES if name in ORDER or name.startswith(tuple(f + "." for f in FOLDERS))}
    assert set(MODULES) - placed == outside, "give a new file its place in ORDER"
    assert set(ORDER) <= set(MODULES)


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("tinylm", "tinylm.data")])
def test_a_file_imports_only_files_above_it(name):
    ours = {found for found in imports_of(MODULES[name]) if found.split(".")[0] == "tinylm"}
    for found in ours:
        if name.startswith("tinylm.ui"):
            assert found != "tinylm.training", f"{name} is the page and must not need the training"
        if found == "tinylm":
            # The public names, for the page alone.
            assert name.startswith("tinylm.ui"), f"{name} imports the package's public names; name the module"
            continue
        same_folder = place(found) == place(name) and name.startswith(FOLDERS)
        assert place(found) < place(name) or same_folder, f"{name} imports {found}, which does not stand above it"


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("tinylm.config", {"torch"}),
        ("tinylm.tokenizer", {"torch", "numpy"}),
        ("tinylm.data.painter", {"torch"}),
        ("tinylm.data.knowledge", {"torch"}),
    ],
)
def test_files_that_need_no_torch_do_not_import_it(name, forbidden):
    for module, path in MODULES.items():
        if module == name or (name in FOLDERS and module.startswith(name + ".")):
            assert not {found.split(".")[0] for found in imports_of(path)} & forbidden


def test_no_file_of_the_package_but_the_page_needs_gradio():
    for name, path in MODULES.items():
        if not name.startswith("tinylm.ui"):
            assert not {found.split(".")[0] for found in imports_of(path)} & {"gradio", "torchvision", "pandas"}, name


def test_importing_any_module_prints_nothing_reads_no_data_and_opens_no_socket():
    names = [name for name in MODULES if not name.startswith("tinylm.ui")]
    script = f"""
import sys
heard = []
def hook(event, args):
    if event == "open" and str(args[0]).startswith({str(ROOT)!r}):
        path = str(args[0])
        if "/.venv/" not in path and not path.endswith((".py", ".pyc")) and ".pyc." not in path:
            heard.append((event, path))
    elif event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.system"):
        heard.append((event, str(args)[:200]))
    elif event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+") and ".pyc" not in str(args[0]):
        heard.append((event, str(args)[:200]))
sys.path.insert(0, {str(ROOT)!r})
import torch, numpy, PIL.Image, safetensors.torch, tqdm, importlib
sys.addaudithook(hook)
before = torch.initial_seed(), torch.get_rng_state().sum(), torch.get_num_threads(), torch.get_default_dtype()
for name in {names!r}:
    importlib.import_module(name)
    assert not heard, (name, heard)
    extra = {{"datasets", "torchvision", "gradio", "pandas", "transformers"}} & set(sys.modules)
    assert not extra, (name, extra)
after = torch.initial_seed(), torch.get_rng_state().sum(), torch.get_num_threads(), torch.get_default_dtype()
assert before == after, (before, after)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_value_on_the_page_is_drawn_at_random():
    # What the page shows is computed or was written by training. Seeds are handed to `tinylm.stream`, not used here.
    drawn = re.compile(r"Math\.random|getRandomValues|randomUUID|\brandom\b|\brand(n|int|perm)?(_like)?\(|\bsecrets\b")
    files = [path for kind in ("py", "js", "html") for path in sorted((PACKAGE / "ui").rglob(f"*.{kind}"))]
    assert len(files) > 40
    found = []
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            code = re.sub(r"(#|//).*", "", line)
            if drawn.search(code) and path.name != "terms.js":  # which explains what a random draw is
                found.append((path.name, line.strip()))
    assert found == []


def test_every_public_name_is_there():
    import tinylm

    assert sorted(tinylm.__all__) == sorted(set(tinylm.__all__))
    for name in tinylm.__all__:
        assert getattr(tinylm, name) is not None


@pytest.mark.parametrize("name", ["train.py", "app.py"])
def test_entry_points_are_thin_and_do_nothing_when_imported(name):
    path = ROOT / name
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert len(path.read_text(encoding="utf-8").splitlines()) < 150
    called = [node for node in tree.body if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)]
    assert called == []
