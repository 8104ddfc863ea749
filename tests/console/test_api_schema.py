"""The API describes itself without a warning, ingest and errors included."""

from __future__ import annotations

import io
import json

import jsonschema
import msgspec
import pytest
from django.core.management import call_command

from telemetry import wire
from tests.console.api_case import schema
from tests.routing.cases import Gate, engines, link


def test_the_schema_is_valid_and_complete() -> None:
    out = io.StringIO()
    call_command("spectacular", validate=True, fail_on_warn=True, stdout=out)
    assert "/api/v1/fleets/{fleet}/plan" in out.getvalue()


def test_ingest_is_described_by_the_very_types_it_is_decoded_with() -> None:
    operation = schema()["paths"]["/api/v1/ingest"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]
    document = {**reference, "components": schema()["components"]}
    batch = wire.Batch(
        v=1,
        agent="a",
        boot=1,
        seq=1,
        sent_at_s=1.8e9,
        instances=engines(),
        links=[link(tx_gbps=1.0)],
        routers=[Gate(plan=(1, 2)).sample(1.8e9)],
    )
    validator = jsonschema.Draft202012Validator(document)
    validator.validate(json.loads(msgspec.json.encode(batch)))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**json.loads(msgspec.json.encode(batch)), "seq": "one"})


def test_every_operation_says_how_it_fails() -> None:
    for path, operations in schema()["paths"].items():
        for method, operation in operations.items():
            codes = operation["responses"].keys()
            assert "default" in codes or any(c.startswith("4") for c in codes), (path, method)


def test_every_operation_names_its_doors() -> None:
    for path, operations in schema()["paths"].items():
        for method, operation in operations.items():
            assert {"token": []} in operation["security"], (path, method)
