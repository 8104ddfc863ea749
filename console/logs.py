"""Lines of the log: what is said while a request is under way names it."""

from __future__ import annotations

import logging

from routing import request_ids


class Line(logging.Formatter):
    """As its base, with the request's id at the end, where there is a request."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        request_id = request_ids.known()
        return f"{line} [request {request_id}]" if request_id else line
