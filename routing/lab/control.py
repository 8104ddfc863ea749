"""The control surface of a stack's workers: docs/contracts.md, "A stack's workers".

`GET /workers` and `PUT /workers/{NAME}` under `/clusters/{PD}` of the admin port. NAME is the last
part of an id, or the whole id quoted. `lease_s` in an answer is what is left of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from routing.lab.errors import LabError, convert
from routing.lab.pd import PdStack
from routing.lab.workers import Listing, NeverThat, NotNow, Worker

MAX_LEASE_S = 86_400.0


class _Drain(msgspec.Struct, forbid_unknown_fields=True, tag_field="status", tag="draining"):
    lease_s: Annotated[float, msgspec.Meta(gt=0.0, le=MAX_LEASE_S)]


class _Ready(msgspec.Struct, forbid_unknown_fields=True, tag_field="status", tag="ready"):
    pass


class _Relist(msgspec.Struct, forbid_unknown_fields=True):
    worker_type: Literal["prefill", "decode"]


_Change = _Drain | _Ready | _Relist


def add_worker_routes(
    app: web.Application, stacks: Mapping[str, PdStack], urls: Mapping[str, str]
) -> None:
    """Keys of `stacks` are PD clusters, of `urls` instance ids."""

    def listing_of(request: web.Request) -> Listing:
        cluster = request.match_info["cluster"]
        if cluster not in stacks:
            raise _refusal(web.HTTPNotFound, f"no pd cluster {cluster!r} here")
        return stacks[cluster].listing

    async def show(request: web.Request) -> web.Response:
        listed = [_document(worker, urls) for worker in listing_of(request).workers]
        return web.json_response({"workers": listed})

    async def change(request: web.Request) -> web.Response:
        listing, name = listing_of(request), request.match_info["name"]
        worker = listing.find(name)
        if worker is None:
            raise _refusal(web.HTTPNotFound, f"no worker {name!r} is listed here")
        raw = await request.read()
        try:
            wanted = _parse(raw)
            _apply(listing, worker, wanted)
        except LabError as exc:
            raise _refusal(
                web.HTTPUnprocessableEntity, exc.message, field=exc.field, value=exc.value
            ) from None
        except NotNow as exc:
            raise _refusal(web.HTTPConflict, str(exc)) from None
        return web.json_response(_document(worker, urls))

    app.router.add_get("/clusters/{cluster}/workers", show)
    app.router.add_put("/clusters/{cluster}/workers/{name}", change)


def _parse(raw: bytes) -> _Change:
    """Raises LabError naming the field."""
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise LabError(f"the body is not valid JSON: {exc}") from None
    kind: Any = _Relist
    if isinstance(document, dict) and "worker_type" not in document:
        kind = _Drain | _Ready
    try:
        change: _Change = convert(document, kind, source="")
    except LabError as exc:
        # What is missing or unknown is named in the message only.
        named = re.search("field `(.+)`", exc.message)
        field = named[1] if named else exc.field
        value = document.get(field) if isinstance(document, dict) else document
        raise LabError(exc.message, field=field, value=value) from None
    return change


def _apply(listing: Listing, worker: Worker, change: _Change) -> None:
    match change:
        case _Drain(lease_s=lease_s):
            listing.drain(worker, lease_s)
        case _Ready():
            worker.ready()
        case _Relist(worker_type=worker_type):
            try:
                listing.relist(worker, worker_type)
            except NeverThat as exc:
                raise LabError(str(exc), field="worker_type", value=worker_type) from None


def _document(worker: Worker, urls: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": worker.engine.id,
        "url": urls[worker.engine.id],
        "worker_type": worker.worker_type,
        "status": worker.status,
        "requests": worker.requests,
        "lease_s": worker.lease_s,
    }


def _refusal(kind: type[web.HTTPError], message: str, **details: Any) -> web.HTTPError:
    body = msgspec.json.encode({"error": message, **details}).decode()
    return kind(text=body, content_type="application/json")
