"""REST for the whole configuration as one document: export it, compare it, apply it."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import exceptions, serializers, status
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import queries
from routing.api import by
from routing.declared.apply import Applied, apply, dry_run
from routing.declared.diff import Change
from routing.declared.document import KINDS, NotMeant
from routing.declared.state import read_state
from routing.declared.text import FORMATS, MAX_BYTES, Format, Unreadable, read
from routing.rest.once import once

MEDIA_TYPES: dict[Format, str] = {
    "toml": "application/toml",
    "yaml": "application/yaml",
    "json": "application/json",
}
_MAY_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The ETag of the export that the document was written for: 412 if there is another"
    " state by now, unless it is as declared already.",
)
_NONE_MATCH = OpenApiParameter("If-None-Match", OpenApiTypes.STR, OpenApiParameter.HEADER)


class TooLarge(exceptions.APIException):
    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = f"a document has at most {MAX_BYTES // 2**20} MiB"


class _Document(BaseParser):
    format: Format

    def parse(self, stream: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise TooLarge
        try:
            return read(raw, self.format)
        except Unreadable as exc:
            raise exceptions.ValidationError({exc.where: [exc.message]}) from None


class TomlDocument(_Document):
    media_type, format = MEDIA_TYPES["toml"], "toml"


class YamlDocument(_Document):
    media_type, format = MEDIA_TYPES["yaml"], "yaml"


class JsonDocument(_Document):
    media_type, format = MEDIA_TYPES["json"], "json"


class _ByQuery(BaseContentNegotiation):
    """The format is asked for in the query, and errors are JSON, whatever is accepted."""

    def select_parser(self, request: Request, parsers: list[Any]) -> Any:
        return parsers[0]

    def select_renderer(
        self, request: Request, renderers: list[Any], format_suffix: Any = None
    ) -> tuple[Any, str]:
        return renderers[0], renderers[0].media_type


class ApplyQuery(queries.Query):
    dry_run = serializers.BooleanField(
        default=False, help_text="Only say what would change; `read` rights do."
    )
    prune = serializers.BooleanField(
        default=False, help_text="Delete what the kinds of the document do not name."
    )
    confirm = serializers.CharField(
        default="", help_text="Fleets that may go with their history, apart by commas."
    )
    reason = serializers.CharField(default="", max_length=500, help_text="For the audit.")


class ExportQuery(queries.Query):
    format = serializers.ChoiceField(FORMATS, default="json")


class DifferenceSerializer(serializers.Serializer):
    """One value that differs; null where there is none."""

    path = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class ChangeSerializer(serializers.Serializer):
    """One object: of a change `differences`, else what is made or deleted as a whole."""

    action = serializers.ChoiceField(("create", "change", "delete"))
    kind = serializers.ChoiceField(KINDS)
    name = serializers.CharField()
    because = serializers.CharField(allow_blank=True, help_text="Where the document says not.")
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)
    differences = DifferenceSerializer(many=True)


class AppliedSerializer(serializers.Serializer):
    """What was changed, or would be; `n_same` objects are as declared already."""

    dry_run = serializers.BooleanField()
    changes = ChangeSerializer(many=True)
    n_same = serializers.IntegerField()
    digest_before = serializers.CharField()
    needs_approval = serializers.ListField(
        child=serializers.CharField(), help_text="Of a dry run: why a second person is needed."
    )
    digest = serializers.CharField(help_text="Of the state, as the ETag of an export.")


class ApplyView(APIView):
    """Make a document so: all of it or nothing. Applied again it changes nothing."""

    parser_classes = [JsonDocument, TomlDocument, YamlDocument]
    scopes_shown = ("read", "admin")

    @property
    def required_scope(self) -> tuple[str, ...]:
        return ("read",) if self._query("dry_run") in ("true", "True", "1") else ("admin",)

    def _query(self, name: str) -> str:
        return self.request.query_params.get(name, "")

    @extend_schema(
        parameters=[ApplyQuery, _MAY_MATCH],
        request={
            MEDIA_TYPES["json"]: OpenApiTypes.OBJECT,
            MEDIA_TYPES["toml"]: OpenApiTypes.STR,
            MEDIA_TYPES["yaml"]: OpenApiTypes.OBJECT,
        },
        responses={200: AppliedSerializer, 412: None, 413: None, 422: None},
    )
    @once
    def post(self, request: Request) -> Response:
        query = queries.parse(request, ApplyQuery)
        document = request.data
        if not document:
            raise exceptions.ValidationError({"document": ["declares nothing: send one"]})
        asked = {
            "document": document,
            "prune": query["prune"],
            "confirmed": [name for name in query["confirm"].split(",") if name],
            "if_digest": request.headers.get("If-Match", "").strip().strip('"'),
            **by(request),
        }
        try:
            if query["dry_run"]:
                applied = dry_run(**asked)
            else:
                applied = apply(**asked, reason=query["reason"])
        except NotMeant as exc:
            raise exceptions.ValidationError(_by_path(exc)) from None
        return Response(shown(applied), headers={"ETag": f'"{applied.digest}"'})


class ExportView(APIView):
    """Everything that is kept by name, as the document that would make it so."""

    content_negotiation_class = _ByQuery

    @extend_schema(
        parameters=[ExportQuery, _NONE_MATCH],
        responses={
            (200, MEDIA_TYPES["json"]): OpenApiTypes.OBJECT,
            (200, MEDIA_TYPES["toml"]): OpenApiTypes.STR,
            (200, MEDIA_TYPES["yaml"]): OpenApiTypes.OBJECT,
            304: None,
        },
    )
    def get(self, request: Request) -> HttpResponseBase:
        format_: Format = queries.parse(request, ExportQuery)["format"]
        state = read_state()
        headers = {"ETag": f'"{state.digest}"'}
        if request.headers.get("If-None-Match", "").strip().strip('"') == state.digest:
            return Response(status=status.HTTP_304_NOT_MODIFIED, headers=headers)
        headers["Content-Disposition"] = f'attachment; filename="site.{format_}"'
        media_type = MEDIA_TYPES[format_]
        return HttpResponse(state.text(format_), content_type=media_type, headers=headers)


def shown(applied: Applied) -> dict[str, Any]:
    """What was applied, as REST and the command tell it."""
    return {
        "dry_run": applied.dry_run,
        "changes": [_change(change) for change in applied.changes],
        "n_same": applied.n_same,
        "needs_approval": list(applied.needs_approval),
        "digest_before": applied.digest_before,
        "digest": applied.digest,
    }


def _change(change: Change) -> dict[str, Any]:
    whole = change.action != "change"
    return {
        "action": change.action,
        "kind": change.kind,
        "name": change.name,
        "because": change.because,
        "before": change.before if whole else None,
        "after": change.after if whole else None,
        "differences": [
            {"path": each.path, "before": each.before, "after": each.after}
            for each in change.differences
        ],
    }


def _by_path(exc: NotMeant) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in exc.wrong:
        value = "" if each.value is None else f" (it is {each.value!r:.80})"
        found.setdefault(each.path, []).append(f"{each.message}{value}")
    return found


urlpatterns = [
    path("apply", ApplyView.as_view(), name="api-apply"),
    path("export", ExportView.as_view(), name="api-export"),
]
