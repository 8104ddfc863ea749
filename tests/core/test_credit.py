"""How far a gate's beliefs about caches lately came true."""

from __future__ import annotations

import pytest

from routing.core.placement.credit import Credit


def test_it_is_one_while_all_claims_come_true() -> None:
    credit = Credit()
    for n_blocks in (1, 7, 300):
        credit.claimed(n_blocks, confirmed=n_blocks)
    assert credit.ratio == 1.0


def test_a_claim_weighs_by_its_blocks_and_is_forgotten() -> None:
    small, large = Credit(), Credit()
    small.claimed(1, confirmed=0)
    large.claimed(100, confirmed=0)
    assert small.ratio == pytest.approx(16 * 0.97 / (16 * 0.97 + 1))
    assert large.ratio == pytest.approx(16 * 0.97 / (16 * 0.97 + 100))
    for _ in range(200):
        large.claimed(10, confirmed=10)
    assert large.ratio > 0.99
