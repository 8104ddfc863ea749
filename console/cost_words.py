"""A month's report in words and figures: for the page, the table's file and the printed sheet."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console import figures
from console.context import BAD, GOOD, WARN, Mark
from routing.costs.models import DecisionValue, MonthReport

MOST_GAPS: Final = 0.05
"""Of a month: more of it not measured is said with a warning."""
HEADER: Final = (
    *("month", "until_utc", "kind", "name", "role", "gpu", "quantity", "unit", "price", "per"),
    *("money", "currency", "measured_hours", "missing_hours"),
)
_METRICS: Final = ("goodput_rps", "good_fraction", "ttft_p90_s", "egress_gb_per_h",
                   "egress_money_per_h")  # fmt: skip


def money(text: str | None, currency: str | None) -> str:
    """`1,234.50 EUR`; a dash where there is no price."""
    if text is None:
        return figures.NONE
    whole, dot, rest = text.partition(".")
    return f"{int(whole):,}{dot}{rest} {currency or ''}".strip()


def gigabytes(n_bytes: int | None) -> str:
    """Egress as carriers count it: of 10^9 bytes, or 10^12."""
    if n_bytes is not None and n_bytes >= 1e12:
        return figures.with_unit(n_bytes / 1e12, "TB")
    return figures.with_unit(None if n_bytes is None else n_bytes / 1e9, "GB")


def hours(value: float | None) -> str:
    return figures.with_unit(value, "h")


def role_words(role: str) -> str:
    words = {
        "prefill": _("prefill"),
        "decode": _("decode"),
        "remote_prefill": _("remote prefill"),
        "local_prefill": _("local prefill"),
    }
    return words[role]


def state_mark(row: MonthReport) -> Mark:
    if row.closed:
        return Mark(*GOOD, _("whole month, closed"))
    if row.report["state"] == "whole":
        return Mark("info", "wait", _("whole month, late counters are waited for"))
    until = datetime.fromisoformat(row.report["until"])
    return Mark("info", "wait", _("so far, until %(at)s") % {"at": figures.stamp(until)})


def coverage_mark(report: dict[str, Any]) -> Mark:
    """How much of the time was measured."""
    ratio = report["coverage"]["ratio"] or 0.0
    words = _("%(ratio)s of the time measured") % {"ratio": figures.percent(ratio)}
    if ratio >= 1.0 - MOST_GAPS:
        return Mark(*GOOD, words)
    return Mark(*(WARN if ratio > 0.5 else BAD), words)


def limits(report: dict[str, Any]) -> list[str]:
    """What the figures do not say, in sentences."""
    said = [
        _(
            "Hours are counted from the loop's ticks, minute by minute: a minute without one is "
            "missing, not zero."
        ),
        _("Egress is what a link's counter gained, whoever used the link."),
        _(
            "The 95th percentile is of five-minute means of the UTC month; missing samples are "
            "left out, not taken for zero."
        ),
    ]
    missing = report["coverage"]["hours"] - report["coverage"]["measured_hours"]
    if missing > 0:
        text = _("%(n)s of %(all)s hours were not measured: what ran in them is not in any sum.")
        said.insert(
            0,
            text
            % {
                "n": figures.significant(missing),
                "all": figures.significant(report["coverage"]["hours"]),
            },
        )
    silent = sum(row["silent_instance_hours"] for row in report["pools"] if _first(row, report))
    if silent:
        text = _("%(n)s instance-hours are of instances that were counted but not read; left out.")
        said.append(text % {"n": figures.significant(silent)})
    if report["currency"] is None:
        said.append(_("There are no prices, so there is no money."))
        return said
    said.append(
        _("Each line is rounded half to even to %(n)s decimals; a sum is of rounded lines.")
        % {"n": report["decimals"]}
    )
    totals = report["totals"]
    for key, one in (
        ("n_pools_without_money", ngettext(
            "%(n)s pool has no price or no number of GPUs and is in no sum of money.",
            "%(n)s pools have no price or no number of GPUs and are in no sum of money.",
            totals["n_pools_without_money"],
        )),
        ("n_links_without_money", ngettext(
            "%(n)s link has no price or no measurement and is in no sum of money.",
            "%(n)s links have no price or no measurement and are in no sum of money.",
            totals["n_links_without_money"],
        )),
    ):  # fmt: skip
        if totals[key]:
            said.append(one % {"n": totals[key]})
    return said


def _first(row: dict[str, Any], report: dict[str, Any]) -> bool:
    """Whether it is the first pool of its cluster, whose silent instances have no role."""
    same = [each for each in report["pools"] if each["cluster"] == row["cluster"]]
    return same[0] is row


def table_rows(row: MonthReport) -> list[tuple[Any, ...]]:
    """Every line of a month for its file: numbers as numbers, money as it is written."""
    report = row.report
    head = (report["month"], report["until"])
    currency = report["currency"]
    found: list[tuple[Any, ...]] = []
    for pool in report["pools"]:
        by_gpu = pool["per"] == "gpu_hour" or (not pool["per"] and pool["gpu_hours"] is not None)
        found.append(
            (
                *head, "pool", pool["cluster"], pool["role"], pool["gpu"],
                pool["gpu_hours"] if by_gpu else pool["instance_hours"],
                "GPU-hours" if by_gpu else "instance-hours",
                pool["price"], pool["per"], pool["money"], currency,
                pool["measured_hours"], pool["missing_hours"],
            )
        )  # fmt: skip
    for link in report["links"]:
        measured = (link["measured_hours"], link["missing_hours"])
        gb = None if link["bytes"] is None else link["bytes"] / 1e9
        found.append(
            (
                *head, "link", link["id"], "", "", gb, "GB", link["price_gb"], "GB",
                link["money_gb"], currency, *measured,
            )
        )  # fmt: skip
        p95 = link["p95"]
        if p95 is not None:
            hour = 300.0 / 3600.0
            found.append(
                (
                    *head, "link_p95", link["id"], "", "", p95["billed_gbps"], "Gbps",
                    p95["price_gbps_month"], "Gbps and month", link["money_p95"], currency,
                    p95["n_measured"] * hour, p95["n_missing"] * hour,
                )
            )  # fmt: skip
    totals = report["totals"]
    found.append(
        (
            *head, "total", "", "", "", totals["gpu_hours"], "GPU-hours", None, None,
            totals["money"], currency, report["coverage"]["measured_hours"],
            report["coverage"]["hours"] - report["coverage"]["measured_hours"],
        )
    )  # fmt: skip
    return found


def value_mark(row: DecisionValue) -> Mark:
    marks = {
        "queued": Mark("info", "wait", _("waits for a worker of the twin")),
        "running": Mark(
            "info",
            "wait",
            _("%(n)s of %(all)s hours replayed") % {"n": len(row.found), "all": len(row.hours)},
        ),
        "done": Mark(*GOOD, _("done")),
        "failed": Mark(*BAD, _("failed")),
    }
    return marks[row.state]


def value_rows(row: DecisionValue, currency: str | None) -> list[dict[str, Any]]:
    """A line for each figure: what was lived, the static plan, the paper's, and the differences
    with their intervals."""
    if row.result is None:
        return []
    found = []
    for name in _METRICS:
        static, paper = row.result["static"].get(name), row.result["paper"].get(name)
        if static is None or paper is None or not static["policies"]["lived"]["n"]:
            continue
        label, write = _metric(name, currency)
        policies = static["policies"]
        found.append(
            {
                "label": label,
                "lived": write(policies["lived"]["mean"]),
                "static": write(policies["static"]["mean"]),
                "paper": write(policies["paper"]["mean"]),
                "against_static": _difference(policies["lived"], _apart(name, write)),
                "against_paper": _difference(paper["policies"]["lived"], _apart(name, write)),
            }
        )
    return found


def _metric(name: str, currency: str | None) -> tuple[str, Any]:
    def egress(value: float | None) -> str:
        return figures.with_unit(value, "GB/h")

    def paid(value: float | None) -> str:
        return figures.with_unit(value, f"{currency or ''}/h")

    return {
        "goodput_rps": (_("served within the SLO"), figures.rate),
        "good_fraction": (_("share within the SLO"), figures.percent),
        "ttft_p90_s": (_("first token, P90"), figures.duration),
        "egress_gb_per_h": (_("egress"), egress),
        "egress_money_per_h": (_("egress, in money"), paid),
    }[name]


def _apart(name: str, write: Any) -> Any:
    """How a difference is written: that of two shares is in points."""
    if name != "good_fraction":
        return write
    return lambda value: _("%(n)s points") % {"n": figures.significant(100.0 * value)}


_SAYS: Final = {"better": GOOD, "worse": BAD, "unclear": ("off", "off")}


def _difference(policy: dict[str, Any], write: Any) -> dict[str, Any] | None:
    found = policy["difference"]
    if found is None or found["mean"] is None or found["low"] is None:
        return None
    words = {"better": _("better"), "worse": _("worse"), "unclear": _("no difference shown")}
    says = policy["says"] or "unclear"
    return {
        "mark": Mark(*_SAYS[says], words[says]),
        "mean": _signed(found["mean"], write),
        "low": _signed(found["low"], write),
        "high": _signed(found["high"], write),
    }


def _signed(value: float, write: Any) -> str:
    return f"+{write(value)}" if value > 0 else str(write(value))
