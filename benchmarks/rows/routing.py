"""A router's policies in simulated time, next to rules of others (benchmarks/model)."""

from .programs import measure, model_rows

SCENARIOS = "routing,replicas,shedding,unequal"
# Next to the best of our other policies and of SGLang's, Dynamo's and llm-d's rules.
BEST, RULES = "best of the others", "best of the three rules"
LOADS = ["0.50", "0.84", "1.00", "1.17", "1.34"]
# The yardstick, floor and goal of each row. Ratios are "more is better".
ROWS = {
    **{f"routing_{p}_{load}": (BEST, 0.95, 1.0) for load in LOADS for p in ("p50", "p90", "p99")},
    **{f"routing_mean_{load}": (RULES, 1.25, 1.5) for load in LOADS[1:]},
    "routing_round_robin_p50_0.84": ("round robin", 3, 4),
    "routing_round_robin_p99_0.84": ("round robin", 2, 2.4),
    "replicas_p50_0.84_0.1s": ("one router", 1 / 1.1, 1 / 1.05),
    "replicas_p50_1.17_0.1s": ("one router", 1 / 1.1, 1 / 1.05),
    "replicas_p50_0.84_1.0s": ("one router, reports each second", None, None),
    "replicas_p50_1.17_1.0s": ("one router, reports each second", None, None),
    "shedding_p99": ("at saturation", 1 / 1.5, 1 / 1.25),
    "shedding_tokens_per_second": ("at saturation", 0.95, 1.0),
    "unequal_mean_0.84": (BEST, 1.0, None),
    "unequal_mean_1.17": (BEST, 1.0, None),
}
NAMES = list(ROWS)


def run(build, model, repeat, work):
    results = measure([build / "benchmarks/scheduling_model", "--only", SCENARIOS], work)
    return model_rows(results["rows"], ROWS)
