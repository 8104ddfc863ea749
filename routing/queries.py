"""What may follow the question mark of the API's lists; anything else is an error that names it."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.views import APIView

from routing.serializers import Strict


def _whole(least: int, help_text: str) -> serializers.IntegerField:
    messages = {"invalid": "must be a whole number", "min_value": "must be at least {min_value}"}
    return serializers.IntegerField(
        required=False, min_value=least, error_messages=messages, help_text=help_text
    )


def open_field(help_text: str) -> serializers.BooleanField:
    messages = {"invalid": "must be true or false"}
    return serializers.BooleanField(required=False, error_messages=messages, help_text=help_text)


class Query(Strict):
    part = "query"


class PageQuery(Query):
    """Lists of what there is now."""

    limit = _whole(1, "Rows a page, 50 if not given and 200 at most.")
    cursor = serializers.CharField(required=False, help_text="Of `next` or `previous`.")
    offset = _whole(0, "Rows to leave out first. Deprecated: follow `next`.")


class InstanceQuery(PageQuery):
    cluster = serializers.CharField(required=False)
    role = serializers.CharField(required=False)


class NewestQuery(Query):
    """Lists of what happened, newest first."""

    limit = _whole(1, "Rows a page, 50 if not given and 200 at most.")
    cursor = serializers.CharField(required=False, help_text="Of `next` or `previous`.")


class HoldQuery(NewestQuery):
    open = open_field("true: those in force, false: those that ended.")


class RebalanceQuery(NewestQuery):
    open = open_field("true: those under way, false: those that ended.")


class AuditQuery(NewestQuery):
    fleet = serializers.CharField(required=False)


class SeriesQuery(Query):
    names = serializers.CharField(help_text="Comma separated, e.g. link:prfaas->pd:tx_gbps")
    since = serializers.FloatField(required=False, help_text="Epoch seconds; default 15 min ago.")
    until = serializers.FloatField(required=False, help_text="Epoch seconds; default now.")
    points = serializers.IntegerField(required=False, default=300)


def parse(request: Request, query: type[Query]) -> dict[str, Any]:
    """The fields of a request's query. Raises ValidationError by field."""
    repeated = {k: ["is given twice"] for k, vs in request.query_params.lists() if len(vs) > 1}
    if repeated:
        raise ValidationError(repeated)
    asked = query(data=request.query_params.dict())
    asked.is_valid(raise_exception=True)
    return dict(asked.validated_data)


class Queried(APIView):
    """A view whose GET reads its query as `query_class` says, as `asked`."""

    query_class: type[Query]
    asked: dict[str, Any]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method in ("GET", "HEAD"):
            self.asked = parse(request, self.query_class)
