"""Real Dynamo for tests: its frontend and emulated workers (PyPI ai-dynamo 1.6.1), no GPU.

Discovery in a folder or in etcd, requests over TCP, events over ZeroMQ. PEER_DYNAMO names a Python
that has it; without one it is installed once into the user's cache (0.7 GB).
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import servers

VERSION = "1.6.1"
MODEL = "tiny"
BLOCK_TOKENS = 16
_WORDS = 4000
_INSTALL_WITHIN_S = 240.0
_REQUIREMENTS = (
    "aiohttp>=3.14.3",
    "kubernetes<33,>=32.0.1",
    "msgspec",
    "prometheus-client",
    "pyzmq",
    "redis<9,>=6.2",
    "tqdm",
    "transformers>=4.56",
    "zstandard",
    "pydantic<=2.13.5,>=2.10.6",
    "uvloop",
)
_PLANES = ["--request-plane", "tcp", "--event-plane", "zmq"]


def python() -> str:
    """A Python that has Dynamo; skips the test where there is none to be had."""
    named = os.environ.get("PEER_DYNAMO")
    if named:
        return named
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prfaas-peers"
    folder = cache / f"dynamo-{VERSION}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f".{folder.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "installed").exists():
                _install(folder)
    except (OSError, subprocess.SubprocessError) as exc:
        said = getattr(exc, "stderr", None) or str(exc)
        pytest.skip(f"ai-dynamo {VERSION} cannot be installed: {said[-300:]}")
    return str(folder / "bin" / "python")


def _install(folder: Path) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    tool = [uv] if uv is not None else [shutil.which("python3") or sys.executable, "-m", "uv"]
    into = ["pip", "install", "-q", "--python", str(folder / "bin" / "python")]
    for step in (
        ["venv", "-q", "--clear", "--python", sys.executable, str(folder)],
        # Plain ai-dynamo asks for a package whose stub downloads its wheel from elsewhere.
        [*into, "--no-deps", f"ai-dynamo=={VERSION}", f"ai-dynamo-runtime=={VERSION}"],
        [*into, *_REQUIREMENTS],
    ):
        subprocess.run(
            [*tool, *step], capture_output=True, text=True, timeout=_INSTALL_WITHIN_S, check=True
        )
    (folder / "installed").touch()


def free_port() -> int:
    """One that Dynamo can hold: it reads its system port as 16 bits with a sign."""
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    pytest.skip("no port between 20,000 and 32,000 is free")


class Fleet:
    """One frontend, and the workers that are started for it. `close` ends what it started."""

    def __init__(self, folder: Path, *, etcd_url: str | None = None) -> None:
        self.folder, self.store, self._etcd_url = folder, folder / "store", etcd_url
        discovery = "file" if etcd_url is None else "etcd"
        self._planes = ["--discovery-backend", discovery, *_PLANES]
        self._python, self._started = python(), []
        self._model = _model(folder / "model")
        self.url = f"http://127.0.0.1:{free_port()}"
        port = self.url.rpartition(":")[2]
        args = ["--http-host", "127.0.0.1", "--http-port", port, "--router-mode", "kv"]
        self.frontend = self._start("frontend", "dynamo.frontend", [*args, *self._planes], {})

    def worker(
        self, role: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A new one; it serves when `serving` says so."""
        args = ["--model-path", str(self._model), "--model-name", MODEL]
        args += ["--disaggregation-mode", role, "--block-size", str(BLOCK_TOKENS)]
        args += ["--speedup-ratio", "50", "--kv-bytes-per-token", "1024", *self._planes]
        if role == "prefill":
            args += ["--bootstrap-ports", str(free_port())]
        return self._start(f"{role}-{len(self._started)}", "dynamo.mocker", args, environ or {})

    def wait(self, holds: Any, what: str, *, within_s: float = 30.0) -> None:
        until_s = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > until_s:
                pytest.fail(f"{what} within {within_s:g} s; logs are in {self.folder}")
            time.sleep(0.1)

    def serves(self) -> bool:
        """Whether a request comes through, decode and prefill."""
        try:
            return bool(self.ask(["w0"] * 3)["choices"])
        except (OSError, urllib.error.HTTPError):
            return False

    def ask(self, words: list[str]) -> dict[str, Any]:
        """One completion of a prompt of so many tokens, with who served it."""
        body = {
            "model": MODEL,
            "prompt": " ".join(words),
            "max_tokens": 2,
            "nvext": {"extra_fields": ["worker_id", "timing"]},
        }
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def went_remote(self, words: list[str]) -> bool:
        answer = self.ask(words)
        assert answer["usage"]["prompt_tokens"] == len(words)
        return answer["nvext"]["worker_id"].get("prefill_worker_id") is not None

    def close(self) -> None:
        for process in reversed(self._started):
            servers.end(process)

    def _start(
        self, name: str, module: str, args: list[str], environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        here = {
            "DYN_FILE_KV": str(self.store),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_HOST": "127.0.0.1",
            "DYN_SYSTEM_HOST": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
        }
        if self._etcd_url is not None:
            here["ETCD_ENDPOINTS"] = self._etcd_url
        if module == "dynamo.mocker":
            here["DYN_SYSTEM_PORT"] = str(free_port())
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [self._python, "-m", module, *args],
                env={**os.environ, **here, **environ},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process


def prompt(n: int, seed: int) -> list[str]:
    """A prompt of `n` tokens that shares no block with that of another seed."""
    return [f"w{(seed * 577 + i * 31) % _WORDS}" for i in range(n)]


def _model(folder: Path) -> Path:
    """A model of words: each is one token."""
    folder.mkdir(parents=True)
    special = ["<unk>", "<s>", "</s>"]
    vocabulary = {word: i for i, word in enumerate([*special, *(f"w{i}" for i in range(_WORDS))])}
    added = [
        {"id": i, "content": word, "special": True, "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False}
        for i, word in enumerate(special)
    ]
    files: dict[str, dict[str, Any]] = {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "model_max_length": 8192,
            "chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}",
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "vocab_size": len(vocabulary),
            "max_position_embeddings": 8192,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
