"""REST for people: who may sign in, and in which groups. For administrators of the site."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from console import people
from console.people import Who
from routing import queries
from routing import serializers as s
from routing.paging import Newest
from routing.queries import Queried
from routing.rest.once import once, once_in_secret
from routing.rights import ROLES


class UserSerializer(serializers.ModelSerializer):
    """Somebody with an account. `groups` are those that give rights: a role, or role:FLEET."""

    name = serializers.CharField(source="username")
    email = serializers.CharField()
    groups = serializers.SerializerMethodField()

    class Meta:
        model = User
        fields = (
            "id", "name", "email", "is_active", "is_superuser", "groups", "last_login",
            "date_joined",
        )  # fmt: skip

    def get_groups(self, user: User) -> list[str]:
        return people.groups_of(user)


class UserMadeSerializer(UserSerializer):
    """`password` is shown this once; null where people sign in elsewhere only."""

    password = serializers.SerializerMethodField()

    class Meta(UserSerializer.Meta):
        fields = (*UserSerializer.Meta.fields, "password")

    def get_password(self, user: User) -> str | None:
        return self.context["password"] or None


class PasswordSerializer(serializers.Serializer):
    password = serializers.CharField(help_text="Shown this once.")


class UserMakeSerializer(s.Strict):
    name = serializers.CharField(max_length=150)
    email = serializers.CharField(max_length=254, default="", allow_blank=True)
    groups = serializers.ListField(child=serializers.CharField(max_length=150), default=list)
    reason = serializers.CharField(**s.EMPTY_REASON)


class GroupSerializer(s.Strict):
    group = serializers.CharField(max_length=150, help_text="viewer, or operator:FLEET and so on.")
    reason = serializers.CharField(**s.EMPTY_REASON)


class UserQuery(queries.NewestQuery):
    active = queries.open_field("true: who may sign in, false: who may no more.")
    role = serializers.ChoiceField(tuple(ROLES), required=False)
    search = serializers.CharField(required=False, help_text="In names and addresses.")


class _ForAdmins(Queried):
    """Changes of one person; each says what it does."""

    query_class = queries.Query
    required_scope = ("admin",)

    def person(self) -> User:
        return get_object_or_404(User, pk=self.kwargs["user_id"])

    def answer(self, user: User) -> Response:
        return Response(UserSerializer(User.objects.get(pk=user.pk)).data)

    def read(self, request: Request, of: type[s.Strict] = s.ReasonSerializer) -> Any:
        body = of(data=request.data)
        body.is_valid(raise_exception=True)
        asked = dict(body.validated_data)
        return asked, _who(request, asked.pop("reason"))


class UserList(Queried, ListAPIView):
    """Everybody with an account, newest first."""

    query_class = UserQuery
    required_scope = ("admin",)
    serializer_class = UserSerializer
    pagination_class = Newest
    queryset = User.objects.all()

    def get_queryset(self) -> QuerySet[User]:
        return people.listed(
            search=self.asked.get("search", ""),
            role=self.asked.get("role", ""),
            active=self.asked.get("active"),
        )

    @extend_schema(parameters=[UserQuery])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    @extend_schema(request=UserMakeSerializer, responses={201: UserMadeSerializer})
    @once_in_secret
    def post(self, request: Request) -> Response:
        """Make an account; its first password is in this answer and nowhere else."""
        body = UserMakeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        asked = dict(body.validated_data)
        user, password = people.create(**_made(asked), who=_who(request, asked["reason"]))
        data = UserMadeSerializer(user, context={"password": password}).data
        return Response(data, status=status.HTTP_201_CREATED)


class UserDetail(_ForAdmins):
    """One person."""

    @extend_schema(responses=UserSerializer)
    def get(self, request: Request, user_id: int) -> Response:
        return self.answer(self.person())


class UserJoin(_ForAdmins):
    """Put somebody into a group."""

    @extend_schema(request=GroupSerializer, responses=UserSerializer)
    @once
    def post(self, request: Request, user_id: int) -> Response:
        user = self.person()
        asked, who = self.read(request, GroupSerializer)
        people.join(user, asked["group"], who=who)
        return self.answer(user)


class UserLeave(_ForAdmins):
    """Take somebody out of a group."""

    @extend_schema(request=GroupSerializer, responses=UserSerializer)
    @once
    def post(self, request: Request, user_id: int) -> Response:
        user = self.person()
        asked, who = self.read(request, GroupSerializer)
        people.leave(user, asked["group"], who=who)
        return self.answer(user)


class UserActivate(_ForAdmins):
    """Let somebody sign in again."""

    @extend_schema(request=s.ReasonSerializer, responses=UserSerializer)
    @once
    def post(self, request: Request, user_id: int) -> Response:
        user = self.person()
        people.activate(user, is_active=True, who=self.read(request)[1])
        return self.answer(user)


class UserDeactivate(_ForAdmins):
    """Let somebody not sign in any more; what they have open ends within a minute."""

    @extend_schema(request=s.ReasonSerializer, responses=UserSerializer)
    @once
    def post(self, request: Request, user_id: int) -> Response:
        user = self.person()
        people.activate(user, is_active=False, who=self.read(request)[1])
        return self.answer(user)


class UserPassword(_ForAdmins):
    """A new password for somebody, shown in this answer and nowhere else."""

    @extend_schema(request=s.ReasonSerializer, responses=PasswordSerializer)
    @once_in_secret
    def post(self, request: Request, user_id: int) -> Response:
        password = people.reset_password(self.person(), who=self.read(request)[1])
        return Response({"password": password})


class UserUnlock(_ForAdmins):
    """Forget failed attempts to sign in as somebody."""

    @extend_schema(request=s.ReasonSerializer, responses=UserSerializer)
    @once
    def post(self, request: Request, user_id: int) -> Response:
        user = self.person()
        people.unlock(user, who=self.read(request)[1])
        return self.answer(user)


def _made(asked: dict[str, Any]) -> dict[str, Any]:
    return {name: asked[name] for name in ("name", "email", "groups")}


def _who(request: Request, reason: str) -> Who:
    return Who(request.user.get_username(), "rest", reason)


_USER = "users/<int:user_id>"
urlpatterns = [
    path("users", UserList.as_view(), name="api-users"),
    path(_USER, UserDetail.as_view(), name="api-user"),
    path(f"{_USER}/join", UserJoin.as_view(), name="api-user-join"),
    path(f"{_USER}/leave", UserLeave.as_view(), name="api-user-leave"),
    path(f"{_USER}/activate", UserActivate.as_view(), name="api-user-activate"),
    path(f"{_USER}/deactivate", UserDeactivate.as_view(), name="api-user-deactivate"),
    path(f"{_USER}/password", UserPassword.as_view(), name="api-user-password"),
    path(f"{_USER}/unlock", UserUnlock.as_view(), name="api-user-unlock"),
]
