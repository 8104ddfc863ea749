"""A login that ran out in the middle of a form: what was typed waits behind the next one.

A form that is sent without a login leads to it and from there back to its page, as any address
does. The fields go along in that address, and the page fills its form from them again; nothing was
done, and nothing is done before it is confirmed anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, QueryDict

MOST_TYPED: Final = 4000
"""Characters of an address that carries fields; a longer one goes without them."""
_NOT_TYPED: Final = ("csrfmiddlewaretoken", "version", "seen", "base")
"""What a form knew of the state that it was made from: after a login it is asked anew."""


class LoginKeepsTyped(LoginRequiredMiddleware):
    """As its base, and a form's fields are not lost on the way."""

    def handle_no_permission(
        self, request: HttpRequest, view_func: Callable[..., HttpResponse]
    ) -> HttpResponse:
        if request.method != "POST" or request.FILES:
            return super().handle_no_permission(request, view_func)
        query = QueryDict(request.META.get("QUERY_STRING", ""), mutable=True)
        for name, values in request.POST.lists():
            if name not in _NOT_TYPED and "password" not in name:
                query.setlist(name, values)
        back = f"{request.path}?{query.urlencode()}" if query else request.path
        if len(back) > MOST_TYPED:
            back = request.get_full_path()
        return redirect_to_login(
            back, self.get_login_url(view_func), self.get_redirect_field_name(view_func)
        )
