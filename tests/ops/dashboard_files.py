"""The dashboards as they are shipped, and their queries as Prometheus takes them."""

import json

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


def concrete(expr, rate_interval="10s"):
    """With everything chosen."""
    for name in ("namespace", "job", "pod", "instance"):
        expr = expr.replace(f"${name}", ".*")
    return expr.replace("$__rate_interval", rate_interval)
