"""The page's end of the live socket, message by message: pongs, gaps, silence, backing off."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

STAGE = """
    const { LiveSocket } = await import("/static/console/socket.js");
    const live = new LiveSocket({ url: "ws://unused.invalid/", snapshotUrl: "/nowhere" });
    const sent = [], gaps = [], states = [];
    live.connect = () => { live.socket = { send: (m) => sent.push(m), close: () => {} }; };
    live.addEventListener("frame", ({ detail }) => gaps.push(detail.gap));
    live.addEventListener("state", ({ detail }) => states.push([detail.state, detail.silent]));
    const now = () => Date.now() / 1000;
    const frame = (seq, more) => live.receive(
        { type: "frame", stream: "a", seq, at_s: now(), snapshot: false, ...more });
    live.connect();
"""


def run(page: Page, body: str) -> Any:
    return page.evaluate(f"async () => {{ {STAGE} {body} }}")


def test_each_heartbeat_is_answered(blank: Page) -> None:
    """S-47: a client that does not is dropped by the server."""
    sent = run(
        blank,
        """live.receive({ type: "hello", stream: "a", heartbeat_s: 2, frame_s: 1 });
           live.receive({ type: "heartbeat", at_s: now() });
           live.receive({ type: "heartbeat", at_s: now() });
           return sent;""",
    )
    assert sent == ['{"type":"pong"}'] * 2


def test_a_lost_frame_is_answered_by_asking_for_a_snapshot(blank: Page) -> None:
    found = run(
        blank,
        """frame(4, { snapshot: true });
           frame(5);
           frame(8);
           frame(8, { snapshot: true });
           frame(9);
           frame(1, { stream: "b" });
           return [sent, gaps];""",
    )
    ask = '{"type":"snapshot"}'
    assert found == [[ask, ask], [False, False, True, False, False, True]]


def test_an_open_connection_that_says_nothing_counts_as_none(blank: Page) -> None:
    found = run(
        blank,
        """live.receive({ type: "hello", stream: "a", heartbeat_s: 2, frame_s: 1 });
           frame(1, { snapshot: true });
           live.heardMs -= 3900;
           live.watch();
           const early = live.silent;
           live.heardMs -= 200;
           live.watch();
           const waits = live.timer !== null;
           clearTimeout(live.timer);
           return [early, live.silent, live.socket, waits, states];""",
    )
    states = [["live", False], ["live", True], ["connecting", True]]
    assert found == [False, True, None, True, states]


def test_reconnecting_backs_off_with_jitter_up_to_a_limit(blank: Page) -> None:
    waits_ms = run(
        blank,
        """const waits = [];
           const real = window.setTimeout;
           window.setTimeout = (_, ms) => { waits.push(ms); return 1; };
           for (let i = 0; i < 12; i += 1) live.lost(1006);
           window.setTimeout = real;
           return waits;""",
    )
    bases_ms = [min(15_000, 500 * 2**i) for i in range(12)]
    assert all(
        0.5 * base <= wait <= 1.5 * base for wait, base in zip(waits_ms, bases_ms, strict=True)
    )
    assert len({wait / base for wait, base in zip(waits_ms, bases_ms, strict=True)}) == 12


def test_signed_out_is_the_end_of_trying(blank: Page) -> None:
    found = run(blank, """live.lost(4401); return [live.state, live.timer ?? null];""")
    assert found == ["signed-out", None]
