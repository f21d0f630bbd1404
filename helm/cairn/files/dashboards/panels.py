"""The kinds of panels, and their places."""

from queries import buckets, chosen

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24


def panel(kind, title, unit, description, queries, height=8, **more):
    fields = {"unit": unit, **more.pop("fields", {})}
    how = more.pop("how", {})
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": {"h": height},
        "fieldConfig": {"defaults": fields, "overrides": more.pop("overrides", [])},
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": SOURCE,
                "expr": chosen(query),
                "legendFormat": legend,
                **how,
            }
            for i, (legend, query) in enumerate(queries)
        ],
        **more,
    }


def lines(title, unit, description, *queries):
    return panel(
        "timeseries",
        title,
        unit,
        description,
        queries,
        fields={"min": 0, "custom": {"fillOpacity": 10, "lineWidth": 1}},
        options={
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": [],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


def heat(title, description, histogram, unit="s", of=""):
    """How a histogram's observations are distributed, over time."""
    return panel(
        "heatmap",
        title,
        unit,
        description,
        [buckets(histogram, of)],
        how={"format": "heatmap"},
        options={
            "calculate": False,
            "cellGap": 1,
            # Grafana has each bucket's upper bound as its name.
            "rowsFrame": {"layout": "le"},
            "filterValues": {"le": 1e-9},
            "color": {
                "mode": "scheme",
                "scheme": "Oranges",
                "fill": "dark-orange",
                "exponent": 0.5,
                "steps": 64,
                "reverse": False,
            },
            "yAxis": {"axisPlacement": "left", "unit": unit},
            "legend": {"show": True},
            "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        },
    )


def above(warning, critical):
    """Thresholds of a number that ought to be small."""
    return [(None, "green"), (warning, "orange"), (critical, "red")]


def below(warning, critical):
    """Thresholds of a number that ought to be large."""
    return [(None, "red"), (critical, "orange"), (warning, "green")]


NONE_ALLOWED = [(None, "green"), (1, "red")]
NEEDED = [(None, "red"), (1, "green")]
# There is no value of which one could say that it is bad.
ANY = [(None, "blue")]


def stat(title, unit, description, query, steps, more=None):
    """One number. `more`: uid of the dashboard that explains it."""
    link = {
        "title": "More",
        "type": "link",
        "url": f"/d/{more}?${{__url_time_range}}&${{__all_variables}}",
        "icon": "dashboard",
        "tooltip": "",
        "tags": [],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": False,
        "keepTime": False,
    }
    return panel(
        "stat",
        title,
        unit,
        description,
        [query],
        height=4,
        fields={
            "color": {"mode": "thresholds"},
            "thresholds": {
                "mode": "absolute",
                "steps": [{"value": value, "color": colour} for value, colour in steps],
            },
        },
        options={
            "colorMode": "background",
            "graphMode": "area",
            "justifyMode": "auto",
            "textMode": "value",
            "orientation": "auto",
            "wideLayout": True,
            "showPercentChange": False,
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
        links=[link] if more else [],
    )


def table(title, description, *columns):
    """The newest values, a line for each set of labels. `columns`: (name, unit, query)."""
    names = {f"Value #{chr(ord('A') + i)}": name for i, (name, _, _) in enumerate(columns)}
    return panel(
        "table",
        title,
        "none",
        description,
        [("", query) for _, _, query in columns],
        how={"format": "table", "instant": True, "range": False},
        overrides=[
            {
                "matcher": {"id": "byName", "options": name},
                "properties": [{"id": "unit", "value": unit}],
            }
            for name, unit, _ in columns
        ],
        options={"showHeader": True, "frameIndex": 0, "cellHeight": "sm"},
        transformations=[
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}},
        ],
    )


def width(one, row):
    if one["type"] == "stat":
        return WIDTH // sum(p["type"] == "stat" for p in row)
    others = sum(1 + (p["type"] == "table") for p in row if p["type"] != "stat")
    narrow = WIDTH // others if others <= 4 else 8 if others % 3 == 0 else 6
    return narrow * (1 + (one["type"] == "table"))


def laid_out(rows):
    """All panels of a dashboard, with ids and places. `rows`: [(title, panels)]."""
    panels, y = [], 0
    for title, row in rows:
        head = {"type": "row", "title": title, "collapsed": False, "panels": []}
        panels.append({**head, "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y}})
        x, y, height = 0, y + 1, 0
        for one in row:
            w = width(one, row)
            if x + w > WIDTH:
                x, y = 0, y + height
            height = one["gridPos"]["h"]
            panels.append({**one, "gridPos": {"h": height, "w": w, "x": x, "y": y}})
            x += w
        y += height
    return [{"id": number, **one} for number, one in enumerate(panels, 1)]
