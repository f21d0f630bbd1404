#!/usr/bin/env python3
"""Writes cairn-node.json, the Grafana dashboard of cache nodes, workers and routers. Run it after a
change here; a test compares.

python3 helm/cairn/files/dashboards/generate.py
"""

import json
import pathlib

import node_rows
import router_rows
import worker_rows

# (row title, [(panel title, unit, description, [(legend, PromQL)])])
NAMESPACE = 'namespace=~"$namespace"'
JOB = f'{NAMESPACE},job=~"$job"'
ROWS = node_rows.ROWS + worker_rows.ROWS + router_rows.ROWS


def variable(name, query, multi):
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": query,
        "refresh": 2,
        "includeAll": multi,
        "multi": multi,
        "allValue": ".*" if multi else None,
        "current": {"text": "All", "value": "$__all"} if multi else {},
    }


def dashboard():
    panels, y, number = [], 0, 0
    for title, row in ROWS:
        number += 1
        panels.append(
            {
                "id": number,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
            }
        )
        y += 1
        width = 24 // min(len(row), 4)
        for i, (name, unit, description, targets) in enumerate(row):
            number += 1
            panels.append(
                {
                    "id": number,
                    "type": "timeseries",
                    "title": name,
                    "description": description,
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "gridPos": {"h": 8, "w": width, "x": width * (i % 4), "y": y + 8 * (i // 4)},
                    "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                    "targets": [
                        {"refId": chr(ord("A") + j), "expr": expr, "legendFormat": legend}
                        for j, (legend, expr) in enumerate(targets)
                    ],
                }
            )
        y += 8 * ((len(row) + 3) // 4)
    return {
        "uid": "cairn-node",
        "title": "Cairn / Node",
        "tags": ["cairn"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                variable("namespace", "label_values(cairn_build_info, namespace)", True),
                variable("job", f"label_values(cairn_build_info{{{NAMESPACE}}}, job)", True),
                variable("instance", f"label_values(cairn_build_info{{{JOB}}}, instance)", True),
            ]
        },
        "panels": panels,
    }


def text():
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    pathlib.Path(__file__).with_name("cairn-node.json").write_text(text(), encoding="utf-8")
