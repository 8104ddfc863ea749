"""Both dialects of `/metrics` are read exactly, and nothing in a text raises."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from telemetry import exposition
from telemetry.exposition import Parser, parse

LABELS = [
    ("blank and comma", r'a{m="my model, v2"} 1', "my model, v2"),
    ("braces", r'a{m="{x}"} 1', "{x}"),
    ("escaped quote", r'a{m="say \"hi\""} 1', 'say "hi"'),
    ("backslash", r'a{m="C:\\x"} 1', r"C:\x"),
    ("newline", r'a{m="two\nlines"} 1', "two\nlines"),
    ("unknown escape is kept", r'a{m="\d"} 1', r"\d"),
    ("hash inside a value", r'a{m="x # y"} 1', "x # y"),
    ("equals inside a value", r'a{m="le=\"1\""} 1', 'le="1"'),
    ("blanks around", r'  a { m = "v" , } 1 ', "v"),
    ("utf-8", 'a{m="模型"} 1', "模型"),
    ("timestamp behind", r'a{m="v"} 1 1795955263170', "v"),
]


@pytest.mark.parametrize(("line", "want"), [c[1:] for c in LABELS], ids=[c[0] for c in LABELS])
def test_a_label_value_is_read_exactly(line: str, want: str) -> None:
    """S-07."""
    text = parse(line)
    assert text.warnings == []
    [sample] = text.samples["a"]
    assert sample.labels == {"m": want}
    assert sample.value == 1.0


def test_the_second_scrape_reads_the_same_as_the_first(vllm_text: str) -> None:
    parser = Parser()
    lines = "\n".join(c[1] for c in LABELS) + "\n" + vllm_text
    first, second = parser.parse(lines), parser.parse(lines)
    assert first == second


def test_a_remembered_series_never_hides_a_timestamp_or_an_exemplar() -> None:
    parser = Parser()
    parser.parse("a 1\n")
    behind_a_tab = parser.parse("a 5\t1795955263170\n", openmetrics=False)
    assert behind_a_tab.samples["a"] == [exposition.Sample({}, 5.0, 1795955263.17)]
    parser.parse("a 1\nb_total 2\n")
    again = parser.parse('a 5 1795955263170\nb_total 7 # {trace_id="x"} 3\n', openmetrics=False)
    assert again.samples["a"] == [exposition.Sample({}, 5.0, 1795955263.17)]
    assert again.samples["b_total"] == [exposition.Sample({}, 7.0)]


@pytest.mark.parametrize("odd", ["\x1c", "\x1e", "\x85", "\xa0", "\u2028"])
def test_other_white_space_is_no_blank_at_any_scrape(odd: str) -> None:
    """Python strips these, a remembered series would not: two scrapes must say the same."""
    parser = Parser()
    text = f'a{{m="v"}} 1{odd}\nb 2\n'
    first, second = parser.parse(text), parser.parse(text)
    assert first == second
    assert "a" not in first.samples
    assert first.n_bad_lines == 1
    assert parse('a{m="v"}\t1 \r\n').samples["a"][0].value == 1.0
    for again in ("c 0x10\r\nc 1\n", "d{} \nd{} 0\n"):
        assert parser.parse(again) == parser.parse(again)


CLASSIC = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="m"} 1234
# TYPE h histogram
h_bucket{le="1.0"} 2
h_bucket{le="+Inf"} 3
h_sum 4.5
h_count 3
"""
OPENMETRICS = """\
# HELP vllm:prompt_tokens Number of prefill tokens.
# TYPE vllm:prompt_tokens counter
# UNIT vllm:prompt_tokens tokens
vllm:prompt_tokens_total{model_name="m"} 1234 1795955263.17 # {trace_id="a b"} 17.0 1795955263.1
vllm:prompt_tokens_created{model_name="m"} 1795955260.0
# TYPE h histogram
h_bucket{le="1.0"} 2 # {trace_id="x"} 0.67
h_bucket{le="+Inf"} 3 # broken exemplar {
h_sum 4.5
h_count 3
h_created 1795955260.0
# EOF
"""


def test_openmetrics_and_classic_text_say_the_same() -> None:
    """S-06: exemplars (a broken one too), `_total`, `_created` and the end marker."""

    def plain(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
        read = parse(text)
        assert read.warnings == []
        return {n: [(dict(s.labels), s.value) for s in ss] for n, ss in read.samples.items()}

    assert plain(CLASSIC) == plain(OPENMETRICS)


def test_timestamps_are_seconds_in_both_dialects() -> None:
    assert parse("a 1 1795955263170").samples["a"][0].timestamp_s == pytest.approx(1795955263.17)
    om = parse("a 1 1795955263.17\n# EOF\n")
    assert om.samples["a"][0].timestamp_s == pytest.approx(1795955263.17)


def test_openmetrics_without_its_end_was_cut_short() -> None:
    read = parse("a 1\n", openmetrics=True)
    assert read.truncated
    assert "# EOF" in read.warnings[0]
    assert not parse("a 1\n# EOF\n", openmetrics=True).truncated


@pytest.mark.parametrize(
    ("content_type", "want"),
    [
        ("application/openmetrics-text", True),
        ("text/plain; version=0.0.4", False),
        ("", None),
    ],
)
def test_the_dialect_is_the_content_types(content_type: str, want: bool | None) -> None:
    assert exposition.is_openmetrics(content_type) is want


def test_values_are_kept_as_written() -> None:
    values = [s.value for s in parse("a NaN\na +Inf\na -Inf\na 1e999\na 1.5e+06\n").samples["a"]]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf, math.inf, 1.5e6]
    assert parse("a " + "9" * 400).samples["a"][0].value == math.inf


BAD = [
    ("no value", "a"),
    ("no value behind labels", 'a{m="v"}'),
    ("unclosed value", 'a{m="v} 1'),
    ("unclosed braces", 'a{m="v" 1'),
    ("a label twice", 'a{m="1",m="2"} 1'),
    ("label without quotes", "a{m=v} 1"),
    ("digit grouping", "a 1_000"),
    ("other digits", "a ٣"),
    ("word", "a one"),
    ("no name", "{} 1"),
    ("bad timestamp", "a 1 soon"),
    ("half a TYPE", "# TYPE a"),
    ("too long", "a" * (exposition.MAX_LINE_CHARS + 1) + " 1"),
]


@pytest.mark.parametrize("line", [c[1] for c in BAD], ids=[c[0] for c in BAD])
def test_a_bad_line_is_a_warning_and_the_others_stand(line: str) -> None:
    read = parse(f"ok 1\n{line}\nok 2\n")
    assert [s.value for s in read.samples["ok"]] == [1.0, 2.0]
    assert len(read.warnings) == 1
    assert read.warnings[0].startswith("line 2: ")
    assert len(read.warnings[0]) < 300


def test_warnings_are_bounded() -> None:
    read = parse("?\n" * 1000)
    assert len(read.warnings) == exposition.MAX_WARNINGS + 1
    assert read.warnings[-1] == "and 980 more"


def test_a_huge_text_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_TEXT_CHARS", 1000)
    read = parse("a 1\n" * 1000)
    assert read.truncated
    assert len(read.samples["a"]) == 250
    monkeypatch.setattr(exposition, "MAX_SAMPLES", 10)
    read = parse("a 1\n" * 20)
    assert read.truncated
    assert len(read.samples["a"]) == 10


def test_what_a_parser_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_REMEMBERED_SERIES", 50)
    parser = Parser()
    for i in range(20):
        text = "".join(f'a{{x="{i}-{j}"}} {j}\n' for j in range(30))
        assert [s.value for s in parser.parse(text).samples["a"]] == list(range(30))
        assert len(parser._series) <= 51


def test_the_birth_times_of_counters_are_not_measurements(vllm_text: str) -> None:
    samples = parse(vllm_text).samples
    assert "vllm:prompt_tokens_created" not in samples
    assert parse("file_created 1\n").samples["file_created"][0].value == 1.0


def test_agrees_with_the_reference_parser(vllm_text: str, gate_text: str) -> None:
    for text in (vllm_text, gate_text, CLASSIC):
        ours = {
            (name, tuple(sorted(s.labels.items()))): s.value
            for name, samples in parse(text).samples.items()
            for s in samples
        }
        theirs = {
            (s.name, tuple(sorted(s.labels.items()))): s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
            if not s.name.endswith("_created")
        }
        assert ours == theirs


NAME = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,20}", fullmatch=True)
LABEL = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,10}", fullmatch=True)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(name=NAME, labels=st.dictionaries(LABEL, st.text(max_size=20), max_size=5), value=FINITE)
def test_whatever_is_written_by_the_rules_is_read_back(
    name: str, labels: dict[str, str], value: float
) -> None:
    def escape(text: str) -> str:
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

    block = ",".join(f'{key}="{escape(text)}"' for key, text in labels.items())
    read = parse(f"{name}{{{block}}} {value!r}\n")
    assert read.warnings == []
    [(read_name, [sample])] = read.samples.items()
    assert (read_name, dict(sample.labels), sample.value) == (name, labels, value)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=60),
            st.text(alphabet='a{}",=\\\n #:_+.0123456789eNInf\t', max_size=80),
            st.sampled_from([c[1] for c in (*LABELS, *BAD)]),
        ),
        max_size=12,
    ),
    st.sampled_from([None, True, False]),
)
def test_nothing_in_a_text_raises(lines: list[str], openmetrics: bool | None) -> None:
    parser = Parser()
    text = "\n".join(lines)
    assert repr(parser.parse(text, openmetrics=openmetrics)) == repr(
        parser.parse(text, openmetrics=openmetrics)
    )
