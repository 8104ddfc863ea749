"""llm-d's router: its endpoints file is obeyed at once, its configuration only after a restart."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from routing.adapters import places
from routing.adapters.llmd import Llmd, Settings
from routing.adapters.rendered import Wanted
from routing.adapters.surface import CannotDo, Refused, SurfaceError
from tests.routing.fake_pages import Pages
from tests.routing.fake_router import serving

P1, P2, D1, D2 = (f"http://10.0.0.{i}:8000" for i in range(1, 5))
STARTED_S = 1_700_000_000.0
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disagg-profile-handler
  parameters:
    deciders:
      prefill: prefix-based-pd-decider
- type: prefix-based-pd-decider
  parameters:
    nonCachedTokens: 16   # ours
"""


def goes_remote(non_cached_tokens: int, *, prompt: int, cached: int, gate: int = 0) -> bool:
    """The router's rule as its source has it (prefix_based_pd_decider.go)."""
    if non_cached_tokens == 0 or prompt < gate or prompt < non_cached_tokens:
        return False
    return prompt - cached >= non_cached_tokens


class Epp(Pages):
    def __init__(self) -> None:
        super().__init__()
        self.started_s: float | None = STARTED_S
        self.version = "v0.9.0"
        self.at["GET /metrics"] = lambda _: self._metrics()

    def _metrics(self) -> bytes:
        lines = [f'llm_d_epp_info{{build_ref="{self.version}",commit="c"}} 1']
        for kind, n in (("decode-only", 30), ("prefill-decode", 12)):
            lines.append(f'llm_d_epp_disagg_decision_total{{decision_type="{kind}"}} {n}')
        if self.started_s is not None:
            lines.append(f"process_start_time_seconds {self.started_s}")
        return "\n".join(lines).encode() + b"\n"


def endpoint(i: int, role: str | None) -> dict[str, Any]:
    labels = {"model": "kimi"} | ({} if role is None else {"llm-d.ai/role": role})
    return {"name": f"e{i}", "address": f"10.0.0.{i}", "port": "8000", "labels": labels, "x": [i]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONSOLE_ROUTERS_DIR", str(tmp_path))
    roles = ("prefill", "prefill", "decode", "decode")
    document = {"endpoints": [endpoint(i, role) for i, role in enumerate(roles, 1)], "more": True}
    (tmp_path / "endpoints.yaml").write_text(json.dumps(document))
    config = tmp_path / "epp.yaml"
    config.write_text(CONFIG)
    os.utime(config, (STARTED_S - 60, STARTED_S - 60))
    return tmp_path


@pytest.fixture
def epp() -> Epp:
    return Epp()


@pytest.fixture
def surface(epp: Epp, folder: Path) -> Iterator[Llmd]:
    with serving(epp) as url:  # type: ignore[arg-type]
        yield Llmd(Settings(url=url, endpoints_file="endpoints.yaml", config_file="epp.yaml"))


def labels(folder: Path) -> list[str]:
    found = json.loads((folder / "endpoints.yaml").read_text())
    assert found["more"] is True
    assert [e["x"] for e in found["endpoints"]] == [[1], [2], [3], [4]]
    return [e["labels"]["llm-d.ai/role"] for e in found["endpoints"]]


def number(surface: Llmd, wanted: Wanted) -> int:
    found = re.findall(r"nonCachedTokens: (\d+)", surface.rendered(wanted, surface.read()).content)
    assert len(found) == 1
    return int(found[0])


@pytest.mark.parametrize("t", [0, 1, 15, 16, 4_000])
def test_what_is_rendered_is_the_plans_rule(surface: Llmd, t: int) -> None:
    n = number(surface, Wanted("threshold", t))
    for uncached in {max(0, t - 1), t, t + 1}:
        for cached in (0, 64):
            remote = goes_remote(n, prompt=uncached + cached, cached=cached)
            assert remote is (uncached > t), (uncached, cached)


def test_zero_is_never_and_no_threshold_is_zero(surface: Llmd) -> None:
    assert not goes_remote(0, prompt=9_999, cached=0)
    assert number(surface, Wanted("always_local")) == 0
    assert number(surface, Wanted("threshold", 0)) == 1
    assert number(surface, Wanted("always_remote")) == 1
    means = surface.capabilities(surface.read()).threshold_means
    assert "nonCachedTokens = 0 means never" in means
    assert "characters / 4" in means


def test_a_written_file_is_pending_until_the_process_starts_anew(
    surface: Llmd, epp: Epp, folder: Path
) -> None:
    wanted = Wanted("threshold", 4_000)
    before = surface.read()
    assert surface.capabilities(before).threshold == "restart"
    assert before.threshold is not None
    assert before.threshold.tokens == 15
    assert surface.runs(wanted, before) is False
    assert surface.runs(Wanted("threshold", 15), before) is True

    rendered = surface.rendered(wanted, before)
    assert rendered.content == CONFIG.replace(": 16", ": 4001")
    (folder / "epp.yaml").write_text(rendered.content)
    written = surface.read()
    assert surface.runs(wanted, written) is None
    assert written.threshold is not None
    assert written.threshold.tokens is None
    assert "pending restart" in written.threshold.words

    epp.started_s = (folder / "epp.yaml").stat().st_mtime + 5
    after = surface.read()
    assert surface.runs(wanted, after) is True
    assert after.threshold is not None
    assert after.threshold.tokens == 4_000


def test_when_it_started_is_not_guessed(surface: Llmd, epp: Epp) -> None:
    epp.started_s = None
    assert surface.runs(Wanted("threshold", 15), surface.read()) is None


def test_a_prompt_gate_is_a_finding(surface: Llmd, folder: Path) -> None:
    config = folder / "epp.yaml"
    config.write_text(CONFIG + "    promptTokens: 512\n")
    os.utime(config, (STARTED_S - 60, STARTED_S - 60))
    assert "promptTokens is 512" in surface.read().findings[0]


@pytest.mark.parametrize("text", ["plugins: []\n", CONFIG + CONFIG, CONFIG.replace("16", "many")])
def test_a_configuration_that_is_not_changed(surface: Llmd, folder: Path, text: str) -> None:
    (folder / "epp.yaml").write_text(text)
    with pytest.raises(CannotDo, match="nonCachedTokens stands there"):
        surface.rendered(Wanted("threshold", 5), surface.read())


def test_a_role_is_changed_by_one_rename(surface: Llmd, folder: Path) -> None:
    path = folder / "endpoints.yaml"
    with path.open() as watched:
        inode = os.fstat(watched.fileno()).st_ino
        surface.cordon(f"{D1}/")
        assert path.stat().st_ino != inode
    assert labels(folder) == ["prefill", "prefill", "cordoned", "decode"]
    assert surface.read().workers[D1].status == "draining"
    surface.list_as(D1, "prefill")
    assert labels(folder) == ["prefill", "prefill", "prefill", "decode"]
    assert surface.read().ready("prefill") == [P1, P2, D1]
    stands = path.stat().st_ino
    surface.list_as(D1, "prefill")
    surface.hold(D1)
    assert path.stat().st_ino == stands, "said twice is written once"


def test_the_last_of_a_role_is_kept(surface: Llmd, folder: Path) -> None:
    surface.cordon(P1)
    for change in (surface.cordon, lambda url: surface.list_as(url, "decode")):
        with pytest.raises(Refused, match="last ready prefill"):
            change(P2)
    assert labels(folder) == ["cordoned", "prefill", "decode", "decode"]
    with pytest.raises(Refused, match="lists no endpoint"):
        surface.list_as("http://10.9.9.9:8000", "decode")


def test_the_last_is_kept_also_when_two_change_the_file(
    surface: Llmd, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, locked = folder / "endpoints.yaml", places.changing

    @contextmanager
    def after_somebody_else(of: Path) -> Iterator[None]:
        document = json.loads(path.read_text())
        document["endpoints"][0]["labels"]["llm-d.ai/role"] = "cordoned"
        path.write_text(json.dumps(document))
        with locked(of):
            yield

    monkeypatch.setattr(places, "changing", after_somebody_else)
    with pytest.raises(Refused, match="last ready prefill"):
        surface.cordon(P2)
    assert labels(folder) == ["cordoned", "prefill", "decode", "decode"]


def test_the_last_is_put_back_when_another_goes_just_afterwards(
    surface: Llmd, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, locked = folder / "endpoints.yaml", places.changing

    @contextmanager
    def before_somebody_else(of: Path) -> Iterator[None]:
        with locked(of):
            yield
        document = json.loads(path.read_text())
        document["endpoints"][0]["labels"]["llm-d.ai/role"] = "cordoned"
        path.write_text(json.dumps(document))

    monkeypatch.setattr(places, "changing", before_somebody_else)
    with pytest.raises(Refused, match="it was put back"):
        surface.cordon(P2)
    assert labels(folder) == ["cordoned", "prefill", "decode", "decode"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("endpoints:\n- name: a\n", "must be JSON"),
        ('{"endpoints": [{"name": "a", "address": "host", "port": "1"}]}', "not an IPv4 address"),
        ('{"endpoints": [{"name": "a", "address": "10.0.0.1", "port": "99999"}]}', "not a port"),
        ('{"endpoints": [{"name": "a", "address": "10.0.0.1", "port": 8000}]}', "port"),
        ("{}", "endpoints"),
        (json.dumps({"endpoints": [endpoint(1, "prefill"), endpoint(1, "decode")]}), "twice"),
        (" " * (2 << 20), "more than 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_meant(surface: Llmd, folder: Path, text: str, says: str) -> None:
    (folder / "endpoints.yaml").write_text(text)
    with pytest.raises(SurfaceError, match=says):
        surface.read()


def test_an_unknown_version_is_read_and_not_changed(surface: Llmd, epp: Epp, folder: Path) -> None:
    epp.version = "v0.11.2"
    assert surface.capabilities(surface.read()).roles == "none"
    with pytest.raises(CannotDo, match=r"v0\.11 was not tried"):
        surface.cordon(D1)
    assert "cordoned" not in labels(folder)


def test_what_it_counts_is_shown(surface: Llmd) -> None:
    facts = surface.read().facts
    assert (facts["requests_total"], facts["remote_requests_total"]) == (42, 12)
    blind = Llmd(Settings(url=surface.url))
    can = blind.capabilities(blind.read())
    assert (can.threshold, can.roles, can.is_readable) == ("none", "none", False)
    with pytest.raises(CannotDo, match="config_file"):
        blind.rendered(Wanted("threshold", 5), blind.read())


def test_what_a_person_writes_meanwhile_is_not_lost(
    surface: Llmd, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, mkstemp = folder / "endpoints.yaml", tempfile.mkstemp
    saved = json.dumps({"endpoints": [endpoint(1, "prefill")]})

    def slowly(**more: Any) -> Any:
        path.write_text(saved)
        return mkstemp(**more)

    monkeypatch.setattr(tempfile, "mkstemp", slowly)
    with pytest.raises(SurfaceError, match="somebody else has changed it meanwhile"):
        surface.cordon(D1)
    assert path.read_text() == saved


def test_its_own_file_is_not_what_it_shows(surface: Llmd) -> None:
    """Reading back what was written proves nothing of the router."""
    can = surface.capabilities(surface.read())
    assert not can.is_readable
    assert "a request is the proof" in can.why
