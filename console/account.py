"""Signing in, and one's own account."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.views import LoginView
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console import people
from console.changes import UNPROCESSABLE, VIA
from console.people import Who
from console.roles import role_of
from routing import rights


class SignIn(LoginView):
    """By a password of this console, where there are such, and with the identity provider."""

    template_name = "login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not settings.LOCAL_PASSWORDS:
            raise PermissionDenied(_("Passwords are switched off here."))
        return super().post(request, *args, **kwargs)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        known = settings.OIDC
        more = {"has_passwords": settings.LOCAL_PASSWORDS, "provider": known.name if known else ""}
        return super().get_context_data(**kwargs) | more


@never_cache
def page(request: HttpRequest) -> HttpResponse:
    """What one may do where, and one's password."""
    user, has = request.user, rights.of(request.user)
    can_choose = settings.LOCAL_PASSWORDS and user.has_usable_password()
    form = PasswordChangeForm(user, request.POST or None)
    if request.method == "POST":
        if not can_choose:
            raise PermissionDenied(_("This account signs in without a password."))
        if form.is_valid():
            form.save()
            update_session_auth_hash(request, user)
            people.changed_password(user, who=Who(user.get_username(), VIA))
            messages.success(request, _("Your password is another one now."))
            return redirect("account")
    context = {
        "everywhere": role_of(user) if has.everywhere else None,
        "by_fleet": [(name, role_of(user, name)) for name in sorted(has.by_fleet)],
        "form": form,
        "can_choose": can_choose,
    }
    status = UNPROCESSABLE if form.errors else 200
    return render(request, "account.html", context, status=status)
