"""The page that applies a document: pasted or sent as a file, looked at as a plan, then confirmed.

Between the two nothing is kept: the form that confirms carries the text, and the digest of the
state that its plan was made of. Where that is another by then, the plan is made anew and shown.
"""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.views.decorators.cache import never_cache

from console import document_words
from console.changes import CONFLICT, UNPROCESSABLE, VIA
from console.roles import needs
from routing import fleet_removal
from routing.commands import Outdated
from routing.declared.apply import apply, dry_run
from routing.declared.document import NotMeant, Wrong
from routing.declared.text import FORMATS, Format, Unreadable, read
from routing.models import Fleet

MAX_BYTES: Final = 1024 * 1024
"""Of a document on this page, which carries it twice; REST and the command line take more."""

site_admins_only = needs(
    "admin", _lazy("Only administrators of the whole site apply a document to it.")
)


class DocumentForm(forms.Form):
    """A text or a file; the file counts where both are there, and its name says its format."""

    document = forms.CharField(
        required=False,
        strip=False,
        label=_lazy("Text to paste"),
        widget=forms.Textarea(attrs={"rows": 18, "spellcheck": "false", "class": "mono"}),
    )
    upload = forms.FileField(required=False, label=_lazy("Or a file"))
    format = forms.ChoiceField(
        choices=[(name, name.upper()) for name in FORMATS], label=_lazy("Format of the text")
    )
    prune = forms.BooleanField(
        required=False, label=_lazy("Delete what the kinds of the document do not name")
    )

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or {}
        upload = found.get("upload")
        field = "upload" if upload else "document"
        raw = upload.read(MAX_BYTES + 1) if upload else _typed(found.get("document", ""))
        if upload:
            found["format"] = _format_of(upload) or found.get("format", FORMATS[0])
        if not raw.strip():
            self.add_error(field, _("It is empty: paste a document, or choose a file."))
        elif len(raw) > MAX_BYTES:
            self.add_error(
                field,
                _("It has more than %(n)s MiB: apply it over REST or at the command line.")
                % {"n": MAX_BYTES // 2**20},
            )
        found["raw"] = raw
        return found


class ConfirmForm(forms.Form):
    """`seen` is the state that the plan was made of."""

    seen = forms.CharField(max_length=100, required=False)
    reason = forms.CharField(
        max_length=500,
        label=_lazy("Why"),
        error_messages={"required": _lazy("Say why: it stands in the audit with your name.")},
    )


@site_admins_only
@never_cache
def page(request: HttpRequest) -> HttpResponse:
    """GET asks for a document, POST shows its plan, and with `apply` makes it so."""
    if request.method != "POST":
        return _asked(request, DocumentForm())
    form = DocumentForm(request.POST, request.FILES)
    if "edit" in request.POST:
        return _asked(request, DocumentForm(initial=request.POST.dict()))
    if not form.is_valid():
        return _asked(request, form, status=UNPROCESSABLE)
    asked = form.cleaned_data
    try:
        document = read(asked["raw"], asked["format"])
    except Unreadable as exc:
        return _asked(request, _as_text(asked), wrong=[_unread(exc)], status=UNPROCESSABLE)
    if "apply" in request.POST:
        return _applied(request, asked, document)
    return _plan(request, asked, document, ConfirmForm())


def _applied(request: HttpRequest, asked: dict[str, Any], document: dict[str, Any]) -> HttpResponse:
    form = ConfirmForm(request.POST)
    if not form.is_valid():
        return _plan(request, asked, document, form, status=UNPROCESSABLE)
    try:
        done = apply(
            document=document,
            prune=asked["prune"],
            confirmed=[name.strip() for name in request.POST.getlist("confirm")],
            if_digest=form.cleaned_data["seen"],
            actor=request.user.get_username(),
            via=VIA,
            reason=form.cleaned_data["reason"],
            now=timezone.now(),
        )
    except Outdated:
        form.add_error(
            None, _("Somebody changed something since you looked: this is the plan now.")
        )
        return _plan(request, asked, document, form, status=CONFLICT)
    except NotMeant as exc:
        if any(each.path.startswith("fleets.") and not each.frozen for each in exc.wrong):
            form.add_error(None, _("Nothing has changed. Type the name of each fleet that goes."))
        return _plan(request, asked, document, form, status=UNPROCESSABLE)
    messages.success(request, document_words.done(done.changes))
    return redirect("document")


def _plan(
    request: HttpRequest,
    asked: dict[str, Any],
    document: dict[str, Any],
    form: ConfirmForm,
    *,
    status: int = 200,
) -> HttpResponse:
    """What it would do now. What cannot be meant leads back to the text."""
    raw, format_ = asked["raw"].decode("utf-8-sig"), asked["format"]
    refused: list[Wrong] = []
    try:
        trial = dry_run(
            document=document,
            prune=asked["prune"],
            confirmed=list(Fleet.objects.values_list("name", flat=True)),
            actor=request.user.get_username(),
            via=VIA,
            now=timezone.now(),
        )
    except NotMeant as exc:
        if not exc.is_only_frozen:
            wrong = document_words.wrong(exc.wrong, raw, format_)
            return _asked(request, _as_text(asked), wrong=wrong, status=UNPROCESSABLE)
        refused, changes, n_same, seen, beyond = exc.wrong, list(exc.changes), None, "", ()
    else:
        changes, n_same, seen = trial.changes, trial.n_same, trial.digest_before
        beyond = trial.beyond
    going = [c.name for c in changes if (c.kind, c.action) == ("fleets", "delete")]
    context = {
        "text": raw,
        "format": format_,
        "prune": asked["prune"],
        "seen": seen,
        "form": form,
        "summary": document_words.summary(changes, n_same),
        "kinds": document_words.by_kind(changes, refused),
        "n_more": max(len(changes) - document_words.MOST_CHANGES, 0),
        "refused": document_words.refusals(refused),
        "effects": document_words.effects(changes, beyond),
        "with_history": [name for name in going if fleet_removal.has_history(name)],
        "is_empty": not changes,
        "is_proposed": bool(beyond),
    }
    return render(request, "site_plan.html", context, status=status)


def _asked(
    request: HttpRequest,
    form: DocumentForm,
    *,
    wrong: list[document_words.WrongRow] | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "form": form,
        "wrong": (wrong or [])[: document_words.MOST_WRONG],
        "n_wrong": len(wrong or []),
        "kinds": document_words.kinds(),
        "formats": FORMATS,
    }
    return render(request, "site_document.html", context, status=status)


def _as_text(asked: dict[str, Any]) -> DocumentForm:
    """The form with what was sent as its text, also of a file: so that it can be mended here."""
    text = asked["raw"].decode("utf-8-sig", errors="replace")
    return DocumentForm(
        initial={"document": text, "format": asked["format"], "prune": asked["prune"]}
    )


def _typed(text: str) -> bytes:
    """A browser ends lines of what is typed in its own way."""
    return text.replace("\r\n", "\n").encode()


def _format_of(upload: UploadedFile) -> Format | None:
    suffix = (upload.name or "").rpartition(".")[2].lower().replace("yml", "yaml")
    return next((name for name in FORMATS if name == suffix), None)


def _unread(exc: Unreadable) -> document_words.WrongRow:
    where = "" if exc.where == "document" or exc.where.startswith("line ") else exc.where
    return document_words.WrongRow(exc.line, where, document_words.short(exc.value), exc.message)
