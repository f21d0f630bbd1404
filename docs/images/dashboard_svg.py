#!/usr/bin/env python3
"""Draws the Grafana dashboards with the values that a Prometheus has of real programs: the small
world of tests/ops/observed_world.py, a minute long.

python3 docs/images/dashboard_svg.py --build build/release --folder docs/images

It shows what is in which panel, and is no picture of Grafana. A panel of a kind that it does not
know is an error.
"""

import argparse
import datetime
import json
import math
import pathlib
import re
import sys
import tempfile
import time
from html import escape

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "helm/cairn/files/dashboards"
COLUMN, LINE, GAP = 50, 26, 6  # Pixels of Grafana's grid, and between panels.
BACKGROUND, PANEL, RULE, TEXT, PALE = "#111217", "#1b1e23", "#2f333b", "#d5d8d6", "#8e959e"
STATES = {"green": "#3f8f4f", "orange": "#c77b2b", "red": "#c4162a", "blue": "#3565a0"}
COLOURS = ["#73bf69", "#f2cc0c", "#8ab8ff", "#ff9830", "#f2495c", "#b877d9", "#56a64b", "#96d98d"]
MOST_ROWS = 9
SCALES = {"bytes": 1024, "Bps": 1024}
SUFFIXES = {"bytes": "B", "Bps": "B/s", "s": "s", "reqps": "req/s", "ops": "/s", "cps": "/s"}


def number(value, unit):
    """As a person reads it."""
    if unit == "dateTimeAsIso":  # Milliseconds since 1970.
        return f"{datetime.datetime.fromtimestamp(value / 1000, datetime.UTC):%Y-%m-%d}"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s" and abs(value) >= 172800:
        return f"{value / 86400:.3g} days"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    base = SCALES.get(unit, 1000)
    steps = min(4, int(math.log(abs(value), base))) if abs(value) >= base else 0
    prefix = ["", "k" if base == 1000 else "Ki", "M" if base == 1000 else "Mi", "G", "T"][steps]
    shown = value / base**steps
    digits = f"{shown:.0f}" if abs(shown) >= 100 else f"{shown:.3g}"
    return f"{digits} {prefix}{SUFFIXES.get(unit, '')}".strip()


def legend(text, labels):
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), text).strip()


class Drawing:
    def __init__(self, start, end):
        self.start, self.end = start, end
        self.out = []

    def text(self, x, y, text, fill=TEXT, size=12, more=""):
        self.out.append(
            f'<text x="{x:.0f}" y="{y:.0f}" fill="{fill}" font-size="{size}"{more}>'
            f"{escape(str(text))}</text>"
        )

    def rectangle(self, x, y, w, h, fill, more=""):
        self.out.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{fill}"{more}/>'
        )

    def x_of(self, when, box):
        x, _, w, _ = box
        return x + w * (when - self.start) / (self.end - self.start)

    def panel(self, panel, answers):
        """`answers`: for each query [(labels, [(time, value)])]."""
        place = panel["gridPos"]
        x, y = place["x"] * COLUMN + GAP, place["y"] * LINE + GAP
        w, h = place["w"] * COLUMN - GAP, place["h"] * LINE - GAP
        if panel["type"] == "row":
            self.text(x, y + 16, panel["title"], size=14, more=' font-weight="bold"')
            return
        unit = panel["fieldConfig"]["defaults"]["unit"]
        self.rectangle(x, y, w, h, PANEL, ' rx="3"')
        draw = {
            "stat": self.stat,
            "timeseries": self.lines,
            "heatmap": self.heatmap,
            "table": self.table,
        }[panel["type"]]
        if any(answers):
            draw(panel, answers, unit, (x, y, w, h))
        else:
            self.text(x + w / 2 - 20, y + h / 2 + 12, "No data", PALE)
        self.text(x + 8, y + 16, panel["title"])

    def stat(self, panel, answers, unit, box):
        x, y, w, h = box
        value = answers[0][0][1][-1][1]
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        colour = [s["color"] for s in steps if s["value"] is None or value >= s["value"]][-1]
        self.rectangle(x, y, w, h, STATES[colour], ' rx="3"')
        self.text(x + 8, y + h - 16, number(value, unit), "#ffffff", 28)

    def axis(self, most, unit, box):
        x, y, w, h = box
        for part in (0, 0.5, 1):
            at = y + h * (1 - part)
            self.out.append(f'<path d="M{x:.0f} {at:.1f}h{w:.0f}" stroke="{RULE}"/>')
            self.text(x - 4, at + 4, number(most * part, unit), PALE, 10, ' text-anchor="end"')

    def lines(self, panel, answers, unit, box):
        x, y, w, h = box
        plot = (x + 62, y + 30, w - 72, h - 70)
        named = [
            (legend(target["legendFormat"], labels), samples)
            for target, series in zip(panel["targets"], answers, strict=True)
            for labels, samples in series
        ]
        values = [v for _, samples in named for _, v in samples]
        most = max(values) or 1
        self.axis(most, unit, plot)
        for i, (_, samples) in enumerate(named):
            points = " ".join(
                f"{self.x_of(t, plot):.1f},{plot[1] + plot[3] * (1 - v / most):.1f}"
                for t, v in samples
            )
            colour = COLOURS[i % len(COLOURS)]
            self.out.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
            )
        self.names([name for name, _ in named], (x + 8, y + h - 24, w - 16))

    def names(self, names, place):
        """Two lines of a legend, as far as they reach."""
        left, y, w = place
        x, line = left, 0
        for i, name in enumerate(names):
            width = 26 + 6.8 * len(name)
            if x + width > left + w and x > left:
                x, line = left, line + 1
            if line > 1:
                return
            self.rectangle(x, y + 16 * line - 4, 12, 3, COLOURS[i % len(COLOURS)])
            self.text(x + 16, y + 16 * line, name, PALE, 11)
            x += width

    def heatmap(self, panel, answers, unit, box):
        """Buckets are sums of all that are shorter, so each is drawn without the one below."""
        x, y, w, h = box
        plot = (x + 62, y + 30, w - 72, h - 46)
        found = sorted(((float(labels["le"]), dict(s)) for labels, s in answers[0]))
        cells, below = [], {}
        for bound, samples in found:
            cells.append((bound, {t: v - below.get(t, 0) for t, v in samples.items()}))
            below = samples
        used = [i for i, (_, samples) in enumerate(cells) if any(v > 0 for v in samples.values())]
        cells = cells[min(used, default=0) : max(used, default=0) + 1]
        most = max((v for _, samples in cells for v in samples.values()), default=0) or 1
        height = plot[3] / len(cells)
        for i, (bound, samples) in enumerate(cells):
            at = plot[1] + plot[3] - height * (i + 1)
            if height >= 12 or i % 2 == 0:
                name = "more" if math.isinf(bound) else number(bound, unit)
                self.text(plot[0] - 4, at + 4, name, PALE, 10, ' text-anchor="end"')
            for when, value in samples.items():
                if value > 0:
                    strength = f' fill-opacity="{0.15 + 0.85 * math.sqrt(value / most):.2f}"'
                    width = plot[2] / (self.end - self.start)
                    left = self.x_of(when, plot)
                    self.rectangle(left, at, width, height - 1, "#ff9830", strength)

    def table(self, panel, answers, unit, box):
        x, y, w, h = box
        names = list(panel["transformations"][1]["options"]["renameByName"].values())
        units = [o["properties"][0]["value"] for o in panel["fieldConfig"]["overrides"]]
        rows = {}
        for i, series in enumerate(answers):
            for labels, samples in series:
                key = tuple(sorted(l for l in labels.items() if l[0] != "__name__"))
                rows.setdefault(key, [""] * len(names))[i] = number(samples[-1][1], units[i])
        titles = sorted({name for key in rows for name, _ in key})
        lines = [[*titles, *names]]
        lines += [[*(dict(key).get(t, "") for t in titles), *v] for key, v in rows.items()]
        column = (w - 16) / len(lines[0])
        for i, line in enumerate(lines[: min(MOST_ROWS, int((h - 30) / 18))]):
            for j, cell in enumerate(line):
                fill = PALE if i == 0 else TEXT
                self.text(x + 8 + column * j, y + 36 + 18 * i, cell[: int(column / 6.4)], fill, 11)


def draw(dashboard, answers, start, end):
    """`answers`: by the id of the panel, for each query [(labels, [(time, value)])]."""
    drawing = Drawing(start, end)
    for panel in dashboard["panels"]:
        drawing.panel(panel, answers.get(panel["id"], []))
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    width = 24 * COLUMN + GAP
    height = max(p["y"] + p["h"] for p in places) * LINE + GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif">'
    )
    ground = f'<rect width="{width}" height="{height}" fill="{BACKGROUND}"/>'
    return "\n".join([head, ground, *drawing.out, "</svg>"]) + "\n"


def answers_of(dashboard, world, since=None):
    """All that Prometheus says to the queries about the world, without what is no number, and
    without the router whose engine is not there."""
    from dashboard_files import concrete

    start = since or world.start
    *_, alone = world.services["cairn-router"]
    chosen = "|".join(o.admin for some in world.services.values() for o in some if o is not alone)
    return {
        panel["id"]: [
            [
                (labels, samples)
                for labels, found in world.prometheus.series(
                    concrete(target["expr"], chosen), start
                )
                if (samples := [(t, v) for t, v in found if math.isfinite(v)])
            ]
            for target in panel["targets"]
        ]
        for panel in dashboard["panels"]
        if panel["type"] != "row"
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--build", default=ROOT / "build/release", type=pathlib.Path)
    parser.add_argument("--seconds", default=60, type=float, help="how long the load lasts")
    parser.add_argument(
        "--folder", required=True, type=pathlib.Path, help="gets dashboard-NAME.svg for each"
    )
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests/ops"))
    from observed_world import observed_world

    dashboards = {
        path.stem.removeprefix("cairn-"): json.loads(path.read_text())
        for path in DASHBOARDS.glob("cairn-*.json")
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        observed_world(arguments.build.resolve(), pathlib.Path(folder)) as world,
    ):
        start = time.time()
        while time.time() < start + arguments.seconds:
            world.load()
        for name, dashboard in dashboards.items():
            image = draw(dashboard, answers_of(dashboard, world, start), start, time.time())
            (arguments.folder / f"dashboard-{name}.svg").write_text(image)


if __name__ == "__main__":
    main()
