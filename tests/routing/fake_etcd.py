"""etcd's HTTP gateway in small: prefixes are read, and a transaction compares what was written."""

from __future__ import annotations

import base64
from typing import Any

from tests.routing.fake_pages import Pages


class FakeEtcd(Pages):
    """`values` by key, with the revision each was written at. Like the real one it counts in
    strings, and leaves out what is zero or empty."""

    def __init__(self) -> None:
        super().__init__({"POST /v3/kv/range": self._range, "POST /v3/kv/txn": self._txn})
        self.values: dict[str, tuple[str, int]] = {}
        self.revision = 1
        self.heeds = True
        self.namespace = "ns"

    def write(self, *, together: bool = False, **values: Any) -> None:
        """Under v1/NAMESPACE/planner/, each by itself or all in one transaction."""
        for i, (name, value) in enumerate(values.items()):
            self.revision += 1 if i == 0 or not together else 0
            self.values[f"v1/{self.namespace}/planner/{name}"] = (str(value), self.revision)

    def _range(self, body: Any) -> dict[str, Any]:
        first, end = _plain(body["key"]), _plain(body["range_end"])
        kvs = [
            {"key": _coded(key), "value": _coded(value), "mod_revision": str(revision)}
            for key, (value, revision) in sorted(self.values.items())
            if first <= key < end
        ]
        header = {"revision": str(self.revision)}
        return {"header": header, "kvs": kvs, "count": str(len(kvs))} if kvs else {"header": header}

    def _txn(self, body: Any) -> dict[str, Any]:
        for each in body["compare"]:
            assert (each["target"], each["result"]) == ("MOD", "EQUAL")
            if self.values.get(_plain(each["key"]), ("", 0))[1] != int(each["mod_revision"]):
                return {"header": {"revision": str(self.revision)}}
        self.revision += 1
        for each in body["success"]:
            put = each["requestPut"]
            if self.heeds:
                self.values[_plain(put["key"])] = (_plain(put["value"]), self.revision)
        return {"header": {"revision": str(self.revision)}, "succeeded": True}


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _plain(text: str) -> str:
    return base64.b64decode(text).decode()
