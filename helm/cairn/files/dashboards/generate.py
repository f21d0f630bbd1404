#!/usr/bin/env python3
"""Writes the Grafana dashboards, cairn-*.json. Run it after a change here; a test compares.

python3 helm/cairn/files/dashboards/generate.py
"""

import json
import pathlib

import cluster
import node
import overview
import router
import security
import workers
from panels import SOURCE, laid_out
from queries import BUILD, WHERE, chosen

TABLES = [overview, node, cluster, workers, router, security]
# The engines' own metrics have the job and the pod of their engine.
ALL = '{__name__=~"cairn_build_info|cairn_vllm_lookups_total"'


def variable(name, *earlier, all_value):
    """A label's values, among the series that the variables before it leave."""
    chosen_before = "".join(f',{label}=~"${label}"' for label in earlier)
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": f"label_values({ALL}{chosen_before}}}, {name})",
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "multi": True,
        "allValue": all_value,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def source_variable():
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }


def restarts():
    """Starts of processes, each at its own time, also those of new pods."""
    return {
        "name": "Starts",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "purple",
        "expr": chosen(f"1000 * process_start_time_seconds {BUILD}"),
        "useValueForTime": True,
        "titleFormat": "Start",
        "textFormat": f"{WHERE} {{{{version}}}}",
        "tagKeys": "",
        "step": "60s",
    }


def links():
    """To the other dashboards, with what is chosen here."""
    return {
        "title": "Cairn",
        "type": "dashboards",
        "tags": ["cairn"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


def dashboard(table):
    return {
        "uid": table.UID,
        "title": f"Cairn / {table.TITLE}",
        "description": table.__doc__,
        "tags": ["cairn"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "links": [links()],
        "annotations": {"list": [restarts()]},
        "templating": {
            "list": [
                source_variable(),
                variable("namespace", all_value=".*"),
                variable("job", "namespace", all_value=".+"),
                variable("pod", "namespace", "job", all_value=".*"),
                variable("instance", "namespace", "job", "pod", all_value=".+"),
            ]
        },
        "panels": laid_out(table.ROWS),
    }


def files():
    """Text of each file, by its name."""
    return {f"{table.UID}.json": json.dumps(dashboard(table), indent=1) + "\n" for table in TABLES}


if __name__ == "__main__":
    for name, text in files().items():
        pathlib.Path(__file__).with_name(name).write_text(text, encoding="utf-8")
