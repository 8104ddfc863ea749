"""Streams of requests: several put in one order of time, and where one ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from routing.twin.requests import Blocks, Requests


def merged(streams: Sequence[Iterator[Requests]]) -> Iterator[Requests]:
    """One order of time; at the same time, the order of the streams."""
    waiting: dict[int, Requests] = {}
    while True:
        for i, stream in enumerate(streams):
            if i in waiting and len(waiting[i]):
                continue
            fresh = next(stream, None)
            if fresh is None:
                waiting.pop(i, None)
            else:
                waiting[i] = fresh
        if not waiting:
            return
        # Up to here all is known of every stream that goes on.
        until_s = min(float(requests.at_s[-1]) for requests in waiting.values())
        heads = []
        for i, requests in sorted(waiting.items()):
            n = int(np.searchsorted(requests.at_s, until_s, side="right"))
            heads.append(sliced(requests, 0, n))
            waiting[i] = sliced(requests, n, len(requests))
        yield joined(heads)


def joined(parts: Sequence[Requests]) -> Requests:
    """All of them in order of time, at the same time in the order of `parts`."""
    at_s = np.concatenate([part.at_s for part in parts])
    order = np.argsort(at_s, kind="stable")
    blocks: list[Blocks] | None = None
    if parts[0].blocks is not None:
        listed = list(chain.from_iterable(part.blocks or () for part in parts))
        blocks = [listed[i] for i in order.tolist()]
    return Requests(
        at_s=at_s[order],
        prompt_tokens=np.concatenate([part.prompt_tokens for part in parts])[order],
        output_tokens=np.concatenate([part.output_tokens for part in parts])[order],
        site=np.concatenate([part.site for part in parts])[order],
        blocks=blocks,
    )


def limited(
    pieces: Iterator[Requests], *, duration_s: float | None, n_requests: int | None
) -> Iterator[Requests]:
    """Those before `duration_s`, and not more than `n_requests`."""
    left = n_requests
    for piece in pieces:
        end = len(piece)
        if duration_s is not None:
            end = int(np.searchsorted(piece.at_s, duration_s))
        if left is not None:
            end = min(end, left)
            left -= end
        if end:
            yield sliced(piece, 0, end)
        if end < len(piece) or left == 0:
            return


def sliced(requests: Requests, start: int, end: int) -> Requests:
    if start == 0 and end == len(requests):
        return requests
    return Requests(
        at_s=requests.at_s[start:end],
        prompt_tokens=requests.prompt_tokens[start:end],
        output_tokens=requests.output_tokens[start:end],
        site=requests.site[start:end],
        blocks=None if requests.blocks is None else requests.blocks[start:end],
    )
