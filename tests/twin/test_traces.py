"""Trace files: what each format means, and what is wrong with a bad one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from routing.trace_files import read_trace, trace_of
from routing.twin.trace_rows import TraceError
from routing.twin.traces import Trace
from tests.twin.trace_texts import EXPORT, MOONCAKE, mooncake, parsed, shared


def session(*requests: dict[str, object], block_size: int = 64) -> str:
    return json.dumps({"id": "s", "block_size": block_size, "requests": requests}) + "\n"


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,0\n"
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,GPT-4,0,0,0,Conversation log\n"
    "118,GPT-4,417,0,417,API log\n"
)
SERVEGEN = "t_s,client,input_tokens,output_tokens\n0.000,54,360,208\n0.250,23,274,449\n"
RUNS = session(
    {"t": 2.0, "in": 700, "out": 9, "hash_runs": [[1, 10]]},
    {"t": 3.0, "requests": [{"t": 0.5, "in": 130, "out": 1, "hash_runs": [[50, 2]]}]},
    {"t": 9.0, "in": 1300, "out": 9, "hash_runs": [[1, 8], [30, 12]]},
)


# Formats


def test_mooncake_has_ids_for_full_blocks_only() -> None:
    trace = parsed(MOONCAKE)
    assert trace.at_s.tolist() == [0.0, 0.0, 3.5, 4.0]
    assert trace.prompt_tokens.tolist() == [1100, 1600, 600, 511]
    assert trace.output_tokens.tolist() == [20, 1, 5, 5]
    assert trace.blocks == [(0, 1), (0, 1, 2), (0,), ()]
    assert (trace.block_tokens, trace.n_ids) == (512, 3)


def test_an_id_names_what_stands_before_it_as_well() -> None:
    trace = parsed(mooncake((0, 1024, 1, [1, 2]), (1, 1024, 1, [3, 2])))
    assert trace.blocks == [(0, 1), (2, 3)]


def test_blocks_may_be_joined_to_larger_ones() -> None:
    rows = ((0, 2048, 1, [1, 2, 3, 4]), (1, 2047, 1, [1, 2, 3, 4]), (2, 2048, 1, [1, 2, 3, 9]))
    assert parsed(mooncake(*rows), block_tokens=1024).blocks == [(0, 1), (0,), (0, 2)]
    with pytest.raises(TraceError, match="block_tokens = 700"):
        parsed(MOONCAKE, block_tokens=700)


def test_azure_times_keep_their_fractions() -> None:
    trace = parsed(AZURE)
    assert trace.at_s.tolist() == [0.0, pytest.approx(4.314579, abs=1e-6)]
    assert trace.prompt_tokens.tolist() == [374, 396]
    assert trace.output_tokens.tolist() == [44, 1]
    assert trace.blocks is None
    assert trace.block_tokens is None
    zoned = AZURE.replace("5900,", "59+00:00,").replace("1690,", "1690Z,")
    assert parsed(zoned).at_s.tolist() == trace.at_s.tolist()


def test_burst_gpt_leaves_out_the_calls_that_failed_and_says_so() -> None:
    trace = parsed(BURST)
    assert trace.at_s.tolist() == [0.0, 113.0]
    assert trace.prompt_tokens.tolist() == [472, 417]
    assert trace.output_tokens.tolist() == [18, 1]
    assert trace.n_left_out == 1


def test_burst_gpt_with_its_newer_columns_is_read_by_name() -> None:
    newer = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n3,,1.5,GPT-4,12,34,46,API log\n"
    )
    assert parsed(newer).prompt_tokens.tolist() == [12]


def test_servegen_samples() -> None:
    trace = parsed(SERVEGEN)
    assert trace.at_s.tolist() == [0.0, 0.25]
    assert trace.prompt_tokens.tolist() == [360, 274]


def test_an_export_names_its_clusters() -> None:
    trace = parsed(EXPORT)
    assert trace.at_s.tolist() == [0.0, 1.5]
    assert trace.prompt_tokens.tolist() == [100, 50]
    assert trace.clusters == ("pd", "pd2")


def test_sessions_come_one_after_another_and_share_no_ids() -> None:
    trace = parsed(RUNS + RUNS, block_tokens=64)
    assert trace.at_s.tolist() == [0.0, 1.5, 7.0, 10.0, 11.5, 17.0]
    assert trace.conversations.tolist() == [0, 0, 0, 1, 1, 1]
    assert trace.blocks is not None
    assert [len(ids) for ids in trace.blocks] == [10, 2, 20, 10, 2, 20]
    first, agent, third = trace.blocks[:3]
    assert third[:8] == first[:8]
    assert not set(third[8:]) & {*first, *agent}
    assert not set().union(*trace.blocks[:3]) & set().union(*trace.blocks[3:])


def test_sessions_blocks_are_joined_where_all_before_is_equal() -> None:
    trace = parsed(RUNS)
    assert trace.block_tokens == 512
    assert trace.blocks is not None
    first, agent, third = trace.blocks
    assert (len(first), len(agent), len(third)) == (1, 0, 2)
    assert third[0] == first[0], "the first 8 ids are 1 to 8 in both"
    other = parsed(RUNS.replace("[[1, 8], [30, 12]]", "[[1, 7], [30, 13]]"))
    assert other.blocks is not None
    assert other.blocks[2][0] != other.blocks[0][0]


def test_how_runs_are_cut_does_not_matter() -> None:
    one = session(
        {"t": 0, "in": 1536, "out": 1, "hash_runs": [[1, 24]]},
        {"t": 1, "in": 1536, "out": 1, "hash_runs": [[1, 3], [4, 6], [10, 15]]},
        {"t": 2, "in": 1600, "out": 1, "hash_runs": [[1, 16], [70, 9]]},
    )
    for size in (64, 256, 512):
        blocks = parsed(one, block_tokens=size).blocks
        assert blocks is not None
        assert blocks[0] == blocks[1]
        assert blocks[2][: 1024 // size] == blocks[0][: 1024 // size]
        assert not set(blocks[2][1024 // size :]) & set(blocks[0])


def test_conversations_are_found_by_prompts_that_begin_with_earlier_ones() -> None:
    trace = parsed(
        mooncake(
            (0, 1024, 1, [1, 2]),
            (1, 1024, 1, [1, 3]),
            (2, 1536, 1, [1, 2, 4]),
            (3, 512, 1, [1]),
            (4, 2100, 1, [1, 2, 4, 5, 6]),
            (5, 1024, 1, [1, 9]),
        )
    )
    assert trace.conversations.tolist() == [0, 1, 0, 3, 0, 5]


def test_trailing_blank_lines_and_carriage_returns_are_nothing() -> None:
    assert len(parsed(MOONCAKE.replace("\n", "\r\n") + "\n\n")) == 4
    assert len(parsed(AZURE.replace("\n", "\r\n") + "\r\n")) == 2


# What is wrong


@pytest.mark.parametrize(
    ("text", "line", "field", "said"),
    [
        ("", None, None, "is empty"),
        ("\n \n", None, None, "is empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", None, None, "has no rows"),
        ("a,b\n1,2\n", 1, "header", "needs the columns"),
        ('{"x": 1}\n', 1, "keys", "no request that is known"),
        (MOONCAKE + "{", 5, None, "is not JSON"),
        (MOONCAKE + "[1]", 5, None, "must be a JSON object"),
        (MOONCAKE.replace("511", "0"), 4, "input_length", "whole number from 1"),
        (MOONCAKE.replace("511", "true"), 4, "input_length", "whole number"),
        (MOONCAKE.replace("511", "1e999"), 4, "input_length", "whole number"),
        (MOONCAKE.replace("[7, 12]", "[7]"), 3, "hash_ids", "600 tokens fill 2 blocks"),
        (MOONCAKE.replace("[7, 12]", "[7, null]"), 3, "hash_ids", "whole numbers"),
        (MOONCAKE.replace("[7, 12]", "7"), 3, "hash_ids", "must be a list"),
        (MOONCAKE.replace("30500", "NaN"), 3, "timestamp", "finite"),
        (MOONCAKE.replace("30500", "26999"), 3, "time", "earlier than the row before"),
        (MOONCAKE.replace('"output_length": 20', '"output_length": -1'), 1, "output_length", "0"),
        (AZURE + "2023-11-16 18:15:51,5\n", 4, "row", "2 values for 3 columns"),
        (AZURE.replace("374", "3.5"), 2, "ContextTokens", "whole number"),
        (AZURE.replace("374", "-4"), 2, "ContextTokens", "whole number"),
        (AZURE.replace("2023-11-16 18:15:50", "2023-11-16 18:15:40"), 3, "time", "earlier"),
        (AZURE.replace("2023-11-16 18:15:50", "2023-13-16 18:15:50"), 3, "TIMESTAMP", "must be"),
        (AZURE.replace("2023-11-16 18:15:50.9951690", "yesterday"), 3, "TIMESTAMP", "must be"),
        (BURST.replace("417,0,417", "0,5,5"), 4, "Request tokens", "at least 1"),
        (BURST.replace("118,", "inf,"), 4, "Timestamp", "finite"),
        (SERVEGEN.replace("274", "x"), 3, "input_tokens", "whole number"),
        (EXPORT.replace('"cluster": "pd2", ', ""), 2, "cluster", "every row or in none"),
        (EXPORT.replace('"output_tokens": 6', '"answer": 6'), 2, "answer", "is not known"),
        (EXPORT.replace("100,", '100, "uncached_tokens": 5,'), 1, "uncached_tokens", "beside"),
        (RUNS.replace("[[50, 2]]", "[[50, 3]]"), 1, "hash_runs", "fills 2 blocks"),
        (RUNS.replace("[[50, 2]]", "[[50, 1], [9]]"), 1, "hash_runs", "first id, number"),
        (RUNS.replace("[[50, 2]]", "[[50, 3], [60, -1]]"), 1, "hash_runs", "at least 1 id"),
        (RUNS.replace('"block_size": 64', '"block_size": 100'), 1, "block_size", "must divide"),
        (RUNS.replace('"in": 700', '"inn": 700'), 1, "in", "is missing"),
        (RUNS + '{"block_size": 64, "requests": [5]}', 2, "requests", "list of objects"),
        ('{"requests":' * 5000, 1, None, "is not JSON"),
    ],
)
def test_a_bad_file_is_named_with_line_field_and_value(
    text: str, line: int | None, field: str | None, said: str
) -> None:
    with pytest.raises(TraceError, match=said) as caught:
        parsed(text)
    assert (caught.value.line, caught.value.field) == (line, field)
    assert str(caught.value).startswith("t: " if line is None else f"t:{line}: ")


# Files


def test_plain_and_gzipped_files_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(MOONCAKE)
    (tmp_path / "b").write_bytes(gzip.compress(b"\xef\xbb\xbf" + MOONCAKE.encode()))
    plain, packed = read_trace(tmp_path / "a.jsonl"), read_trace(tmp_path / "b")
    assert isinstance(plain, Trace)
    assert isinstance(packed, Trace)
    assert packed.blocks == plain.blocks
    assert packed.source == "b"
    larger = read_trace(tmp_path / "b", block_tokens=1024)
    assert isinstance(larger, Trace)
    assert larger.block_tokens == 1024


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "x: is empty"),
        (gzip.compress(b"", mtime=0), "x: is empty"),
        (gzip.compress(MOONCAKE.encode(), mtime=0)[:-9], "x: cannot be decoded"),
        (b"\x1f\x8bnot gzip at all", "x: cannot be decoded"),
        (b"\xff\xfe\xfd", "x: cannot be decoded"),
        (b"\x00,\x00", "x:1: header"),
    ],
)
def test_a_file_that_is_no_text_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        trace_of(data, source="x")


def test_no_file_unpacks_to_more_than_it_may() -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    with pytest.raises(TraceError, match="holds more than 1000000 bytes"):
        trace_of(bomb, source="x", most_bytes=1_000_000)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"gone\.csv: cannot be read: No such file"):
        read_trace(tmp_path / "gone.csv")


# Recorded files


def test_the_whole_mooncake_trace() -> None:
    found = read_trace(shared("mooncake_conversation_trace.jsonl.gz"))
    assert isinstance(found, Trace)
    assert len(found) == 12_031
    assert found.mean_rps == pytest.approx(3.40, abs=0.01)
    assert found.blocks is not None
    full = [int(n) // 512 for n in found.prompt_tokens]
    assert [len(ids) for ids in found.blocks] == full
    # The file's ids are chained already: making them anew joins and splits none.
    assert found.n_ids == len(set().union(*found.blocks))
    assert 0.3 < len(set(found.conversations.tolist())) / 12_031 < 0.9


def test_the_whole_agentic_sessions() -> None:
    found = read_trace(shared("weka_agentic_sessions_odd.jsonl.gz"))
    assert isinstance(found, Trace)
    assert len(found) == 25_226
    assert len(set(found.conversations.tolist())) == 350
    assert found.blocks is not None
    assert [len(ids) for ids in found.blocks] == (found.prompt_tokens // 512).tolist()


@pytest.mark.parametrize(
    ("name", "n"),
    [("azure2023_conv.csv.gz", 19_366), ("mooncake_arxiv_trace_first1000.jsonl.gz", 1000)],
)
def test_recorded_files_are_read_whole(name: str, n: int) -> None:
    found = read_trace(shared(name))
    assert isinstance(found, Trace)
    assert len(found) == n
