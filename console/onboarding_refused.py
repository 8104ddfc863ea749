"""What to do about a batch that was refused, by the status it was answered with. Pure."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from console.onboarding_agents import RefusedRow
from console.onboarding_steps import MANAGE, TRY

_HELP: Final[dict[int, tuple[str, str, str]]] = {
    400: (_lazy("Something between the agent and here spoils its requests"), "", ""),
    401: (
        _lazy("Give the agent a token that is valid"),
        _lazy(
            "Issue a new one and put it into the agent's token_file: it is read again by itself."
        ),
        f"{MANAGE} token issue agent-NAME --scope ingest > agent.token",
    ),
    403: (
        _lazy("Give the agent a token that may send this"),
        _lazy("It needs scope ingest, and no fleet or the fleet of the ids it sends."),
        f"{MANAGE} token issue agent-NAME --scope ingest > agent.token",
    ),
    408: (_lazy("The agent's path to the console is too slow for its batches"), "", ""),
    409: (
        _lazy("Give each running agent a name of its own"),
        _lazy(
            "Two agents run under this name: the older one is refused. Find both, and rename one."
        ),
        'grep "^agent" agent.toml',
    ),
    413: (
        _lazy("Send less at once"),
        _lazy(
            "Divide the sources between several agents, or allow more bytes in a "
            "body and restart the web process."
        ),
        "CONSOLE_INGEST_MAX_BYTES=16777216",
    ),
    415: (_lazy("Send msgpack or JSON, plain or compressed as the console offers"), "", ""),
    422: (
        _lazy("See what the agent sends"),
        _lazy("Read everything once and look at the field that is named."),
        TRY,
    ),
}


def refused_words(row: RefusedRow) -> str:
    """What to do about one kind of refusal, in one line."""
    if row.is_clock:
        return _("Set the clock of the agent's host")
    if row.status not in _HELP:
        return _("Look at what the console answers it")
    return str(_HELP[row.status][0])


def refused_help(status: int) -> tuple[str, str, str]:
    """What to do, how, and the command for it; the last two may be empty."""
    if status not in _HELP:
        return _("Look at what the console answers"), "", ""
    title, text, command = _HELP[status]
    return str(title), str(text), command
