"""Certificates of the tests' own, made by the `openssl` program."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes its certificates with the openssl program"
)


def _openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True, timeout=30)


class Authority:
    """A certificate authority and what it signs, as files of `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.cert, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", str(self._key), "-out", str(self.cert), "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign"),
        )

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key for 127.0.0.1, with `name` as its common name."""
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        request, extra = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extra.write_text("subjectAltName=IP:127.0.0.1\n")
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}"),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.cert), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-out", str(cert), "-days", "2", "-extfile", str(extra)),
        )
        return cert, key

    def client(self, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Trusts this authority, and shows `pair`."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if pair is not None:
            context.load_cert_chain(*pair)
        return context

    def server(self, pair: tuple[Path, Path], *, asks_clients: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        if asks_clients:
            context.load_verify_locations(str(self.cert))
            context.verify_mode = ssl.CERT_REQUIRED
        return context
