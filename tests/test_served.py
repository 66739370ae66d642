"""The running server's settings, read off the server: what it serves, what it does not, and what it tells browsers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import FLAGS, chromium
from browsing import watch
from gradio_client import Client, handle_file
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from serve import ROOT, free_port, make_weights, serve

from tinylm.ui import door, limits

# Where a program could be told to open more than it should; none of it may matter.
ENVIRONMENT = {
    "GRADIO_SHARE": "True",
    "GRADIO_SSR_MODE": "True",
    "GRADIO_MCP_SERVER": "True",
    "GRADIO_SERVER_NAME": "127.0.0.1",
}
PUT_A_PICTURE_ON_THE_CLIPBOARD = """async () => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 64, height: 48 });
    canvas.getContext("2d").fillRect(0, 0, 40, 20);
    const picture = await new Promise((done) => canvas.toBlob(done, "image/png"));
    await navigator.clipboard.write([new ClipboardItem({ "image/png": picture })]);
}"""
CSP_SEEN = "document.addEventListener('securitypolicyviolation', (event) => console.error('CSP ' + event.blockedURI));"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with serve(make_weights(tmp_path_factory.mktemp("pinned") / "weights")) as address:
            yield address


def fetch(address: str, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer."""
    body = b"{}" if method == "POST" else None
    request = urllib.request.Request(address + path, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read()


@pytest.fixture(scope="module")
def config(address: str) -> dict[str, Any]:
    return json.loads(fetch(address, "config")[2])


def test_the_settings_are_those_of_a_public_page(config: dict[str, Any]) -> None:
    settings = {
        "api_open": False,
        "run_history": False,
        "enable_monitoring": False,
        "show_error": False,
        "analytics_enabled": False,
        "is_space": False,
        "mcp_server": False,
        "vibe_mode": False,
        "dev_mode": False,
        "max_file_size": 30 * 1024 * 1024,
        "auth_required": None,
        "space_id": None,
    }
    found = {name: config.get(name) for name in settings if name in config}
    assert found == {name: value for name, value in settings.items() if name in config}
    assert len(found) >= 8, sorted(config)
    assert not config.get("is_ssr") and "share" not in json.dumps({k: v for k, v in config.items() if v is True})


def test_only_three_functions_have_names(config: dict[str, Any], address: str) -> None:
    told = json.loads(fetch(address, "gradio_api/info")[2])
    assert sorted(told["named_endpoints"]) == ["/caption", "/complete", "/route"] and told["unnamed_endpoints"] == {}
    public = [item["api_name"] for item in config["dependencies"] if item["api_visibility"] == "public"]
    assert sorted(public) == ["caption", "complete", "route"]


def test_every_run_waits_in_the_queue_and_no_way_leads_past_it(config: dict[str, Any], address: str) -> None:
    for name in ("complete", "caption", "route"):
        (item,) = [item for item in config["dependencies"] if item["api_name"] == name]
        assert item["queue"]
        values = {"data": [None] * len(item["inputs"]), "fn_index": item["id"], "session_hash": "past"}
        for way in ("run", "api"):
            request = urllib.request.Request(
                f"{address}gradio_api/{way}/{name}", json.dumps(values).encode(), {"Content-Type": "application/json"}
            )
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=20)
            assert refused.value.code == 404


@pytest.mark.parametrize(
    "path",
    [
        *(
            "docs",
            "redoc",
            "openapi.json",
            "monitoring",
            "monitoring/summary",
            "monitoring/x",
            "login",
            "logout",
            "token",
        ),
        *(
            "gradio_api/runs",
            "gradio_api/run-history/buckets",
            "gradio_api/run-history/records",
            "gradio_api/deep_link",
        ),
        *("gradio_api/proxy=http://127.0.0.1/", "gradio_api/mcp/sse", "gradio_api/token", "gradio_api/user"),
        *("gradio_api/dev/reload", "gradio_api/profiling/traces", "gradio_api/vibe-code", "gradio_api/queue/status"),
        *("gradio_api/custom_component/0/client/component/index.js", "pwa_icon", "pwa_icon/100000"),
        *("gradio_api/component_server", "gradio_api/process_recording", "gradio_api/stream/x/y/z/playlist.m3u8"),
    ],
)
def test_what_the_page_does_not_need_is_not_there(address: str, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        status, _, body = fetch(address, path, method)
        assert status == 404 and json.loads(body)["detail"] == door.NOTHING_HERE


def secrets() -> list[str]:
    """Files of this machine and of the program, as someone would ask for them."""
    own = [ROOT / name for name in ("app.py", "tinylm/model.py", "weights/text/model.safetensors", "requirements.txt")]
    return [*map(str, own), "/etc/passwd", "/proc/self/environ", "app.py", str(ROOT), "/"]


def test_no_file_of_the_machine_is_served(address: str) -> None:
    for path in secrets():
        encoded = path.replace("/", "%2f")
        ways = [f"gradio_api/file={path}", f"gradio_api/file={encoded}", f"gradio_api/file=/tmp/gradio/../..{path}"]
        ways += [f"gradio_api/file/{path}", f"file={path}", f"static/..{path}", f"assets/..%2f..{encoded}"]
        ways += [f"static/%2e%2e{encoded}", f"svelte/..{encoded}", f"gradio_api/file=%20{path}", f"theme.css/..{path}"]
        for way in ways:
            status, _, body = fetch(address, way)
            assert status in (403, 404), way
            assert b"root:" not in body and b"import" not in body and len(body) < 300


def test_the_examples_and_a_visitors_own_upload_are_served(address: str, tmp_path: Path) -> None:
    page = fetch(address, "")[2].decode()
    examples = set(re.findall(r'"path": ?"([^"]*/tinylm-[^"]*\.png)"', page))
    assert examples
    for path in examples:
        status, headers, body = fetch(address, f"gradio_api/file={path}")
        assert status == 200 and headers["content-type"] == "image/png" and body.startswith(b"\x89PNG")
        folder = path.rsplit("/", 1)[0]
        assert fetch(address, f"gradio_api/file={folder}")[0] == fetch(address, f"gradio_api/file={folder}/x")[0] == 403
    Image.new("RGB", (20, 20), (200, 0, 0)).save(tmp_path / "own.png")
    assert Client(address, verbose=False).predict(handle_file(str(tmp_path / "own.png")), api_name="/caption")


@pytest.mark.parametrize("path", ["", "config", "gradio_api/info", "theme.css", "docs", "gradio_api/file=/etc/passwd"])
def test_every_answer_has_the_headers_of_a_careful_page(address: str, path: str) -> None:
    _, headers, _ = fetch(address, path)
    for name, value in door.HEADERS.items():
        assert headers[name] == value
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "camera=(self)" in headers["permissions-policy"] and "microphone=()" in headers["permissions-policy"]


def test_the_policy_names_no_other_host_but_those_that_may_frame_the_page(address: str) -> None:
    policy = dict(part.split(" ", 1) for part in fetch(address, "")[1]["content-security-policy"].split("; "))
    framing = policy.pop("frame-ancestors")
    assert framing == "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space"
    sources = {source for value in policy.values() for source in value.split()}
    assert sources == {"'self'", "'none'", "'unsafe-inline'", "'unsafe-eval'", "data:", "blob:"}
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'self'"
    assert policy["connect-src"] == "'self' data: blob:" and policy["object-src"] == "'none'"


def test_the_page_names_no_other_host_to_load_from(address: str) -> None:
    page = fetch(address, "")[2].decode()
    loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="([^"]*)"', page)
    loaded += re.findall(r'<link[^>]+href="([^"]*)"', page)
    assert loaded and all(not re.match(r"(https?:)?//", source) for source in loaded)


def test_an_error_of_the_program_tells_the_client_nothing(address: str) -> None:
    status, headers, body = fetch(address, "?page=nothing")  # a KeyError inside gradio
    assert status == 400 and json.loads(body)["detail"] == door.UNREADABLE
    assert headers["x-content-type-options"] == "nosniff"


def test_what_a_run_may_take_is_stated() -> None:
    assert (limits.MAX_RUNNING, limits.MAX_WAITING, limits.MAX_WAITING_EACH) == (3, 64, 48)
    assert (limits.MAX_SECONDS, limits.MAX_SECONDS_WAITING, limits.MAX_NEW_TOKENS) == (30.0, 120.0, 256)


def test_there_is_no_share(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "app.py", "--share"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "unrecognized arguments: --share" in ended.stderr


def test_the_program_listens_on_its_one_address_and_asks_no_other_host(tmp_path: Path) -> None:
    """`app.py` under an audit hook that notes every name looked up and every address connected to or listened on."""
    port, noted = free_port(), tmp_path / "noted.txt"
    script = f"""
import sys, threading
noted = open({str(noted)!r}, "a", buffering=1)
def hook(event, args):
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname"):
        noted.write(repr((event, args[-1] if event in ("socket.connect", "socket.bind") else args[0])) + "\\n")
sys.addaudithook(hook)
import app
app.main(["--weights", {str(tmp_path / "none")!r}, "--port", "{port}"])
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and "tinylm is at" in process.stdout.readline()
        fetch(f"http://127.0.0.1:{port}/", "")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    seen = noted.read_text().splitlines()
    assert seen
    for line in seen:
        assert "127.0.0.1" in line or "localhost" in line or "('', 0)" in line, line
    assert process.returncode == 0


def test_the_program_ends_at_once_though_runs_wait(tmp_path: Path) -> None:
    weights = make_weights(tmp_path / "weights")
    began = None
    with serve(weights) as address:
        client = [Client(address, verbose=False) for _ in range(4)]
        jobs = [one.submit("A baby", "deep", 0, 0, 1, 256, 0, api_name="/complete") for one in client]
        next(iter(jobs[0]))
        began = time.monotonic()
    assert time.monotonic() - began < 12  # `serve` kills after 15 seconds


# ---- The page in a browser: the policy breaks nothing


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Page]:
    """The page under its policy, in a browser with a camera; afterwards nothing may have gone wrong or been blocked."""
    camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    own = browser.browser_type.launch(executable_path=chromium(), headless=True, args=[*FLAGS, *camera])
    context = own.new_context(viewport={"width": 1280, "height": 900}, color_scheme="dark")
    context.grant_permissions(["clipboard-read", "clipboard-write", "camera"], origin=address.rstrip("/"))
    page = context.new_page()
    wrong = watch(page)
    page.add_init_script(CSP_SEEN)
    page.goto(address)
    expect(page.locator("#complete-panel .tl-chip").first).to_be_visible(timeout=30_000)
    yield page
    own.close()
    assert wrong == []


@pytest.mark.browser
def test_all_tabs_work_under_the_policy(visit: Page) -> None:
    for tab in ("Complete", "Caption", "Routing", "Training"):
        visit.get_by_role("tab", name=tab, exact=True).click()
        expect(visit.locator(f"#{tab.lower()}-panel .tl")).to_be_visible()
    for tab in ("Complete", "Routing"):
        visit.get_by_role("tab", name=tab, exact=True).click()
        visit.locator(f"#{tab.lower()}-run").click()
        expect(visit.locator(f"#{tab.lower()}-panel .tl-status")).to_contain_text("Stopped: it reached")
    with visit.expect_download() as download:
        visit.locator("#routing-panel .tl-download").click()
    assert Path(download.value.path()).stat().st_size > 100
    assert visit.evaluate("document.body.classList.contains('dark')")


@pytest.mark.browser
def test_a_pasted_picture_and_the_camera_work_under_the_policy(visit: Page) -> None:
    visit.get_by_role("tab", name="Caption", exact=True).click()
    expect(visit.locator(".tl-thumbs img").first).to_be_visible()
    visit.wait_for_function(
        "[...document.querySelectorAll('.tl-thumbs img')].every((image) => image.naturalWidth === 256)"
    )
    status = visit.locator("#caption-panel .tl-status")
    visit.get_by_label("Remove Image").click()
    expect(status).to_contain_text("Please choose a picture")
    visit.evaluate(PUT_A_PICTURE_ON_THE_CLIPBOARD)
    visit.get_by_label("Paste from clipboard").click()
    visit.wait_for_function("document.querySelector('#caption-picture img')?.naturalWidth === 64")
    expect(status).to_contain_text("The model gives this whole caption")

    visit.get_by_label("Remove Image").click()
    expect(status).to_contain_text("Please choose a picture")
    visit.get_by_label("Capture from camera").click()
    visit.get_by_text("Click to Access Webcam").click()
    visit.wait_for_function("document.querySelector('#caption-picture video')?.videoWidth > 0")
    visit.get_by_label("capture photo").click()
    visit.wait_for_function("document.querySelector('#caption-picture img')?.naturalWidth > 64")
    expect(status).to_contain_text("The model gives this whole caption")
