"""What gates believe of caches that only the instances of a side together hold."""

from __future__ import annotations

import pytest

from tests.twin.cases import at, run, told


@pytest.mark.parametrize(
    ("scope", "n_gates", "n_remote"),
    [
        pytest.param("instance", 1, 1, id="it is the same gate's"),
        pytest.param("instance", 2, 0, id="another gate heard of it"),
        pytest.param("cluster", 1, 0, id="all instances share one cache"),
    ],
)
def test_a_claim_that_an_instance_did_not_keep_makes_the_next_one_weaker(
    scope: str, n_gates: int, n_remote: int
) -> None:
    # The first leaves a block of 512 at one instance. Of the next two one goes there, the other to
    # the free instance, which has a cache of its own or not. After it its gate believes 16.02 of
    # 17.02 of what is held: 481 tokens, and 2,031 left are more than t. 2,000 are not.
    blocks = [(1,), (1, 10, 11, 12), (1, 20, 21, 22), (1, 30, 31, 32)]
    report = run(
        told([0.0, 10.0, 10.0, 20.0], [600, 2512, 2512, 2512], blocks=blocks),
        at(2015),
        cache={"block_tokens": 512, "scope": scope},
        delays={"n_gates": n_gates},
    )
    assert report.remote_fraction == n_remote / 4
    assert report.tokens["uncached"] == 600 + 2000 + 2000 + (2031 if n_remote else 2000)
