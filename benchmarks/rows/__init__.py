"""Groups of benchmark rows. Each module has NAMES, the rows that it must yield, and run(build,
model, repeat, work) -> rows. One that needs more than the build has missing() -> what is not
installed and how to get it, empty when it can run."""

import statistics


def row(name, samples, unit, yardstick, ratio, floor, goal):
    """One row of the report. spread = (max - min) / median of the samples; ratio: more is better;
    floor, goal: of the ratio."""
    median = statistics.median(samples)
    spread = (max(samples) - min(samples)) / median if median else 0.0
    return {
        "name": name,
        "median": median,
        "unit": unit,
        "n": len(samples),
        "spread": spread,
        "yardstick": yardstick,
        "ratio": ratio,
        "floor": floor,
        "goal": goal,
    }
