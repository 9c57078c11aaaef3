"""The benchmark's report: text tables, JSON, and a plot."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tools.benchmarks.bounds import Bound
from tools.benchmarks.rounds import Plan, Row
from tools.benchmarks.waiting import Crowd

PACKAGES = ("toolpack-server", "starlette", "uvicorn", "pydantic", "agentdojo")
CROWDS_HEAD = (
    *("", "sessions", "answered", "p50 s", "p99 s", "p99 of the step s"),
    *("server's ms a session", "client's share", "load before", ""),
)
HEAD = ("", "requests/s", "p50 ms", "p99 ms", "CPU µs", "of bare", "of fast bare", "")


def context(plan: Plan) -> dict[str, Any]:
    """Return the conditions of the measurement: date, machine, versions and settings."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "packages": {name: version(name) for name in PACKAGES},
        "command": "python -m tools.benchmarks " + " ".join(sys.argv[1:]),
    }


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = [HEAD, ("---", *("---:",) * 6, "---")]
    for row in rows:
        if row.unavailable:
            lines.append((row.name, *("-",) * 6, row.unavailable.replace("\n", " ")))
        else:
            wrong = f"WRONG: {'; '.join(row.problems)}" if row.problems else ""
            times = f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", f"{row.cpu_us:.0f}"
            note = "; ".join(filter(None, [row.note, wrong]))
            ratios = f"{row.ratio:.3f}", f"{row.ratio_fast:.3f}"
            lines.append((row.name, f"{row.per_second:,.0f}", *times, *ratios, note))
    return _align(lines, left={0, 7})


def crowds_table(crowds: Sequence[Crowd]) -> str:
    """Return the crowds as a Markdown table."""
    lines: list[Sequence[str]] = [CROWDS_HEAD, ("---", *("---:",) * 8, "---")]
    for crowd in crowds:
        times = (f"{crowd.p(50):.2f}", f"{crowd.p(99):.2f}", f"{crowd.p(99, of_steps=True):.2f}")
        costs = (f"{crowd.server_ms:.2f}", f"{crowd.client_share * 100:.0f} %", f"{crowd.load:.1f}")
        wrong = "; ".join(f"{count} times: {what}" for what, count in crowd.problems.items())
        answered = f"{crowd.answered * 100:.4g} %"
        lines.append((crowd.server, f"{crowd.sessions:,}", answered, *times, *costs, wrong.replace("\n", " ")[:200]))
    return _align(lines, left={0, 9})


def bounds_table(bounds: Sequence[Bound]) -> str:
    """Return the bounds as a Markdown table."""
    lines = [("", "measured", "bound", "", ""), ("---", "---:", "---:", "---", "---")]
    for bound in bounds:
        sign = "≥" if bound.at_least else "≤"
        limit, met = f"{sign} {bound.limit:.3g}{bound.unit}", "met" if bound.met else "missed"
        lines.append((bound.name, f"{bound.value:.3g}{bound.unit}", limit, met, bound.detail))
    return _align(lines, left={0, 3, 4})


def _align(lines: Sequence[Sequence[str]], left: set[int]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rows = []
    for line in lines:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def write(
    folder: Path, conditions: dict[str, Any], rows: Sequence[Row], bounds: Sequence[Bound], crowds: Sequence[Crowd]
) -> list[Path]:
    """Write the figures as JSON, and the ratios as a plot."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {**conditions, "rows": [asdict(row) for row in rows]}
    document["bounds"] = [asdict(bound) | {"met": bound.met} for bound in bounds]
    document["crowds"] = [asdict(crowd) for crowd in crowds]
    paths = [folder / "benchmark.json", folder / "benchmark.svg"]
    paths[0].write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    paths[1].write_text(plot(conditions, rows), encoding="utf-8")
    return paths


LABELS, WIDTH, LINE, TOP = 300, 480, 22, 56
MAX_RATIO = 1.02  # a longer bar is cut off
OURS, BARE, OTHERS = "#2563eb", "#64748b", "#d97706"


def plot(conditions: dict[str, Any], rows: Sequence[Row]) -> str:
    """Return a plot of the ratios to bare Starlette as bars. A bar that is too long is cut off and gets an arrow."""
    measured_rows = [row for row in rows if not row.unavailable]
    height = TOP + LINE * len(measured_rows) + 16
    title = f"Calls per second, compared with bare Starlette ({conditions['date']})"
    size = f'width="{LABELS + WIDTH + 90}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="24" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for tenth in range(0, 11, 2):
        x = LABELS + WIDTH * tenth / 10
        parts.append(f'<line x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{height - 12}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{x}" y="{TOP - 12}" text-anchor="middle" fill="#64748b">{tenth / 10:g}</text>')
    for number, row in enumerate(measured_rows):
        y = TOP + LINE * number
        colour = OURS if row.name.startswith("ours") else BARE if row.name.startswith("bare") else OTHERS
        length = WIDTH * min(row.ratio, MAX_RATIO)
        arrow = " →" if row.ratio > MAX_RATIO else ""
        parts.append(f'<text x="{LABELS - 8}" y="{y + 13}" text-anchor="end">{escape(row.name)}</text>')
        parts.append(f'<rect x="{LABELS}" y="{y + 2}" width="{length:.1f}" height="{LINE - 7}" fill="{colour}"/>')
        parts.append(f'<text x="{LABELS + length + 6:.1f}" y="{y + 13}">{row.ratio:.2f}{arrow}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
