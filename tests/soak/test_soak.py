"""The long part: minutes each. `make soak` runs them and keeps the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from serve import make_weights

from soak.abuse import any_json, hostile_requests
from soak.cases import dropped_streams, giant_pictures, sessions, unread_calls
from soak.charts import many_updates
from soak.figures import hold
from soak.load import many_visitors
from soak.watch import Server, needs_proc, served, shipped_weights

pytestmark = [pytest.mark.soak, needs_proc]
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shipped_weights(tmp_path_factory.mktemp("soak") / "weights")


@pytest.fixture
def server(weights: Path) -> Iterator[Server]:
    """A fresh app for each test: what one leaves behind is no other's."""
    with served(weights) as server:
        yield server


def test_after_fifty_dropped_streams_a_small_request_is_as_fast_as_before(
    server: Server, record_property: Record
) -> None:
    hold(record_property, dropped_streams(server, n=50, ratio=1.5, slack=50))


def test_forty_visitors_get_each_their_own_answers_for_two_minutes(server: Server, record_property: Record) -> None:
    figures, wrong = many_visitors(server, n=40, seconds=120)
    hold(record_property, figures, wrong)


def test_two_thousand_hostile_requests_break_nothing(server: Server, record_property: Record) -> None:
    figures, wrong = hostile_requests(server, n=2_000, seed=6, growth_limit=50, warm_up=100)
    hold(record_property, figures, wrong)


def test_no_json_breaks_an_endpoint(server: Server, record_property: Record) -> None:
    hold(record_property, any_json(server, n=500))


def test_calls_that_nobody_reads_keep_no_memory(server: Server, record_property: Record) -> None:
    hold(record_property, unread_calls(server, n=20, growth_limit=40))


def test_three_hundred_sessions_leave_nothing_behind(server: Server, record_property: Record) -> None:
    hold(record_property, sessions(server, n=300, warm_up=50, growth_limit=30))


def test_giant_pictures_are_refused_in_words_before_they_are_unpacked(server: Server, record_property: Record) -> None:
    hold(record_property, giant_pictures(server, n=5))


@pytest.mark.browser
def test_five_hundred_drawings_leave_page_and_server_as_large_as_they_were(
    browser: Browser, tmp_path: Path, record_property: Record
) -> None:
    with served(make_weights(tmp_path / "weights")) as server:
        # Chromium's process takes some 30 MB soon and 43 after 1,500 drawings, while the page's heap stays as it is.
        limits = {"heap_limit": 5, "page_limit": 60, "growth_limit": 30}
        hold(record_property, many_updates(server, browser, n=500, warm_up=100, **limits))
