#!/usr/bin/env python3
"""Draws docs/images/demo.svg from the summary table that `cairn demo` printed.

demo.txt in this folder is the summary of the run that the front page shows. To show another run:

    build/release/bin/cairn demo --model MODEL | tee demo.log
    # Copy the last box of demo.log, from corner to corner, into docs/images/demo.txt.
    python3 docs/images/demo_svg.py

Every cell is a text of its own at a fixed x, and rules are lines and not characters. So columns
stand straight in every font, also where the viewer has no monospaced one.
"""

import re
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).parent

SIZE = 16  # Pixels of the font.
# Room for a character. Generous, since the viewer chooses the font: a monospaced one takes 0.6.
ADVANCE, BOLD_ADVANCE = 0.64 * SIZE, 0.74 * SIZE
ROW = 29
PADDING = 14  # Space between a cell's text and the rules on both sides.
BAR = 40  # The window's title bar.
MARGIN = 16

BACKGROUND, RULE, TEXT = "#292929", "#5a5d5b", "#d5d8d6"
GOOD, PARTLY = "#a9bb54", "#dcbf4c"
LEFT_COLUMNS = {"phase", "identical"}


def read_table(text):
    """Titles and rows of a table of tools/cairn/output/table.h, drawn in a box."""
    lines = [line.strip() for line in text.splitlines()]
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in lines if line[:1] == "│"
    ]
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        raise SystemExit("got no table with a title row and rows of as many cells")
    return rows[0], rows[1:]


def style(title, text):
    """Attributes of a cell."""
    if title == "vs cold":
        return 'font-weight="bold"'
    equal = re.fullmatch(r"(?:first )?(\d+) of (\d+)", text) if title == "identical" else None
    if equal is None:
        return ""
    return f'fill="{GOOD if equal[1] == equal[2] else PARTLY}"'


def draw(title, titles, rows):
    columns = list(zip(titles, *rows))
    edges = [float(MARGIN)]  # The rules between columns, and the table's sides.
    for bold, *plain in columns:
        text = max(len(bold) * BOLD_ADVANCE, max(map(len, plain)) * ADVANCE)
        edges.append(edges[-1] + text + 2 * PADDING)
    top = BAR + 8
    bottom = top + ROW * (1 + len(rows)) + 8
    width, height = edges[-1] + MARGIN, bottom + MARGIN

    out = []
    out.append(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="sans-serif" font-size="{SIZE}" fill="{TEXT}">'
    )
    out.append("<title>The summary that cairn demo printed</title>")
    out.append(
        f'<rect x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8" '
        f'fill="{BACKGROUND}" stroke="{RULE}"/>'
    )
    for i, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        out.append(f'<circle cx="{26 + 22 * i}" cy="22" r="7" fill="{colour}"/>')
    out.append(
        f'<text x="{width / 2:.0f}" y="28" text-anchor="middle" font-weight="bold">'
        f"{escape(title)}</text>"
    )
    out.append(f'<g stroke="{RULE}" fill="none">')
    out.append(
        f'<rect x="{edges[0]:.1f}" y="{top}" width="{edges[-1] - edges[0]:.1f}" '
        f'height="{bottom - top}" rx="5"/>'
    )
    out.append(f'<path d="M{edges[0]:.1f} {top + ROW}H{edges[-1]:.1f}"/>')
    out += [f'<path d="M{x:.1f} {top}V{bottom}"/>' for x in edges[1:-1]]
    out.append("</g>")

    for i, row in enumerate([titles, *rows]):
        y = top + ROW * i + (20 if i == 0 else 24)
        for title_of, text, left, right in zip(titles, row, edges, edges[1:]):
            if not text:
                continue
            at = f'x="{left + PADDING:.1f}"'
            if title_of not in LEFT_COLUMNS:
                at = f'x="{right - PADDING:.1f}" text-anchor="end"'
            how = 'font-weight="bold"' if i == 0 else style(title_of, text)
            out.append(f'<text {at} y="{y}" {how}'.rstrip() + f">{escape(text)}</text>")
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    titles, rows = read_table((HERE / "demo.txt").read_text(encoding="utf-8"))
    (HERE / "demo.svg").write_text(draw("make demo", titles, rows), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
