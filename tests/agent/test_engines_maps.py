"""What a map can say: units, versions, copies of ranks, ratios, stages, and errors that name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from telemetry import canonical, engine_maps, exposition
from telemetry.engine_maps import EngineMap, Source
from telemetry.folding import Reader
from telemetry.signals import Signal
from telemetry.strict_toml import TomlError

HEAD = 'engine = "x"\ntitle = "X"\nversions = "1"\nkind = "instance"\nprefixes = ["x_"]\n'


def a_map(tmp_path: Path, lines: str) -> EngineMap:
    path = tmp_path / "x.toml"
    path.write_text(HEAD + lines)
    return engine_maps.load(path)


def signals(engine_map: EngineMap, text: str, version: str = "") -> dict[str, Signal]:
    return Reader(engine_map, exposition.parse(text), version=version).signals()


SECONDS = '[signals.ttft_seconds]\nkind = "histogram"\nunit = "seconds"\nnames = [{names}]\n'
RATIO = (
    '[signals.kv_cache_usage_ratio]\nkind = "gauge"\nunit = "ratio"\naggregate = "mean"\n'
    "names = [{names}]\n"
)


def histogram(name: str, bound: str, total: str) -> str:
    return (
        f'{name}_bucket{{le="{bound}"}} 1\n{name}_bucket{{le="+Inf"}} 2\n'
        f"{name}_sum {total}\n{name}_count 2\n"
    )


@pytest.mark.parametrize(
    ("unit", "bound", "total"),
    [
        ("", "0.25", "1.5"),
        ("ms", "250", "1500"),
        ("us", "250000", "1.5e6"),
        ("ns", "2.5e8", "1.5e9"),
    ],
)
def test_a_quarter_second_is_one_in_any_unit(
    tmp_path: Path, unit: str, bound: str, total: str
) -> None:
    """S-13: bounds and sums are converted, counts are not."""
    entry = f'{{ name = "t", unit = "{unit}" }}' if unit else '"t"'
    x = a_map(tmp_path, SECONDS.replace("{names}", entry))
    signal = signals(x, histogram("x_t", bound, total))["ttft_seconds"]
    assert signal.histogram is not None
    assert (signal.histogram.edges, signal.histogram.counts) == ([0.25], [1.0, 1.0])
    assert signal.sum == 1.5
    assert dict(signal.buckets) == {"0.25": 1.0, "+Inf": 2.0}


@pytest.mark.parametrize(
    ("signal", "unit", "shown", "want"),
    [
        ("kv_cache_usage_ratio", "percent", "40", 0.4),
        ("kv_transfer_bytes_total", "MB", "3", 3e6),
        ("kv_transfer_bytes_total", "MiB", "3", 3 * 2.0**20),
        ("kv_transfer_bytes_total", "KiB", "3", 3 * 2.0**10),
        ("kv_transfer_bytes_total", "GiB", "3", 3 * 2.0**30),
        ("kv_transfer_bytes_total", "GB", "3", 3e9),
        ("gpu_power_w", "mW", "250000", 250.0),
    ],
)
def test_values_come_in_the_signals_unit(
    tmp_path: Path, signal: str, unit: str, shown: str, want: float
) -> None:
    into = engine_maps.UNITS[unit][0]
    x = a_map(
        tmp_path,
        f'[signals.{signal}]\nkind = "gauge"\nunit = "{into}"\n'
        f'names = [{{ name = "v", unit = "{unit}" }}]\n',
    )
    assert signals(x, f"x_v {shown}\n")[signal].value == want


def test_a_link_of_12_5_gigabytes_a_second_is_one_of_100_gbps() -> None:
    """S-13; a speed that is not known is no speed, and spoils no other device's."""
    text = (
        'node_network_speed_bytes{device="eth0"} 1.25e10\n'
        'node_network_speed_bytes{device="veth1"} -125000\n'
        'node_network_transmit_bytes_total{device="eth0"} 7\n'
        'node_network_transmit_bytes_total{device="veth1"} 9\n'
        "node_netstat_Tcp_OutSegs 100\nnode_netstat_Tcp_RetransSegs 3\n"
    )
    read = canonical.canonicalise(exposition.parse(text))
    assert (read.engine, read.kind) == ("node-exporter", "host")
    link = canonical.to_link_signals(read, "eth0")
    assert (link.capacity_gbps, link.tx_bytes_total) == (100.0, 7.0)
    assert (link.segments_sent_total, link.segments_retransmitted_total) == (100.0, 3.0)
    other = canonical.to_link_signals(read, "veth1")
    assert (other.capacity_gbps, other.tx_bytes_total) == (None, 9.0)
    assert canonical.to_link_signals(read, "eth9").tx_bytes_total is None


CHANGED = '{ name = "use", unit = "percent", until = "0.9" }, { name = "use", since = "1.0" }'


@pytest.mark.parametrize(
    ("version", "want"),
    [("0.9", 0.005), ("0.9.3", 0.005), ("v0.8.1rc1", 0.005), ("1.0", 0.5), ("1.2.post1", 0.5)],
)
def test_a_name_that_changed_its_unit_is_read_by_version(
    tmp_path: Path, version: str, want: float
) -> None:
    x = a_map(tmp_path, RATIO.replace("{names}", CHANGED))
    assert signals(x, "x_use 0.5\n", version)["kv_cache_usage_ratio"].value == want


def test_a_version_never_hides_a_name_that_means_one_thing(tmp_path: Path) -> None:
    """An engine of a version we have not seen is read by what it shows."""
    x = a_map(tmp_path, RATIO.replace("{names}", '{ name = "use", until = "0.9" }'))
    assert signals(x, "x_use 0.5\n", "7.0")["kv_cache_usage_ratio"].value == 0.5


@pytest.mark.parametrize(
    ("version", "covered"),
    [("", True), ("main", True), ("0.4", False), ("0.5", True), ("0.6.9", True), ("0.7", False)],
)
def test_ranges_include_their_ends(version: str, covered: bool) -> None:
    assert Source(name="n", since="0.5", until="0.6").covers(version) is covered


def test_the_version_in_the_text_counts_before_anyone_asks(tmp_path: Path) -> None:
    lines = 'version_info = { name = "info", label = "v" }\n' + RATIO.replace("{names}", CHANGED)
    x = a_map(tmp_path, lines)
    reader = Reader(x, exposition.parse('x_info{v="0.9"} 1\nx_use 50\n'))
    assert reader.version == "0.9"
    assert reader.signals()["kv_cache_usage_ratio"].value == 0.5


def test_ranks_that_tell_the_same_count_once(tmp_path: Path) -> None:
    x = a_map(
        tmp_path,
        'rank_label = "dp"\ncopies = ["tp", "pp"]\n'
        '[signals.requests_running]\nkind = "gauge"\nunit = "requests"\nnames = ["run"]\n'
        + SECONDS.replace("{names}", '"t"'),
    )
    lines = [f'x_run{{dp="{d}",tp="{t}"}} {10 * d + 3}' for t in (10, 0, 2) for d in (0, 1)]
    lines += [
        f'x_t_{end}{{dp="{d}",tp="{t}"}} {t + 1}'
        for end in ("sum", "count")
        for t in (10, 2)
        for d in (0, 1)
    ]
    found = signals(x, "\n".join(lines))
    assert found["requests_running"].value == 16.0
    assert found["requests_running"].by == {"dp=0": 3.0, "dp=1": 13.0}
    # Rank 2, not rank 10.
    assert (found["ttft_seconds"].count, found["ttft_seconds"].sum) == (6.0, 6.0)


def test_a_product_of_two_series_is_taken_rank_by_rank(tmp_path: Path) -> None:
    x = a_map(
        tmp_path,
        '[signals.kv_capacity_tokens]\nkind = "gauge"\nunit = "tokens"\n'
        'names = ["blocks"]\ntimes = ["size"]\n',
    )
    text = 'x_blocks{r="0"} 10\nx_blocks{r="1"} 20\nx_size{r="0"} 16\nx_size{r="1"} 32\n'
    assert signals(x, text)["kv_capacity_tokens"].value == 10 * 16 + 20 * 32
    assert signals(x, 'x_blocks{r="0"} 10\nx_size 16\n')["kv_capacity_tokens"].value == 160.0
    odd = 'x_blocks{r="7"} 10\nx_size{r="0"} 16\nx_size{r="1"} 32\n'
    assert signals(x, odd)["kv_capacity_tokens"].state == "missing"
    assert signals(x, "x_blocks 10\n")["kv_capacity_tokens"].reason == "not exposed"


FILL = (
    '[signals.gpu_memory_usage_ratio]\nkind = "gauge"\nunit = "ratio"\n'
    '[[signals.gpu_memory_usage_ratio.ratios]]\npart = ["used"]\n'
)


def test_a_ratio_of_several_is_weighted_by_their_size(tmp_path: Path) -> None:
    """S-03: the bigger one weighs more, and the fullest is beside the mean."""
    x = a_map(tmp_path, FILL + 'rest = ["free"]\n')
    text = 'x_used{g="0"} 10\nx_free{g="0"} 30\nx_used{g="1"} 90\nx_free{g="1"} 10\n'
    signal = signals(x, text)["gpu_memory_usage_ratio"]
    assert signal.value == 100 / 140
    assert signal.maximum == 0.9


@pytest.mark.parametrize(
    ("text", "why"),
    [("x_used 0\nx_all 0\n", "nothing to be full"), ("x_used 5\nx_all 4\n", "more than")],
)
def test_a_ratio_of_nothing_is_missing(tmp_path: Path, text: str, why: str) -> None:
    x = a_map(tmp_path, FILL + 'whole = ["all"]\n')
    signal = signals(x, text)["gpu_memory_usage_ratio"]
    assert signal.state == "missing"
    assert why in str(signal.reason)


def test_parts_are_added_where_they_are_exposed(tmp_path: Path) -> None:
    x = a_map(
        tmp_path,
        '[signals.kv_transfer_failures_total]\nkind = "counter"\nunit = "transfers"\n'
        'names = ["a"]\nalso = ["b", "c"]\n',
    )
    read = {
        text: signals(x, text)["kv_transfer_failures_total"].value
        for text in ("x_a 1\n", "x_b 2\n", "x_a 1\nx_c 4\n", "x_d 1\n", "x_a 1\nx_b NaN\n")
    }
    assert list(read.values()) == [1.0, 2.0, 5.0, None, None]


def test_histograms_are_added_where_their_bounds_agree(tmp_path: Path) -> None:
    x = a_map(tmp_path, SECONDS.replace("{names}", '"a"') + 'also = ["b"]\n')
    both = signals(x, histogram("x_a", "1", "3") + histogram("x_b", "1", "5"))["ttft_seconds"]
    assert both.histogram is not None
    assert (both.count, both.sum, both.histogram.counts) == (4.0, 8.0, [2.0, 2.0])
    odd = signals(x, histogram("x_a", "1", "3") + histogram("x_b", "2", "5"))["ttft_seconds"]
    assert (odd.state, odd.histogram) == ("missing", None)
    assert "different bucket bounds" in str(odd.reason)


def test_two_counters_make_a_histogram_without_buckets(tmp_path: Path) -> None:
    x = a_map(
        tmp_path,
        SECONDS.replace("{names}", "")
        + 'sums = [{ name = "total_us", unit = "us" }]\ncounts = ["n"]\n',
    )
    signal = signals(x, "x_total_us 3e6\nx_n 4\n")["ttft_seconds"]
    assert signal.histogram is not None
    assert (signal.count, signal.sum, signal.histogram.counts) == (4.0, 3.0, [4.0])
    assert signals(x, "x_total_us 3e6\n")["ttft_seconds"].state == "missing"


QUEUE = '[signals.requests_waiting]\nkind = "gauge"\nunit = "requests"\n'
BAD = [
    ("no title", "", '[signals]\ntitle = "x"', "signals.title"),
    ("unknown unit", RATIO.replace('"ratio"', '"furlongs"'), "", "signals.kv_cache_usage_ratio.un"),
    (
        "does not convert",
        RATIO.replace("{names}", '{ name = "u", unit = "ms" }'),
        "",
        "u.unit='ms': does not convert to 'ratio'",
    ),
    (
        "no unit we know",
        RATIO.replace("{names}", '{ name = "u", unit = "m" }'),
        "",
        "u.unit='m'",
    ),
    (
        "a version of words",
        RATIO.replace("{names}", '{ name = "u", since = "late" }'),
        "",
        "u='late': a version begins with a number",
    ),
    ("no such signal", "", '[signals.x_total]\nkind = "gauge"\nunit = ""', "'x_total': is no sig"),
    ("lacks what is none", "[signals]\n", '[lacks]\nx_total = "why"', "lacks='x_total'"),
    (
        "stage and label",
        QUEUE,
        'stages = [{ name = "q", stage = "a", label = "b" }]',
        "one of each",
    ),
    ("ratio of one", FILL, "", "whole or rest"),
    ("misspelt", QUEUE, 'nams = ["q"]', "signals.requests_waiting.nams"),
]


@pytest.mark.parametrize(("head", "tail", "want"), [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_a_wrong_map_says_where(tmp_path: Path, head: str, tail: str, want: str) -> None:
    with pytest.raises(TomlError) as caught:
        a_map(tmp_path, f"{head.replace('{names}', '')}{tail}\n")
    assert want in str(caught.value)


def test_an_engine_read_by_hand_of_a_new_file(tmp_path: Path) -> None:
    """One file is all a new engine takes."""
    x = a_map(tmp_path, RATIO.replace("{names}", '"use"'))
    assert signals(x, 'x_use{rank="0"} 0.25\n')["kv_cache_usage_ratio"].value == 0.25
