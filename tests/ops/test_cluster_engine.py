"""An engine's pod with a node as its sidecar, as deploy/kubernetes says: another user than the
node's, and the same memory. The engine here is the command line's, with a small model."""

import json

import kubernetes_validate
import yaml
from cairn_cluster import MODEL, make_programs
from conftest import ROOT
from pod_security import pod_specs, violations
from small_cluster.cluster import SmallCluster

MANIFEST = ROOT / "deploy/kubernetes/engine-with-node.yaml"
ENGINE = """#!/bin/sh
cd /dev/shm
for i in 1 2; do
  seq -s' ' 1 250 | cairn generate --model=/models/kquant.gguf --prompt-file=- --raw \\
    --max-tokens=1 --threads=1 --json --cache=127.0.0.1:7400
done
exec sleep 1000
"""


def docs():
    return list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))


def test_the_manifest_is_valid_and_restricted():
    for doc in docs():
        kubernetes_validate.validate(doc, "1.33", strict=True)
        for name, spec in pod_specs(doc):
            assert violations(spec) == [], name


def test_an_engine_of_another_user_uses_the_memory_of_its_node(networks, programs, tmp_path):
    tmp_path.chmod(0o755)
    made = make_programs(tmp_path / "programs", programs, {"engine": ENGINE})
    with SmallCluster(tmp_path / "cluster", made) as cluster:
        models = cluster.claims.folder("models")
        (models / MODEL.name).write_bytes(MODEL.read_bytes())
        manifests = docs()
        config, deployment = manifests[:2]
        config["data"]["cache.yaml"] = config["data"]["cache.yaml"].replace("4GiB", "64MiB")
        spec = deployment["spec"]["template"]["spec"]
        (engine,) = spec["containers"]
        # The command line instead of vLLM, which answers no probe.
        engine["command"] = ["engine"]
        del engine["readinessProbe"]
        engine["volumeMounts"].append({"name": "model", "mountPath": "/models", "readOnly": True})
        claim = {"claimName": "models", "readOnly": True}
        spec["volumes"].append({"name": "model", "persistentVolumeClaim": claim})
        cluster.apply(manifests)
        cluster.wait_settled()
        (pod,) = cluster.pods()
        log = pod.container("engine").log

        def answers():
            lines = log.read_text(errors="replace").splitlines()
            return [json.loads(line) for line in lines if line.startswith('{"prompt_tokens')]

        cluster.wait(lambda: len(answers()) == 2, "two answers")
        first, second = answers()
        assert first["fetched_tokens"] == 0
        assert second["fetched_tokens"] == 832 and second["fetch_path"] == "local"
        assert first["prompt_logits_sha256"] == second["prompt_logits_sha256"]
