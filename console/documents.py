"""Pages that edit a document kept by name: it is tried before it is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from django import forms
from django.http import HttpRequest, HttpResponse

from console.changes import UNPROCESSABLE
from console.forms import JsonField
from routing.commands import Refused, Stale

Tried = TypeVar("Tried")


class DocumentForm(forms.Form):
    """`version` is what its reader saw, 0 of a new one."""

    document = JsonField()
    enabled = forms.BooleanField(required=False)
    version = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    reason = forms.CharField(max_length=500, required=False)


def form_of(request: HttpRequest, row: Any, starting_point: dict[str, Any]) -> DocumentForm:
    """What was sent, else the row as it is, else what a new one begins with."""
    initial = {
        "document": json.dumps(
            row.document if row else starting_point, indent=2, ensure_ascii=False
        ),
        "enabled": row.enabled if row else True,
        "version": row.version if row else 0,
    }
    return DocumentForm(request.POST or None, initial=initial)


def answer(
    request: HttpRequest,
    form: DocumentForm,
    *,
    keep: Callable[[dict[str, Any]], HttpResponse],
    trial: Callable[[Any], Tried],
) -> tuple[HttpResponse | Tried | None, int]:
    """What comes of the form and the status of its page: where `keep` leads, what `trial` says of
    the document, or nothing, and then what is wrong stands at its field."""
    if request.method != "POST":
        return None, 200
    if form.is_valid():
        asked = form.cleaned_data
        try:
            return (keep(asked) if "keep" in request.POST else trial(asked["document"])), 200
        except Stale as stale:
            form.add_error(None, stale.message)
        except Refused as refused:
            form.add_error("document", f"{refused.field}: {refused.message}")
    return None, UNPROCESSABLE
