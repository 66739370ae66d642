"""Seconds from the start of a process to its first answer: `python app.py`, against the smallest gradio app there is.

python benchmarks/startup.py [--rounds 5] [--weights weights]

Each figure is a fresh process, timed from outside: from before it is started until the whole answer to the first
request is here; that request is sent again every few milliseconds until the port is open. In turn, every round:

- imports alone: a process that does `import torch, gradio` and ends;
- empty app, page: that, an empty `gr.Blocks()` launched on a port, and GET / of it;
- tinylm, page: `python app.py` with the shipped weights, and GET / of it: the page with its finished examples, so that
  all three models are loaded and have run;
- echo app, answer: as the empty app, with one function that gives back its text, called through the API;
- tinylm, answer: `python app.py`, and a whole sentence from `/complete` through the API.

A first round, not counted, leaves all files in the system's cache. All run without gradio's analytics, as tinylm does:
with them the empty app would start a little later.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gradio

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import ROOT, in_turn, machine, ratio, table, write

IMPORTS = "import os, torch, gradio; os._exit(0)"  # without tidying up, which takes a while
EMPTY_APP = """
import sys, torch, gradio
with gradio.Blocks() as demo:
    pass
demo.launch(server_name="127.0.0.1", server_port=int(sys.argv[1]), ssr_mode=False, quiet=True)
"""
ECHO_APP = """
import sys, torch, gradio
with gradio.Blocks() as demo:
    text = gradio.Textbox()
    gradio.on([], lambda text: text, text, text, api_name="echo")
demo.launch(server_name="127.0.0.1", server_port=int(sys.argv[1]), ssr_mode=False, quiet=True)
"""
PROMPT = "A baby cat is called"
ENVIRONMENT = {**os.environ, "GRADIO_ANALYTICS_ENABLED": "False"}
SECONDS_BETWEEN_TRIES = 0.005
MAX_SECONDS = 120

Request = Callable[[int], str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which medians are taken (default: 5)")
    parser.add_argument("--weights", default="weights", help="folder of run folders to serve (default: weights)")
    parser.add_argument("--out", default="startup", help="name of the JSON file in benchmarks/results")
    args = parser.parse_args()
    measured_on = machine()

    python = [sys.executable, "-c"]
    tinylm = [sys.executable, "app.py", "--weights", args.weights, "--port"]
    taken = in_turn(
        {
            "imports alone": imports_alone,
            "empty app, page": lambda: seconds_to_answer([*python, EMPTY_APP], page),
            "tinylm, page": lambda: seconds_to_answer(tinylm, page_with_examples),
            "echo app, answer": lambda: seconds_to_answer([*python, ECHO_APP], echo),
            "tinylm, answer": lambda: seconds_to_answer(tinylm, completion),
        },
        rounds=args.rounds,
    )
    medians = {name: round(statistics.median(values), 3) for name, values in taken.items()}
    times = {name: round(ratio(taken, name, "empty app, page"), 3) for name in taken}
    report = {
        "machine": {**measured_on, "gradio": gradio.__version__},
        "unit": "seconds",
        "rounds": args.rounds,
        "median": medians,
        "times_of_empty_app_page": times,
        "answer_times_of_echo_app": round(ratio(taken, "tinylm, answer", "echo app, answer"), 3),
    }
    spread = {name: f"{min(values):.2f} to {max(values):.2f}" for name, values in taken.items()}
    table(
        ("from the start of the process", "seconds", "of all rounds", "times the empty app's page"),
        [(name, f"{medians[name]:.2f}", spread[name], times[name]) for name in taken],
    )
    print(f"first answer of the API, times the echo app's: {report['answer_times_of_echo_app']}")
    write(args.out, report)


def imports_alone() -> float:
    """How long a process takes that only imports what both apps need."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, env=ENVIRONMENT, check=True)
    return time.perf_counter() - started


def seconds_to_answer(command: list[str], request: Request) -> float:
    """How long a process takes from its start to a request's answer; `command` gets a free port as its last argument.

    Raises RuntimeError if the process ends or takes more than `MAX_SECONDS`.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = time.perf_counter()
    process = subprocess.Popen([*command, str(port)], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None and time.perf_counter() - started < MAX_SECONDS:
            try:
                request(port)
                return time.perf_counter() - started
            except ConnectionError:
                time.sleep(SECONDS_BETWEEN_TRIES)
        raise RuntimeError(f"no answer from {' '.join(command)[:80]}")
    finally:
        process.terminate()
        process.wait(MAX_SECONDS)


def page(port: int) -> str:
    """GET /."""
    return _http(port, "GET", "/")


def page_with_examples(port: int) -> str:
    """GET /, which has to hold examples that the models have finished."""
    text = page(port)
    # Panels' values hold JSON as text, so that its quotes are escaped.
    n_examples = len(re.findall(r'\\+"opening\\+":true', text))
    assert n_examples == text.count('"state":"done"') > 0, "the page is not finished"
    return text


def echo(port: int) -> str:
    """The echo app's answer."""
    answer = _call(port, "echo", [PROMPT])
    assert answer == PROMPT, answer
    return answer


def completion(port: int) -> str:
    """A sentence that the text model finished."""
    answer = _call(port, "complete", [PROMPT, "text", 0, 0, 1, 40, 0])
    assert answer["stopped"] == "eos" and len(answer["text"]) > len(PROMPT), answer
    return answer["text"]


def _call(port: int, name: str, inputs: list) -> object:
    """The last value that a named endpoint streams."""
    event = json.loads(_http(port, "POST", f"/gradio_api/call/{name}", json.dumps({"data": inputs})))["event_id"]
    stream = _http(port, "GET", f"/gradio_api/call/{name}/{event}")
    assert "event: complete" in stream, stream
    data = [line for line in stream.splitlines() if line.startswith("data:")]
    return json.loads(data[-1].removeprefix("data:"))[0]


def _http(port: int, method: str, path: str, body: str | None = None) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MAX_SECONDS)  # asks no proxy
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, (answer.status, text[:200])
        return text
    finally:
        connection.close()


if __name__ == "__main__":
    main()
