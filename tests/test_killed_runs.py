"""Runs killed, stopped or out of room at any moment: the folder is old or new, and --resume gives the same run.

Training processes are forked from a server that has imported PyTorch already, which saves seconds a process; they are
killed with SIGKILL all the same.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import measure
import pytest
import torch
from conftest import HUB_CACHE, ROOT, lively, tiny_config

import tinylm
from tinylm import Tokenizer, checkpoint, durable, loop, training

FILES = sorted(checkpoint.FILES)
PHASES = ("start-up", "training", "evaluation", "state save", "final save", "clean-up")
SIZES = ["d_model=32", "n_layers=1", "d_ff=48", "d_latent=8", "vocab_size=150", "batch_size=8"]

# Reads orders, one a line; each is a run of train.py in a process of its own. It notes when it enters a phase, and if
# told so kills itself just before its n-th call that changes the disk.
SERVER = """
import functools, json, os, resource, signal, sys, time
import torch
torch.set_num_threads(1)
torch.optim.AdamW([torch.zeros(1)])  # the first one imports a compiler, which takes seconds
import train
from tinylm import checkpoint, durable, loop, training

CALLS = ("replace", "rename", "unlink", "rmdir", "mkdir", "fsync")


def work(order):
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    err = os.open(order["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(err, 2)
    phases = os.open(order["phases"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    inside = []

    def note():
        os.write(phases, f"{time.monotonic()} {inside[-1]}\\n".encode())

    def noted(phase, function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            inside.append(phase)
            note()
            try:
                return function(*args, **kwargs)
            finally:
                inside.pop()
                note()
        return wrapper

    calls = [0]

    def counted(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            calls[0] += 1
            if calls[0] == order.get("kill_at"):
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return wrapper

    inside.append("start-up")
    note()
    training.run_steps = noted("training", training.run_steps)
    loop._evaluate = noted("evaluation", loop._evaluate)
    durable.write_whole = noted("state save", durable.write_whole)
    finish, save = durable.finish, checkpoint.save
    training.metrics = noted("final save", training.metrics)
    checkpoint.save = noted("final save", checkpoint.save)

    def clean_up(folder):
        # Of this run, not of the one before it.
        return (noted("clean-up", finish) if (folder / durable.NEW).exists() else finish)(folder)

    durable.finish = clean_up
    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    if "room" in order:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["room"], order["room"]))
    try:
        status = train.main(order["args"])
    except BaseException:
        import traceback
        traceback.print_exc()
        status = 99
    sys.stdout.flush()
    sys.stderr.flush()
    if "calls" in order:
        with open(order["calls"], "w") as file:
            file.write(str(calls[0]))
    os._exit(status)


for line in sys.stdin:
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        work(order)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


class Server:
    """Runs train.py in forked processes, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": HUB_CACHE, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(ROOT)
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, *args: object, **order: object) -> int:
        """Start a run; its process id."""
        names = {name: str(self.folder / name) for name in ("out", "err", "phases", "calls")}
        for name in names.values():
            Path(name).unlink(missing_ok=True)
        self._process.stdin.write(json.dumps({**names, **order, "args": list(map(str, args))}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self) -> int:
        """The exit status of the run, or minus the signal that ended it."""
        return os.waitstatus_to_exitcode(int(self._process.stdout.readline()))

    def run(self, *args: object, **order: object) -> int:
        self.start(*args, **order)
        return self.wait()

    def said(self, name: str = "err") -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def phases(self) -> list[tuple[float, str]]:
        """When the run entered which phase."""
        try:
            lines = self.said("phases").split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [(float(when), phase) for when, phase in (line.split(" ", 1) for line in lines)]

    def wait_for(self, phase: str, occurrence: int) -> bool:
        """Wait until the run enters a phase for the n-th time, counted from 0; False if it ends before."""
        deadline = time.monotonic() + 60
        while [p for _, p in self.phases()].count(phase) <= occurrence:
            if not self.is_running() or time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True

    def is_running(self) -> bool:
        import select

        return not select.select([self._process.stdout], [], [], 0)[0]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def command(corpus_file):
    return ["text", "--corpus", corpus_file, "--device", "cpu", "--save-every", "0", "--epochs", "3", "--set", *SIZES]


def content(folder: Path) -> dict[str, bytes]:
    """The run folder's files as a reader finds them."""
    return {
        name: durable.current(folder, name).read_bytes() for name in FILES if durable.current(folder, name).exists()
    }


def settled(folder: Path) -> tuple[dict[str, bytes], dict[str, object]]:
    """What two runs of a plan have in common: files' bytes, and figures but for clocks and commands."""
    files = content(folder)
    figures = json.loads(files["metrics.json"])
    for key in ("seconds", "tokens_per_second", "command"):
        del figures[key]
    for entry in figures["history"]:
        del entry["seconds"]
    return {name: files[name] for name in ("model.safetensors", "config.json", "tokenizer.json")}, figures


@pytest.fixture(scope="module")
def whole(server, command, tmp_path_factory):
    """The folder of a run that nothing disturbed, and when it entered which phase."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert server.run(*command, "--out", folder) == 0, server.said()
    return folder, server.phases()


@pytest.fixture(scope="module")
def old(server, corpus_file, tmp_path_factory):
    """The folder of another finished run, of which no file fits those of the new one."""
    folder = tmp_path_factory.mktemp("old") / "run"
    args = ["moe", "--corpus", corpus_file, "--device", "cpu", "--epochs", "0.3", "--set", *SIZES, "vocab_size=120"]
    assert server.run(*args, "--out", folder) == 0, server.said()
    return folder


def check_old_or_new(folder: Path, before: dict[str, bytes]) -> str:
    """The folder loads as the run that was in it or as the new one, or holds no run at all as before."""
    found = content(folder)
    if found == before:
        if before:
            assert tinylm.load(folder).info["variant"] == "moe"
        return "old" if before else "none"
    assert sorted(found) == FILES
    assert not any(found[name] == before.get(name) for name in FILES)
    assert tinylm.load(folder).info["variant"] == "text"
    return "new"


def go_on(server: Server, command: list, folder: Path, **order: object) -> int:
    """The same command again, with --resume where there is something to go on from."""
    resume = ["--resume"] if (folder / training.STATE).exists() else []
    return server.run(*command, "--out", folder, *resume, **order)


def check_same_as(folder: Path, whole: Path) -> None:
    assert sorted(os.listdir(folder)) == FILES  # no rubbish
    found, undisturbed = settled(folder), settled(whole)
    assert found[0] == undisturbed[0]
    assert found[1] == undisturbed[1]


# Killed by the clock


def kill_once(server, command, folder, phase, at, moment, resume=()):
    """Start the run and kill it so long after it enters the phase for the n-th time; the phase that was hit."""
    pid = server.start(*command, "--out", folder, *resume)
    if not server.wait_for(phase, at):
        server.wait()
        return None
    time.sleep(moment)
    os.kill(pid, signal.SIGKILL)  # not reaped yet if it is over: the server's readline is still to come
    return server.phases()[-1][1] if server.wait() == -signal.SIGKILL else None


def moments(phases, n, seed):
    """`n` moments, as many of each phase: (phase, how often it was entered before, seconds after that)."""
    rng = random.Random(seed)
    ends = [when for when, _ in phases[1:]] + [phases[-1][0]]
    spans = {name: [] for name in PHASES}
    for (start, phase), end in zip(phases, ends, strict=True):
        spans[phase].append(end - start)
    for i in range(n):
        phase = PHASES[i % len(PHASES)]
        at = rng.randrange(len(spans[phase]))
        yield phase, at, rng.random() * spans[phase][at]


def kill_and_go_on(server, command, whole, old, tmp_path, n, seed):
    """Kill `n` runs, and more until every phase was hit; where they were hit, and what the folders held right then.

    The clean-up is over in a millisecond, before which a kill meant for it often doesn't come.
    """
    undisturbed, phases = whole
    hits, states, folder = dict.fromkeys(PHASES, 0), {"none": 0, "old": 0, "new": 0}, tmp_path / "run"
    n_twice = n_kills = 0
    planned = list(moments(phases, n, seed))
    for i in range(5 * n):
        missed = [phase for phase in PHASES if not hits[phase]]
        if i >= n and (n < len(PHASES) or not missed):
            break
        phase, at, moment = planned[i] if i < n else (missed[0], 0, 0.0)
        n_kills += 1
        hit = None
        while hit is None:  # a run that was over before it could be killed is no kill
            shutil.rmtree(folder, ignore_errors=True)
            if i % 2:
                shutil.copytree(old, folder)
            before = content(folder) if folder.exists() else {}
            hit = kill_once(server, command, folder, phase, at, moment)
            moment /= 2
        hits[hit] += 1
        states[check_old_or_new(folder, before)] += 1
        if i % 3 == 2 and (folder / training.STATE).exists():  # and what goes on is killed again
            kill_once(server, command, folder, PHASES[i % 4], 0, 0.0, ["--resume"])
            check_old_or_new(folder, before)
            n_twice += 1
        assert go_on(server, command, folder) == 0, server.said()
        check_same_as(folder, undisturbed)
    return {"kills": n_kills, "killed_again_while_resumed": n_twice, "hit": hits, "folder_right_after": states}


def test_three_killed_runs_end_as_the_undisturbed_one(server, command, whole, old, tmp_path):
    found = kill_and_go_on(server, command, whole, old, tmp_path, 3, seed=1)
    assert sum(found["hit"].values()) == 3


@pytest.mark.soak
def test_thirty_killed_runs_end_as_the_undisturbed_one(server, command, whole, old, tmp_path, record_property):
    measured_on = measure.machine()
    started = time.monotonic()
    found = kill_and_go_on(server, command, whole, old, tmp_path, 30, seed=2026)
    assert all(found["hit"].values()), found  # every phase was hit
    report = {"machine": measured_on, **found, "all_equal": True, "seconds": round(time.monotonic() - started, 1)}
    path = measure.RESULTS / "kills.json"
    earlier = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    measure.write("kills", {"runs": [*earlier, report]})
    record_property("kills", {"value": found["kills"], "limit": None, "unit": "runs"})


def test_a_real_train_py_killed_in_the_middle_goes_on_to_the_same_bytes(server, command, whole, tmp_path):
    folder = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    args = [sys.executable, str(ROOT / "train.py"), *map(str, command), "--out", str(folder)]
    process = subprocess.Popen(args, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (folder / training.STATE).exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL
    state = torch.load(folder / training.STATE, weights_only=True)
    assert 0 < state["progress"]["step"] < json.loads(content(whole[0])["metrics.json"])["steps"]
    assert go_on(server, command, folder) == 0, server.said()
    check_same_as(folder, whole[0])


# Killed before each call that changes the disk


def test_a_run_killed_before_any_call_of_its_end_loads_as_old_or_new(server, command, whole, old, tmp_path):
    # From the state that the run had when only its files were left to be written.
    start, folder = tmp_path / "start", tmp_path / "run"
    shutil.copytree(old, start)
    assert kill_once(server, command, start, "final save", 0, 0.0) == "final save"
    state = torch.load(start / training.STATE, weights_only=True)
    assert state["progress"]["step"] == json.loads(content(whole[0])["metrics.json"])["steps"]
    shutil.copytree(start, folder)
    before = content(folder)
    assert go_on(server, command, folder) == 0, server.said()
    n_calls = int(server.said("calls"))
    found = []
    for k in range(1, n_calls + 1):
        shutil.rmtree(folder)
        shutil.copytree(start, folder)
        assert go_on(server, command, folder, kill_at=k) == -signal.SIGKILL
        found.append(check_old_or_new(folder, before))
        if found[-1] == "old" or k % 4 == 0:  # a finished save needs no second one, but must bear it
            assert (folder / training.STATE).exists()
            assert go_on(server, command, folder) == 0, (k, server.said())
            check_same_as(folder, whole[0])
    # First old, then new, and never anything else.
    assert found == sorted(found, reverse=True)
    assert found.count("old") > 10 and found.count("new") > 8


def test_a_run_killed_before_any_call_of_a_state_save_goes_on_to_the_same_bytes(server, command, whole, tmp_path):
    folder = tmp_path / "run"
    calls = 4 * 2 + 2  # of two saves, and of the folder's beginning
    steps = []
    for k in range(1, calls + 1):
        shutil.rmtree(folder, ignore_errors=True)
        assert server.run(*command, "--out", folder, kill_at=k) == -signal.SIGKILL
        assert set(os.listdir(folder) if folder.exists() else []) <= {training.STATE, training.STATE + ".tmp"}
        state = folder / training.STATE
        steps.append(torch.load(state, weights_only=True)["progress"]["step"] if state.exists() else 0)
        if k % 3 == 0:
            assert go_on(server, command, folder) == 0, (k, server.said())
            check_same_as(folder, whole[0])
    assert steps == sorted(steps) and set(steps) == {0, 1, 2}


# Saving and loading alone


def two_runs():
    """Two runs of which no two files fit each other."""

    def tokenizer_of(size):
        return Tokenizer(
            [chr(65 + i) for i in range(size - 3)] + ["<pad>", "<eos>", "<unk>"], ("<pad>", "<eos>", "<unk>")
        )

    return [
        (lively(tiny_config(variant, vocab_size=size), seed=size), tokenizer_of(size), {"size": size})
        for variant, size in (("text", 30), ("moe", 20))
    ]


def size_of(folder):
    """Which of the two runs loads; a mixture does not."""
    run = tinylm.load(folder)
    assert run.model.config.vocab_size == run.tokenizer.vocab_size == run.info["size"]
    assert (run.model.config.moe is not None) == (run.info["size"] == 20)
    return run.info["size"]


@pytest.mark.parametrize("name", ["replace", "fsync"])
def test_a_save_that_fails_at_any_call_leaves_the_old_run_or_the_new_one(tmp_path, monkeypatch, name):
    old, new = two_runs()
    folder, real = tmp_path / "run", getattr(os, name)
    seen = []
    for k in range(1, 30):
        shutil.rmtree(folder, ignore_errors=True)
        checkpoint.save(folder, *old)
        calls = []

        def failing(*args, k=k, calls=calls, **kwargs):
            calls.append(args)
            if len(calls) == k:
                raise OSError(28, "No space left on device")
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, failing)
        try:
            checkpoint.save(folder, *new)
            failed = False
        except OSError:
            failed = True
        monkeypatch.undo()
        if len(calls) < k:
            break
        seen.append(size_of(folder))
        assert not failed or seen[-1] == 30  # what could not be written is not there
        checkpoint.save(folder, *new)
        assert size_of(folder) == 20
        assert sorted(os.listdir(folder)) == FILES
    assert seen == sorted(seen, reverse=True)
    assert len(seen) >= {"replace": 6, "fsync": 8}[name]


def test_everything_is_on_the_disk_before_it_takes_the_place_of_something(tmp_path, monkeypatch):
    # A power cut may undo what was not flushed, in any order.
    old, new = two_runs()
    checkpoint.save(tmp_path, *old)
    flushed, order = set(), []
    fsync, replace, rmdir = os.fsync, os.replace, os.rmdir

    def noting_fsync(handle):
        fsync(handle)
        flushed.add(os.fstat(handle).st_ino)
        order.append(("flush", os.fstat(handle).st_ino))

    def noting_replace(source, target):
        below = [source, *(source.iterdir() if source.is_dir() else ())]
        missing = [path.name for path in below if path.stat().st_ino not in flushed]
        assert not missing, f"{missing} became {target} before being flushed"
        replace(source, target)
        order.append(("move", Path(target).name))

    def noting_rmdir(path, **options):
        rmdir(path, **options)
        order.append(("remove", Path(path).name))

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    monkeypatch.setattr(os, "rmdir", noting_rmdir)
    checkpoint.save(tmp_path, *new)
    folder = ("flush", tmp_path.stat().st_ino)
    moves = [i for i, (what, _) in enumerate(order) if what == "move"]
    assert order[moves[0]] == ("move", durable.NEW)
    assert sorted(name for what, name in order[moves[1] :] if what == "move") == FILES
    assert folder in order[moves[0] : moves[1]]  # the moment itself, before the first old file goes
    assert folder in order[moves[-1] : order.index(("remove", durable.NEW))]  # the last move, before its trace goes
    order.clear()
    durable.write_whole(tmp_path / "state", lambda path: path.write_bytes(b"x"))
    assert order[-1] == folder


def test_who_reads_while_runs_are_saved_gets_one_of_them_whole(tmp_path):
    runs = two_runs()
    checkpoint.save(tmp_path, *runs[0])
    stop, failures = threading.Event(), []

    def save_on_and_on():
        try:
            while not stop.is_set():
                for run in reversed(runs):
                    checkpoint.save(tmp_path, *run)
                    time.sleep(0.002)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=save_on_and_on)
    thread.start()
    try:
        seen = [size_of(tmp_path) for _ in range(80)]
    finally:
        stop.set()
        thread.join()
    assert failures == []
    assert set(seen) == {20, 30}


def test_a_save_in_the_middle_of_a_load_is_seen_even_where_the_files_fit_each_other(tmp_path, monkeypatch):
    old = two_runs()[0]
    new = (lively(tiny_config("text", vocab_size=30), seed=5), old[1], {"size": "new"})
    checkpoint.save(tmp_path, *old)
    real, calls = Tokenizer.load, []

    def reading(path):
        tokenizer = real(path)
        calls.append(path)
        if len(calls) == 1:
            checkpoint.save(tmp_path, *new)
        return tokenizer

    monkeypatch.setattr(Tokenizer, "load", reading)
    run = tinylm.load(tmp_path)
    assert run.info == new[2]
    assert torch.equal(run.model.embed.weight, new[0].embed.weight)
    assert len(calls) == 2  # once more from the start


def test_a_save_cut_short_loads_from_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    old, new = two_runs()
    checkpoint.save(tmp_path, *old)
    real = os.replace

    def refusing(source, target):
        if Path(source).parent.name == durable.NEW and len(os.listdir(Path(source).parent)) < 4:
            raise OSError(30, "Read-only file system")
        real(source, target)

    monkeypatch.setattr(os, "replace", refusing)
    checkpoint.save(tmp_path, *new)
    assert len(os.listdir(tmp_path / durable.NEW)) == 3
    assert size_of(tmp_path) == 20
    assert len(os.listdir(tmp_path / durable.NEW)) == 3
    monkeypatch.undo()
    assert size_of(tmp_path) == 20  # and loading has moved the rest
    assert sorted(os.listdir(tmp_path)) == FILES


def test_the_shipped_weights_load_and_are_left_as_they_are():
    for name in ("text", "vision", "moe"):
        before = durable.version(ROOT / "weights" / name, FILES)
        tinylm.load(ROOT / "weights" / name)
        assert durable.version(ROOT / "weights" / name, FILES) == before
        assert sorted(os.listdir(ROOT / "weights" / name)) == FILES


def test_what_a_killed_run_left_is_cleared_away_by_the_next(server, tmp_path):
    folder = tmp_path / "run"
    (folder / (durable.NEW + ".tmp")).mkdir(parents=True)
    (folder / (durable.NEW + ".tmp") / "config.json").write_text("{}")
    (folder / "training.pt.tmp").write_bytes(b"half")
    (folder / "mine.tmp").write_bytes(b"somebody's own")
    assert (
        server.run("text", "--corpus", tmp_path / "none", "--out", folder) == 1
    )  # at its start, whatever becomes of it
    assert os.listdir(folder) == ["mine.tmp"]


def test_starting_anew_over_an_unfinished_run_says_so(server, command, whole, tmp_path):
    folder = tmp_path / "run"
    assert kill_once(server, command, folder, "state save", 2, 0.0)
    assert server.run(*command, "--out", folder) == 0
    assert server.said("out").startswith(f"{folder} holds an unfinished run, which this one replaces; --resume would")
    check_same_as(folder, whole[0])


# Stopped


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_stop_saves_and_says_how_to_go_on(server, command, whole, tmp_path, number):
    folder = tmp_path / "run"
    pid = server.start(*command, "--out", folder, "--save-every", 1000)  # nothing is saved before it stops
    assert server.wait_for("evaluation", 2)
    os.kill(pid, number)
    assert server.wait() == 130
    assert [phase for _, phase in server.phases()].count("state save") == 1
    said = server.said()
    assert "Traceback" not in said
    assert f"interrupted and saved in {folder}; go on with: python train.py" in said and "--resume" in said
    assert torch.load(folder / training.STATE, weights_only=True)["progress"]["step"] > 2
    assert go_on(server, command, folder) == 0
    check_same_as(folder, whole[0])


def test_a_run_that_is_told_to_stop_before_its_first_step_says_that_nothing_was_saved(server, command, tmp_path):
    pid = server.start(*command, "--out", tmp_path / "run")
    while not (tmp_path / "run").exists():
        time.sleep(0.0005)
    os.kill(pid, signal.SIGTERM)
    assert server.wait() == 130
    assert "Traceback" not in server.said()
    if server.phases()[-1][1] == "start-up":
        assert "nothing was saved" in server.said() and "--resume" not in server.said()
        assert os.listdir(tmp_path / "run") == []


def test_pytorchs_own_random_numbers_play_no_part_in_a_run(whole, command, tmp_path, monkeypatch, capsys):
    # Why the saved state needs none of them.
    import train

    real = loop.training_loss
    numbers = iter(range(10**6))

    def disturbing(*args):
        torch.manual_seed(next(numbers))
        random.seed(next(numbers))
        return real(*args)

    monkeypatch.setattr(loop, "training_loss", disturbing)
    assert train.main([*map(str, command), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    check_same_as(tmp_path / "run", whole[0])


# No room, no right


def test_without_room_for_the_state_a_run_goes_on_and_is_saved(server, command, whole, tmp_path):
    folder = tmp_path / "run"
    room = 2 * (whole[0] / "model.safetensors").stat().st_size  # the state has three times as much
    assert server.run(*command, "--out", folder, room=room) == 0, server.said()
    told = [line for line in server.said("out").splitlines() if "can't be saved" in line]
    assert len(told) == 1  # not again every minute
    assert str(folder) in told[0] and "File too large" in told[0]
    check_same_as(folder, whole[0])


def test_without_room_for_the_weights_a_run_ends_in_one_line_and_the_old_one_is_kept(
    server, command, whole, old, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(old, folder)
    before = content(folder)
    room = (whole[0] / "model.safetensors").stat().st_size // 2
    assert server.run(*command, "--out", folder, room=room) == 1
    told = server.said().splitlines()[-1]
    assert "Traceback" not in server.said()
    assert f"the run can't be saved in {folder}: File too large; nothing of it was saved" in told
    assert content(folder) == before
    assert sorted(os.listdir(folder)) == FILES
    assert tinylm.load(folder).info["variant"] == "moe"


def test_a_finished_run_without_room_for_its_weights_keeps_its_state_for_resume(server, command, whole, old, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(old, folder)
    before = content(folder)
    assert kill_once(server, command, folder, "final save", 0, 0.0) == "final save"
    room = (whole[0] / "model.safetensors").stat().st_size // 2
    assert server.run(*command, "--out", folder, "--resume", room=room) == 1
    n_steps = json.loads(content(whole[0])["metrics.json"])["steps"]
    assert f"its state at step {n_steps} is kept; go on from there with --resume" in server.said().splitlines()[-1]
    assert content(folder) == before
    assert go_on(server, command, folder) == 0
    check_same_as(folder, whole[0])


def test_an_interrupted_run_that_cannot_be_saved_does_not_say_that_it_was(server, command, whole, tmp_path):
    room = (whole[0] / "model.safetensors").stat().st_size
    pid = server.start(*command, "--out", tmp_path / "run", room=room)
    assert server.wait_for("state save", 1)
    os.kill(pid, signal.SIGINT)
    assert server.wait() == 1
    assert re.search(
        r"interrupted, but the state can't be saved in .*: File too large; nothing of it was saved", server.said()
    )
    assert os.listdir(tmp_path / "run") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_disk_that_is_really_full_leaves_the_old_run(server, command, whole, old, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    size = sum(path.stat().st_size for path in old.iterdir()) + 60_000
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        shutil.copytree(old, disk / "run")
        before = content(disk / "run")
        assert server.run(*command, "--out", disk / "run") == 1
        assert "No space left on device" in server.said().splitlines()[-1]
        assert "Traceback" not in server.said()
        assert content(disk / "run") == before
        assert sorted(os.listdir(disk / "run")) == FILES
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert server.run(*command, "--out", disk / "run") == 1
        assert "can't be written: Read-only file system" in server.said().splitlines()[-1]
        assert tinylm.load(disk / "run").info["variant"] == "moe"
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
