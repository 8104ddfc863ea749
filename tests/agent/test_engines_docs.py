"""docs/engines.md says what the alias maps say.

`python -m tests.agent.test_engines_docs` rewrites the part that is generated.
"""

from __future__ import annotations

from pathlib import Path

from telemetry.engine_maps import MAPS, EngineMap, Names, Ratio, SignalMap, Source, Stages, load
from telemetry.exposition import parse
from telemetry.folding import Reader

PAGE = Path(__file__).parents[2] / "docs/engines.md"
BEGIN, END = "<!-- engines -->\n", "<!-- /engines -->"
LAYERS = {
    "engine": "",
    "server": ", around an engine",
    "addon": ", beside an engine",
}


def chapters() -> str:
    """A table of all families, then a chapter for each."""
    lines = ["| family | `engine` | versions seen | kind |", "|---|---|---|---|"]
    lines += [
        f"| {each.title} | `{each.engine}` | {each.versions} | {each.kind}{LAYERS[each.layer]} |"
        for each in MAPS.values()
    ]
    return "\n".join([*lines, "", *(_chapter(each) for each in MAPS.values())]).rstrip()


def _chapter(engine_map: EngineMap) -> str:
    prefixes = ", ".join(f"`{prefix}`" for prefix in engine_map.prefixes if prefix)
    lines = [f"### {engine_map.title}", ""]
    if prefixes:
        lines += [f"Series begin with {prefixes}.", ""]
    lines += ["| signal | unit | series | |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {signal.unit or '-'} | {_series(signal)} | {_how(signal)} |"
        for name, signal in engine_map.signals.items()
    ]
    lines += [f"| `{name}` | | none | {reason} |" for name, reason in engine_map.lacks.items()]
    return "\n".join([*lines, ""])


def _series(signal: SignalMap) -> str:
    parts = [_ratio(ratio) for ratio in signal.ratios]
    if signal.names:
        parts.append(_names(signal.names))
    parts += [_stages(stages) for stages in signal.stages]
    if signal.sums:
        parts.append(f"{_names(signal.sums)} and {_names(signal.counts)}")
    text = "; ".join(parts)
    if signal.times:
        text += f" × {_names(signal.times)}"
    return text + "".join(f" + {_name(source)}" for source in signal.also)


def _how(signal: SignalMap) -> str:
    words = []
    if signal.aggregate != "sum" and signal.kind != "histogram":
        words.append(signal.aggregate + (" by capacity" if signal.weight else ""))
    labels = [f"`{label}`" for label in signal.by if not label.startswith("=")]
    if labels:
        words.append(f"by {', '.join(labels)}")
    if signal.distrust is not None:
        words.append(signal.distrust.reason)
    if signal.adds:
        words.append("added to the engine's")
    return "; ".join([*words, *([signal.note] if signal.note else [])])


def _ratio(ratio: Ratio) -> str:
    whole = _names(ratio.whole) if ratio.whole else f"({_names(ratio.part)} + {_names(ratio.rest)})"
    return f"{_names(ratio.part)} / {whole}"


def _stages(stages: Stages) -> str:
    where = f"`{stages.stage}`" if stages.stage else f"by `{stages.label}`"
    inside = f", inside {' and '.join(f'`{s}`' for s in stages.inside)}" if stages.inside else ""
    return f"{where}: {_names(stages.sources())}{inside}"


def _names(names: Names) -> str:
    return " or ".join(_name(source) for source in names)


def _name(source: Source) -> str:
    where = ",".join(f'{key}="{value}"' for key, value in source.where.items())
    labels = " × ".join(f"`{label}`" for label in source.labels)
    text = f"`{source.name}{{{where}}}`" if where else f"`{source.name}`"
    text += f" labels {labels}" if labels else ""
    text += f" in {source.unit}" if source.unit else ""
    versions = [f"from {source.since}"] if source.since else []
    versions += [f"to {source.until}"] if source.until else []
    return text + (f" ({' '.join(versions)})" if versions else "")


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    held = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert held.strip() == chapters(), "run: python -m tests.agent.test_engines_docs"


def test_the_example_of_a_new_engine_is_one(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(text.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    reader = Reader(
        load(path),
        parse("mine_queue 3\nmine_kv_transfer_ms_sum 500\nmine_kv_transfer_ms_count 2\n"),
    )
    signals = reader.signals()
    assert signals["requests_waiting"].value == 3.0
    assert signals["kv_transfer_seconds"].sum == 0.5


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    start, stop = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:start] + chapters() + "\n" + page[stop:], encoding="utf-8")
