"""tests/gpu/run.sh: its table appears whatever steps do, and when it is told to stop. Programs here
are stand-ins; the real ones run on the fake device as ctest's gpu_on_fake."""

import contextlib
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import pytest
from conftest import ROOT

RUN = ROOT / "tests" / "gpu" / "run.sh"


class Stand:
    """A folder of programs in which cairn_gpu_probe is a script: what it does for each probe."""

    def __init__(self, folder):
        self.folder = folder
        self.probes = {"device": "echo 'Stand-in, no GPU'"}
        (folder / "bin").mkdir()
        (folder / "tests").mkdir()

    def program(self, name, script):
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def start(self, *arguments):
        cases = "\n".join(f"{name}) {does} ;;" for name, does in self.probes.items())
        self.program("cairn_gpu_probe", f"case $1 in\n{cases}\n*) exit 1 ;;\nesac")
        return subprocess.Popen(
            [RUN, "--build", self.folder, "--logs", self.folder / "logs", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(self.folder)},
        )

    def run(self, *arguments):
        process = self.start(*arguments)
        out, _ = process.communicate(timeout=300)
        return process.returncode, out

    def wait_for(self, path):
        deadline = time.monotonic() + 120
        while not (self.folder / path).exists():
            assert time.monotonic() < deadline, f"{path} did not appear"
            time.sleep(0.02)


def runs(pid):
    """Whether a process is there and was not killed: its parent may not have asked for it yet."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def stand(tmp_path):
    return Stand(tmp_path)


def test_a_step_that_fails_stops_no_other_and_is_in_the_table(stand):
    stand.probes["limits"] = "echo 'it broke' >&2; exit 1"
    stand.probes |= {"chunks": "true", "neighbour": "true"}
    code, out = stand.run("--steps", "limits,chunks")
    assert code == 1
    table = out[out.index("On Stand-in") :]
    assert "limits       failed" in table and "it broke" in table
    assert "chunks       ok" in table
    assert "1 steps ok, 1 failed, 0 skipped" in table


def test_a_step_that_hangs_is_ended_with_all_that_it_started(stand):
    stand.probes["limits"] = f"sleep 1000 & echo $! > {stand.folder}/child; sleep 1000"
    # A step needs 5 s; the rest is for what comes before it.
    code, out = stand.run("--steps", "limits,chunks", "--limit", "9")
    assert code == 1
    assert re.search("it took more than [5-9] s", out)
    assert "chunks       skipped" in out and "no time is left of 9 s" in out
    child = int((stand.folder / "child").read_text())
    deadline = time.monotonic() + 120
    while runs(child):
        assert time.monotonic() < deadline, "what the step started is still there"
        time.sleep(0.02)


@pytest.mark.parametrize("sent, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_table_appears_after_a_kill_with_what_was_measured(stand, sent, code):
    row = r"printf 'row\t900\ta first rate\t12.5\tGB/s\t-\t-\t\n'"
    stand.probes["limits"] = f"{row}; touch {stand.folder}/printed; sleep 1000"
    process = stand.start("--steps", "limits,chunks", "--json", str(stand.folder / "out.json"))
    stand.wait_for("printed")
    process.send_signal(sent)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == code
    assert "a first rate" in out and "12.5 GB/s" in out
    assert "limits       failed" in out and "told to stop" in out
    written = json.loads((stand.folder / "out.json").read_text())
    assert written["finished"] is False
    assert [row["what"] for row in written["rows"]] == ["a first rate"]


def test_rows_stand_in_the_order_of_rank_and_beside_their_targets(stand):
    def row(rank, what, value, floor, goal):
        return rf"printf 'row\t{rank}\t{what}\t{value}\tratio\t{floor}\t{goal}\t\n'"

    stand.probes["limits"] = "; ".join(
        [
            row(30, "third", 0.5, "0.6", "0.9"),
            row(10, "first", 0.95, "0.6", "0.9"),
            row(20, "second", 0.04, "<=0.05", "<=0.02"),
            r"printf 'skip\t40\tfourth\tno library\n'",
        ]
    )
    code, out = stand.run("--steps", "limits", "--json", str(stand.folder / "out.json"))
    assert code == 0, out
    lines = [line.split() for line in out.splitlines()]
    said = {line[0]: line for line in lines if line and line[0] in ("first", "second", "third")}
    assert list(said) == ["first", "second", "third"]
    assert said["first"][-1] == "goal"
    assert said["second"][-1] == "floor"
    assert said["third"][-1] == "BELOW"
    assert "1 measurements skipped" in out
    written = json.loads((stand.folder / "out.json").read_text())
    assert written["finished"] is True
    assert written["rows"][-1] == {"what": "fourth", "skipped": "no library"}


@contextlib.contextmanager
def metrics_server(text):
    """The address of a server that answers everything with a text."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


# The output of `cairn generate` for a short prompt, then a cold one, and two warm ones.
ANSWERS = [(0.01, 0, 0), (0.01, 0, 0), (2.0, 0, 0), (0.05, 32704, 10**9), (0.02, 32704, 10**9)]


def stand_for_warm(stand, admin):
    row = r"printf 'row\t900\t{}\t{}\t{}\t-\t-\t\n'"
    stand.probes["limits"] = "; ".join(
        [
            row.format("pinned copies, host to device", 50, "GB/s"),
            row.format("copy in the device, in and out", 2500, "GB/s"),
            # As the step rates.
            row.format("products of a prefill alone, each token", 36.6210938, "us"),
            row.format("scores and budgets of ada-snapkv, all layers", 30, "ms"),
        ]
    )
    stand.program("cairn_seeded_model", 'touch "$2"; echo text >"$3"')
    for name in ("cairn-cache", "cairn-worker"):
        stand.program(name, f"echo ready grpc=127.0.0.1:1 admin={admin}; sleep 1000")
    for i, (ttft, fetched, size) in enumerate(ANSWERS):
        (stand.folder / f"answer{i}").write_text(
            json.dumps(
                {
                    "fetched_tokens": fetched,
                    "ttft_s": ttft,
                    "fetched_bytes": {"host": size // 4, "device": size - size // 4},
                },
                separators=(",", ":"),
            )
        )
    counter = stand.folder / "asked"
    counter.write_text("0")
    stand.program(
        "cairn",
        f"""if [ "$1" = stat ]; then echo '{{"device": {{"blocks": 511}}}}'; exit; fi
n=$(cat {counter}); echo $((n + 1)) >{counter}; cat {stand.folder}/answer$n""",
    )


def test_warm_requests_are_compared_with_what_earlier_steps_measured(stand):
    with metrics_server("cairn_local_chunks_total 1\n") as admin:
        stand_for_warm(stand, admin)
        code, out = stand.run(
            "--steps", "limits,warm", "--json", str(stand.folder / "out.json"), "--limit", "50"
        )
    assert code == 0, out
    rows = {row["what"]: row for row in json.loads((stand.folder / "out.json").read_text())["rows"]}

    def value(what):
        return rows[what]["value"]

    over = "over (bytes / copies + a block's time)"
    # 1 GB over 50 GB/s, and 10 ms for the last block.
    assert value(f"TTFT warm, host tier: {over}") == pytest.approx(0.05 / 0.03, rel=1e-3)
    # 1 GB is read and 4.29 GB are written.
    assert value(f"TTFT warm, device tier: {over}") == pytest.approx(
        0.02 / ((1e9 + 32704 * 131072) / 2.5e12 + 0.01), rel=1e-3
    )
    assert value("TTFT warm, host tier: over cold") == pytest.approx(0.025)
    assert value("TTFT warm, device tier: over cold") == pytest.approx(0.01)
    assert value("the worker's prefill: its products alone, of its time") == pytest.approx(0.6)
    assert value("scores and budgets of ada-snapkv: over the worker's prefill") == 0.015


def test_a_worker_that_got_no_chunk_did_not_read_the_device_tier(stand):
    with metrics_server("cairn_local_chunks_total 0\n") as admin:
        stand_for_warm(stand, admin)
        code, out = stand.run("--steps", "warm", "--limit", "50")
    assert code == 1
    assert "the worker got no chunk" in out


def test_without_a_gpu_every_step_is_skipped_with_the_reason(stand):
    stand.probes["device"] = (
        "echo 'device: cuda driver: this machine has no driver' >&2; "
        "echo '2026-11-27T00:00:00Z warning no_device_driver' >&2; exit 3"
    )
    code, out = stand.run()
    assert code == 3
    assert "10 skipped" in out and "0 steps ok, 0 failed" in out
    assert out.count("no GPU: cuda driver: this machine has no driver\n") == 10


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--device", "tpu"], "--device: got 'tpu', expected fake"),
        (["--steps", "limits,x"], "--steps: got 'x'"),
        (["--limit", "soon"], "--limit: got 'soon', expected seconds"),
        (["--json"], "--json needs a value"),
        (["now"], "got 'now'"),
    ],
)
def test_wrong_arguments_are_named(stand, arguments, said):
    code, out = stand.run(*arguments)
    assert code == 2
    assert said in out
