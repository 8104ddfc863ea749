"""Questions about old ranges, and answers that are none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

import pytest

from telemetry.doors import history, promql
from telemetry.doors.history import expression
from telemetry.doors.promql import Client, QueryFailed


class Asked(HTTPServer):
    """Answers every POST with `body` and remembers what came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body = b""
        self.status = 200
        self.paths: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def says(self, *series: tuple[dict[str, str], list[tuple[float, str]]]) -> None:
        result = [{"metric": labels, "values": points} for labels, points in series]
        data = {"resultType": "matrix", "result": result}
        self.body = json.dumps({"status": "success", "data": data}).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Asked

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.paths.append(self.path)
        self.server.forms.append({key: value[0] for key, value in parse_qs(form).items()})
        self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def asked() -> Iterator[Asked]:
    server = Asked()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_kind_of_signal_is_folded_as_history_folds_it() -> None:
    matchers = 'fleet="f"'
    assert expression("instance", "requests_running", matchers, bin_s=60.0) == (
        "avg by (fleet,cluster,instance) "
        '(avg_over_time(prfaas_instance_requests_running{fleet="f"}[60s]))'
    )
    assert expression("link", "tx_bytes_total", matchers, bin_s=10.0) == (
        'max by (link) (last_over_time(prfaas_link_tx_bytes_total{fleet="f"}[10s]))'
    )
    assert expression("router", "requests_per_s", matchers, bin_s=10.0).startswith("avg by")


def test_a_range_comes_back_in_the_shape_of_the_store(asked: Asked) -> None:
    labels = {"fleet": "f", "cluster": "pd", "instance": "d.0"}
    asked.says((labels, [(119.999, "1.5"), (239.999, "NaN"), (299.999, "+Inf"), (359.999, "4")]))
    found = history.series(
        Client(asked.url + "/prometheus/"),
        "instance",
        "requests_running",
        paths=["f/pd/d.0", "f/pd/d1", "g/p/d0"],
        since_s=61.0,
        until_s=350.0,
        bin_s=60.0,
    )
    assert found == {
        "t": [60.0, 120.0, 180.0, 240.0, 300.0],
        "bin_s": 60.0,
        "series": {
            "f/pd/d.0": [1.5, None, None, None, 4.0],
            "f/pd/d1": [None] * 5,
            "g/p/d0": [None] * 5,
        },
    }
    assert asked.paths == ["/prometheus/api/v1/query_range"] * 2
    first = asked.forms[0]
    assert (first["start"], first["end"], first["step"]) == ("119.999", "359.999", "60")
    assert 'fleet="f",cluster="pd",instance=~"d\\\\.0|d1"' in first["query"]


def test_bins_are_never_finer_than_what_was_forwarded(asked: Asked) -> None:
    asked.says()
    found = history.series(
        Client(asked.url), "link", "rtt_s", paths=["a->b"], since_s=0.0, until_s=20.0, bin_s=2.0
    )
    assert found == {"t": [0.0, 10.0], "bin_s": 10.0, "series": {"a->b": [None, None]}}


def test_many_paths_are_several_questions(asked: Asked) -> None:
    asked.says()
    paths = [f"f/pd/d{i}" for i in range(250)]
    history.series(
        Client(asked.url),
        "instance",
        "requests_running",
        paths=paths,
        since_s=0.0,
        until_s=20.0,
        bin_s=10.0,
    )
    assert len(asked.paths) == 3


def test_headers_and_a_user_go_along(asked: Asked) -> None:
    asked.says()
    url = asked.url.replace("http://", "http://me:s%40fe@")
    Client(url, headers={"X-Scope-OrgID": "prfaas"}).query("up", at_s=1.0)
    assert asked.headers[0]["x-scope-orgid"] == "prfaas"
    assert asked.headers[0]["authorization"] == "Basic bWU6c0BmZQ=="
    assert "@" not in asked.headers[0]["host"]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"<html>", "not an answer of the query API"),
        (200, b'{"status":"error","error":"too much","errorType":"execution"}', "too much"),
        (200, b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}', "scalar"),
        (
            200,
            b'{"status":"success","data":{"resultType":"vector","result":'
            b'[{"metric":{},"value":[1,"x"]}]}}',
            "not an answer",
        ),
        (422, b'{"status":"error","error":"bad query"}', "HTTP 422: bad query"),
        (500, b"oops", "HTTP 500: oops"),
    ],
)
def test_an_answer_that_is_none_says_whose_and_why(
    asked: Asked, status: int, body: bytes, words: str
) -> None:
    asked.status, asked.body = status, body
    with pytest.raises(QueryFailed, match=words) as told:
        Client(asked.url).query("up", at_s=1.0)
    assert asked.url in str(told.value)


def test_an_answer_is_bounded_and_silence_is_an_error(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promql, "MAX_ANSWER_BYTES", 10)
    asked.says()
    with pytest.raises(QueryFailed, match="more than 10 bytes"):
        Client(asked.url).query("up", at_s=1.0)
    with pytest.raises(QueryFailed, match="refused"):
        Client("http://127.0.0.1:1").query("up", at_s=1.0)
