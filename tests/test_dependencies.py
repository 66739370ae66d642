"""What is installed is what the requirements ask for, no more and no less, and known flaws can be asked for."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version
from pathlib import Path
from typing import Any

import audit
import pytest
from browsing import IN_CI
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from serve import free_port

FILES = ("requirements.txt", "requirements-dev.txt", "requirements-bench.txt")
MADE_BY_MAKE = Path(sys.prefix, "app-ready").exists()
NEW_PILLOW = sys.version_info >= (3, 11)  # Pillow 13 needs it
ZERO_GPU_TORCH = ("2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0")
OF_THE_SPACE = "spaces"  # there on a ZeroGPU Space only

# A test that sets up by make can't be had without it; CI has it.
needs_make = pytest.mark.skipif(shutil.which("make") is None and not IN_CI, reason="no make here")


def requirements(file: str) -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


def asked_by(name: str, extra: str = "") -> list[Requirement]:
    """What an installed package needs here, or one of its extras does."""
    wanted = map(Requirement, distribution(name).requires or [])
    return [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": extra})]


def closure(roots: list[Requirement]) -> set[str]:
    """The installed packages that some requirements bring along, themselves included, by their normalised names."""
    found: set[tuple[str, str]] = set()
    waiting = [(r.name, extra) for r in roots for extra in ("", *r.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (canonicalize_name(name), extra) in found:
            continue
        found.add((canonicalize_name(name), extra))
        try:
            needed = asked_by(name, extra)
        except PackageNotFoundError:
            continue  # `pip check` is there to complain
        waiting += [(r.name, further) for r in needed for further in ("", *r.extras)]
    return {name for name, _ in found}


# Pillow


def test_pip_check_complains_of_the_pillow_that_gradio_does_not_know_and_of_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stdout.splitlines() if " has requirement " in line or " requires " in line]
    if Version(version("pillow")) < Version("13"):
        assert (done.returncode, complaints) == (0, []), done.stdout
    else:
        assert len(complaints) == 1, done.stdout
        assert re.match(r"gradio 6\.31\.0 has requirement pillow<13\.0,>=8\.0, but you have pillow 13\.", complaints[0])


def test_pillow_is_as_new_as_the_set_up_makes_it() -> None:
    assert MADE_BY_MAKE or not IN_CI, "CI is set up by make"
    assert Version(version("pillow")) >= Version("13" if MADE_BY_MAKE and NEW_PILLOW else "12")


def test_a_space_can_resolve_the_requirements() -> None:
    """There pip alone installs: some Pillow must suit both gradio and tinylm."""
    ours = {r.name: r.specifier for r in requirements("requirements.txt")}
    gradios = next(r.specifier for r in asked_by("gradio") if r.name == "pillow")
    assert (ours["pillow"] & gradios).contains("12.3.0")
    assert all(ours["torch"].contains(torch) for torch in ZERO_GPU_TORCH)


@needs_make
@pytest.mark.parametrize("target", ["app", "test", "bench", "train", "check", "audit"])
def test_each_set_up_puts_pillow_last(target: str, tmp_path: Path) -> None:
    command = ["make", "--dry-run", target, f"VENV={tmp_path / 'venv'}"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    installs = [line for line in planned.splitlines() if "pip install" in line]
    last = next(i for i, line in enumerate(installs) if "-r requirements.txt" in line)
    assert "--no-deps" in installs[last + 1] and '"pillow>=13; python_version' in installs[last + 1]
    # What comes behind it asks for no older Pillow, so pip leaves it alone.
    later = re.findall(r"-r (\S+)", " ".join(installs[last + 2 :]))
    for file in later:
        for name in closure(requirements(file)) - {"gradio"}:
            specifiers = [r.specifier for r in _asked_if_installed(name) if canonicalize_name(r.name) == "pillow"]
            assert all(specifier.contains("13.0.0") for specifier in specifiers), (file, name)


def _asked_if_installed(name: str) -> list[Requirement]:
    try:
        return asked_by(name)
    except PackageNotFoundError:
        return []


# Requirements


def test_the_space_runs_the_gradio_that_is_pinned() -> None:
    front = (ROOT / "README.md").read_text(encoding="utf-8").split("---")[1]
    sdk = re.search(r"^sdk_version: (\S+)$", front, re.MULTILINE)
    pin = next(r.specifier for r in requirements("requirements.txt") if r.name == "gradio")
    assert sdk and pin == SpecifierSet(f"=={sdk[1]}")
    assert version("gradio") == sdk[1]


@pytest.mark.parametrize("file", FILES)
def test_each_requirement_has_a_least_version_and_what_is_installed_is_no_older(file: str) -> None:
    for requirement in requirements(file):
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators & {">=", "=="}, f"{requirement}: older versions were never tried"
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            assert file == "requirements-bench.txt", requirement  # only `make bench` installs those
            continue
        assert requirement.specifier.contains(found, prereleases=True), f"{requirement}, but {found} is installed"


def test_importing_the_app_and_the_training_loads_only_what_the_requirements_bring() -> None:
    program = (
        "import json, sys, app, train, tinylm.training, tinylm.ui.page; "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    owners = packages_distributions()
    loaded = {canonicalize_name(owner) for name in json.loads(done.stdout) for owner in owners.get(name, [])}
    assert {"torch", "gradio", "pillow"} <= loaded
    assert loaded - closure(requirements("requirements.txt")) == set()


def test_what_the_code_imports_by_name_is_asked_for_by_name() -> None:
    """Or is what gradio asks for itself, whose version is pinned. Imports in functions too, which load nothing yet."""
    named = {canonicalize_name(r.name) for r in [*requirements("requirements.txt"), *asked_by("gradio")]}
    owners = packages_distributions()
    for path in [*(ROOT / "tinylm").rglob("*.py"), ROOT / "app.py", ROOT / "train.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names):
                if name in ("tinylm", OF_THE_SPACE):
                    continue
                assert {canonicalize_name(owner) for owner in owners[name]} & named, f"{path.name} imports {name}"


# make audit


@contextmanager
def advisories(answer: Callable[[str, Any], Any]) -> Iterator[str]:
    """The address of a service on this machine that answers (path, question) like OSV; a str is sent as it is."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._send(answer(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def do_GET(self) -> None:
            self._send(answer(self.path, None))

        def _send(self, value: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write((value if isinstance(value, str) else json.dumps(value)).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def osv(flaws: dict[str, list[dict[str, Any]]], asked: list[Any]) -> Callable[[str, Any], Any]:
    """Answers of OSV that knows `flaws` by package; `asked` gets the questions."""
    entries = {flaw["id"]: flaw for of_one in flaws.values() for flaw in of_one}

    def answer(path: str, question: Any) -> Any:
        if path == "/v1/querybatch":
            asked.extend(question["queries"])
            found = (flaws.get(query["package"]["name"], []) for query in question["queries"])
            return {
                "results": [{"vulns": [{"id": flaw["id"]} for flaw in of_one]} if of_one else {} for of_one in found]
            }
        return entries[path.removeprefix("/v1/vulns/")]

    return answer


FLAW = {
    "id": "GHSA-1",
    "aliases": ["PYSEC-1"],
    "summary": "a heap overflow",
    "affected": [
        {
            "package": {"name": "Pillow"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99"}]}],
        }
    ],
}


def test_an_audit_asks_for_every_installed_package_and_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []
    with advisories(osv({}, asked)) as service:
        assert audit.main(service) == 0
    assert {"package": {"name": "pillow", "ecosystem": "PyPI"}, "version": version("pillow")} in asked
    names = {query["package"]["name"] for query in asked}
    assert closure([r for r in requirements("requirements.txt") if r.name != "torch"]) <= names
    assert len(names) == len(asked) and all("+" not in query["version"] for query in asked)
    assert capsys.readouterr().out == f"No known flaw(s) in {len(asked)} packages, by {service}.\n"


def test_an_audit_names_each_flaw_once_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    same = {"id": "PYSEC-1", "aliases": ["GHSA-1"]}
    withdrawn = {"id": "GHSA-2", "summary": "none after all", "withdrawn": "2026-01-01T00:00:00Z"}
    bare = {"id": "PYSEC-3"}
    with advisories(osv({"pillow": [FLAW, same, withdrawn], "gradio": [bare]}, [])) as service:
        assert audit.main(service) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    assert lines == [
        f"gradio {version('gradio')}: PYSEC-3: no summary",
        f"pillow {version('pillow')}: GHSA-1: a heap overflow (fixed in 99)",
    ]
    assert summary.startswith("2 known flaw(s) in ")


@pytest.mark.parametrize(
    "answer", [None, "<html>Please log in</html>", "{}", "[]", '{"results": [{}]}', '{"results": 3}']
)
def test_an_audit_that_gets_no_answer_says_in_one_line_that_nothing_was_checked(answer: str | None) -> None:
    def run(service: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "tests" / "audit.py"), service]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    if answer is None:
        done = run(f"http://127.0.0.1:{free_port()}")
    else:
        with advisories(lambda *_: answer) as service:
            done = run(service)
    assert done.returncode == 0 and done.stderr == ""
    assert len(done.stdout.splitlines()) == 1 and done.stdout.startswith("Nothing was checked: http://127.0.0.1:")


@needs_make
def test_make_audit_runs_it(tmp_path: Path) -> None:
    # Under another make, as in CI, it would tell of the folders that it enters and leaves.
    command = ["make", "--no-print-directory", "--dry-run", "audit", f"VENV={tmp_path / 'venv'}"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert planned.splitlines()[-1] == f"{tmp_path / 'venv'}/bin/python tests/audit.py"
