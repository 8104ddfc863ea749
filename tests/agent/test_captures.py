"""Texts of real engines give what their own lines sum to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from telemetry import canonical, exposition

SHARED = Path(__file__).parents[2] / "../shared/data"
CAPTURES = SHARED / "captures/vllm"
METRICS = SHARED / "metrics"


def _text(folder: Path, name: str) -> str:
    path = folder / name
    if not path.exists():
        pytest.skip(f"{name} is not here: captures of real engines are not part of the project")
    return path.read_text(encoding="utf-8")


# Numbers read off the files by hand.
BY_HAND: list[tuple[str, str, str, float | str]] = [
    ("metrics_pd_9602_after.txt", "requests_running", "value", 0.0),
    ("metrics_pd_9602_after.txt", "requests_waiting", "value", 0.0),
    ("metrics_pd_9602_after.txt", "kv_cache_usage_ratio", "value", 0.0),
    ("metrics_pd_9602_after.txt", "prompt_tokens_total", "value", 134030.0),
    ("metrics_pd_9602_after.txt", "generation_tokens_total", "value", 1928.0),
    ("metrics_pd_9602_after.txt", "prompt_tokens_by_source_total", "local_compute", 0.0),
    ("metrics_pd_9602_after.txt", "prompt_tokens_by_source_total", "local_cache_hit", 0.0),
    (
        "metrics_pd_9602_after.txt",
        "prompt_tokens_by_source_total",
        "external_kv_transfer",
        134030.0,
    ),
    ("metrics_pd_9602_after.txt", "ttft_seconds", "count", 81.0),
    ("metrics_pd_9602_after.txt", "ttft_seconds", "sum", 183.68029761314392),
    ("metrics_pd_9602_after.txt", "inter_token_seconds", "count", 1847.0),
    ("metrics_pd_9602_after.txt", "kv_transfer_bytes_total", "value", 142606336.0),
    ("metrics_pd_9602_after.txt", "kv_transfer_seconds", "count", 81.0),
    ("metrics_pd_9602_after.txt", "kv_transfer_failures_total", "value", 0.0),
    ("metrics_pd_9602_after.txt", "requests_finished_total", "value", 81.0),
    ("metrics_pd_9602_after.txt", "uncached_prompt_tokens", "state", "missing"),
    ("metrics_pd_9601_after.txt", "prompt_tokens_by_source_total", "local_compute", 134030.0),
    ("metrics_pd_9601_after.txt", "uncached_prompt_tokens", "sum", 134030.0),
    ("metrics_pd_9601_after.txt", "kv_transfer_bytes_total", "value", 0.0),
    ("metrics_pd_9601_after.txt", "kv_transfer_seconds", "state", "idle"),
    ("metrics_pd_9601_after.txt", "inter_token_seconds", "state", "idle"),
    ("metrics_pd_9602_before.txt", "ttft_seconds", "state", "idle"),
    ("metrics_pd_9602_before.txt", "prefix_cache_hit_ratio", "state", "idle"),
    ("metrics_agg_after.txt", "prompt_tokens_by_source_total", "local_compute", 13442.0),
    ("metrics_agg_after.txt", "requests_waiting_by_stage", "deferred", 0.0),
    ("metrics_agg_after.txt", "kv_transfer_bytes_total", "state", "missing"),
]


@pytest.mark.parametrize(("file", "name", "what", "want"), BY_HAND)
def test_real_vllm(file: str, name: str, what: str, want: float | str) -> None:
    found = canonical.canonicalise(exposition.parse(_text(CAPTURES, file)))
    assert found.engine == "vllm"
    signal = found.signals[name]
    got = signal.by[what] if what in signal.by else getattr(signal, what)
    assert got == want


RENDERED: list[tuple[str, str, float | None]] = [
    ("vllm_0.33.0_prefill_rendered.txt", "requests_running", 5.0),
    ("vllm_0.33.0_prefill_rendered.txt", "requests_waiting", 23.0),
    ("vllm_0.33.0_prefill_rendered.txt", "kv_cache_usage_ratio", 0.37),
    ("vllm_0.33.0_agg_rendered.txt", "requests_running", 96.0),
    ("vllm_0.33.0_agg_rendered.txt", "kv_cache_usage_ratio", 0.81),
    ("vllm_0.33.0_agg_rendered.txt", "kv_transfer_bytes_total", None),
    ("vllm_docs_design_metrics_2025-10_2.txt", "requests_running", 8.0),
    ("vllm_docs_design_metrics_2025-10_2.txt", "requests_finished_total", 132.0),
    ("triton_vllm_backend.txt", "generation_tokens_total", 16.0),
]


@pytest.mark.parametrize(("file", "name", "want"), RENDERED)
def test_other_vllm_texts(file: str, name: str, want: float | None) -> None:
    found = canonical.canonicalise(exposition.parse(_text(METRICS, file)))
    assert found.engine == "vllm"
    assert found.signals[name].value == want


# Canonical signal -> the sample names whose lines add up to it.
SUMS = {
    "requests_running": ("vllm:num_requests_running",),
    "requests_waiting": ("vllm:num_requests_waiting",),
    "prompt_tokens_total": ("vllm:prompt_tokens_total",),
    "generation_tokens_total": ("vllm:generation_tokens_total",),
    "preemptions_total": ("vllm:num_preemptions_total",),
    "requests_finished_total": ("vllm:request_success_total",),
    "kv_transfer_bytes_total": ("vllm:nixl_bytes_transferred_sum",),
}
COUNTS = {
    "ttft_seconds": "vllm:time_to_first_token_seconds",
    "inter_token_seconds": "vllm:inter_token_latency_seconds",
    "queue_seconds": "vllm:request_queue_time_seconds",
    "prefill_seconds": "vllm:request_prefill_time_seconds",
    "kv_transfer_seconds": "vllm:nixl_xfer_time_seconds",
}
FILES = [
    f"metrics_{run}_{when}.txt"
    for run in ("agg", "pd_9601", "pd_9602")
    for when in ("before", "after")
]


@pytest.mark.parametrize("file", FILES)
def test_signals_are_what_the_lines_sum_to(file: str) -> None:
    text = _text(CAPTURES, file)

    def lines_sum(name: str) -> float | None:
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith((f"{name}{{", f"{name} "))
        ]
        return sum(values) if values else None

    found = canonical.canonicalise(exposition.parse(text))
    for signal, names in SUMS.items():
        assert found.signals[signal].value == lines_sum(names[0]), signal
    for signal, family in COUNTS.items():
        assert found.signals[signal].count == lines_sum(f"{family}_count"), signal
        assert found.signals[signal].sum == lines_sum(f"{family}_sum"), signal
        histogram = found.signals[signal].histogram
        if histogram is not None:
            assert histogram.count == lines_sum(f"{family}_count")


def test_the_command_prints_one_json_object(
    tmp_path: Path, vllm_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(vllm_text)
    call_command("canonical", str(path), "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["engine"] == "vllm"
    assert document["signals"]["requests_waiting"] == {
        "kind": "gauge",
        "value": 40.0,
        "max": None,
        "sum": None,
        "count": None,
        "buckets": {},
        "by": {
            "capacity": 31.0,
            "deferred": 1.0,
            "kv_fetch_waiting_to_start": 2.0,
            "kv_fetch_in_progress": 5.0,
            "kv_fetch_completed_waiting": 1.0,
        },
        "state": "value",
        "unit": "requests",
        "source": [
            "vllm:num_requests_waiting",
            "vllm:num_requests_waiting_by_reason",
            "vllm:num_requests_kv_fetch_by_stage",
        ],
    }
    assert document["signals"]["kv_transfer_seconds"]["reason"] == "not exposed"
    call_command("canonical", str(path), "--engine", "vllm")
    assert "requests_waiting" in capsys.readouterr().out


def test_the_command_shows_what_was_read_together_and_what_was_not(
    tmp_path: Path, vllm_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(vllm_text + "lmcache:num_lookup_hits_total 1\nodd_thing 3\nbroken\n")
    call_command("canonical", str(path))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("engine vllm, with lmcache, ")
    assert lines[0].endswith(" series, 1 lines that cannot be read")
    assert "no signal: odd_thing" in lines
    first_missing = next(i for i, line in enumerate(lines) if " missing " in line)
    assert not any("  value " in line for line in lines[first_missing:])
    assert any(line.startswith("warning: line ") for line in lines)
    call_command("canonical", str(path), "--engine-version", "0.33.0", "--json")
    document = json.loads(capsys.readouterr().out)
    assert (document["engine_version"], document["addons"]) == ("0.33.0", ["lmcache"])
    assert (document["unmatched"], document["n_bad_lines"]) == (["odd_thing"], 1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["/nowhere/m.txt"], "/nowhere/m.txt"), (["/dev/null", "--engine", "vvlm"], "'vvlm'")],
)
def test_bad_input_is_exit_2_and_names_it(arguments: list[str], named: str) -> None:
    with pytest.raises(CommandError, match=named) as caught:
        call_command("canonical", *arguments)
    assert caught.value.returncode == 2
