"""The audit only grows: the database sees to it, and tells when it was tampered with (S-58)."""

from __future__ import annotations

import importlib
import io
import threading

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from routing import audit, request_ids
from routing.models import Action, ActionSeal
from tests.rewriting import rewriting_audit

WHO = {"actor": "ana", "via": "ui", "fleet": "f1", "target": "policy f1", "reason": "a test"}


def wrote(verb: str = "policy.change") -> Action:
    return audit.record(**WHO, verb=verb, before={"mode": "active"}, after={"mode": "paused"})


@pytest.mark.django_db
@pytest.mark.parametrize("table", ["routing_action", "routing_actionseal"])
@pytest.mark.parametrize("change", ["UPDATE {} SET id = id", "DELETE FROM {}"])
def test_rows_of_the_audit_are_neither_changed_nor_deleted(table: str, change: str) -> None:
    wrote()
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # as a commit: the row is sealed
        with pytest.raises(DatabaseError, match="the audit only grows"), transaction.atomic():
            cursor.execute(change.format(table))
    assert Action.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("table", ["routing_action", "routing_actionseal"])
def test_the_audit_is_not_emptied(table: str) -> None:
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER {table}_whole")
        with pytest.raises(DatabaseError, match="the audit only grows"), transaction.atomic():
            cursor.execute(f"TRUNCATE {table}")
        cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER {table}_whole")


@pytest.mark.django_db(transaction=True)
def test_the_chain_tells_what_was_changed_taken_out_and_slipped_in() -> None:
    rows = [wrote() for _n in range(4)]
    found = audit.verify()
    assert (found.n, found.wrong, len(found.head)) == (4, (), 64)
    with rewriting_audit():
        Action.objects.filter(pk=rows[1].pk).update(reason="another")
    assert audit.verify().wrong == (rows[1].pk,)
    with rewriting_audit():
        Action.objects.filter(pk=rows[1].pk).update(reason="a test")
        Action.objects.filter(pk=rows[2].pk).delete()
    assert audit.verify().wrong == (rows[2].pk,)
    with rewriting_audit():
        ActionSeal.objects.filter(action=rows[2].pk).delete()
        slipped = wrote()
    assert audit.verify().wrong == (rows[3].pk, slipped.pk)


@pytest.mark.django_db(transaction=True)
def test_only_who_noted_a_seal_can_tell_that_the_newest_rows_are_gone() -> None:
    wrote()
    kept = audit.verify().head
    last = wrote()
    noted = audit.verify().head
    with rewriting_audit():
        Action.objects.filter(pk=last.pk).delete()
        ActionSeal.objects.filter(action=last.pk).delete()
    assert audit.verify(kept) == audit.Verified(1, kept, ())
    assert not audit.verify(noted).knows
    with pytest.raises(CommandError, match="rows are gone"):
        call_command("audit", "verify", f"--head={noted}")
    out = io.StringIO()
    call_command("audit", "verify", f"--head={kept}", stdout=out)
    assert f"1 actions are as they were written, head {kept}" in out.getvalue()


@pytest.mark.django_db(transaction=True)
def test_changes_at_once_are_sealed_one_after_the_other() -> None:
    at_once = threading.Barrier(6)

    def change() -> None:
        with transaction.atomic():
            wrote()
            at_once.wait(timeout=10)
            wrote()
        connection.close()

    threads = [threading.Thread(target=change) for _n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (audit.verify().n, audit.verify().wrong) == (12, ())
    assert ActionSeal.objects.count() == 12


@pytest.mark.django_db
def test_a_change_knows_its_request() -> None:
    request_ids.begin("deploy-17")
    assert wrote().request_id == "deploy-17"
    for strange in ("", "x" * 65, "a b", "-x", "a\nb", "ü"):
        assert request_ids.begin(strange) not in ("", strange)
    assert wrote().request_id == request_ids.known()


@pytest.mark.django_db
def test_what_was_there_before_the_seals_is_sealed_by_the_migration() -> None:
    module = importlib.import_module("routing.migrations.0006_audit_append_only")
    with connection.cursor() as cursor:
        cursor.execute(module.DROP)
        rows = [wrote() for _n in range(3)]
        cursor.execute(module.CREATE)
    assert audit.verify().wrong == ()
    assert list(ActionSeal.objects.order_by("id").values_list("action", flat=True)) == [
        row.pk for row in rows
    ]
