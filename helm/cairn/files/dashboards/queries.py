"""Queries, as (legend, PromQL). The tables name metrics alone: `chosen` limits each of them to the
pods that the reader has chosen, and writes [R] as Grafana's interval for rates."""

import re

# Series have no namespace and no pod outside Kubernetes, which .* matches.
CHOSEN = 'namespace=~"$namespace",job=~"$job",pod=~"$pod",instance=~"$instance"'
# One pod may have two instances: a worker next to its node.
WHERE = "{{pod}} {{instance}}"
# Metrics that every program has, limited to one kind of program by a metric that only that has.
NODE = "and on (job, instance) cairn_index_entries"
WORKER = "and on (job, instance) cairn_worker_queued_requests"
ROUTER = "and on (job, instance) cairn_router_active_requests"
CAIRN = "and on (job, instance) cairn_build_info"
# Adds the build's labels to such a metric.
BUILD = "* on (job, instance) group_left (version, revision, io_backend) cairn_build_info"

METRIC = re.compile(r"\b(cairn_\w+|process_\w+|up)\b(?:\{([^}]*)\})?")


def chosen(query):
    limited = METRIC.sub(
        lambda found: f"{found[1]}{{{CHOSEN}{',' + found[2] if found[2] else ''}}}", query
    )
    return limited.replace("[R]", "[$__rate_interval]")


def limited(query, of):
    """To the kind of program `of`."""
    return f"{query} {of}" if of else query


def summed(query, by, legend):
    labels = " ".join(f"{{{{{label}}}}}" for label in by)
    return legend or labels, f"sum by ({', '.join(by)}) ({query})" if by else f"sum({query})"


def per_second(counter, *by, legend=None, of=""):
    return summed(limited(f"rate({counter}[R])", of), by, legend)


def total(gauge, *by, legend=None):
    return summed(gauge, by, legend)


def each(query, legend=WHERE):
    """As it is."""
    return legend, query


def last_hour(*counters, legend="total"):
    """How many there were, as one number."""
    return legend, " + ".join(
        f"(sum(increase({counter}[1h])) or vector(0))" for counter in counters
    )


def count(condition):
    """The number of series, 0 if there are none."""
    return "count", f"count({condition}) or vector(0)"


def share(part, whole, *by, legend=None):
    """One counter's share of another."""
    name, above = per_second(part, *by, legend=legend)
    return name, f"{above} / {per_second(whole, *by)[1]}"


def quantile(q, histogram, *by, of="", legend=None):
    _, buckets = summed(limited(f"rate({histogram}_bucket[R])", of), ("le", *by), "")
    return legend or f"p{100 * q:g}", f"histogram_quantile({q:g}, {buckets})"


def buckets(histogram, of=""):
    """For a heatmap."""
    return summed(limited(f"increase({histogram}_bucket[R])", of), ("le",), None)
