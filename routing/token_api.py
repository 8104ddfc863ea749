"""REST for tokens, and for who asks."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import QuerySet
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import queries, rights, token_commands
from routing import serializers as s
from routing.api import by
from routing.paging import Newest
from routing.queries import Queried
from routing.rest.once import once, once_in_secret
from telemetry.models import ApiToken


class TokenList(Queried, ListAPIView):
    """The tokens of fleets that one administers, never their secrets."""

    query_class = queries.NewestQuery
    across_fleets = True
    required_scope = ("admin",)
    serializer_class = s.TokenSerializer
    pagination_class = Newest
    queryset = ApiToken.objects.all()

    def get_queryset(self) -> QuerySet[ApiToken]:
        return rights.of(self.request.user).within("admin", super().get_queryset())

    @extend_schema(request=s.TokenIssueSerializer, responses={201: s.IssuedTokenSerializer})
    @once_in_secret
    def post(self, request: Request) -> Response:
        """Issue a token; its secret is in this answer and nowhere else."""
        body = s.TokenIssueSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        asked = body.validated_data
        token_commands.check_issuer(
            request.user, fleet=asked["fleet"], expires_at=asked["expires_at"]
        )
        token, secret = token_commands.issue_token(
            **asked, owner=rights.person_of(request.user), **by(request)
        )
        return _issued(token, secret)


class TokenRevoke(APIView):
    """End a token at once."""

    across_fleets = True
    required_scope = ("admin",)

    @extend_schema(request=s.ReasonSerializer, responses=s.TokenSerializer)
    @once
    def post(self, request: Request, token_id: int) -> Response:
        rights.opened(request.user, "admin", ApiToken.objects.all(), pk=token_id)
        body = s.ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        token = token_commands.revoke_token(token_id=token_id, **body.validated_data, **by(request))
        return Response(s.TokenSerializer(token).data)


class TokenRotate(APIView):
    """Another secret in the place of a token's; the old one is good for a while more."""

    across_fleets = True
    required_scope = ("admin",)

    @extend_schema(request=s.TokenRotateSerializer, responses={201: s.IssuedTokenSerializer})
    @once_in_secret
    def post(self, request: Request, token_id: int) -> Response:
        old = rights.opened(request.user, "admin", ApiToken.objects.all(), pk=token_id)
        body = s.TokenRotateSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        lasts_until = token_commands.rotated_until(old, timezone.now())
        token_commands.check_issuer(request.user, fleet=old.fleet, expires_at=lasts_until)
        token, secret = token_commands.rotate_token(
            token_id=token_id,
            grace=timedelta(seconds=body.validated_data["grace_s"]),
            owner=rights.person_of(request.user),
            reason=body.validated_data["reason"],
            **by(request),
        )
        return _issued(token, secret)


class Me(Queried):
    """Who asks, and what they may do where."""

    query_class = queries.Query
    across_fleets = True

    @extend_schema(responses=s.MeSerializer)
    def get(self, request: Request) -> Response:
        has = rights.of(request.user)
        said = {
            "name": request.user.get_username(),
            "person": rights.person_of(request.user),
            "scopes": sorted(has.everywhere),
            "fleets": {name: sorted(scopes) for name, scopes in sorted(has.by_fleet.items())},
            "expires_at": getattr(request.user, "expires_at", None),
        }
        return Response(s.MeSerializer(said).data)


def _issued(token: ApiToken, secret: str) -> Response:
    data = s.IssuedTokenSerializer(token, context={"secret": secret}).data
    return Response(data, status=status.HTTP_201_CREATED)


urlpatterns = [
    path("tokens", TokenList.as_view(), name="api-tokens"),
    path("tokens/<int:token_id>/revoke", TokenRevoke.as_view(), name="api-revoke"),
    path("tokens/<int:token_id>/rotate", TokenRotate.as_view(), name="api-rotate"),
    path("me", Me.as_view(), name="api-me"),
]
