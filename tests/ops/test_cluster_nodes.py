"""Cache nodes as pods: they grow from one, meet with TLS, and keep their disks."""

import pytest

from cairn_cluster import PLAINTEXT, Authority, metric, secret, start
from rendered_chart import find

TLS = {"tls": {"existingSecret": "cairn-tls"}}
# The chart's own, which an authority signs.
CERTIFICATES = {"tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}}
NAMES = [f"test-{role}.kv.svc" for role in ("cache", "worker", "router")]
PER_POD = {
    "tls": {
        "certManager": {
            "enabled": True,
            "perPod": True,
            "issuerRef": {"name": "ca"},
            "uriPrefix": "spiffe://kv/cairn",
        }
    }
}
PROMPT = 832  # Tokens of the prompt that are in full blocks.
POD_0 = "test-cache-0.test-cache-peers.kv.svc:7400"


def nodes(count):
    return {"cache": {"replicas": count}}


def as_a_release_before(docs):
    """A node that was alone chose its own name."""
    command = find(docs, "StatefulSet", "test-cache")["spec"]["template"]["spec"]["containers"][0]
    command["command"].remove("--node.id=$(POD_NAME)")
    return docs


def pod_address(number):
    return POD_0.replace("cache-0", f"cache-{number}")


@pytest.mark.parametrize("transport", [PLAINTEXT, CERTIFICATES], ids=["plaintext", "certificates"])
def test_one_node_becomes_a_cluster_and_keeps_its_blocks(release, tmp_path, transport):
    release.authority = Authority(tmp_path / "tls")
    release.apply(transport, change=as_a_release_before)
    release.cluster.wait_settled()
    fetched, first = release.generate(POD_0)
    assert fetched == 0
    done, said = release.test()
    assert done, said
    held = {0: (250, 1, (PROMPT, first))}
    for count in [3, 5, 3]:
        release.upgrade(transport, nodes(count))
        release.wait_whole(POD_0)
        assert len([p for p in release.cluster.pods() if p.owner]) == count
        # Blocks of before are where they were.
        for number, (*prompt, answer) in held.items():
            assert release.generate(pod_address(number), *prompt) == answer
        # The other two that stay get some, too.
        for number, prompt in {1: (200, 400), 2: (200, 700)}.items():
            if number not in held:
                nothing, said = release.generate(pod_address(number), *prompt)
                found, again = release.generate(pod_address(number), *prompt)
                assert nothing == 0 and found > 500 and again == said
                held[number] = (*prompt, (found, said))
        done, said = release.test()
        assert done, said
    claims = [name for name in release.cluster.claims.names() if name != "models"]
    assert claims == [f"data-test-cache-{i}" for i in range(3)]
    assert release.cluster.notes == []


def rule(identity, role, *tenants):
    return {"identity": identity, "role": role, "tenants": list(tenants)}


def test_members_meet_with_a_policy_that_changes_without_a_restart(release, tmp_path):
    release.authority = Authority(tmp_path / "tls")
    release.upgrade(CERTIFICATES, nodes(2), {"auth": {"rules": [rule("cn:a", "reader", "*")]}})
    release.wait_whole(POD_0)
    done, said = release.test()
    assert done, said
    pods = [release.cluster.pod(f"test-cache-{n}") for n in range(2)]

    def known(pod):
        return metric(release, pod, 7401, "cairn_auth_policy_rules")

    before = [known(pod) for pod in pods]
    more = [rule("cn:a", "reader", "*"), rule("cn:b", "writer", "team-*")]
    release.apply(CERTIFICATES, nodes(2), {"auth": {"rules": more}})
    release.cluster.wait(
        lambda: [known(pod) for pod in pods] == [rules + 1 for rules in before], "both know it", 60
    )
    assert [release.cluster.pod(f"test-cache-{n}") for n in range(2)] == pods
    assert all(pod.container("cache").restarts == 0 for pod in pods)
    done, said = release.test()
    assert done, said


def test_members_meet_with_the_names_that_the_page_asks_for(release, tmp_path):
    certificate = Authority(tmp_path / "tls").make(NAMES)
    release.cluster.add(secret("cairn-tls", certificate))
    release.upgrade(TLS, nodes(3))
    release.wait_whole(POD_0)
    done, said = release.test()
    assert done, said


def test_a_missing_name_is_in_the_log(release, tmp_path):
    certificate = Authority(tmp_path / "tls").make(["test-worker.kv.svc"])
    release.cluster.add(secret("cairn-tls", certificate))
    release.upgrade(TLS, nodes(2))
    log = release.cluster.pod("test-cache-0").container("cache").log

    def said():
        lines = [line for line in log.read_text().splitlines() if '"no_member"' in line]
        return any("the certificate there has not the name 'test-cache.kv.svc'" in n for n in lines)

    release.cluster.wait(said, "a line that says why there is no member")
    done, said = release.test()
    assert not done and "UNAVAILABLE" in said


def test_each_pod_is_a_member_by_its_own_certificate(networks, chart, programs, tmp_path):
    """cert-manager's CSI driver makes one for each pod, with its name: no member is another one."""
    authority = Authority(tmp_path / "tls")
    driver = {"csi.cert-manager.io": authority.mount}
    release = start(chart, tmp_path, programs, drivers=driver)
    with release.cluster:
        release.upgrade(PER_POD, nodes(3))
        release.wait_whole(POD_0)
        done, said = release.test()
        assert done, said
        # One whose certificate has the name of another pod is no member.
        stranger = {"csi.cert-manager.io/uri-sans": "spiffe://kv/cairn/test-cache-0"}
        driver["csi.cert-manager.io"] = lambda a, pod: authority.mount({**a, **stranger}, pod)
        pod = release.cluster.pod("test-cache-2")
        pod.delete()
        pod.ended.wait(60)
        release.cluster.wait_settled()
        code, output = release.cairn("stat", "--cluster", f"--cache={POD_0}")
        assert code != 0 and "test-cache-2" in output, output


def test_a_bad_update_stops_at_its_first_pod_and_is_rolled_back(release):
    release.upgrade(PLAINTEXT, nodes(3))
    cluster, before = release.cluster, {p.name: p for p in release.cluster.pods()}
    # A setting that the node refuses at its start.
    release.apply(PLAINTEXT, nodes(3), {"cache": {"config": {"memory": {"limit": "1MiB"}}}})

    def crashes():
        # There is none between the old one's end and the new one's beginning.
        pod = {p.name: p for p in cluster.pods()}.get("test-cache-2")
        return pod not in (None, before["test-cache-2"]) and pod.container("cache").restarts > 1

    cluster.wait(crashes, "the new pod ends again and again")
    assert "memory.limit" in cluster.pod("test-cache-2").container("cache").log.read_text()
    assert all(before[f"test-cache-{n}"].ready for n in (0, 1))
    done, said = release.test()  # The Service leads to the others.
    assert done, said
    release.upgrade(PLAINTEXT, nodes(3))
    release.wait_whole(POD_0)
    assert all(cluster.pod(f"test-cache-{n}") is before[f"test-cache-{n}"] for n in (0, 1))


def test_a_lone_node_comes_back_with_its_blocks(release):
    release.upgrade(PLAINTEXT)
    _, first = release.generate(POD_0)
    pod = release.cluster.pod("test-cache-0")
    pod.delete()
    pod.ended.wait(60)
    assert pod.container("cache").exit_code == 0
    release.cluster.wait_settled()
    assert release.generate(POD_0) == (PROMPT, first)


def test_helm_test_fails_when_the_node_is_down(release):
    release.upgrade(PLAINTEXT)
    done, said = release.test()
    assert done, said
    release.cluster.claims.lost = frozenset({"data-test-cache-0"})
    release.cluster.pod("test-cache-0").delete(grace=0)
    done, said = release.test()
    assert not done and "UNAVAILABLE" in said, said


def test_helm_test_has_a_prompt_computed_where_there_are_no_nodes(release):
    release.upgrade(PLAINTEXT, {"cache": {"enabled": False}, "worker": {"enabled": True}})
    done, said = release.test()
    assert done, said
    (worker,) = [p for p in release.cluster.pods() if "worker" in p.name]
    assert metric(release, worker, 7501, "cairn_worker_requests_total", 'result="completed"') == 1
    release.cluster.claims.lost = frozenset({"models"})
    worker.delete(grace=0)
    done, said = release.test()
    assert not done and "failed to connect" in said, said
