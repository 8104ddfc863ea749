"""Signing in with the identity provider: allauth walks the way there and back (state, PKCE, code),
here it is decided whether somebody comes in, as whom, and with which rights."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import requests
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount, SocialApp
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.contrib.auth import login as sign_in
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from console import oidc, people
from console.oidc import BadToken
from console.people import Who
from routing.models import Fleet

PROVIDER: Final = "oidc"
BACKEND: Final = "console.sso.Backend"
VOUCHED: Final = Who("identity provider", "oidc", "as the identity provider says")


class Refused(Exception):
    """Somebody who does not come in, and why, in words for them."""


class Backend(ModelBackend):
    """Who signed in elsewhere: it takes no password, and knows who is still active."""

    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> None:
        return None


class Adapter(OpenIDConnectOAuth2Adapter):
    """As allauth's, and the ID token is believed for its signature, not for where it came from."""

    def __init__(self, request: HttpRequest, provider_id: str = PROVIDER) -> None:
        super().__init__(request, provider_id)

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:
        address = request.build_absolute_uri(reverse("oidc-callback"))
        if settings.SESSION_COOKIE_SECURE:
            return address.replace("http://", "https://", 1)
        return address

    @property
    def openid_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().openid_config
        if config.get("issuer", "").rstrip("/") != settings.OIDC.issuer:
            raise OAuth2Error(f"the provider calls itself {config.get('issuer')!r:.200}")
        return config

    def complete_login(
        self, request: HttpRequest, app: SocialApp, token: Any, **kwargs: Any
    ) -> Any:
        id_token = kwargs["response"].get("id_token")
        if not isinstance(id_token, str):
            raise OAuth2Error("the provider sent no ID token")
        with DefaultSocialAccountAdapter(request).get_requests_session() as session:
            answer = session.get(self.openid_config["jwks_uri"])
        answer.raise_for_status()
        try:
            claims = oidc.verified(
                id_token,
                answer.json(),
                issuer=self.openid_config["issuer"],
                client_id=app.client_id,
            )
        except BadToken as bad:
            raise OAuth2Error(f"the ID token proves nothing: {bad}") from None
        if settings.OIDC.groups_claim not in claims and "userinfo_endpoint" in self.openid_config:
            more = self._fetch_user_info(token.token)
            if more.get("sub") == claims["sub"]:
                claims = more | claims
        return self.get_provider().sociallogin_from_response(request, {"id_token": claims})


class Gatekeeper(DefaultSocialAccountAdapter):
    """The one provider there is, and what becomes of whoever it sends back."""

    def list_apps(
        self, request: HttpRequest, provider: str | None = None, client_id: str | None = None
    ) -> list[SocialApp]:
        known = settings.OIDC
        if known is None:
            return []
        return [
            SocialApp(
                provider="openid_connect",
                provider_id=PROVIDER,
                name=known.name,
                client_id=known.client_id,
                secret=known.secret,
                settings={
                    "server_url": known.issuer,
                    "oauth_pkce_enabled": True,
                    "scope": list(known.scopes),
                },
            )
        ]

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        claims = sociallogin.account.extra_data["id_token"]
        asked = sociallogin.state.get("data") or {}
        try:
            if not asked.get("nonce") or claims.get("nonce") != asked["nonce"]:
                raise Refused(_("The answer belongs to another attempt to sign in. Try again."))
            user = admitted(claims)
        except Refused as refused:
            raise ImmediateHttpResponse(_turned_away(request, str(refused))) from None
        sign_in(request, user, backend=BACKEND)
        raise ImmediateHttpResponse(redirect(sociallogin.state.get("next") or "overview"))

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,
        error: Any = None,
        exception: Exception | None = None,
        extra_context: Mapping[str, Any] | None = None,
    ) -> None:
        why = str(exception) if exception else _("It was cancelled, or took too long.")
        raise ImmediateHttpResponse(_turned_away(request, why))


@transaction.atomic
def _known(claims: Mapping[str, Any]) -> tuple[User | None, list[str] | None]:
    """Who it is, with the rights that the provider says; None for somebody whom it gives none."""
    known = settings.OIDC
    account = SocialAccount.objects.select_related("user").filter(
        provider=PROVIDER, uid=claims["sub"]
    )
    user = next((each.user for each in account), None)
    if known.groups is None:
        return user, None
    groups = known.ours(claims.get(known.groups_claim))
    fleets = set(Fleet.objects.values_list("name", flat=True))
    groups = [each for each in groups if each.partition(":")[2] in {"", *fleets}]
    if user is not None:
        people.put_into(user, groups, who=VOUCHED)
    return user, groups


def admitted(claims: Mapping[str, Any]) -> User:
    """Who signs in with these claims; an account is made for whom the provider gives rights.

    Rights that it no longer gives are gone, whether or not they come in. Raises Refused.
    """
    user, groups = _known(claims)
    if not settings.OIDC.admits(claims):
        raise Refused(_("Your address is of no domain that may sign in here, or is not verified."))
    if groups == []:
        raise Refused(_("You are in no group that has rights here. Ask whoever manages them."))
    if user is None:
        user = _made(claims, groups or [])
    if not user.is_active:
        raise Refused(_("Your account may not sign in. Ask an administrator."))
    return user


def _made(claims: Mapping[str, Any], groups: list[str]) -> User:
    name = oidc.name_of(claims)
    if name is None:
        raise Refused(_("The provider gives you no name that can stand in the audit."))
    with transaction.atomic():
        try:
            email = str(claims.get("email") or "")
            user, _password = people.create(name=name, email=email, groups=groups, who=VOUCHED)
        except people.Refused:
            # Never by name: whoever may choose theirs at the provider would be that person.
            said = _("There is an account %(name)s already. An administrator links it to you.")
            raise Refused(said % {"name": name}) from None
        user.set_unusable_password()
        user.save(update_fields=["password"])
        link(user, claims["sub"], who=VOUCHED)
    return user


def link(user: User, subject: str, *, who: Who) -> None:
    """From now on whoever the provider calls `subject` signs in as `user`."""
    with transaction.atomic():
        SocialAccount.objects.update_or_create(
            provider=PROVIDER, uid=subject, defaults={"user": user, "extra_data": {}}
        )
        people.linked(user, subject, who=who)


@login_not_required
@never_cache
@require_safe
def start(request: HttpRequest) -> HttpResponse:
    """Off to the identity provider."""
    if settings.OIDC is None:
        raise Http404
    wanted = request.GET.get("next", "")
    is_ours = url_has_allowed_host_and_scheme(
        wanted, {request.get_host()}, require_https=request.is_secure()
    )
    nonce = secrets.token_urlsafe(24)
    provider = Adapter(request).get_provider()
    provider.oauth2_adapter_class = Adapter
    try:
        return provider.redirect(
            request,
            process="login",
            next_url=wanted if is_ours else None,
            data={"nonce": nonce},
            auth_params={"nonce": nonce},
        )
    except (requests.RequestException, OAuth2Error, KeyError, ValueError) as exc:
        why = _("The identity provider does not answer as it should: %(why)s")
        return _turned_away(request, why % {"why": exc.__class__.__name__}, status=503)
    except ImmediateHttpResponse as stopped:
        return stopped.response


@login_not_required
@never_cache
@require_safe
def callback(request: HttpRequest) -> HttpResponse:
    """Back from the identity provider."""
    if settings.OIDC is None:
        raise Http404
    try:
        return OAuth2CallbackView.adapter_view(Adapter(request))(request)
    except (KeyError, ValueError) as exc:  # what the provider said cannot be read
        return _turned_away(request, exc.__class__.__name__)


def _turned_away(request: HttpRequest, why: str, *, status: int = 403) -> HttpResponse:
    return render(request, "turned_away.html", {"why": why}, status=status)
