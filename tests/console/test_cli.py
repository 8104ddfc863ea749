"""What is typed and what is printed: exit codes, where the token comes from, text of others."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from console.cli import __main__ as cli
from console.cli import config
from console.cli.command import Misused, named_values, until
from console.cli.shown import Out
from console.client import client as client_module
from console.client.http import Calls
from tests.routing.cases import NOW

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "\x1b[31mred\u202etxt.exe\x07\nnext"


@pytest.fixture
def typed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs a command against answers; what it asked, its code and what it printed."""
    monkeypatch.setenv("PRFAAS_CONFIG", str(tmp_path / "cli.toml"))
    monkeypatch.setenv("PRFAAS_URL", "http://site")
    monkeypatch.setenv("PRFAAS_TOKEN", "pf_x")

    def run(*words: str, answers: Any = ()) -> tuple[int, str, str, list[httpx.Request]]:
        waiting, asked = list(answers), []

        def answer(request: httpx.Request) -> httpx.Response:
            asked.append(request)
            status, body = waiting.pop(0)
            return httpx.Response(status, json=body)

        class Client(client_module.Client):
            def __init__(self, url: str, token: str, **options: Any) -> None:
                Calls.__init__(
                    self, url, token, transport=httpx.MockTransport(answer), attempts=1, **options
                )

        monkeypatch.setattr(cli, "Client", Client)
        code = cli.main(words)
        printed = capsys.readouterr()
        return code, printed.out, printed.err, asked

    return run


def refused(status: int, **errors: list[str]) -> tuple[int, dict[str, Any]]:
    return status, {"ok": False, "error": "no", "errors": errors, "status": status}


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, 4), (403, 4), (404, 5), (409, 6), (412, 6), (428, 6), (422, 2), (400, 2), (500, 1)],
)
def test_exit_codes(typed: Any, status: int, code: int) -> None:
    assert typed("fleet", "f1", answers=[refused(status)])[:3] == (code, "", "no\n")


def test_each_reason_has_its_line(typed: Any) -> None:
    answer = refused(422, **{"fleets.f1.x": ["is wrong"], "jobs.j": ["is too", "and so"]})
    code, out, err, _ = typed("policy", "set", "f1", "--mode", "paused", "--if-version", "3",
                              answers=[answer])  # fmt: skip
    assert (code, out) == (2, "")
    assert err.splitlines() == ["fleets.f1.x: is wrong", "jobs.j: is too", "jobs.j: and so"]


def test_text_of_others_steers_no_terminal(typed: Any) -> None:
    page = {"results": [{"name": HOSTILE, "mode": "x" * 300, "epoch": 1}], "next": None}
    code, out, _, _ = typed("fleets", answers=[(200, page)])
    assert code == 0
    assert len(out.splitlines()) == 2
    assert not set("\x1b\u202e\x07") & set(out)
    assert max(map(len, out.splitlines())) < 140
    code, out, _, _ = typed("--json", "fleets", answers=[(200, page)])
    assert json.loads(out)[0]["name"] == HOSTILE


def test_json_is_asked_for_before_or_after_the_command(typed: Any) -> None:
    page = {"results": [], "next": None}
    assert typed("fleets", "--json", answers=[(200, page)])[1] == "[]\n"
    assert typed("--json", "fleets", answers=[(200, page)])[1] == "[]\n"
    assert typed("fleets", answers=[(200, page)])[1] == "none\n"


def test_a_change_says_the_version_that_was_seen(typed: Any) -> None:
    body = {"mode": "paused", "version": 4}
    _, out, _, asked = typed("policy", "set", "f1", "--mode", "paused", "--set", "t_dwell_s=30",
                             "--set", "objective=default", "--if-version", "3",
                             answers=[(200, body)])  # fmt: skip
    assert out == "f1 is paused, version 4\n"
    assert asked[0].headers["If-Match"] == '"3"'
    assert json.loads(asked[0].content) == {
        "mode": "paused", "reason": "", "knobs": {"t_dwell_s": 30, "objective": None},
    }  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("policy", "set", "f1"),
        ("policy", "set", "f1", "--set", "nothing"),
        ("holds", "extend", "f1", "3", "--for", "soon", "--reason", "x"),
        ("apply", "site.ini"),
        ("apply", "/nowhere/site.toml"),
        ("report", "f1", "2026-10", "--file", "x.doc"),
        ("call", "nothing"),
        ("call", "fleets_policy_retrieve"),
        ("call", "fleets_policy_retrieve", "fleet=f1", "colour=red"),
        ("--url", "file:///etc/passwd", "fleets"),
        ("--url", "http://me:pw@site", "fleets"),
        ("--token-file", "/nowhere", "fleets"),
    ],
    ids=" ".join,
)
def test_what_was_typed_wrongly_asks_nothing(typed: Any, words: tuple[str, ...]) -> None:
    code, out, err, asked = typed(*words)
    assert (code, out, asked) == (2, "", [])
    assert len(err.splitlines()) == 1


def test_words_that_there_are_not_end_with_2() -> None:
    for words in (["nothing"], [], ["holds"], ["fleet"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 2


def test_what_is_kept_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cli.toml"
    config.write(path, config.Config("http://site", "pf_secret"))
    assert path.stat().st_mode & 0o777 == 0o600
    known = {"PRFAAS_CONFIG": str(path)}
    assert config.read(known, url=None, token_file=None).token == "pf_secret"
    # A token goes to the console it was kept with, and to no other.
    assert config.read(known, url="http://other", token_file=None).token == ""
    assert config.read(known | {"PRFAAS_URL": "http://other"}, url=None, token_file=None) == (
        config.Config("http://other", "")
    )
    path.chmod(0o644)
    with pytest.raises(config.ConfigError, match="chmod 600"):
        config.read(known, url=None, token_file=None)


def test_a_secret_file_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("pf_x\n")
    path.chmod(0o640)
    with pytest.raises(config.ConfigError, match="others may read"):
        config.read({}, url="http://site", token_file=path)
    path.chmod(0o400)
    assert config.read({}, url="http://site", token_file=path).token == "pf_x"


def test_without_a_console_it_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match="--url, PRFAAS_URL, or `login`"):
        config.read({"HOME": "/", "PRFAAS_CONFIG": str(tmp_path / "x")}, url=None, token_file=None)
    (tmp_path / "x").write_text("url = 3")
    (tmp_path / "x").chmod(0o600)
    with pytest.raises(config.ConfigError, match="url is not one of"):
        config.read({"PRFAAS_CONFIG": str(tmp_path / "x")}, url=None, token_file=None)


def test_spans_and_values() -> None:
    assert until(NOW, "90m") == "2026-11-29T13:30:00+00:00"
    for wrong in ("", "1", "1w", "-1h", "1h30m", "9999999d"):
        with pytest.raises(Misused):
            until(NOW, wrong)
    assert named_values(["a=1", "b=2.5", "c=x", "d=default", "e=a=b"], "--set") == {
        "a": 1, "b": 2.5, "c": "x", "d": None, "e": "a=b",
    }  # fmt: skip


def test_wide_characters_keep_columns_apart() -> None:
    out = Out(io.StringIO(), as_json=False)
    out.table([{"a": "한국어", "b": 1}, {"a": "x", "b": 2}], ("a", "b"))
    assert out.stream.getvalue() == "A       B\n한국어  1\nx       2\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_words(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert "approvals" in capsys.readouterr().out


def test_it_starts_without_django() -> None:
    """In an interpreter that refuses to load it, nor anything else that only a server needs."""
    refuse = (
        "import sys\n"
        "for name in ('django', 'rest_framework', 'celery', 'numpy', 'psycopg', 'redis'):\n"
        "    sys.modules[name] = None\n"
        "from console.cli.__main__ import main\n"
        "sys.exit(main(['operations']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", refuse], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert "fleets_holds_create" in done.stdout


def test_client_and_command_line_import_nobody_of_the_console() -> None:
    for path in [*(ROOT / "console/client").glob("*.py"), *(ROOT / "console/cli").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                own = name.startswith(("console.client", "console.cli"))
                assert own or name.split(".")[0] not in ("console", "routing", "telemetry"), name
