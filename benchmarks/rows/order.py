"""Order and budget of a worker: in simulated time under its policies (benchmarks/model), and in a
real engine."""

from . import row
from .programs import measure, model_rows

# The yardstick, floor and goal of each row of the model. Ratios are "more is better".
MODEL = {
    "order_mean_ttft_load_1.17": ("first in first out", 1.6, 2.0),
    "order_p99_ttft_load_1.17": ("first in first out", 1 / 1.1, 1.0),
    "order_mean_ttft_load_0.84": ("first in first out", None, None),
    "order_mean_ttft_load_1.34": ("first in first out", None, None),
    "overload_p99_ttft": ("at saturation", 1 / 1.5, 1 / 1.25),
    "overload_tokens_per_second": ("at saturation", 0.95, 1.0),
    "flood_p99_ttft": ("alone at half the speed", 1 / 1.5, 1 / 1.2),
}
# The rows of the engine: the key of scheduling_bench, whether less is better, floor and goal of the
# ratio.
ENGINE = {
    "decode_kept": ("alone", False, 0.40, 0.47),
    "prefill_kept": ("alone", False, 0.40, 0.47),
    "gap_over_step_and_block": ("a step and a block", True, 1 / 1.5, 1 / 1.2),
    "parking_over_computing": ("computing it", True, 5, 10),
}
NAMES = list(MODEL) + list(ENGINE)


def run(build, model, repeat, work):
    model_results = measure([build / "benchmarks/scheduling_model"], work)["rows"]
    rows = model_rows([one for one in model_results if one["name"] in MODEL], MODEL)
    engine = [build / "benchmarks/scheduling_bench", "--model", model, "--repeat", str(repeat)]
    results = measure(engine, work)
    for name, (yardstick, less, floor, goal) in ENGINE.items():
        median = results[name]["median"]
        ratio = 1 / median if less else median
        rows.append(row(name, results[name]["samples"], "x", yardstick, ratio, floor, goal))
    return rows
