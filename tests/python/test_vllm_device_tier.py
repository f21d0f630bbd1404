"""vLLM's connector on the GPU on which its node keeps blocks: loads go from the node's memory there
to the engine's pages, and not through the host. Both processes use the fake device, whose memory
they share."""

import pytest

from conftest import SLOW, connect, wait_until
from fake_gpu import LIBRARY
from vllm_device_engine import SIZE, Engine, no_bugs
from test_vllm_device_codec import WIDTH, Pages, check_nearly


@pytest.fixture
def kernels():
    return True


@pytest.fixture(scope="module")
def tiered(start_node):
    """A node with a device tier."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAIRN_FAKE_DEVICE", "seed=9")
        return start_node(
            *("--device.library", str(LIBRARY)),
            *("--device.capacity", "8MiB", "--device.chunk", "1MiB"),
        )


def blocks_on_device(node):
    with connect(node) as client:
        return next(
            (
                tier.blocks
                for tier in client.stat(deadline=SLOW).tiers
                if tier.tier.name == "DEVICE"
            ),
            0,
        )


@pytest.mark.parametrize("codec", ["", "int8:group=64,sink=1"])
@pytest.mark.parametrize("layout", ["BLHNC", "LBNHC"])
def test_blocks_of_the_nodes_device_tier_go_to_the_pages(gpu, tiered, keys, layout, codec):
    made = []

    def engine():
        made.append(
            Engine(gpu, tiered, layout, width=WIDTH, access=Pages, codec=codec, path="local")
        )
        return made[-1]

    try:
        writer, reader = engine(), engine()
        before = blocks_on_device(tiered)
        prompt = keys(6)
        writer.run("write", prompt)
        writer.saved()
        # A node brings blocks there when somebody reads them. It may answer a first match before it
        # has read which GPU the client has.
        loaded, blocks = writer.run("read", prompt)
        assert loaded == 6 * SIZE
        check_nearly(writer, blocks, prompt)
        wait_until(lambda: blocks_on_device(tiered) >= before + 6, SLOW, "blocks on the device")
        assert reader.run("first", keys(1))[0] == 0
        loaded, blocks = reader.run("again", prompt)
        assert loaded == 6 * SIZE
        check_nearly(reader, blocks, prompt)
        assert reader.counts()["device_loaded_blocks"] == 6
        assert reader.counts()["loaded_blocks"] == 6
        for one in made:
            no_bugs(one)
    finally:
        for one in made:
            one.close()
