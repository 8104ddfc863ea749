"""Tests make pasts, and the audit lets nobody: here is how."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def rewriting_audit() -> Iterator[None]:
    """Without the audit's triggers, as only the database's superuser can be."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = DEFAULT")
