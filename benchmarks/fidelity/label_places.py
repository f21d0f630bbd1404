"""Names of points in a plot, each at the nearest free place next to its point."""

import html

GLYPH, LINE = 5.6, 12  # The width of a name in letters of 10 pixels.
POINT = 5  # Half of a point's box.


class LabelPlaces:
    """Remembers what is taken. All numbers are pixels of the picture."""

    def __init__(self, left, top, width, height, most_lines):
        """Names stay inside this rectangle, at most this many lines above or below their points."""
        self._left, self._top = left, top
        self._right, self._bottom = left + width, top + height
        self._steps = sorted(range(-most_lines, most_lines + 1), key=abs)
        self._taken = []  # Boxes: left, top, right, bottom.

    def take(self, left, top, right, bottom):
        self._taken.append((left, top, right, bottom))

    def take_point(self, x, y):
        self.take(x - POINT, y - POINT, x + POINT, y + POINT)

    def _is_free(self, box):
        left, top, right, bottom = box
        inside = (
            self._left < left and right < self._right and self._top < top and bottom < self._bottom
        )
        return inside and not any(
            left < other[2] and other[0] < right and top < other[3] and other[1] < bottom
            for other in self._taken
        )

    def label(self, name, colour, x, y):
        """SVG of the name of the point (x, y), with a line to it where that is not close. Where
        nothing is free it lies over something, as far away as can be."""
        width = GLYPH * len(name)
        for step in self._steps:
            for side in (1, -1):
                left, middle = x + 8 if side > 0 else x - 8 - width, y + step * LINE
                box = (left, middle - LINE / 2, left + width, middle + LINE / 2)
                if self._is_free(box):
                    return self._at(box, side, step, name, colour, x, y)
        return self._at(box, side, step, name, colour, x, y)

    def _at(self, box, side, step, name, colour, x, y):
        self._taken.append(box)
        near, middle = box[0] if side > 0 else box[2], (box[1] + box[3]) / 2
        leader = ""
        if abs(step) > 1:
            leader = (
                f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{near:.1f}" y2="{middle:.1f}" '
                f'stroke="{colour}" opacity="0.4"/>'
            )
        return leader + (
            f'<text x="{near:.1f}" y="{middle + 3:.1f}" '
            f'text-anchor="{"start" if side > 0 else "end"}" fill="{colour}" '
            f'font-size="10">{html.escape(name)}</text>'
        )
