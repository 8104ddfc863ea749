"""A small identity provider on a port of its own: discovery, keys, authorize, token, userinfo."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT_ID, SECRET = "prfaas", "a secret of the client"


class Provider:
    """Signs whoever comes in as `claims`; tests bend what it says."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.claims: dict[str, Any] = {}
        self.signed_with: Any = self.key
        self.algorithm = "RS256"
        self.kid = "one"
        self.userinfo: dict[str, Any] | None = None
        self.codes: dict[str, dict[str, str]] = {}
        self.redeemed: list[dict[str, str]] = []
        self.calls_itself = self.issuer
        self.sends_id_token = True

    def somebody(self, subject: str, *groups: str, **more: Any) -> None:
        """Who signs in next."""
        self.claims = {
            "sub": subject,
            "preferred_username": subject,
            "email": f"{subject}@example.com",
            "email_verified": True,
            "groups": list(groups),
            **more,
        }

    def jwks(self) -> dict[str, Any]:
        document = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return {"keys": [{**document, "kid": "one", "alg": "RS256", "use": "sig"}]}

    def id_token(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": asked.get("nonce", ""),
            **self.claims,
        }
        return jwt.encode(
            {k: v for k, v in claims.items() if v is not None},
            self.signed_with,
            algorithm=self.algorithm,
            headers={"kid": self.kid},
        )

    def answer(self, path: str, query: dict[str, str], form: dict[str, str]) -> Any:
        """A redirect's address, or a document."""
        match path:
            case "/.well-known/openid-configuration":
                at = self.issuer
                return {
                    "issuer": self.calls_itself,
                    "authorization_endpoint": f"{at}/authorize",
                    "token_endpoint": f"{at}/token",
                    "jwks_uri": f"{at}/keys",
                    "token_endpoint_auth_methods_supported": ["client_secret_post"],
                    **({"userinfo_endpoint": f"{at}/me"} if self.userinfo is not None else {}),
                }
            case "/keys":
                return self.jwks()
            case "/authorize":
                code = f"code-{len(self.codes)}"
                self.codes[code] = query
                back = {"code": code, "state": query["state"]}
                return f"{query['redirect_uri']}?{urlencode(back)}"
            case "/token":
                self.redeemed.append(form)
                asked = self.codes.pop(form["code"])
                proof = hashlib.sha256(form["code_verifier"].encode()).digest()
                challenge = base64.urlsafe_b64encode(proof).rstrip(b"=").decode()
                if challenge != asked["code_challenge"] or form["client_secret"] != SECRET:
                    return None
                token = {"access_token": "opaque", "token_type": "Bearer", "expires_in": 300}
                return {**token, "id_token": self.id_token(asked)} if self.sends_id_token else token
            case "/me":
                return self.userinfo
        return None


@contextmanager
def running() -> Iterator[Provider]:
    """A provider that answers until the end."""

    class Handler(BaseHTTPRequestHandler):
        def _say(self, form: dict[str, str]) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            said = provider.answer(parts.path, query, form)
            if isinstance(said, str):
                self.send_response(302)
                self.send_header("Location", said)
                self.end_headers()
                return
            body = json.dumps(said or {"error": "invalid_request"}).encode()
            self.send_response(200 if said else 400)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self._say({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._say({name: values[0] for name, values in parse_qs(body).items()})

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = Provider(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
