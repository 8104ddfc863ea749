"""Pages speak the reader's language; contracts, records and scripts' catalogues keep theirs."""

from __future__ import annotations

import ast
import gettext as catalogues
import html
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import get_language, override

from console import api_docs, core_words, deprecated, figures, languages, pages
from console.phrases import in_other_languages, joined, listed, said, said_n
from routing import commands, findings
from routing.models import Action, Hold
from tests.console.onboarding_case import refusal, well
from tests.console.page_case import busy_fleet

LOCALE = Path(settings.LOCALE_PATHS[0])
ROOT = Path(settings.BASE_DIR)
KOREAN = {"HTTP_ACCEPT_LANGUAGE": "ko-KR,ko;q=0.9,en;q=0.8"}
HANGUL = re.compile("[가-힣]")
Text = tuple[str, str]
"""A msgid and its plural, which may be empty."""


@pytest.fixture
def client(db: None) -> Client:
    user = User.objects.create_user("op")
    user.groups.add(Group.objects.get_or_create(name="operator")[0])
    made = Client()
    made.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return made


def _speak(client: Client, language: str, **more: Any) -> Any:
    return client.post("/i18n/setlang/", {"language": language, "next": "/tokens/", **more})


# The choice


def test_the_browser_chooses_until_the_person_does(client: Client) -> None:
    page = client.get("/tokens/", **KOREAN)
    assert '<html lang="ko"' in page.text
    assert page["Content-Language"] == "ko"
    assert "Accept-Language" in page["Vary"]
    assert '<html lang="en"' in client.get("/tokens/", HTTP_ACCEPT_LANGUAGE="de").text
    answer = _speak(client, "en")
    assert (answer.status_code, answer["Location"]) == (302, "/tokens/")
    assert '<html lang="en"' in client.get("/tokens/", **KOREAN).text


def test_the_choice_is_a_cookie_for_a_year_and_needs_no_login(db: None) -> None:
    client = Client()
    answer = _speak(client, "ko", next="/login/")
    cookie = answer.cookies["language"]
    assert (cookie.value, cookie["max-age"], cookie["samesite"]) == ("ko", 31_536_000, "Lax")
    assert cookie["httponly"]
    assert '<html lang="ko"' in client.get("/login/").text
    assert _speak(client, "xx").cookies.get("language") is None
    assert _speak(client, "ko", next="https://elsewhere.example/")["Location"] == "/"


def test_the_choice_is_refused_without_the_forms_key(db: None) -> None:
    assert _speak(Client(enforce_csrf_checks=True), "ko").status_code == 403


def test_a_page_offers_the_other_language_and_leads_back_to_itself(client: Client) -> None:
    page = client.get("/tokens/?page=1").text
    form = re.search(r'<form[^>]*action="/i18n/setlang/".*?</form>', page, re.S)
    assert form is not None
    assert "csrfmiddlewaretoken" in form[0]
    assert 'name="next" value="/tokens/?page=1"' in form[0]
    assert re.search(r'value="en"[^>]*aria-pressed="true"', form[0])
    assert re.search(r'value="ko" lang="ko" aria-pressed="false">한국어', form[0])


def test_nothing_of_a_request_is_left_behind(client: Client) -> None:
    _speak(client, "ko")
    client.get("/tokens/")
    assert get_language() == "en"


def test_pages_that_refuse_speak_it_too(db: None, client: Client) -> None:
    assert HANGUL.search(client.get("/nothing/", **KOREAN).text)
    assert HANGUL.search(client.get("/tokens/?x=%00", **KOREAN).text)


# What stays English


def test_contracts_are_never_translated(client: Client) -> None:
    fleet = busy_fleet()
    _speak(client, "ko")
    for path in (
        f"/api/v1/fleets/{fleet.pk}/decisions/",
        f"/api/v1/fleets/{fleet.pk}/policy",
        f"/api/v1/fleets/{fleet.pk}/snapshot",
        f"/api/v1/fleets/{fleet.pk}/findings",
        f"/api/v1/fleets/{fleet.pk}/telemetry/sources",
        f"/api/v1/fleets/{fleet.pk}/what-if?pd.rate_rps=lots",
        "/api/v1/fleets/nothing/policy",
        "/api/v1/nothing",
        "/api/v1/schema/",
        "/healthz",
    ):
        answer = client.get(path, **KOREAN)
        if "said" in answer.text:  # beside the English there, for pages of any language
            body = json.loads(answer.text)
            for finding in body.get("missing", ()):
                finding.pop("said")
            found = json.dumps(body, ensure_ascii=False)
        else:
            found = answer.text
        assert not HANGUL.search(found), path
        assert "Content-Language" not in answer, path


def test_records_stay_english_whoever_makes_them(client: Client) -> None:
    fleet = busy_fleet()
    _speak(client, "ko")
    policy = fleet.policy
    form = {"mode": "paused", "version": policy.version, "reason": "점검", "seen": policy.mode}
    page = client.post(f"/fleets/{fleet.pk}/mode/?to=paused", {**form, "to": "paused"}, **KOREAN)
    assert page.status_code in (200, 302)
    for action in Action.objects.filter(fleet=fleet):
        written = json.dumps([action.verb, action.before, action.after], default=str)
        assert not HANGUL.search(json.loads(json.dumps(written))), action.verb
    assert not Hold.objects.filter(reason__regex="[가-힣]").exists()
    assert commands.MODES == ("active", "advisory", "paused")


# Scripts


def test_scripts_read_a_catalogue_that_may_be_kept_for_ever(client: Client) -> None:
    assert languages.catalogue_url("en") == ""
    url = languages.catalogue_url("ko")
    answer = Client().get(url)
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/javascript")
    assert "immutable" in answer["Cache-Control"]
    assert "\\ub85c\\uceec" in answer.text or "로컬" in answer.text
    _speak(client, "ko")
    assert f'<script defer src="{url}">' in client.get("/tokens/").text
    _speak(client, "en")
    assert "/i18n/ko" not in client.get("/tokens/").text


# Words


def test_a_phrase_speaks_the_language_in_which_it_is_read() -> None:
    never = said("Instance %(name)s has been silent", name="e1")
    some = said_n("link %(names)s", "links %(names)s", 2, names=listed(["a", "b", "c"], 2))
    both = joined("; ", (never, some))
    assert str(both) == "Instance e1 has been silent; links a, b and 1 more"
    with override("ko"):
        assert str(both) == "인스턴스 e1 무응답; 링크 a, b 외 1개"
    spoken = in_other_languages(what=never)
    assert spoken == {"ko": {"what": "인스턴스 e1 무응답"}}


def test_figures_stay_technical_and_ages_do_not() -> None:
    with override("ko"):
        assert figures.age(4) == "4초 전"
        assert figures.age(0) == "방금"
        assert figures.age(7300) == "2시간 전"
        assert figures.significant(19_600.0) == "19.6K"
        assert figures.exact(1234567.5) == "1,234,567.5"
        assert figures.duration(125) == "2 min 5 s"


def test_the_cores_fixed_sentences_are_translated_at_the_edge() -> None:
    with override("ko"):
        assert HANGUL.search(core_words.reason_help("Dwell"))
        assert core_words.reason_help("NoSuchReason") == ""


# Pages

RECORDS = (
    *("t is within 2 % of the best.", "Would raise t.", "The start."),
    *("Raised t because local prefill was 14 % busier than remote.",),
    *("97% of decode's KV memory is used", "pd: decode limits, which forbids adding prefill"),
    "t max step factor",
)
"""What the loop wrote of itself: messages of decisions, and names of its settings."""
NAMES = re.compile(r"PrfaaS( console)?|Mooncake jsonl.*|always_\w+|docs/\S+|\w+ agent-1")
ENGLISH = re.compile(r"[A-Za-z']{2,}[,;:]? [a-z']{2,}[,;:]? [a-z']{2,}")


def _fleet_pages() -> list[str]:
    """Addresses that ask for nothing but the fleet."""
    found = []
    for entry in pages.urlpatterns:
        wanted = set(entry.pattern.converters)
        if wanted <= {"fleet"} and entry.name not in ("login", "logout"):
            found.append(reverse(entry.name, kwargs=dict.fromkeys(wanted, "f1")))
    return sorted(set(found))


def _texts(page: str) -> list[str]:
    """What people read: texts, and attributes that are shown or spoken."""
    page = re.sub(r"<(script|style|code|pre|svg|bdi|textarea)\b.*?</\1>", " ", page, flags=re.S)
    shown = re.findall(r'\b(?:title|aria-label|placeholder|data-label)="([^"]*)"', page)
    return [html.unescape(text).strip() for text in (*shown, *re.split(r"<[^>]*>", page))]


def _told(value: Any) -> list[str]:
    """Every text in a report of findings, the longest first: they are the API's own words."""
    if isinstance(value, str):
        return [value]
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    if not isinstance(value, (list, tuple)):
        return []
    return sorted({text for part in value for text in _told(part) if " " in text}, key=len)[::-1]


@pytest.mark.parametrize("is_read", [False, True], ids=["nothing is read", "all is read"])
def test_every_page_is_korean_but_for_records(client: Client, is_read: bool) -> None:
    fleet = busy_fleet()
    if is_read:
        well()
        refusal(422, name="a1", field="samples.0.at_s", error="no")
    User.objects.filter(username="op").update(is_superuser=True)
    decision, tick = fleet.decisions.first(), fleet.ticks.last()
    paths = [
        *_fleet_pages(),
        f"/fleets/f1/decisions/{decision.pk}/",
        f"/fleets/f1/ticks/{tick.seq}/",
        "/fleets/f1/instance/?id=pd/h20-1",
        "/fleets/f1/samples/?kind=instance&id=pd/h20-1",
        "/fleets/f1/link/?id=prfaas-%3Epd",
        "/fleets/f1/cluster/?id=pd",
        "/fleets/f1/router/?id=pd/gw-1",
        "/fleets/f1/request/?total=5000&local=0&cluster=pd",
        "/fleets/f1/mode/?to=paused",
        "/login/",
        "/nothing/",
    ]
    operations = api_docs.operations(api_docs.schema())
    records = [
        *RECORDS,
        *_told(findings.report(fleet, now=timezone.now())),
        # The interface speaks English, and so does what it says of itself.
        *(each.first_sentence for each in operations),
        *(each.instead for each in deprecated.TABLE),
    ]
    english: dict[str, list[str]] = {}
    for path in paths:
        answer = client.get(path, **KOREAN)
        if not answer.get("Content-Type", "").startswith("text/html") or answer.status_code == 302:
            continue
        assert HANGUL.search(answer.text), path
        for text in _texts(answer.text):
            for record in records:
                text = text.replace(record, "")
            if ENGLISH.search(NAMES.sub("", text)):
                english.setdefault(path, []).append(text[:150])
    assert english == {}


# Catalogues

_OWN_SCOPE = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _of_scope(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function itself; names inside comprehensions are theirs."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _OWN_SCOPE):
            yield from _of_scope(child)


@pytest.mark.parametrize("path", sorted((ROOT / "console").glob("*.py")), ids=lambda p: p.stem)
def test_no_function_hides_the_marker_it_calls(path: Path) -> None:
    """`first, _, last = text.partition(…)` beside `_("a text")` would call a string."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            names = [n for n in _of_scope(function) if isinstance(n, ast.Name) and n.id == "_"]
            assert len({type(name.ctx) for name in names}) < 2, function.name


def _unquoted(line: str) -> str:
    text = line[line.index('"') + 1 : line.rindex('"')]
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text)


def _entries(path: Path) -> Iterator[tuple[Text, str, bool]]:
    """(msgid and plural, msgstr, is fuzzy) of a .po, the header left out."""
    for block in path.read_text().split("\n\n"):
        found: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line.startswith("msg"):
                name, _space, rest = line.partition(" ")
                found[name] = _unquoted(rest)
            elif line.startswith('"'):
                found[name] += _unquoted(line)
        if found.get("msgid"):
            text = (found["msgid"], found.get("msgid_plural", ""))
            yield text, found.get("msgstr", found.get("msgstr[0]", "")), "#, fuzzy" in block


def _catalogue(domain: str) -> Path:
    return LOCALE / "ko" / "LC_MESSAGES" / f"{domain}.po"


def _marks(text: str) -> set[str]:
    """Placeholders by name or place, and tags: a translation may order them anew."""
    text = text.replace("%%", "")
    found = set(re.findall(r"%\(\w+\)[sd]|\{n\}|</?\w+", text))
    places = re.findall(r"%(s|[1-9])(?![a-z0-9_])", text, re.ASCII)
    n_unnamed = places.count("s")
    return found | {str(i + 1) for i in range(n_unnamed)} | {p for p in places if p != "s"}


@pytest.mark.parametrize("domain", ["django", "djangojs"])
def test_the_compiled_catalogue_is_what_its_source_says(domain: str) -> None:
    path = _catalogue(domain)
    with path.with_suffix(".mo").open("rb") as compiled:
        known = catalogues.GNUTranslations(compiled)
    entries = list(_entries(path))
    assert len(entries) > 250
    for (text, plural), translated, is_fuzzy in entries:
        assert not is_fuzzy, text
        assert translated, f"not translated: {text}"
        assert (known.ngettext(text, plural, 2) if plural else known.gettext(text)) == translated
    n_known = sum(isinstance(key, (str, tuple)) and key != "" for key in known._catalog)
    assert n_known == len(entries), "the .mo knows texts that the .po does not"


@pytest.mark.parametrize("domain", ["django", "djangojs"])
def test_translations_keep_placeholders_and_tags(domain: str) -> None:
    for (text, plural), translated, _is_fuzzy in _entries(_catalogue(domain)):
        assert _marks(translated) == _marks(plural or text), text


@pytest.mark.skipif(
    not (shutil.which("xgettext") and shutil.which("msgmerge")), reason="no gettext here"
)
@pytest.mark.parametrize("domain", ["django", "djangojs"])
def test_the_catalogue_holds_every_text_and_no_other(
    domain: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`manage.py makemessages` on a copy of the tree finds what is committed."""
    for part in ("console", "templates"):
        skipped = shutil.ignore_patterns("vendor", "__pycache__", "*.mo", "*.css")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=skipped)
    monkeypatch.setattr(settings, "BASE_DIR", tmp_path)
    monkeypatch.setattr(settings, "LOCALE_PATHS", [tmp_path / "console" / "locale"])
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "console" / "locale" / "ko" / "LC_MESSAGES" / f"{domain}.po"
    kept = {text for text, _translated, _fuzzy in _entries(path)}
    call_command("makemessages", locale=["ko"], domain=domain, verbosity=0)
    found = {text for text, _translated, _fuzzy in _entries(path)}
    assert sorted(found - kept) == [], "run manage.py makemessages -l ko, and translate"
    assert sorted(kept - found) == [], "run manage.py makemessages -l ko: nobody says these now"
