"""Request bodies of the API."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser


class JsonBody(JSONParser):
    """JSON; one nested deeper than Python reads is the sender's mistake, not ours."""

    def parse(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().parse(*args, **kwargs)
        except RecursionError:
            raise ParseError("JSON parse error - nested too deeply") from None
