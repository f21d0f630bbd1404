"""Plots of read policies over near memory: KL, and speed of decoding. reading.py draws them."""

import html
import math

from label_places import LabelPlaces

COLOURS = ("#0b6e4f", "#d1495b", "#30638e", "#e09f3e", "#8d6a9f", "#2a9d6f", "#7a5230", "#50808e")
OTHERS = "#555555"
CROSS = '<path d="M{x:.1f} {y:.1f}m-4 -4l8 8m0 -8l-8 8" stroke="{colour}" stroke-width="2"/>'
CIRCLE = '<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'


class Panel:
    """Points over near memory in percent of half precision, from 0 to `most`. Values lie between
    low and high, on a logarithmic axis if `log`."""

    WIDTH, HEIGHT = 560, 380

    def __init__(self, left, top, title, most, low, high, log):
        self._left, self._top, self._title, self._most = left, top, title, most
        self._low, self._high, self._log = low, high, log
        self._labels = LabelPlaces(left, top, self.WIDTH, self.HEIGHT, most_lines=15)

    def x(self, percent):
        return self._left + self.WIDTH * percent / self._most

    def y(self, value):
        scale = math.log10 if self._log else float
        share = (scale(value) - scale(self._low)) / (scale(self._high) - scale(self._low))
        return self._top + self.HEIGHT * (1 - share)

    def axes(self):
        bottom, middle = self._top + self.HEIGHT, self._left + self.WIDTH / 2
        ticks = (
            [
                10.0**p
                for p in range(round(math.log10(self._low)), round(math.log10(self._high)) + 1)
            ]
            if self._log
            else [self._low + (self._high - self._low) * i / 5 for i in range(6)]
        )
        for value in ticks:
            y = self.y(value)
            yield f'<path d="M{self._left} {y:.1f}h{self.WIDTH}" stroke="#ddd"/>'
            yield (
                f'<text x="{self._left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
            )
        for percent in range(0, self._most + 1, 10):
            x = self.x(percent)
            yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{percent} %</text>'
        yield (
            f'<text x="{middle}" y="{bottom + 38}" text-anchor="middle">near memory, of half '
            f'precision</text><text x="{middle}" y="{self._top - 8}" text-anchor="middle">'
            f"{html.escape(self._title)}</text>"
        )

    def line(self, value, label):
        """A value that has no place on the axis of memory."""
        y = self.y(value)
        self._labels.take(self._left, y - 3, self._left + self.WIDTH, y + 3)
        yield (
            f'<path d="M{self._left} {y:.1f}h{self.WIDTH}" stroke="{OTHERS}" '
            f'stroke-dasharray="5 4"/><text x="{self._left + self.WIDTH - 4}" y="{y - 5:.1f}" '
            f'text-anchor="end" fill="{OTHERS}" font-size="10">{html.escape(label)}</text>'
        )

    def points(self, series):
        """series: (label, colour, mark, [(percent, value, low, high)]) each, whose points are
        joined."""
        for _, colour, mark, points in series:
            at = [(self.x(p), self.y(v)) for p, v, _, _ in points]
            if len(at) > 1:
                path = "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
                yield f'<path d="M{path}" stroke="{colour}" fill="none" opacity="0.6"/>'
            for (x, y), (_, _, low, high) in zip(at, points):
                if low is not None:
                    yield (
                        f'<path d="M{x:.1f} {self.y(max(low, self._low)):.1f}V{self.y(high):.1f}" '
                        f'stroke="{colour}" opacity="0.4"/>'
                    )
                yield mark.format(x=x, y=y, colour=colour)
                self._labels.take_point(x, y)
        for label, colour, _, points in series:
            yield self._labels.label(label, colour, self.x(points[-1][0]), self.y(points[-1][1]))


def form(policy):
    """A policy without its share of rows, and this share."""
    name, _, text = policy.partition(":")
    pairs = [p for p in text.split(",") if p]
    rows = [float(p.removeprefix("rows=")) for p in pairs if p.startswith("rows=")]
    others = ",".join(p for p in pairs if not p.startswith("rows="))
    return (f"{name}:{others}" if others else name), (rows or [None])[0]


def joined(rows, value):
    """Series of policies: those that differ in `rows` alone are joined. value(row) gives percent,
    value, low and high."""
    series = {}
    for row in rows:
        series.setdefault(form(row["recipe"])[0], []).append(value(row))
    return [
        (name, COLOURS[i % len(COLOURS)], CIRCLE, sorted(points))
        for i, (name, points) in enumerate(series.items())
    ]


def write(path, policies, rivals, bench):
    """policies, rivals: rows of `cairn fidelity --json` of one suite of documents. bench: a report
    of reading_bench, or None."""
    of_row = lambda row: (row["bits_per_number"] / 0.16, row["kl"], *row["kl_ci"])
    shown = [r for r in policies if r["kl"] > 0] + rivals
    low = 10.0 ** math.floor(math.log10(min(r["kl"] for r in shown)))
    high = 10.0 ** math.ceil(math.log10(max(r["kl_ci"][1] for r in shown)))
    widest = 10 * math.ceil(max(of_row(r)[0] for r in shown) / 10)
    kl = Panel(70, 40, "KL, nats per token; full KV: 0 at 100 %", widest, low, high, log=True)
    out = [
        *kl.axes(),
        *kl.points(
            joined(policies, of_row)
            + [(r["recipe"].removesuffix("+raw"), OTHERS, CROSS, [of_row(r)]) for r in rivals]
        ),
    ]
    width = 70 + Panel.WIDTH + 30
    if bench is not None:
        # Other work of the machine is not in it.
        of_processor = all("processor_ms" in row for row in bench["rows"])
        time = "processor_ms" if of_processor else "step_ms"
        resident, fetched = (1000 / row[time] for row in bench["rows"][:2])
        rates = [
            {"recipe": row["mode"], "point": (100 * row["near_share"], 1000 / row[time])}
            for row in bench["rows"][2:]
        ]
        most = 5 * math.ceil(1.1 * max([resident] + [r["point"][1] for r in rates]) / 5)
        second = "second of processor time" if of_processor else "second"
        title = f"decode steps a {second} after {bench['tokens']} tokens"
        widest = 10 * math.ceil(max(r["point"][0] for r in rates) / 10)
        speed = Panel(70 + width, 40, title, widest, 0, most, log=False)
        point = lambda row: (*row["point"], None, None)
        out += [
            *speed.axes(),
            *speed.line(resident, "full KV resident"),
            *speed.line(fetched, "full KV fetched at each step"),
            *speed.points(
                joined([r for r in rates if r["recipe"] != "fifth-resident"], point)
                + [
                    ("a fifth kept, as by a selection", OTHERS, CROSS, [point(r)])
                    for r in rates
                    if r["recipe"] == "fifth-resident"
                ]
            ),
        ]
        width *= 2
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="480" '
            'font-family="sans-serif" font-size="12">\n'
            '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(out) + "\n</svg>\n"
        )
