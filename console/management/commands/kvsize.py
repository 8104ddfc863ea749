"""`manage.py kvsize CONFIG.json`: what a model keeps for a prompt, from its Hugging Face config."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from routing.core.kvsize.size import KvSize, KvSizeError, size_of

KIB, MIB = 2**10, 2**20
MAX_DIGITS = 12


class Command(BaseCommand):
    help = "Bytes of KV cache of a model: a token, the fixed state, and whole prompts."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("config", metavar="CONFIG.json", help="a model's config.json")
        parser.add_argument(
            "--tokens", nargs="+", default=[], metavar="N", help="lengths of prompts to size"
        )
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        lengths = [_length(text) for text in options["tokens"]]
        path = options["config"]
        try:
            size = size_of(_read(path))
        except KvSizeError as exc:
            raise CommandError(f"{path}: {exc}", returncode=2) from None
        answer = _answer(size, lengths)
        self.stdout.write(json.dumps(answer) if options["json"] else "\n".join(_lines(answer)))


def _length(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > MAX_DIGITS:
        message = f"must be a whole number of at most {MAX_DIGITS} digits"
        raise CommandError(f"--tokens={text!r}: {message}", returncode=2)
    return int(text)


def _read(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as exc:
        raise CommandError(f"{path}: {exc.strerror or exc}", returncode=2) from None
    except (ValueError, RecursionError) as exc:
        raise CommandError(f"{path}: is not JSON: {exc}", returncode=2) from None


def _answer(size: KvSize, lengths: list[int]) -> dict[str, Any]:
    layers = size.layers
    return {
        "bytes_per_token": size.bytes_per_token,
        "state_bytes": size.state_bytes,
        "layers": {"full": layers.full, "sliding": layers.sliding, "linear": layers.linear},
        "window_tokens": size.window_tokens,
        "windows": [
            {"window_tokens": window.window_tokens, "bytes_per_token": window.bytes_per_token}
            for window in size.windows
        ],
        "sizes": {str(tokens): size.kv_bytes(tokens) for tokens in lengths},
    }


def _lines(answer: dict[str, Any]) -> list[str]:
    layers = answer["layers"]
    lines = [
        f"{answer['bytes_per_token']:,} bytes a token ({answer['bytes_per_token'] / KIB:.2f} KiB), "
        f"{answer['state_bytes']:,} bytes of state ({answer['state_bytes'] / MIB:.1f} MiB); "
        f"layers: {layers['full']} full, {layers['sliding']} sliding, {layers['linear']} linear"
    ]
    for window in answer["windows"]:
        lines.append(
            f"  a window of {window['window_tokens']:,} tokens, "
            f"{window['bytes_per_token']:,} bytes a token"
        )
    for tokens, size in answer["sizes"].items():
        lines.append(f"  {int(tokens):,} tokens: {size:,} bytes ({size / MIB:.1f} MiB)")
    return lines
