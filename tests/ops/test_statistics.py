"""The tables that declare the statistics of nodes, clients and workers, and what people and type
checkers read of them: the rows of docs/operate/metrics.md and metrics-worker.md, and the fields of
Python's types. Compilers hold everything else."""

import ast
import re

import pytest

from conftest import ROOT

SEEN_BY_CLIENTS = "common/include/cairn/common/kv/node_statistics.h"
OF_CLIENTS = "clients/cpp/include/cairn/client/client_stats.h"
ONLY_METRICS = "services/cache/store/state/engine_statistics.h"
OF_WORKERS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "services/worker").rglob("*.h"))
# Where people read about the metrics, and where the program has the help texts that rows share.
PAGES = {
    "node": ("docs/operate/metrics.md", "services/cache/serve/node/engine_metrics.cc"),
    "worker": ("docs/operate/metrics-worker.md", "services/worker/rpc/worker_metrics.cc"),
}
TABLE = re.compile(r"#define CAIRN_(\w+_STATISTICS)\(ROW\)((?:.*\\\n)+.*)")
ROW = re.compile(r'ROW\((\w+), (\w+), "(.*?)", "(.*?)",\s*((?:"[^"]*"\s*)+)\)')


class Row:
    def __init__(self, program, table, kind, name, metric, labels, help_text):
        self.program, self.name, self.metric = program, name, metric
        self.type = "gauge" if kind in ("kNow", "kRate") else "counter"
        self.python_type = "float" if kind in ("kRate", "kCountedSeconds") else "int"
        self.help = "".join(re.findall(r'"([^"]*)"', help_text))
        self.labels = dict(pair.split("=") for pair in labels.split(",") if pair)
        self.of_tier = table.endswith("TIER_STATISTICS")
        self.shared = bool(self.labels)

    def __repr__(self):
        return self.name


def tables():
    """The rows of each table, by its name."""
    found = {}
    for header in (SEEN_BY_CLIENTS, ONLY_METRICS, *OF_WORKERS):
        program = "worker" if header in OF_WORKERS else "node"
        for name, text in TABLE.findall((ROOT / header).read_text(encoding="utf-8")):
            lines = re.sub(r"\s*\\\n\s*", " ", text)
            found[name] = [Row(program, name, *row) for row in ROW.findall(lines)]
            assert len(found[name]) == lines.count("ROW("), f"{name}: a row that is not understood"
    return found


TABLES = tables()
METRICS = [row for rows in TABLES.values() for row in rows if row.metric]


def documented(program):
    """(type, labels, meaning) by the name of the metric, as its page has them, without links."""
    text = (ROOT / PAGES[program][0]).read_text(encoding="utf-8")
    text = re.sub(r" \(\[[^]]*\]\([^)]*\)\)", "", text)
    rows = re.findall(r"^\| `(cairn_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", text, flags=re.M)
    return {name: rest for name, *rest in rows}


def shared_help(program):
    """The help text of metrics that several rows share."""
    source = (ROOT / PAGES[program][1]).read_text(encoding="utf-8")
    table = re.search(r"kSharedMetrics\[\] = \{(.*?)\n\};", source, flags=re.S)[1]
    return {
        metric: "".join(re.findall(r'"([^"]*)"', text))
        for metric, text in re.findall(r'\{"(\w+)",\s*((?:"[^"]*"\s*)+)\}', table)
    }


def fields_of(name):
    """The annotated fields of a class in Python's types, in order: (name, type)."""
    tree = ast.parse((ROOT / "clients/python/cairn/types.py").read_text(encoding="utf-8"))
    found = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    return [
        (line.target.id, ast.unparse(line.annotation))
        for line in found.body
        if isinstance(line, ast.AnnAssign)
    ]


def test_each_table_is_read():
    assert set(TABLES) == {
        "NODE_STATISTICS",
        "TIER_STATISTICS",
        "ENGINE_STATISTICS",
        "ENGINE_TIER_STATISTICS",
        "WORKER_STATISTICS",
        "READ_STATISTICS",
        "PUSH_STATISTICS",
        "SPILL_STATISTICS",
        "SPILL_READ_STATISTICS",
    }
    assert sum(len(rows) for rows in TABLES.values()) > 40


def test_no_two_rows_have_the_same_name_or_series():
    for of in ("STATISTICS", "TIER_STATISTICS"):
        seen = TABLES["NODE_STATISTICS" if of == "STATISTICS" else of]
        names = [row.name for row in seen + TABLES[f"ENGINE_{of}"]]
        assert len(names) == len(set(names))
    series = [(row.metric, tuple(sorted(row.labels.items()))) for row in METRICS]
    assert len(series) == len(set(series))


@pytest.mark.parametrize("row", METRICS, ids=repr)
def test_each_metric_is_documented(row):
    page, _ = PAGES[row.program]
    pages = documented(row.program)
    help_text = shared_help(row.program)[row.metric] if row.shared else row.help
    labels = "`tier` (device, disk, host)" if row.of_tier else "-"
    line = f"| `{row.metric}` | {row.type} | {labels} | {help_text} |"
    assert row.metric in pages, f"{page} lacks the row:\n{line}"
    kind, shown, meaning = pages[row.metric]
    assert kind == row.type
    assert meaning.replace("`", "") == help_text, f"{page} expects:\n{line}"
    if row.shared:
        for label, value in row.labels.items():
            assert re.search(rf"`{label}` \([^)]*\b{value}\b[^)]*\)", shown), f"{label}: {value}"
    else:
        assert shown == labels


def test_node_stats_of_python_has_each_row():
    rows = [(row.name, row.python_type) for row in TABLES["NODE_STATISTICS"]]
    others = {
        ("node_id", "str"),
        ("node_epoch", "int"),
        ("version", "str"),
        ("uptime_seconds", "float"),
        ("disk_io_mode", "str"),
        ("draining", "bool"),
        ("tiers", "Sequence[TierStat]"),
        ("misses", "Mapping[MissReason, int]"),
    }
    assert set(fields_of("NodeStats")) == set(rows) | others


def test_tier_stat_of_python_has_each_row():
    rows = [(row.name, row.python_type) for row in TABLES["TIER_STATISTICS"]]
    assert fields_of("TierStat") == [("tier", "TierKind"), *rows]


def test_client_stats_of_python_has_each_total():
    text = (ROOT / OF_CLIENTS).read_text(encoding="utf-8")
    tables = re.findall(r"#define CAIRN_CLIENT_(?:COUNTED|GATHERED)\(ROW\)((?:.*\\\n)+.*)", text)
    totals = {(name, "int") for table in tables for name in re.findall(r"ROW\((\w+),", table)}
    assert len(tables) == 2 and len(totals) > 10
    others = {
        ("fetched_bytes", "int"),
        ("connected", "bool"),
        ("breaker", "str"),
        ("home", "str"),
        ("home_node_id", "str"),
        ("path", "str"),
        ("path_reason", "str"),
    }
    assert set(fields_of("ClientStats")) == totals | others
