"""Wrong passwords lock for a while: by account and address, by account, by address (S-59)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.db.models import F
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from console import people
from console.lockout import LIMITS
from console.people import Who

pytestmark = pytest.mark.django_db
WHO = Who("root", "test")


@pytest.fixture(autouse=True)
def _quick(settings: Settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def password() -> str:
    return people.create(name="ana", groups=["viewer"], who=WHO)[1]


def attempt(name: str, password: str = "wrong", address: str = "10.0.0.1") -> int:
    """The status of one attempt: 200 wrong, 302 in, 429 or 403 locked."""
    sent = {"username": name, "password": password}
    return int(Client(REMOTE_ADDR=address).post("/login/", sent).status_code)


def failed(name: str, address: str, n: int) -> None:
    """So many failures that were before."""
    AccessAttempt.objects.create(
        username=name, ip_address=address, user_agent="", failures_since_start=n,
        attempt_time=timezone.now(),
    )  # fmt: skip


def test_an_account_locks_from_one_address_and_tells_nobody_whether_there_is_one(
    password: str,
) -> None:
    for name in ("ana", "nobody-of-that-name"):
        statuses = [attempt(name) for _n in range(LIMITS[0] + 1)]
        assert statuses[0] == 200
        assert statuses[-2:] == [429, 429]
    assert attempt("ana", password) == 429
    assert attempt("ana", password, "10.0.0.2") == 302


def test_an_account_locks_when_it_is_tried_from_many_addresses(password: str) -> None:
    for n in range(LIMITS[1] // 5):
        failed("ana", f"10.1.0.{n}", 5)
    assert attempt("ana", password, "10.2.0.1") == 429
    assert attempt("bo", "x", "10.2.0.1") == 200


def test_an_address_locks_when_it_tries_many_accounts(password: str) -> None:
    for n in range(LIMITS[2] // 5):
        failed(f"user-{n}", "10.0.0.1", 5)
    assert attempt("ana", password, "10.0.0.1") == 429
    assert attempt("ana", password, "10.0.0.2") == 302


def test_who_gets_in_does_not_forgive_what_others_tried(password: str) -> None:
    failed("ana", "10.0.0.1", 7)
    failed("ana", "10.9.9.9", 30)
    failed("eve", "10.0.0.1", 50)
    assert attempt("ana", password, "10.0.0.1") == 302
    left = AccessAttempt.objects.order_by("username").values_list("username", "ip_address")
    assert list(left) == [("ana", "10.9.9.9"), ("eve", "10.0.0.1")]


def test_it_ends_by_itself_and_by_an_administrator(password: str) -> None:
    failed("ana", "10.0.0.1", LIMITS[0])
    assert attempt("ana", password) == 429
    AccessAttempt.objects.update(attempt_time=F("attempt_time") - timedelta(minutes=16))
    assert attempt("ana", password) == 302
    failed("ana", "10.0.0.1", LIMITS[0])
    assert people.unlock(User.objects.get(), who=WHO)
    assert attempt("ana", password) == 302
    assert not people.unlock(User.objects.get(), who=WHO)
