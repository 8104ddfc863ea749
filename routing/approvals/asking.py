"""Commands that may need a second person: beyond the limits they become a proposal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import ParamSpec, TypeVar

from django.db import transaction

from routing.approvals import gate, rows
from routing.approvals.models import Proposal

P = ParamSpec("P")
R = TypeVar("R")


class Proposed(Exception):
    """Nothing was changed: a proposal waits for a second person. No refusal, and no error."""

    def __init__(self, keep: Callable[[], Proposal]) -> None:
        super().__init__(f"{rows.target(keep())} waits for a second person")
        self._keep = keep

    def kept(self) -> Proposal:
        """The proposal, kept again where the caller's transaction took it back with the rest."""
        return self._keep()


def proposable(command: Callable[P, R]) -> Callable[P, R]:
    """A command of keyword arguments that JSON can say, moments, or rows. It raises Proposed where
    it reaches too far for one person. Within another such command it is a part of that."""
    name = name_of(command)

    @wraps(command)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        if gate.is_watching():
            return command(*args, **kwargs)
        said = dict(kwargs)
        who = {each: said.pop(each) for each in ("actor", "via", "reason", "now")}
        try:
            with transaction.atomic(), gate.watching(str(who["via"])) as watch:
                done = command(*args, **kwargs)
                watch.settle()
                return done
        except gate.NeedsApproval as needed:
            keep = partial(rows.open_one, asked=needed.asked, command=name, arguments=said, **who)
        raise Proposed(keep)

    return asked


def name_of(command: Callable[..., object]) -> str:
    """What a proposal calls a command: its module and itself."""
    return f"{command.__module__.rpartition('.')[2]}.{command.__name__}"
