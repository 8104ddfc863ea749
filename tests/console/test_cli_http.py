"""How the client asks: again only what may be asked twice, every page, every event, no redirect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from console.client import errors
from console.client.client import Client

Handler = Callable[[httpx.Request], httpx.Response]


class Site:
    """Answers one after the other, and what was asked."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers, self.asked, self.waits = list(answers), [], []  # type: ignore[var-annotated]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, **options: Any) -> Client:
        transport = httpx.MockTransport(self)
        return Client(
            "http://site/", "pf_x", transport=transport, sleep=self.waits.append, **options
        )


def ok(body: Any = None, **headers: str) -> httpx.Response:
    return httpx.Response(200, json=body, headers=headers)


def no(status: int, message: str = "no", **headers: str) -> httpx.Response:
    body = {"ok": False, "error": message, "errors": {"a": ["b"]}, "status": status,
            "code": "x", "request_id": "r1"}  # fmt: skip
    return httpx.Response(status, json=body, headers=headers)


AWAY = httpx.ConnectError("refused")
LATE = httpx.ReadTimeout("late")


@pytest.mark.parametrize("trouble", [AWAY, LATE, no(503), no(502), no(504)], ids=str)
def test_what_reads_is_asked_again(trouble: Any) -> None:
    site = Site(trouble, ok({"mode": "active"}, ETag='"3"'))
    answer = site.client().fleets_policy_retrieve("f1")
    assert (answer.data, answer.etag, len(site.waits)) == ({"mode": "active"}, "3", 1)


def test_what_acts_is_asked_again_under_one_key_and_each_act_has_its_own() -> None:
    site = Site(LATE, no(503), ok({"id": 1}), ok({"id": 2}))
    client = site.client()
    client.fleets_holds_create("f1", {"mode": "always_local"})
    client.fleets_holds_create("f1", {"mode": "always_local"})
    keys = [request.headers["Idempotency-Key"] for request in site.asked]
    assert len(keys[0]) == 32
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_what_may_not_be_done_twice_is_asked_once() -> None:
    site = Site(LATE)
    with pytest.raises(errors.Unreachable, match="in time"):
        site.client().ingest({"v": 1})
    assert len(site.asked) == 1
    site = Site(no(503))
    with pytest.raises(errors.Failed):
        site.client().ingest({"v": 1})


def test_it_waits_as_long_as_it_is_told_and_gives_up_in_the_end() -> None:
    site = Site(*[no(429, **{"Retry-After": "7"})] * 3)
    with pytest.raises(errors.TooMany):
        site.client(attempts=3).me_retrieve()
    assert site.waits == [7.0, 7.0]
    site = Site(no(429, **{"Retry-After": "999999"}), ok())
    site.client().me_retrieve()
    assert site.waits == [30.0]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.Refused),
        (401, errors.NotAllowed),
        (403, errors.NotAllowed),
        (404, errors.NotFound),
        (409, errors.Frozen),
        (412, errors.Outdated),
        (415, errors.Refused),
        (422, errors.Refused),
        (428, errors.Outdated),
        (500, errors.Failed),
    ],
)
def test_an_error_is_an_exception_of_its_kind(status: int, kind: type[errors.ApiError]) -> None:
    with pytest.raises(kind) as found:
        Site(no(status, "because")).client().me_retrieve()
    exc = found.value
    assert (exc.status, exc.message, exc.errors) == (status, "because", {"a": ["b"]})
    assert (exc.code, exc.request_id) == ("x", "r1")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(502, text="<html>"),
        httpx.Response(404, json=[]),
        httpx.Response(404, content=b"{", headers={"Content-Type": "application/json"}),
        httpx.Response(302, headers={"Location": "http://thief/"}),
    ],
)
def test_who_is_no_console_is_told_apart_and_no_redirect_is_followed(
    answer: httpx.Response,
) -> None:
    site = Site(answer)
    with pytest.raises(errors.ApiError, match="not as a console does"):
        site.client(attempts=1).me_retrieve()
    assert len(site.asked) == 1


def test_every_row_of_every_page_and_the_token_goes_nowhere_else() -> None:
    site = Site(
        ok({"results": [{"n": 1}, {"n": 2}], "next": "http://thief/api/v1/x?cursor=abc&limit=2"}),
        ok({"results": [{"n": 3}], "next": None}),
    )
    assert [row["n"] for row in site.client().fleets_holds_list("f1", limit=2)] == [1, 2, 3]
    assert {request.url.host for request in site.asked} == {"site"}
    assert dict(site.asked[1].url.params) == {"cursor": "abc", "limit": "2"}


def test_a_row_is_fetched_only_when_it_is_wanted() -> None:
    site = Site(ok({"results": [{"n": 1}], "next": "/?cursor=x"}))
    assert next(iter(site.client().audit_list())) == {"n": 1}


def test_names_are_quoted_and_versions_too() -> None:
    site = Site(ok(), ok())
    client = site.client()
    client.fleets_policy_partial_update("a/b ?", {"mode": "paused"}, if_match=7)
    assert site.asked[0].url.raw_path == b"/api/v1/fleets/a%2Fb%20%3F/policy"
    assert site.asked[0].headers["If-Match"] == '"7"'
    assert site.asked[0].headers["Authorization"] == "Bearer pf_x"


class _Stream(httpx.SyncByteStream):
    def __init__(self, *parts: bytes | Exception) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            if isinstance(part, Exception):
                raise part
            yield part


def stream(*parts: bytes | Exception) -> httpx.Response:
    return httpx.Response(
        200, headers={"Content-Type": "text/event-stream"}, stream=_Stream(*parts)
    )


def test_a_stream_goes_on_after_the_last_event_it_gave() -> None:
    site = Site(
        stream(b"retry: 1000\nid: a\n\n: quiet\n\nid: b\nevent: decision\nda", b'ta: {"n": 1}\n\n'),
        stream(b"id: c\nevent: hold\ndata: [1,\ndata: 2]\n\n", httpx.ReadError("cut")),
        AWAY,
        stream(b"event: gap\r\ndata: plain\r\n\r\n"),
        no(401),
    )
    found = []
    events = site.client().fleets_events_retrieve("f1", last_event_id="z")
    with pytest.raises(errors.NotAllowed):
        found.extend((event.id, event.kind, event.data) for event in events)
    assert found == [("b", "decision", {"n": 1}), ("c", "hold", [1, 2]), ("", "gap", "plain")]
    places = [request.headers.get("Last-Event-ID") for request in site.asked]
    assert places == ["z", "b", "c", "c", "c"]


def test_a_stream_that_cannot_be_had_ends() -> None:
    with pytest.raises(errors.Unreachable):
        next(Site(*[AWAY] * 4).client().events_retrieve())
