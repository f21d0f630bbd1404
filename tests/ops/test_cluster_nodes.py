"""Cache nodes as pods: they grow from one, meet with TLS, and keep their disks."""

from cairn_cluster import PLAINTEXT, make_certificate, secret
from rendered_chart import find

TLS = {"tls": {"existingSecret": "cairn-tls"}}
NAMES = [f"test-{role}.kv.svc" for role in ("cache", "worker", "router")]
PROMPT = 832  # Tokens of the prompt that are in full blocks.
POD_0 = "test-cache-0.test-cache-peers.kv.svc:7400"


def nodes(count):
    return {"cache": {"replicas": count}}


def as_a_release_before(docs):
    """A node that was alone chose its own name."""
    command = find(docs, "StatefulSet", "test-cache")["spec"]["template"]["spec"]["containers"][0]
    command["command"].remove("--node.id=$(POD_NAME)")
    return docs


def test_one_node_becomes_a_cluster_and_keeps_its_blocks(release):
    release.apply(PLAINTEXT, change=as_a_release_before)
    release.cluster.wait_settled()
    fetched, first = release.generate(POD_0)
    assert fetched == 0
    done, said = release.test()
    assert done, said
    for count in [3, 5, 3]:
        release.upgrade(PLAINTEXT, nodes(count))
        release.wait_whole(POD_0)
        assert len([p for p in release.cluster.pods() if p.owner]) == count
        # Blocks of before are where they were.
        assert release.generate(POD_0) == (PROMPT, first)
        done, said = release.test()
        assert done, said
    claims = [name for name in release.cluster.claims.names() if name != "models"]
    assert claims == [f"data-test-cache-{i}" for i in range(3)]
    assert release.cluster.notes == []


def test_members_meet_with_the_names_that_the_page_asks_for(release, tmp_path):
    certificate = make_certificate(tmp_path / "tls", NAMES)
    release.cluster.add(secret("cairn-tls", certificate))
    release.upgrade(TLS, nodes(3))
    release.wait_whole(POD_0)
    done, said = release.test()
    assert done, said


def test_a_missing_name_is_in_the_log(release, tmp_path):
    certificate = make_certificate(tmp_path / "tls", ["test-worker.kv.svc"])
    release.cluster.add(secret("cairn-tls", certificate))
    release.upgrade(TLS, nodes(2))
    log = release.cluster.pod("test-cache-0").container("cache").log

    def said():
        lines = [line for line in log.read_text().splitlines() if '"no_member"' in line]
        return any("the certificate there has not the name 'test-cache.kv.svc'" in n for n in lines)

    release.cluster.wait(said, "a line that says why there is no member")
    done, said = release.test()
    assert not done and "UNAVAILABLE" in said


def test_a_lone_node_comes_back_with_its_blocks(release):
    release.upgrade(PLAINTEXT)
    _, first = release.generate(POD_0)
    pod = release.cluster.pod("test-cache-0")
    pod.delete()
    pod.ended.wait(60)
    assert pod.container("cache").exit_code == 0
    release.cluster.wait_settled()
    assert release.generate(POD_0) == (PROMPT, first)
