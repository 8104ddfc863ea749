"""Every clock of a page in the zone its reader chose; what programs read stays UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.test import Client
from django.utils import timezone

from console import figures, zones
from tests.console.page_case import busy_fleet

AT = datetime(2026, 7, 1, 14, 5, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "clock", "moment", "stamp"),
    [
        ("UTC", "14:05:07", "14:05:07 UTC", "2026-07-01 14:05:07 UTC"),
        ("Asia/Seoul", "23:05:07", "23:05:07 UTC+9", "2026-07-01 23:05:07 UTC+9"),
        ("Europe/Paris", "16:05:07", "16:05:07 UTC+2", "2026-07-01 16:05:07 UTC+2"),
        ("America/St_Johns", "11:35:07", "11:35:07 UTC-2:30", "2026-07-01 11:35:07 UTC-2:30"),
        ("Asia/Kolkata", "19:35:07", "19:35:07 UTC+5:30", "2026-07-01 19:35:07 UTC+5:30"),
    ],
)
def test_a_moment_is_written_in_the_readers_zone(
    zone: str, clock: str, moment: str, stamp: str
) -> None:
    with timezone.override(zones.zone_of(zone)):
        assert figures.clock(AT) == clock
        assert figures.clock(AT.timestamp()) == clock
        assert figures.moment(AT) == moment
        assert figures.stamp(AT) == stamp
    assert figures.moment(None) == figures.NONE


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../../etc/passwd", "\x00", "a" * 500, "/"])
def test_a_zone_that_is_none_is_utc(name: str) -> None:
    assert zones.zone_of(name) is zones.UTC


@pytest.mark.django_db
def test_pages_follow_the_cookie_and_the_api_does_not(viewer: Client) -> None:
    fleet = busy_fleet()
    viewer.cookies[zones.COOKIE] = "Asia/Seoul"
    page = viewer.get(f"/fleets/{fleet.pk}/").content.decode()
    assert 'data-zone="Asia/Seoul"' in page
    assert "UTC+9" in page
    assert "UTC+9" not in viewer.get(f"/api/v1/fleets/{fleet.pk}/decisions").content.decode()
    viewer.cookies[zones.COOKIE] = "no/zone"
    assert 'data-zone="UTC"' in viewer.get(f"/fleets/{fleet.pk}/").content.decode()
