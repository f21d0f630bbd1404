"""Many chats at once in one worker, each next to its yardstick of the same trial: one at a time,
different prefixes, tokens that must be computed, an engine for one request. And products of many
decode rows, compared with one row. `batch_bench` and `linear_bench` do the work."""

import json
import statistics
import subprocess

from . import row

NAMES = ["batch_chats_16", "batch_common_prefix", "batch_shared_prompts", "batch_alone"] + [
    "batch_products_16",
    "batch_attention_shared",
]


def run(build, model, repeat, work):
    del work

    def trials(case, count):
        return _lines(build, ["batch_bench", model, case, str(count)], timeout=1800)

    def ratio(samples):
        return statistics.median(s["ratio"] for s in samples)

    def speed_row(name, case, measured, yardstick, what, floor, goal):
        samples = trials(case, repeat)
        beside = statistics.median(s[yardstick] for s in samples)
        return row(
            name,
            [s[measured] for s in samples],
            "tok/s",
            f"{what} {beside:.1f} tok/s",
            ratio(samples),
            floor,
            goal,
        )

    rows = [
        speed_row(
            "batch_chats_16",
            "chats",
            "all_tokens_per_second",
            "one_tokens_per_second",
            "one at a time",
            2.2,
            3,
        ),
        speed_row(
            "batch_common_prefix",
            "prefix",
            "common_tokens_per_second",
            "different_tokens_per_second",
            "different prefixes",
            1.5,
            2,
        ),
        speed_row(
            "batch_alone",
            "alone",
            "many_tokens_per_second",
            "one_tokens_per_second",
            "an engine for one",
            0.95,
            1,
        ),
    ]
    counts = trials("prompts", 3)
    rows.append(
        row(
            "batch_shared_prompts",
            [c["computed_tokens"] for c in counts],
            "tokens",
            f"needed {counts[0]['needed_tokens']}",
            ratio(counts),
            1 / 1.05,
            1,
        )
    )
    return rows + [_products(build), _attention(build)]


def _lines(build, command, timeout):
    program, *arguments = command
    done = subprocess.run(
        [str(build / "benchmarks" / program), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _micro(build, program):
    return _lines(build, [program, "--json"], timeout=600)


def _products(build):
    measured = {
        m["rows"]: m for m in _micro(build, "linear_bench") if m["arithmetic"] == "integers"
    }
    many, one = measured[16], measured[1]
    return row(
        "batch_products_16",
        [16 / many["ms"] * 1e3],
        "tok/s",
        f"one row {1e3 / one['ms']:.0f} tok/s",
        many["tokens_to_one"],
        2.4,
        3,
    )


def _attention(build):
    shared = next(m for m in _micro(build, "attention_bench") if m["case"] == "shared")
    return row(
        "batch_attention_shared",
        [shared["ms"]],
        "ms",
        "each row alone",
        shared["times_faster_than_alone"],
        1,
        None,
    )
