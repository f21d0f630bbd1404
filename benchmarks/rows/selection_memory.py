"""The part of a prompt's memory that a selection leaves: in the node, and in the worker while it
decodes and at the prefill's peak.

Counts, not times: they do not depend on how busy the machine is. Yardstick: keep=1, or for the
worker's memory no selection. That is measured without a node, whose memory would count as the
worker's where it is shared.
"""

import pathlib
import subprocess

from . import row
from .processes import Server, cairn, node_command, wait_until, worker_command

KEEP = 0.25
METHODS = ["snapkv", "ada-snapkv", "h2o", "layer-defensive"]
NAMES = [
    "node_bytes_keep25",
    "worker_pages_keep25",
    "worker_rss_keep25",
    *(f"prefill_peak_{name.replace('-', '_')}" for name in METHODS),
]
TEXTS = pathlib.Path(__file__).resolve().parents[2] / "examples/demo"
BLOCK = 64
DECODED = 5 * BLOCK  # Tokens: long enough to look at the worker meanwhile.
PUSHED_BLOCKS = 'cairn_worker_pushed_blocks_total{result="stored"}'
USED_PAGES = 'cairn_worker_kv_pages{state="used"}'


def run(build, model, repeat, work):
    del repeat  # Nothing here is drawn or timed.
    log = work / "selection-memory.log"
    prompt = work / "selection-memory-prompt.txt"
    prompt.write_text(
        "\n".join(
            (TEXTS / f"opticks-{name}.txt").read_text(encoding="utf-8")
            for name in ("definitions", "queries", "definitions")
        )
    )
    with Server(worker_command(build, model), log) as worker:
        tokens = cairn(
            build,
            "generate",
            "--worker",
            worker.grpc,
            "--raw",
            "--prompt-file",
            prompt,
            "--max-tokens",
            1,
        )["prompt_tokens"]
    print(f"  {tokens} tokens of prompt", flush=True)
    whole, kept = (
        _with_node(build, model, prompt, tokens, f"snapkv:keep={keep}+raw", log)
        for keep in (1, KEEP)
    )
    alone = {
        name: _alone(
            build, model, prompt, tokens, "raw" if name == "raw" else f"{name}:keep={KEEP}+raw", log
        )
        for name in ["raw", *METHODS]
    }

    def follows(name, what, unit):
        return row(
            name,
            [kept[what]],
            unit,
            f"{KEEP} of {whole[what]:.4g}",
            KEEP * whole[what] / kept[what],
            0.95,
            1.0,
        )

    saved = (1 - KEEP) * tokens * 23040 / 2**20
    fell = alone["raw"]["rss"] - alone["snapkv"]["rss"]
    rows = [
        follows(NAMES[0], "node", "MiB"),
        follows(NAMES[1], "pages", "pages"),
        row(
            NAMES[2],
            [alone["snapkv"]["rss"]],
            "MiB",
            f"raw {alone['raw']['rss']:.1f} less {saved:.1f}",
            fell / saved,
            0.8,
            1.0,
        ),
    ]
    for name, method in zip(NAMES[3:], METHODS):
        raw, peak = alone["raw"]["peak"], alone[method]["peak"]
        # A window of queries and a layer's scores, some 8 MiB, are there in addition to the whole
        # KV.
        rows.append(row(name, [peak], "MiB", f"raw {raw:.1f}", raw / peak, 1 / 1.05, 1.0))
    return rows


class Decoding:
    """A request under way whose first token has come; the prompt's whole blocks are the shared
    part."""

    def __init__(self, build, worker, prompt, tokens):
        self._process = subprocess.Popen(
            [
                str(build / "bin/cairn"),
                "generate",
                "--worker",
                worker.grpc,
                "--raw",
                "--prompt-file",
                str(prompt),
                "--ignore-eos",
                "--max-tokens",
                str(DECODED),
                "--prefix-end",
                str(tokens // BLOCK * BLOCK),
            ],
            stdout=subprocess.PIPE,
        )
        self._process.stdout.read(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        ended = self._process.poll() is not None
        self._process.kill()
        self._process.wait()
        if ended:
            raise RuntimeError("decoding ended before the worker was looked at")


def _with_node(build, model, prompt, tokens, recipe, log):
    """MiB at the node, and pages of the prompt: without those that are reserved for what is
    decoded."""
    with Server(node_command(build, "--host.capacity", "1GiB"), log) as node:
        with Server(
            worker_command(build, model, "--cache", node.grpc, "--cache.recipe", recipe), log
        ) as worker:
            wait_until(
                lambda: worker.metric("cairn_worker_cache_connected") == 1, 60, "worker connects"
            )
            with Decoding(build, worker, prompt, tokens):
                wait_until(
                    lambda: worker.metric(PUSHED_BLOCKS) == tokens // BLOCK,
                    60,
                    "the prompt is pushed",
                )
                behind = -(-(tokens % BLOCK + DECODED) // BLOCK)
                return {
                    "node": node.metric("cairn_tier_used_bytes") / 2**20,
                    "pages": worker.metric(USED_PAGES) - behind,
                }


def _alone(build, model, prompt, tokens, recipe, log):
    """MiB of the worker."""
    with Server(worker_command(build, model, "--cache.recipe", recipe), log) as worker:
        with Decoding(build, worker, prompt, tokens):
            return {"rss": _status(worker, "VmRSS"), "peak": _status(worker, "VmHWM")}


def _status(server, field):
    """MiB, of /proc/PID/status."""
    text = pathlib.Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
    return (
        next(int(line.split()[1]) for line in text.splitlines() if line.startswith(field + ":"))
        / 1024
    )
