"""Each way in which layers keep KV, as bytes: stored, read by another process, found on disk after
kill -9, as large as `cairn size` says; and recipes that are refused, by the plane that they cannot
store. tests/engines/test_layouts.py has the models themselves."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

import cairn
from cairn import DType, LayerGroup, NativeLayout, Plane
from conftest import BUILD, SLOW, connect

BLOCK = 16
BLOCKS = 20


def kv(heads, dim, dtype=DType.F16, v_dim=None):
    return [Plane("k", heads, dim, dtype), Plane("v", heads, v_dim or dim, dtype)]


MLA = [Plane("latent", 1, 512, DType.BF16), Plane("k_rope", 1, 64, DType.BF16)]

# (groups of layers, the flags of `cairn size` for the same, if it has some)
LAYOUTS = {
    "mha": (
        [LayerGroup(4, kv(8, 64))],
        "--layers 4 --heads 8 --head-dim 64",
    ),
    "mqa": (
        [LayerGroup(4, kv(1, 64))],
        "--layers 4 --heads 8 --kv-heads 1 --head-dim 64",
    ),
    "gqa, odd heads": (
        [LayerGroup(4, kv(3, 80))],
        "--layers 4 --heads 15 --kv-heads 3 --head-dim 80",
    ),
    "layers that differ": (
        [LayerGroup(1, kv(n, 64)) for n in (8, 2, 1, 4)],
        None,
    ),
    "mla": (
        [LayerGroup(4, MLA)],
        "--layers 4 --latent-dim 512 --rope-dim 64 --dtype bf16",
    ),
    "mla with an index": (  # As DeepSeek-V3.2's sparse attention keeps it.
        [LayerGroup(4, [*MLA, Plane("index_k", 1, 128, DType.F8E4M3)])],
        None,
    ),
    "keys longer than values": (
        [LayerGroup(4, kv(4, 192, v_dim=128))],
        "--layers 4 --heads 4 --head-dim 192 --v-head-dim 128",
    ),
    "last layers share": (  # Gemma-3n.
        [LayerGroup(4, kv(2, 64)), LayerGroup(2, [])],
        "--layers 6 --heads 8 --kv-heads 2 --head-dim 64 --shared-layers 2",
    ),
    "every second layer shares": (  # Cross-layer attention.
        [LayerGroup(1, kv(2, 64)), LayerGroup(1, [])] * 3,
        None,
    ),
    "bfloat16": (
        [LayerGroup(4, kv(2, 64, DType.BF16))],
        "--layers 4 --heads 8 --kv-heads 2 --head-dim 64 --dtype bf16",
    ),
    "float32": (
        [LayerGroup(4, kv(2, 20, DType.F32))],
        "--layers 4 --heads 6 --kv-heads 2 --head-dim 20 --dtype f32",
    ),
    "fp8": (
        [LayerGroup(4, kv(2, 64, DType.F8E4M3))],
        "--layers 4 --heads 8 --kv-heads 2 --head-dim 64 --dtype f8e4m3",
    ),
}
DTYPE_BYTES = {DType.F16: 2, DType.BF16: 2, DType.F32: 4, DType.F8E4M3: 1, DType.I8: 1}


def spec_of(name, recipe="raw", revision="1"):
    groups, _ = LAYOUTS[name]
    heads = max(plane.heads for group in groups for plane in group.planes)
    return cairn.NamespaceSpec(
        model=f"layout {name}",
        revision=revision,
        numerics="test",
        recipe=recipe,
        layout=NativeLayout(groups, kv_heads=heads, block_tokens=BLOCK),
    )


def block_bytes(name):
    return sum(
        group.count * plane.heads * plane.dim * BLOCK * DTYPE_BYTES[plane.dtype]
        for group in LAYOUTS[name][0]
        for plane in group.planes
    )


def data_of(name):
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).integers(0, 256, (BLOCKS, block_bytes(name)), np.uint8)


def keys_of(spec):
    return cairn.block_keys(cairn.fingerprint(spec), list(range(BLOCKS * BLOCK)), BLOCK)


def store(client, name, **changes):
    spec, data = spec_of(name, **changes), data_of(name)
    client.open_namespace(spec, deadline=SLOW)
    keys = keys_of(spec)
    parts = [
        cairn.Part(key, block, parent=parent, first_position=i * BLOCK)
        for i, (key, parent, block) in enumerate(zip(keys, [None, *keys], data))
    ]
    assert client.push(cairn.fingerprint(spec), parts, deadline=SLOW) == [None] * BLOCKS


def load(client, name, **changes):
    spec = spec_of(name, **changes)
    fingerprint = client.open_namespace(spec, deadline=SLOW).fingerprint
    into = np.zeros((BLOCKS, block_bytes(name)), np.uint8)
    with client.match(fingerprint, keys_of(spec), deadline=SLOW) as found:
        assert found.matched_blocks == BLOCKS
        assert not client.fetch(found.lease, into, deadline=SLOW).failed
    return into


@pytest.mark.parametrize("name", LAYOUTS)
def test_bytes_come_back(name, client, path):
    store(client, name, revision=path)
    assert np.array_equal(load(client, name, revision=path), data_of(name))


def test_another_process_and_a_node_after_kill_9(start_node, tmp_path):
    node = start_node("--disk.path", str(tmp_path))
    with connect(node) as client:
        for name in LAYOUTS:
            store(client, name)
        client.flush(deadline=SLOW)
    script = "import sys, test_layouts; test_layouts.check(sys.argv[1])"
    child = [sys.executable, "-c", script, node.grpc]
    subprocess.run(child, cwd=__file__.rpartition("/")[0], check=True, timeout=60)
    node.kill()
    again = start_node("--listen", node.grpc, "--disk.path", str(tmp_path))
    check(again.grpc)
    with connect(again) as client:
        stat = client.stat(deadline=SLOW)
        assert stat.promoted_blocks + stat.fetched_disk_bytes > 0


def check(address):
    """In whatever process: the bytes of all layouts are there."""
    with cairn.Client(address, client_name="layouts") as client:
        for name in LAYOUTS:
            assert np.array_equal(load(client, name), data_of(name)), name


def size(*arguments):
    said = subprocess.run(
        [BUILD / "bin/cairn", "size", *arguments, "--block-tokens", str(BLOCK), "--json"],
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(said.stdout)["kv"][0]["recipes"]


@pytest.mark.parametrize("name", [name for name, (_, flags) in LAYOUTS.items() if flags])
def test_cairn_size_says_what_a_node_allocates(name, start_node, tmp_path):
    node = start_node("--disk.path", str(tmp_path))
    with connect(node) as client:
        store(client, name)
        client.flush(deadline=SLOW)
        tiers = {tier.tier: tier for tier in client.stat(deadline=SLOW).tiers}
    node.kill()
    (row,) = size(*LAYOUTS[name][1].split(), "--recipe", "raw")
    assert row["exact"]
    for tier, field in (
        (cairn.TierKind.HOST, "block_room_in_host"),
        (cairn.TierKind.DISK, "block_room_on_disk"),
    ):
        assert tiers[tier].blocks == BLOCKS
        assert abs(tiers[tier].used_bytes / BLOCKS / row[field] - 1) <= 0.03, tier


# The layouts that each codec takes, and the plane that the others are refused for.
LOSSY = ("int8", "fp8", "int4", "mixed", "turbo", "cachegen", "host=raw>disk=int8")
REFUSED = {
    "mla": "plane 'latent' stands where 'k' is expected",
    "mla with an index": "plane 'latent' stands where 'k' is expected",
    "bfloat16": "plane 'k' is bf16",
    "float32": "plane 'k' is f32",
    "fp8": "plane 'k' is f8e4m3",
}
ODD = {  # Dimensions that a codec cannot take.
    ("gqa, odd heads", "int4"): "k.dim: got 80",
    ("gqa, odd heads", "mixed"): "k.dim: got 80",
    ("gqa, odd heads", "turbo"): "k.dim: got 80",
    ("keys longer than values", "turbo"): "k.dim: got 192",
}


@pytest.mark.parametrize("recipe", LOSSY)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_recipe_is_refused_by_the_plane(name, recipe, node):
    why = REFUSED.get(name) or ODD.get((name, recipe))
    with connect(node) as client:
        if why is None:
            client.open_namespace(spec_of(name, recipe), deadline=SLOW)
            return
        with pytest.raises(cairn.InvalidArgumentError) as refused:
            client.open_namespace(spec_of(name, recipe), deadline=SLOW)
    assert f"field 'recipe': got '{recipe}'" in str(refused.value)
    assert why in str(refused.value)
