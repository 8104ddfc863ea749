"""Pages of people: who may sign in, and in which groups they are. For the site's administrators."""

from __future__ import annotations

from typing import Any

from axes.models import AccessAttempt
from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from console import people
from console.changes import UNPROCESSABLE, VIA
from console.context import GOOD, OFF, Mark
from console.forms import ReasonForm
from console.people import Who
from console.roles import needs
from routing.commands import Refused
from routing.models import Action, Fleet
from routing.rights import ROLES
from telemetry.models import ApiToken

PER_PAGE = 50
LAST_CHANGES = 10
ORDERS = {
    "name": ("username",),
    "-name": ("-username",),
    "seen": ("-last_login", "username"),
    "new": ("-date_joined", "username"),
}
site_admins_only = needs("admin", gettext_lazy("Only administrators of the whole site may."))


class PersonForm(forms.Form):
    """A new account."""

    name = forms.CharField(max_length=150)
    email = forms.CharField(max_length=254, required=False)
    role = forms.ChoiceField(choices=[(role, role) for role in ROLES])
    fleet = forms.ChoiceField(required=False)
    reason = forms.CharField(max_length=500, required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = Fleet.objects.order_by("name").values_list("name", flat=True)
        self.fields["fleet"].choices = [("", _("every fleet")), *((name, name) for name in names)]

    @property
    def group(self) -> str:
        """The group that a role makes, in a fleet or everywhere."""
        role, fleet = self.cleaned_data["role"], self.cleaned_data["fleet"]
        return f"{role}:{fleet}" if fleet else role


class GroupForm(PersonForm):
    """A group to join."""

    name = email = None  # type: ignore[assignment]


@site_admins_only
@never_cache
def page(request: HttpRequest) -> HttpResponse:
    """Everybody with an account."""
    chosen = {name: request.GET.get(name, "") for name in ("q", "role", "state", "sort")}
    active = {"active": True, "ended": False}.get(chosen["state"])
    rows = people.listed(search=chosen["q"], role=chosen["role"], active=active)
    rows = rows.order_by(*ORDERS.get(chosen["sort"], ORDERS["name"]))
    found = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "page": found,
        "rows": [
            {"user": user, "groups": people.groups_of(user), "mark": _mark(user)} for user in found
        ],
        "chosen": chosen,
        "roles": list(ROLES),
        "is_filtered": any(chosen[name] for name in ("q", "role", "state")),
    }
    return render(request, "people.html", context)


@site_admins_only
@never_cache
def new(request: HttpRequest) -> HttpResponse:
    """An account for somebody; its first password is shown once."""
    form = PersonForm(request.POST or None)
    context: dict[str, Any] = {"form": form, "has_passwords": settings.LOCAL_PASSWORDS}
    if request.method == "POST" and form.is_valid():
        asked = form.cleaned_data
        try:
            user, password = people.create(
                name=asked["name"],
                email=asked["email"],
                groups=[form.group],
                who=_who(request, asked["reason"]),
            )
        except Refused as refused:
            form.add_error(refused.field if refused.field in form.fields else None, refused.message)
        else:
            return render(request, "person_new.html", context | {"made": user, "secret": password})
    return render(request, "person_new.html", context, status=UNPROCESSABLE if form.errors else 200)


@site_admins_only
@never_cache
def one(request: HttpRequest, user_id: int) -> HttpResponse:
    """Somebody: groups, sign-in, the tokens behind which they are, what they changed lately."""
    return _page(request, get_object_or_404(User, pk=user_id))


def _page(
    request: HttpRequest,
    user: User,
    *,
    form: GroupForm | None = None,
    secret: str = "",
    status: int = 200,
) -> HttpResponse:
    context = {
        "person": user,
        "mark": _mark(user),
        "groups": people.groups_of(user),
        "form": form or GroupForm(),
        "secret": secret,
        "is_self": user.pk == request.user.pk,
        "has_passwords": settings.LOCAL_PASSWORDS,
        "has_failures": AccessAttempt.objects.filter(username=user.username).exists(),
        "comes_from": settings.OIDC is not None and user.socialaccount_set.exists(),
        "tokens": ApiToken.objects.filter(owner=user.username, revoked_at=None).order_by("name")[
            :PER_PAGE
        ],
        "changes": Action.objects.filter(actor=user.username).order_by("-id")[:LAST_CHANGES],
    }
    return render(request, "person.html", context, status=status)


@site_admins_only
@never_cache
@require_POST
def join(request: HttpRequest, user_id: int) -> HttpResponse:
    """Put somebody into a group."""
    user, form = get_object_or_404(User, pk=user_id), GroupForm(request.POST)
    if form.is_valid():
        try:
            people.join(user, form.group, who=_who(request, form.cleaned_data["reason"]))
        except Refused as refused:
            form.add_error(None, refused.message)
        else:
            said = _("%(name)s is in group %(group)s.")
            messages.success(request, said % {"name": user.username, "group": form.group})
            return redirect("person", user.pk)
    return _page(request, user, form=form, status=UNPROCESSABLE)


@site_admins_only
@never_cache
@require_POST
def leave(request: HttpRequest, user_id: int) -> HttpResponse:
    """Take somebody out of a group."""
    user, group = get_object_or_404(User, pk=user_id), request.POST.get("group", "")
    try:
        people.leave(user, group, who=_who(request, _reason(request)))
    except Refused as refused:
        messages.error(request, f"{group}: {refused.message}")
    else:
        said = _("%(name)s is in group %(group)s no more.")
        messages.success(request, said % {"name": user.username, "group": group})
    return redirect("person", user.pk)


@site_admins_only
@never_cache
@require_POST
def activate(request: HttpRequest, user_id: int) -> HttpResponse:
    """Let somebody sign in, or not any more (`to=off`)."""
    user, is_active = get_object_or_404(User, pk=user_id), request.POST.get("to") != "off"
    try:
        people.activate(user, is_active=is_active, who=_who(request, _reason(request)))
    except Refused as refused:
        messages.error(request, f"{user.username}: {refused.message}")
    else:
        said = (
            _("%(name)s may sign in.")
            if is_active
            else _("%(name)s may sign in no more; what is open ends within a minute.")
        )
        messages.success(request, said % {"name": user.username})
    return redirect("person", user.pk)


@site_admins_only
@never_cache
@require_POST
def password(request: HttpRequest, user_id: int) -> HttpResponse:
    """A new password for somebody, shown once."""
    user = get_object_or_404(User, pk=user_id)
    try:
        secret = people.reset_password(user, who=_who(request, _reason(request)))
    except Refused as refused:
        messages.error(request, f"{user.username}: {refused.message}")
        return redirect("person", user.pk)
    return _page(request, user, secret=secret)


@site_admins_only
@never_cache
@require_POST
def unlock(request: HttpRequest, user_id: int) -> HttpResponse:
    """Forget failed attempts to sign in as somebody."""
    user = get_object_or_404(User, pk=user_id)
    people.unlock(user, who=_who(request, _reason(request)))
    messages.success(request, _("Failed attempts as %(name)s are forgotten.") % {"name": user})
    return redirect("person", user.pk)


def _mark(user: User) -> Mark:
    return Mark(*GOOD, _("may sign in")) if user.is_active else Mark(*OFF, _("may not sign in"))


def _reason(request: HttpRequest) -> str:
    form = ReasonForm(request.POST)
    return form.cleaned_data["reason"] if form.is_valid() else ""


def _who(request: HttpRequest, reason: str) -> Who:
    return Who(request.user.get_username(), VIA, reason)
