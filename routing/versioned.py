"""Rows that people keep by name: changed by who has seen their version, one audit row a change."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db import models, transaction

from routing import audit
from routing.commands import Stale

Row = TypeVar("Row", bound=models.Model)


@dataclass(frozen=True)
class Kind(Generic[Row]):
    """One table of them: its model has `name`, `version`, `updated_at` and `updated_by`. `values`
    are the fields that people set, `noun` what a row is called, and the audit's verbs begin with;
    `fleet` tells whose a row is, "" where of all.
    """

    model: type[Row]
    noun: str
    values: tuple[str, ...]
    fleet: Callable[[Any], str]

    def verb(self, done: str) -> str:
        return f"{self.noun.replace(' ', '_')}.{done}"

    def of(self, row: Any) -> dict[str, Any]:
        return {field: getattr(row, field) for field in self.values}

    def locked(self, name: str) -> models.QuerySet[Row]:
        """The row of that name, if there is one, which nobody else changes now."""
        return self.model._default_manager.select_for_update().filter(pk=name)


def put(
    kind: Kind[Row],
    name: str,
    values: dict[str, Any],
    *,
    also: dict[str, Any] | None = None,
    if_version: int | None,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> tuple[Row, bool]:
    """The row of that name with these values, and whether anything was written: nothing new is not.

    `also` are fields that follow from the values. Raises Stale.
    """
    with transaction.atomic():
        row: Any = kind.locked(name).first()
        _seen(kind, row, if_version)
        before = None if row is None else kind.of(row)
        if before == values:
            return row, False
        if row is None:
            row = kind.model(name=name, version=0)
        for field, value in (values | (also or {})).items():
            setattr(row, field, value)
        row.version, row.updated_at, row.updated_by = row.version + 1, now, actor
        row.save(force_insert=before is None)
        audit.record(
            actor=actor,
            via=via,
            verb=kind.verb("create" if before is None else "update"),
            fleet=kind.fleet(row),
            target=name,
            before=before,
            after=values,
            reason=reason,
        )
    return row, True


def delete(
    kind: Kind[Row], name: str, *, if_version: int | None = None, actor: str, via: str, reason: str
) -> None:
    """Forget a row. Raises Stale, the model's DoesNotExist."""
    with transaction.atomic():
        row = kind.locked(name).get()
        _seen(kind, row, if_version)
        audit.record(
            actor=actor,
            via=via,
            verb=kind.verb("delete"),
            fleet=kind.fleet(row),
            target=name,
            before=kind.of(row),
            reason=reason,
        )
        row.delete()


def _seen(kind: Kind[Row], row: Any, if_version: int | None) -> None:
    """Raises Stale unless its version is the one that was seen; a row that is not there has 0."""
    current = 0 if row is None else row.version
    if if_version is not None and if_version != current:
        raise Stale(if_version, current, of=kind.noun)
