"""`manage.py lab` says in a line what the lab would not do."""

from __future__ import annotations

import io
import json
import socket
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A state folder that names a port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "ports.json").write_text(json.dumps({"admin": port, "load": port}))
    monkeypatch.setenv("CONSOLE_STATE_DIR", str(tmp_path))
    return port


@pytest.mark.parametrize("amount", ["nan", "inf", "-1", "much"])
def test_an_amount_that_is_none_is_refused_here(lab: int, amount: str) -> None:
    with pytest.raises(CommandError, match="must be a number, 0 or more"):
        call_command("lab", "link", "a->b", amount)


def test_a_lab_that_is_gone_is_said(lab: int) -> None:
    with pytest.raises(CommandError, match=f"does not answer at http://127.0.0.1:{lab}"):
        call_command("lab", "status")


def test_what_the_lab_says_is_passed_on(lab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: urllib.request.Request, timeout: float) -> None:
        body = io.BytesIO(b'{"error": {"message": "no link \'a->b\'"}}')
        raise urllib.error.HTTPError(request.full_url, 404, "Not Found", Message(), body)

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(CommandError) as caught:
        call_command("lab", "link", "a->b", "5")
    assert str(caught.value) == "the lab refuses: no link 'a->b'"
