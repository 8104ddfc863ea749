"""The optional exact tokenizer: a `tokenizer.json` read by the `tokenizers` package."""

from __future__ import annotations

from pathlib import Path

from routing.gate.count import Tokenizer

try:
    import tokenizers
except ImportError:
    tokenizers = None  # type: ignore[assignment]


class TokenizerError(ValueError):
    """The file cannot be used, or the package that reads it is not installed."""


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`. Raises TokenizerError."""
    if tokenizers is None:
        raise TokenizerError(
            "reading it needs the `tokenizers` package: install prfaas-console[tokenizer]"
        )
    try:
        loaded = tokenizers.Tokenizer.from_file(str(path))
    except Exception as exc:  # the package raises bare Exception for every fault of a file
        raise TokenizerError(f"not a tokenizer.json: {exc}") from None
    loaded.no_truncation()
    loaded.no_padding()
    tokenizer: Tokenizer = loaded
    return tokenizer
