"""Request bodies of the API."""

from __future__ import annotations

import io
from typing import Any, Final

from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import JSONParser

MOST_BYTES: Final = 8 * 1024 * 1024


class TooLarge(APIException):
    """A body that nobody means; it is not read to its end."""

    status_code = 413
    default_detail = f"the body has more than {MOST_BYTES // 1024**2} MiB"


class JsonBody(JSONParser):
    """JSON; one nested deeper than Python reads is the sender's mistake, not ours."""

    def parse(self, stream: Any, *args: Any, **kwargs: Any) -> Any:
        body = stream.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise TooLarge
        try:
            return super().parse(io.BytesIO(body), *args, **kwargs)
        except RecursionError:
            raise ParseError("JSON parse error - nested too deeply") from None
