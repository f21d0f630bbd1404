"""The dashboards as they are shipped, and their queries as Prometheus takes them."""

import json
import re

from conftest import ROOT

FOLDER = ROOT / "helm/cairn/files/dashboards"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
# (uid of the dashboard, panel), of all that have queries.
PANELS = [
    (uid, panel)
    for uid, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]
NAMES = [f"{uid}: {panel['title']}" for uid, panel in PANELS]


def concrete(expr, instances=".*"):
    """With everything chosen, or only some instances."""
    expr = expr.replace("$instance", instances).replace("$__rate_interval", "10s")
    return re.sub(r"\$(namespace|job|pod)\b", ".*", expr)
