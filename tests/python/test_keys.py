"""Fingerprints and block keys are those of the independent derivation in tests/unit/common/keys."""

import array

import numpy
import pytest

import cairn
from conftest import ROOT, native_spec, opaque_spec


def golden():
    lines = (ROOT / "tests/unit/common/keys/golden.txt").read_text().splitlines()
    return {tuple(line.split()[:2]): line.split()[2] for line in lines}


GOLDEN = golden()


def kv(heads, dim, dtype):
    return [cairn.Plane("k", heads, dim, dtype), cairn.Plane("v", heads, dim, dtype)]


SPECS = {
    "gqa": cairn.NamespaceSpec(
        model="SmolLM2-135M-Instruct",
        revision="sha256:0123",
        numerics="cairn-cpu-1",
        layout=cairn.NativeLayout([cairn.LayerGroup(30, kv(3, 64, cairn.DType.F16))], kv_heads=3),
    ),
    "gapped": cairn.NamespaceSpec(
        tenant="team-a",
        salt=b"\0salt\xff",
        model="hybrid",
        revision="r2",
        weight_epoch=7,
        recipe="int8:group=64,sink=0",
        numerics="any",
        layout=cairn.NativeLayout(
            [
                cairn.LayerGroup(2, kv(8, 128, cairn.DType.BF16)),
                cairn.LayerGroup(3),
                cairn.LayerGroup(1, kv(2, 128, cairn.DType.F8E4M3)),
            ],
            kv_heads=8,
            block_tokens=16,
            key_rotation=cairn.KeyRotation.BEFORE_ROPE,
        ),
    ),
    "mla": cairn.NamespaceSpec(
        model="mla",
        revision="main",
        numerics="x",
        layout=cairn.NativeLayout(
            [
                cairn.LayerGroup(
                    61,
                    [
                        cairn.Plane("latent", 1, 512, cairn.DType.BF16),
                        cairn.Plane("rope", 1, 64, cairn.DType.F32),
                    ],
                )
            ],
            kv_heads=1,
            block_tokens=128,
        ),
    ),
    "opaque": cairn.NamespaceSpec(
        model="vendor/model",
        revision="abc",
        numerics="cuda-sm90",
        key_version=3,
        key_scheme="vllm-sha256-cbor",
        layout=cairn.OpaqueLayout(
            "engine 1.2, rank 0 of 2, page 16", 4 << 20, parts=2, block_tokens=256
        ),
    ),
    "pooled": cairn.NamespaceSpec(
        model="vendor/hybrid",
        revision="abc",
        numerics="cuda-sm90",
        key_scheme="vllm-sha256-cbor",
        layout=cairn.PooledLayout(
            "engine 1.2, 2 ranks",
            [
                cairn.Pool("full", 16, 65536, parts=2, chained=True),
                cairn.Pool("window_512", 32, 131072, parts=2),
                cairn.Pool("state", 544, 4 << 20, parts=3),
            ],
            block_tokens=16,
        ),
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_fingerprints_are_golden(name):
    assert cairn.fingerprint(SPECS[name]).hex() == GOLDEN["fingerprint", name]


def test_block_keys_are_golden():
    fingerprint = cairn.fingerprint(SPECS["gqa"])
    tokens = list(range(600))
    root = cairn.block_key(fingerprint, tokens[:16])
    assert root.hex() == GOLDEN["key", "root16"]
    assert cairn.block_key(fingerprint, tokens[16:32], root).hex() == GOLDEN["key", "child16"]
    assert (
        cairn.block_key(fingerprint, tokens[16:32], root, b"lora:7").hex()
        == GOLDEN["key", "child16_adapter"]
    )
    assert cairn.block_key(fingerprint, [-1] * 64).hex() == GOLDEN["key", "negative"]
    assert cairn.block_key(fingerprint, tokens).hex() == GOLDEN["key", "long"]
    assert cairn.block_key(fingerprint, []).hex() == GOLDEN["key", "empty"]
    assert [key.hex() for key in cairn.block_keys(fingerprint, tokens[:47], 16)] == [
        GOLDEN["key", "root16"],
        GOLDEN["key", "child16"],
    ]


@pytest.mark.parametrize(
    "form",
    [
        tuple,
        range,
        lambda t: array.array("i", t),
        lambda t: numpy.array(t, numpy.int32),
        lambda t: numpy.array(t, numpy.int64),
    ],
)
def test_tokens_come_in_any_form(form):
    fingerprint = cairn.fingerprint(SPECS["gqa"])
    tokens = range(100) if form is range else list(range(100))
    given = tokens if form is range else form(tokens)
    assert cairn.block_keys(fingerprint, given, 16) == cairn.block_keys(
        fingerprint, list(range(100)), 16
    )


@pytest.mark.parametrize(
    ("tokens", "error", "text"),
    [
        ([1, "2"], TypeError, r"tokens\[1\].*str.*integer"),
        ([1 << 31], cairn.InvalidArgumentError, r"tokens\[0\].*2147483648.*i32"),
        ([1 << 70], cairn.InvalidArgumentError, r"tokens\[0\]"),
        ("12", TypeError, "tokens.*str"),
        (7, TypeError, "tokens.*int"),
        (numpy.zeros(4), cairn.InvalidArgumentError, "tokens.*'d'"),
        (numpy.zeros(8, numpy.int32)[::2], cairn.InvalidArgumentError, "tokens.*contiguous"),
        (numpy.array([1 << 40]), cairn.InvalidArgumentError, r"tokens\[0\]"),
    ],
)
def test_wrong_tokens_are_named(tokens, error, text):
    with pytest.raises(error, match=text):
        cairn.block_keys(bytes(32), tokens, 16)


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        (native_spec(model=""), cairn.InvalidArgumentError, "'model'.*0 characters.*1 to 512"),
        (native_spec(model=5), TypeError, "'model'.*int.*str"),
        (native_spec(salt="text"), TypeError, "'salt'.*str.*bytes"),
        (native_spec(weight_epoch=-1), cairn.InvalidArgumentError, "'weight_epoch'.*-1"),
        (native_spec(layout=None), TypeError, "'layout'.*None"),
        (
            native_spec(layout=cairn.NativeLayout([cairn.LayerGroup(0)], 1)),
            cairn.InvalidArgumentError,
            r"groups\[0\].count'.*got 0",
        ),
        (
            native_spec(layout=cairn.NativeLayout([3], 1)),
            TypeError,
            r"groups\[0\]'.*int.*LayerGroup",
        ),
        (
            native_spec(layout=cairn.NativeLayout([cairn.LayerGroup(1, [("k", 1)])], 1)),
            TypeError,
            r"planes\[0\]'.*tuple.*Plane",
        ),
        (
            native_spec(
                layout=cairn.NativeLayout([cairn.LayerGroup(1, kv(1 << 40, 2, cairn.DType.F16))], 1)
            ),
            cairn.InvalidArgumentError,
            r"planes\[0\].heads'.*1099511627776",
        ),
        (native_spec(recipe="int5"), cairn.InvalidArgumentError, "'recipe'.*int5"),
        (opaque_spec(size=0), cairn.InvalidArgumentError, "max_part_bytes'.*got 0"),
        ("spec", TypeError, "'spec'.*str.*NamespaceSpec"),
        (
            native_spec(layout=cairn.PooledLayout("engine", [])),
            cairn.InvalidArgumentError,
            r"layout.opaque.pools'.*none.*1 to 32",
        ),
        (
            native_spec(layout=cairn.PooledLayout("engine", [cairn.Pool("p", 64, 1)] * 65536)),
            cairn.InvalidArgumentError,
            r"layout.opaque.pools'.*65536 pools.*at most 32",
        ),
        (
            native_spec(layout=cairn.PooledLayout("engine", ["full"])),
            TypeError,
            r"layout.opaque.pools\[0\]'.*str.*Pool",
        ),
        (
            native_spec(layout=cairn.PooledLayout("engine", [cairn.Pool("p", 96, 1)])),
            cairn.InvalidArgumentError,
            r"pools\[0\].block_tokens'.*got 96.*multiple.*64",
        ),
    ],
)
def test_wrong_fields_of_a_namespace_are_named(spec, error, text):
    with pytest.raises(error, match=text):
        cairn.fingerprint(spec)


def test_layouts_know_their_bytes():
    layout = SPECS["gapped"].layout
    assert layout.bytes(cairn.Rect(1, 2, 0, 8)) == 2 * 8 * 16 * 128 * 2
    assert layout.bytes(cairn.Rect(3, 4, 0, 8)) == 0, "a layer without planes"
    assert layout.bytes() == 2 * 2 * 8 * 16 * 128 * 2 + 2 * 2 * 16 * 128
    with pytest.raises(cairn.InvalidArgumentError, match=r"'rect'.*layers \[0, 7\)"):
        layout.bytes(cairn.Rect(0, 7, 0, 8))


def test_pool_keys_are_those_of_last_units_with_a_mask():
    unit = cairn.block_key(bytes.fromhex(GOLDEN["fingerprint", "gqa"]), list(range(16)))
    other = bytes(32)
    for pool in (0, 1, 31):
        assert cairn.pool_keys([unit], 1, pool) == [bytes.fromhex(GOLDEN["pool", str(pool)])]
        assert cairn.pool_keys([other, unit, other], 2, pool) == cairn.pool_keys([unit], 1, pool)
    assert cairn.pool_keys([unit], 2, 1) == []
    with pytest.raises(cairn.InvalidArgumentError, match="'pool'.*32.*0 to 31"):
        cairn.pool_keys([unit], 1, 32)
    with pytest.raises(cairn.InvalidArgumentError, match="'units'.*got 0"):
        cairn.pool_keys([unit], 0, 1)
