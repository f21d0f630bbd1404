"""`python -m cairn.doctor`: each mistake in a configuration is named, with what to do."""

import json
import subprocess
import sys

import pytest

import cairn.doctor
from vllm_engine import transfer_config


def verdicts(config, model=""):
    return {
        check.name: (check.verdict, check.found + check.fix)
        for check in cairn.doctor.check_vllm(config, model)
    }


def config(node, **changes):
    return {**transfer_config({"address": node.grpc}, None), **changes}


@pytest.fixture(scope="module")
def node(start_node):
    return start_node()


def test_a_right_configuration_is_ok(node, tiny, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config(node)))
    done = subprocess.run(
        [sys.executable, "-m", "cairn.doctor", "--vllm", file, "--model", tiny],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        not any(line.startswith("fail") for line in done.stdout.splitlines())
        and "ok    node" in done.stdout
        and "sha256:" in done.stdout
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "cairn.doctor",
            "--vllm",
            json.dumps(config(node, kv_role="kv_some")),
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert [c["name"] for c in json.loads(done.stdout)["checks"] if c["verdict"] == "fail"] == [
        "kv_role"
    ]


@pytest.mark.parametrize(
    ("changes", "name", "text"),
    [
        ({"kv_connector": "CairnConector"}, "kv_connector", "'CairnConector'"),
        ({"kv_connector_module_path": "cairn.vlm"}, "kv_connector_module_path", "'cairn.vllm'"),
        ({"kv_load_failure_policy": "fail"}, "kv_load_failure_policy", "'recompute'"),
        ({"kv_connector_extra_config": {"adress": "x"}}, "settings", "adress"),
        ({"kv_connector_extra_config": {"address": "127.0.0.1:1"}}, "node", "127.0.0.1:1"),
        ({"kv_connector": "OffloadingConnector"}, "secondary_tiers", "CairnTier"),
        (
            {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": [1]},
            "secondary_tiers",
            "CairnTier",
        ),
        (
            {
                "kv_connector": "OffloadingConnector",
                "kv_connector_extra_config": {"secondary_tiers": ["CairnTier"]},
            },
            "secondary_tiers",
            "CairnTier",
        ),
        ({"kv_connector_extra_config": [1]}, "settings", "kv_connector_extra_config': got [1]"),
        ({"kv_connector_extra_config": {"lookup_timeout": float("nan")}}, "settings", "nan"),
        ({"kv_connector_extra_config": {"load_timeout": float("inf")}}, "settings", "inf"),
        ({"kv_connector_extra_config": {"tenant": ""}}, "settings", "tenant"),
        ({"kv_connector_extra_config": {"save_buffer": "1GB"}}, "settings", "1GiB"),
    ],
)
def test_mistakes_are_named(node, changes, name, text):
    verdict, words = verdicts(config(node, **changes))[name]
    assert verdict == "fail" and text in words


def test_the_way_of_the_bytes_is_told(node, start_node):
    def path_of(node, **settings):
        return verdicts(config(node, kv_connector_extra_config={"address": node.grpc, **settings}))[
            "path"
        ]

    assert path_of(node) == ("ok", "shared memory")
    assert path_of(node, path="local") == ("ok", "shared memory")
    assert path_of(node, path="grpc")[0] == "ok"
    far = start_node("--local.socket", "off")
    assert path_of(far)[0] == "warn" and "gRPC" in path_of(far)[1]
    assert path_of(far, path="local")[0] == "fail"


def test_weights_without_a_name_and_foreign_versions(node, monkeypatch, tmp_path):
    from cairn._engine import versions

    assert verdicts(config(node), str(tmp_path))["weights"][0] == "fail"
    monkeypatch.setitem(versions.TESTED, "vllm", versions.Range("98", "99"))
    assert verdicts(config(node))["vllm"][0] == "fail"
    assert "expected at least 98 and below 99" in verdicts(config(node))["vllm"][1]
    # This version has what is used of it, wherever the range ends.
    monkeypatch.setitem(versions.TESTED, "vllm", versions.Range("0.1", "0.2"))
    assert verdicts(config(node))["vllm"][0] == "warn"


def tiered(node, tier=None, extra=None, **changes):
    """The block of docs/program/engines/vllm.md, with changes; None takes a setting away."""
    tier = {"type": "CairnTier", "module_path": "cairn.vllm", "address": node.grpc, **(tier or {})}
    extra = {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 1 << 30,
        "secondary_tiers": [tier],
        **(extra or {}),
    }
    config = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {k: v for k, v in extra.items() if v is not None},
        **changes,
    }
    return {k: v for k, v in config.items() if v is not None}


def test_a_right_tier_is_ok(node):
    found = verdicts(tiered(node))
    assert not [name for name, (verdict, _) in found.items() if verdict == "fail"], found
    assert {"secondary_tiers", "spec_name", "cpu_bytes_to_use", "import", "node"} <= set(found)


@pytest.mark.parametrize(
    ("changes", "name", "text"),
    [
        (
            {"tier": {"save_buffer": 1}},
            "settings",
            "'secondary_tiers[].save_buffer' does not exist",
        ),
        ({"tier": {"module_path": "cairn"}}, "secondary_tiers", "CairnTier"),
        ({"extra": {"spec_name": None}}, "spec_name", "'TieringOffloadingSpec'"),
        ({"extra": {"cpu_bytes_to_use": None}}, "cpu_bytes_to_use", "None"),
        ({"extra": {"cpu_bytes_to_use": "8GiB"}}, "cpu_bytes_to_use", "'8GiB'"),
        ({"kv_role": None}, "kv_role", "'kv_both'"),
        ({"kv_load_failure_policy": "fail"}, "kv_load_failure_policy", "'recompute'"),
    ],
)
def test_a_tier_s_mistakes_are_named(node, changes, name, text):
    verdict, words = verdicts(tiered(node, **changes))[name]
    assert verdict == "fail" and text in words


def test_a_class_that_cannot_be_imported_fails(node, monkeypatch):
    monkeypatch.setitem(sys.modules, "cairn.vllm", None)
    assert verdicts(config(node))["import"][0] == verdicts(tiered(node))["import"][0] == "fail"


def test_a_wrong_command_line_is_said(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "cairn.doctor", "--vllm", tmp_path / "none"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "none" in done.stderr
