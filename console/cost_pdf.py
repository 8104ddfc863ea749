"""A month's report as a PDF: the same figures as the page, on A4, in English.

The fonts of every PDF reader know Latin letters only. What a name has beyond them is written as
its code, `<U+0645>`: nothing is lost, nothing runs from right to left over its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from django.utils import translation
from fpdf import FPDF
from fpdf.enums import XPos, YPos

from console import bars, cost_words, figures
from routing.core.costs.report import PARTS
from routing.costs import values
from routing.costs.models import MonthReport

MOST_ROWS: Final = 400
"""Of each table: the file of the table has all of them."""
_MARGIN_MM: Final = 14.0
_LINE_MM: Final = 5.0
_CHART_MM: Final = 34.0
_LONGEST: Final = 60
_GREYS: Final = {"remote_prefill": 120, "local_prefill": 60, "decode": 190, "egress": 90}
"""On paper that has no colours, the parts of a bar differ in how dark they are."""
_GAP: Final = 235


def sheet(row: MonthReport) -> bytes:
    """The whole document."""
    with translation.override("en"):
        pdf = _begun(row)
        _summary(pdf, row)
        _charts(pdf, row)
        _pools(pdf, row.report)
        _links(pdf, row.report)
        _value(pdf, row)
        _limits(pdf, row.report)
        return bytes(pdf.output())


def plain(text: Any, most: int = _LONGEST) -> str:
    """A text as the fonts can show it, at most so long."""
    found = "".join(
        c if c.isprintable() and (c.isascii() or "\xa1" <= c <= "\xff") else _replaced(c)
        for c in str(text)
    )
    return found if len(found) <= most else f"{found[: most - 3]}..."


def _replaced(c: str) -> str:
    return {"–": "-", "−": "-", "→": "->", "’": "'"}.get(c, f"<U+{ord(c):04X}>")


def _begun(row: MonthReport) -> FPDF:
    pdf = FPDF(format="A4")
    pdf.set_title(plain(f"{row.fleet} {row.month}"))
    pdf.set_creation_date(row.made_at)
    pdf.set_margin(_MARGIN_MM)
    pdf.set_auto_page_break(True, _MARGIN_MM)
    pdf.add_page()
    _head(pdf, f"Costs of {row.fleet}, {row.month}", 16)
    return pdf


def _summary(pdf: FPDF, row: MonthReport) -> None:
    report, totals = row.report, row.report["totals"]
    until = datetime.fromisoformat(report["until"])
    _text(
        pdf,
        f"{cost_words.state_mark(row).text}; by the clock of {report['zone']}, up to "
        f"{until:%Y-%m-%d %H:%M} UTC; made {row.made_at:%Y-%m-%d %H:%M} UTC.",
    )
    _table(
        pdf,
        ("", "figure"),
        [
            ("money", cost_words.money(totals["money"], report["currency"])),
            ("of it hours", cost_words.money(totals["money_hours"], report["currency"])),
            ("of it links", cost_words.money(totals["money_links"], report["currency"])),
            ("GPU-hours", figures.significant(totals["gpu_hours"])),
            ("instance-hours", figures.significant(totals["instance_hours"])),
            ("egress", cost_words.gigabytes(totals["bytes"])),
            ("measured", figures.percent(report["coverage"]["ratio"])),
            ("plans pushed", report["decisions"]["n_pushed"]),
            ("moves of roles", report["decisions"]["n_rebalances_done"]),
        ],
        (60, 60),
    )


def _charts(pdf: FPDF, row: MonthReport) -> None:
    days = row.report["days"]
    titles = [day["day"] for day in days]
    hours = bars.stacked([day["instance_hours"] for day in days], titles, PARTS)
    words = ", ".join(cost_words.role_words(part) for part in PARTS)
    _chart(pdf, f"Instance-hours a day: {words}", hours, titles, "h")
    sent = [{"egress": None if day["bytes"] is None else day["bytes"] / 1e9} for day in days]
    _chart(pdf, "Egress a day", bars.stacked(sent, titles, ("egress",)), titles, "GB")


def _chart(pdf: FPDF, title: str, found: bars.Bars, days: Sequence[str], unit: str) -> None:
    if found.top is None:
        return
    if pdf.will_page_break(_CHART_MM + 4 * _LINE_MM):
        pdf.add_page()
    _head(pdf, f"{title}; top {figures.with_unit(found.top, unit)}", 10)
    x, y, wide = pdf.get_x(), pdf.get_y(), pdf.epw
    for box in found.boxes:
        pdf.set_fill_color(_GREYS.get(box.kind, _GAP))
        pdf.rect(
            x + box.x * wide / bars.WIDTH,
            y + box.y * _CHART_MM / bars.HEIGHT,
            box.width * wide / bars.WIDTH,
            box.height * _CHART_MM / bars.HEIGHT,
            style="F",
        )
    pdf.set_draw_color(120)
    pdf.line(x, y + _CHART_MM, x + wide, y + _CHART_MM)
    pdf.set_y(y + _CHART_MM + 1)
    _text(pdf, f"{days[0]} to {days[-1]}; the lightest bars were not measured")


def _pools(pdf: FPDF, report: dict[str, Any]) -> None:
    _head(pdf, "Hours by cluster and role", 12)
    rows = [
        (
            row["cluster"],
            row["role"],
            row["gpu"],
            figures.significant(row["gpu_hours"]),
            figures.significant(row["instance_hours"]),
            row["price"] or figures.NONE,
            cost_words.money(row["money"], report["currency"]),
        )
        for row in report["pools"]
    ]
    header = ("cluster", "role", "GPU", "GPU-h", "instance-h", "price", "money")
    _table(pdf, header, rows, (52, 18, 22, 20, 22, 16, 32))


def _links(pdf: FPDF, report: dict[str, Any]) -> None:
    _head(pdf, "Egress by link", 12)
    rows = [
        (
            row["id"],
            cost_words.gigabytes(row["bytes"]),
            figures.gbps(p95 and p95["billed_gbps"]),
            figures.duration(p95 and p95["burst_left_s"]),
            cost_words.money(row["money"], report["currency"]),
        )
        for row in report["links"]
        for p95 in (row["p95"],)
    ]
    header = ("link", "egress", "95th percentile", "burst left", "money")
    _table(pdf, header, rows, (70, 26, 28, 26, 32))


def _value(pdf: FPDF, row: MonthReport) -> None:
    asked = values.newest(row.fleet, row.month)
    if asked is None or asked.state != "done":
        return
    _head(pdf, "What decisions were worth, by the twin", 12)
    rows = [
        (
            line["label"],
            line["lived"],
            line["static"],
            line["paper"],
            _spoken(line["against_static"]),
        )
        for line in cost_words.value_rows(asked, row.report["currency"])
    ]
    header = ("", "lived", "static plan", "paper", "lived - static, 95 %")
    _table(pdf, header, rows, (36, 24, 24, 24, 74))
    _text(
        pdf,
        f"{len(asked.hours)} recorded hours replayed; the static plan is the month's first one.",
    )


def _spoken(difference: dict[str, Any] | None) -> str:
    if difference is None:
        return figures.NONE
    return f"{difference['mean']} ({difference['low']} to {difference['high']})"


def _limits(pdf: FPDF, report: dict[str, Any]) -> None:
    _head(pdf, "What the figures do not say", 12)
    for sentence in cost_words.limits(report):
        _text(pdf, f"- {sentence}")


def _head(pdf: FPDF, text: str, size: int) -> None:
    if pdf.will_page_break(4 * _LINE_MM):
        pdf.add_page()
    pdf.ln(2)
    pdf.set_font("Helvetica", "B", size)
    pdf.multi_cell(0, size * 0.55, plain(text, 200), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.ln(1)


def _text(pdf: FPDF, text: str) -> None:
    pdf.set_font("Helvetica", "", 9)
    pdf.multi_cell(0, _LINE_MM, plain(text, 500), new_x=XPos.LMARGIN, new_y=YPos.NEXT)


def _table(
    pdf: FPDF, header: Sequence[str], rows: Sequence[Sequence[Any]], widths: Sequence[float]
) -> None:
    _row(pdf, header, widths, bold=True)
    for row in rows[:MOST_ROWS]:
        if pdf.will_page_break(_LINE_MM):
            pdf.add_page()
            _row(pdf, header, widths, bold=True)
        _row(pdf, row, widths)
    if len(rows) > MOST_ROWS:
        _text(pdf, f"{len(rows) - MOST_ROWS} more rows are in the table's file.")
    pdf.ln(2)


def _row(pdf: FPDF, cells: Sequence[Any], widths: Sequence[float], *, bold: bool = False) -> None:
    pdf.set_font("Helvetica", "B" if bold else "", 8)
    for i, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        text = plain(cell)
        while text and pdf.get_string_width(text) > width - 2:
            text = f"{text[:-4]}..." if len(text) > 4 else ""
        pdf.cell(width, _LINE_MM, text, border="B", align="L" if i == 0 else "R")
    pdf.ln(_LINE_MM)
