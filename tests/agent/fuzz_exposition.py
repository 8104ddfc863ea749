"""What must hold of any bytes an engine could answer with, and a fuzzer that looks for others.

`python -m tests.agent.fuzz_exposition --seconds 600 [--corpus FOLDER]` in an environment that has
atheris besides msgspec; it prints the number of texts tried, and a text that broke a promise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from telemetry import canonical, exposition
from telemetry.engine_maps import ENDS, MAPS
from tests.agent.reading import on_wire

try:
    import atheris
except ImportError:
    atheris = None

MAX_BYTES = 4096
SECONDS_A_TEXT = 10
KINDS = (None, "instance", "router", "host")
DIALECTS = (None, True, False)


def check(
    text: str, *, engine: str = "auto", kind: str | None = None, dialect: bool | None
) -> None:
    """Nothing raises, the JSON is strict, the batch passes the door, a second reading is equal."""
    parser = exposition.Parser()
    first = parser.parse(text, openmetrics=dialect)
    assert repr(first) == repr(parser.parse(text, openmetrics=dialect))
    found = canonical.canonicalise(first, engine, kind=kind)
    json.dumps(found.to_json(), allow_nan=False)
    if found.kind == "host":
        canonical.to_link_signals(found, "eth0")
    else:
        on_wire(found)
    for name, signal in found.signals.items():
        assert (signal.state == "missing") == (signal.reason is not None), name


def one_input(data: bytes) -> None:
    """The first byte chooses how the rest is read."""
    how, text = data[:1], data[1:].decode("utf-8", errors="replace")
    number = how[0] if how else 0
    families = ("auto", *MAPS)
    check(
        text,
        engine=families[number // 12 % len(families)] if number % 2 else "auto",
        kind=KINDS[number % len(KINDS)],
        dialect=DIALECTS[number % len(DIALECTS)],
    )


def words() -> list[str]:
    """Names of every family, for a fuzzer to put together."""
    names = {
        engine_map.prefixes[0] + name + end
        for engine_map in MAPS.values()
        for name in engine_map.series_names()
        for end in ENDS
    }
    return sorted(
        {*names, 'le="', "+Inf", "NaN", "# EOF", "# TYPE ", " # {", 'engine="0"', "1e999"}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the reading of /metrics texts.")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", type=Path, default=None, help="a folder of texts to start from")
    options = parser.parse_args()
    if atheris is None:
        raise SystemExit("atheris is not installed here")
    with tempfile.TemporaryDirectory() as folder:
        corpus, dictionary = Path(folder, "corpus"), Path(folder, "words")
        corpus.mkdir()
        quoted = [word.replace("\\", "\\\\").replace('"', '\\"') for word in words()]
        dictionary.write_text("".join(f'"{word}"\n' for word in quoted))
        for i, path in enumerate(sorted(options.corpus.rglob("*")) if options.corpus else []):
            if path.is_file():
                (corpus / f"{i}").write_bytes(b"\0" + path.read_bytes()[: MAX_BYTES - 1])
        atheris.instrument_all()
        atheris.Setup(
            [
                sys.argv[0],
                f"-max_total_time={options.seconds}",
                f"-max_len={MAX_BYTES}",
                f"-timeout={SECONDS_A_TEXT}",
                f"-dict={dictionary}",
                f"-artifact_prefix={tempfile.gettempdir()}/",
                str(corpus),
            ],
            one_input,
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
