"""Load and abuse in brief: what tests/soak does at length, against one app that has been through all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from soak.abuse import any_json, ended, hostile_requests
from soak.cases import dropped_streams, giant_pictures, sessions
from soak.figures import Figure, hold, percentile
from soak.hostile import leaks
from soak.load import many_visitors
from soak.watch import Server, needs_proc, served, shipped_weights

Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(shipped_weights(tmp_path_factory.mktemp("abuse") / "weights")) as server:
        yield server


@needs_proc
def test_after_dropped_streams_a_small_request_is_as_fast_as_before(server: Server, record_property: Record) -> None:
    hold(record_property, dropped_streams(server, n=6, ratio=2, slack=200))


@needs_proc
def test_visitors_at_once_get_each_their_own_answers(server: Server, record_property: Record) -> None:
    figures, wrong = many_visitors(server, n=10, seconds=2)
    hold(record_property, figures, wrong)


@needs_proc
def test_hostile_requests_break_nothing(server: Server, record_property: Record) -> None:
    figures, wrong = hostile_requests(server, n=120, seed=7, growth_limit=50, warm_up=30)
    hold(record_property, figures, wrong)


@needs_proc
def test_no_json_breaks_an_endpoint(server: Server, record_property: Record) -> None:
    hold(record_property, any_json(server, n=25))


@needs_proc
def test_sessions_leave_nothing_behind(server: Server, record_property: Record) -> None:
    hold(record_property, sessions(server, n=10, warm_up=5, growth_limit=30))


@needs_proc
def test_giant_pictures_are_refused_in_words_before_they_are_unpacked(server: Server, record_property: Record) -> None:
    hold(record_property, giant_pictures(server, n=2))


def test_a_figure_over_its_limit_fails_after_all_figures_are_recorded() -> None:
    recorded: dict[str, object] = {}
    hold(recorded.__setitem__, {"a": Figure(1, 1), "b": Figure(9)})
    with pytest.raises(AssertionError, match=r"b: 2 > 1\nc: nan > 1\nleaked"):
        hold(recorded.__setitem__, {"b": Figure(2, 1, "MB"), "c": Figure(float("nan"), 1)}, ["leaked"])
    assert recorded["b"] == {"value": 2, "limit": 1, "unit": "MB"} and set(recorded) == {"a", "b", "c"}
    assert [percentile([3.0, 1.0, 2.0, 4.0], share) for share in (0.5, 0.95, 1)] == [2, 4, 4]


def test_what_an_answer_gives_away_is_seen() -> None:
    assert leaks(b"Traceback (most recent call last)", b"") == ["Traceback"]
    assert leaks(b"no file /etc/passwd here", b"GET /etc/passwd") == []
    assert leaks(__file__.encode(), b"") != [] and leaks(__file__.encode(), __file__.encode()) == []


def test_how_a_stream_ended_is_seen() -> None:
    assert ended(b'event: generating\ndata: [1]\n\nevent: complete\ndata: [{"text": "x"}]\n\n') == ("complete", "")
    assert ended(b'event: error\ndata: {"error": "Please shorten it."}\n\n') == ("error", "Please shorten it.")
    assert ended(b'event: error\ndata: {"error": null}\n\n') == ("error", "")
    assert ended(b'data: {"msg":"process_completed","success":false,"output":{"error":"No."}}\n\n') == ("error", "No.")
    assert ended(b'data: {"msg":"process_generating","success":true,"output":{}}\n\n') == ("nothing", "")
