"""What `CairnTier` tells vLLM of chunks that it saved, with a store that answers at once."""

import queue
import types

import pytest

np = pytest.importorskip("numpy")

from vllm_standins import standing_in  # noqa: E402  (behind the skip)

ROW = 64


class Store:
    """Has every block but those of `refused`."""

    def __init__(self, refused):
        self.refused = refused
        self.saved = {}

    def save(self, parts, sizes):
        assert sizes == [ROW] * len(parts)
        good = [bytes(part.key) not in self.refused for part in parts]
        self.saved |= {
            bytes(part.key): bytes(part.data) for part, there in zip(parts, good) if there
        }
        return good


def key(number, size=32):
    return bytes([number]) * size + bytes(4)


def test_each_result_is_that_of_its_own_key():
    keys = [key(i, 8 if i % 3 == 0 else 32) for i in range(40)]
    store = Store({key(4)[:32], key(25)[:32]})
    with standing_in(lambda device: 0):
        from cairn.vllm import CairnTier

        tier = CairnTier.__new__(CairnTier)
        tier._store, tier._ended = store, queue.SimpleQueue()
        tier.block_size_bytes = ROW
        tier._rows = np.arange(40 * ROW, dtype=np.uint8).reshape(40, ROW)
        chunks = list(reversed(range(40)))
        job = types.SimpleNamespace(job_id=7, keys=keys, chunk_ids=chunks, is_promotion=True)
        tier._run(job, tier._save)
        result, failed = tier._ended.get()
    bad = [i for i in range(40) if i % 3 == 0 or i in (4, 25)]
    assert failed == [keys[i] for i in bad]
    assert result.successful_keys == [keys[i] for i in range(40) if i not in bad]
    assert not result.success
    for i in range(40):
        if i not in bad:
            assert store.saved[keys[i][:32]] == tier._rows[chunks[i]].tobytes()
