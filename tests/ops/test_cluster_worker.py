"""A worker in its node's pod: they share memory, and end in order."""

import json

from cairn_cluster import PLAINTEXT, metric, post

BESIDE = {**PLAINTEXT, "worker": {"enabled": True, "besideNode": True}}


def when(container, event):
    """The time of the first line with this event."""
    for line in container.log.read_text(errors="replace").splitlines():
        if line.startswith("{") and json.loads(line)["event"] == event:
            return json.loads(line)["ts"]
    raise AssertionError(f"no {event} in {container.log}")


def answer(release):
    code, output = release.run(
        "sh",
        "-c",
        "seq -s' ' 1 250 | cairn generate --worker=test-worker.kv.svc:7500 --prompt-file=- --raw"
        " --max-tokens=1 --json",
    )
    assert code == 0, output
    return json.loads(output[output.index('{"prompt_tokens') :])


def test_a_router_pairs_the_groups_of_workers(release):
    """Prefill and decode apart: the router knows each group by the workers' own roles."""
    groups = {"prefill": {"config": {"role": "prefill"}}, "decode": {"config": {"role": "decode"}}}
    worker = {"enabled": True, "groups": groups}
    release.upgrade({**PLAINTEXT, "worker": worker, "router": {"enabled": True, "modelId": "m"}})
    (router,) = [p for p in release.cluster.pods() if "router" in p.name]

    def workers(condition):
        return metric(release, router, 7601, "cairn_router_workers", f'condition="{condition}"')

    release.cluster.wait(
        lambda: workers("prefill") == workers("ready") == 1, "one of each role", 20
    )
    body = {"model": "m", "prompt": " ".join(map(str, range(250))), "max_tokens": 2}
    code, text = post(release, "test-router", 8000, "/v1/completions", body)
    assert code == 200, text
    # Whoever computed the prompt, the answer is the decoder's.
    names = {p.name: p for p in release.cluster.pods()}
    done = {
        name: metric(
            release, names[name], 7501, "cairn_worker_requests_total", 'result="completed"'
        )
        for name in ("test-decode-0", "test-prefill-0")
    }
    paired = metric(release, router, 7601, "cairn_router_paired_total")
    assert done == {"test-decode-0": 1, "test-prefill-0": paired}


def test_a_node_outlives_the_worker_of_its_pod(release):
    release.upgrade(BESIDE)
    first = answer(release)
    assert first["fetched_tokens"] == 0
    again = answer(release)
    # Through the memory of both: the pod's containers share a folder, under restricted.
    assert again["fetched_tokens"] == 832 and again["fetch_path"] == "local"
    assert again["text"] == first["text"]
    pod = release.cluster.pod("test-cache-0")
    node, worker = pod.container("cache"), pod.container("worker")
    pod.delete()
    pod.ended.wait(60)
    assert (node.exit_code, worker.exit_code) == (0, 0)
    # The node takes the worker's last blocks: it hears of the end when the worker has ended.
    assert when(node, "draining") >= when(worker, "stopped")
    assert release.cluster.notes == []
    release.cluster.wait_settled()
    assert answer(release)["fetched_tokens"] == 832
