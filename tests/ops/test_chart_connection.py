"""The ConfigMap for engines: their adapters take what is in it, and it leads to the nodes."""

import json
import shlex
import subprocess

import helm_python as helm
import pytest
import yaml

from cairn._engine.options import Options
from cairn.vllm.options import ConnectorOptions
from rendered_chart import TLS, VALUES, find, has_nodes, merged, pod_of, render

PLUGIN = "remote_storage_plugin.cairn."
# Not settings of an adapter: the engine itself reads them.
SGLANG = {"backend_name", "module_path", "class_name", "interface_v1"}
PLAINTEXT = {"tls": {"acceptPlaintextOnTheNetwork": True}}
SETTINGS = {
    "tenant": 'it\'s {{ .x }} $(y) "z"',
    "revision": "#\n",
    "weight_epoch": 30_000_000,
    "block_life": 0.5,
    "save_buffer": "1GiB",
    "path": "grpc",
}


def connection(chart, values):
    return find(render(chart, values), "ConfigMap", "test-connection")["data"]


def options(data):
    """What each engine's adapter reads."""
    vllm = json.loads(data["vllm.json"])
    assert vllm.pop("kv_connector_extra_config") is not None
    assert vllm == {
        "kv_connector": "CairnConnector",
        "kv_connector_module_path": "cairn.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    }
    sglang = json.loads(data["sglang.json"])
    lmcache = yaml.safe_load(data["lmcache.yaml"])["extra_config"]
    assert {key for key in lmcache if not key.startswith(PLUGIN)} == set()
    plugin = {key.removeprefix(PLUGIN): value for key, value in lmcache.items()}
    assert (plugin.pop("module_path"), plugin.pop("class_name")) == (
        "cairn.lmcache",
        "CairnConnectorAdapter",
    )
    return [
        ConnectorOptions.read(json.loads(data["vllm.json"])["kv_connector_extra_config"]),
        Options.read({k: v for k, v in sglang.items() if k not in SGLANG}),
        ConnectorOptions.read(plugin),
    ]


@pytest.mark.parametrize("name", VALUES)
def test_a_release_with_nodes_has_it(chart, name):
    docs = [d for d in render(chart, VALUES[name]) if d["metadata"]["name"] == "test-connection"]
    assert len(docs) == has_nodes(VALUES[name])
    for doc in docs:
        options(doc["data"])


def test_it_may_be_left_out(chart):
    docs = render(chart, merged(VALUES["certificates"], {"connection": {"enabled": False}}))
    names = {doc["metadata"]["name"] for doc in docs}
    assert not names & {"test-connection", "test-engine"}


def test_all_adapters_get_the_same_settings(chart):
    data = connection(chart, merged(PLAINTEXT, {"connection": {"settings": SETTINGS}}))
    for found in options(data):
        assert found.address == data["address"] == "test-cache.kv.svc:7400"
        assert found.tls is None
        assert {key: getattr(found, key) for key in SETTINGS} == {
            **SETTINGS,
            "save_buffer": 1 << 30,
        }


def test_json_passes_a_shell(chart):
    """KServe's presets put arguments through `eval`, between the quotes of the example."""
    data = connection(chart, merged(PLAINTEXT, {"connection": {"settings": SETTINGS}}))
    for name in ("vllm.json", "sglang.json"):
        assert shlex.split(f"--flag '{data[name]}'") == ["--flag", data[name]]
        words = f"printf %s '{data[name]}'"
        said = subprocess.run(
            ["bash", "-c", 'eval "$1"', "-", words], capture_output=True, text=True
        )
        assert json.loads(said.stdout) == json.loads(data[name])


def test_several_nodes_with_tls(chart):
    """Their names find all nodes, and certificates have another name."""
    values = {**TLS, "cache": {"replicas": 3, "cluster": {"zone": "z"}}}
    for found in options(connection(chart, values)):
        assert found.address == "dns:test-cache-peers.kv.svc:7400"
        assert found.zone == "z"
        assert found.tls.server_name == "test-cache.kv.svc"
        files = (found.tls.ca_file, found.tls.cert_file, found.tls.key_file)
        assert files == tuple(f"/etc/cairn-tls/{f}" for f in ("ca.crt", "tls.crt", "tls.key"))


@pytest.mark.parametrize("name", ["certificates", "certificates-of-pods"])
def test_engines_have_a_certificate_of_their_own(chart, name):
    docs = render(chart, VALUES[name])
    spec = find(docs, "Certificate", "test-engine")["spec"]
    assert spec["secretName"] == "test-engine-tls"
    # It is no node's: nobody can serve with it, and no name of a Service is in it.
    assert spec["usages"] == ["digital signature", "client auth"]
    assert spec["dnsNames"] == ["test-engine"]
    uris = {"certificates": None, "certificates-of-pods": ["spiffe://kv/cairn/engine"]}
    assert spec.get("uris") == uris[name]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tenent": "a"}, "tenent"),
        ({"tenant": ""}, "tenant"),
        ({"address": "x:1"}, "address"),
        ({"salt": "a secret"}, "salt"),
    ],
)
def test_other_settings_are_refused(chart, settings, named):
    with pytest.raises(helm.HelmError, match=named):
        render(chart, merged(PLAINTEXT, {"connection": {"settings": settings}}))


def test_memory_covers_segments_that_containers_of_the_pod_map(chart):
    """A sixteenth of the RAM tier, as with a worker there."""

    def memory(config):
        docs = render(chart, merged(PLAINTEXT, {"cache": {"config": config}}))
        (container,) = pod_of(docs, "StatefulSet", "test-cache")["containers"]
        return int(container["resources"]["limits"]["memory"].removesuffix("Mi"))

    assert memory({"local": {"socket": "/run/cairn/node.sock"}}) == memory({}) + 1024 // 16
