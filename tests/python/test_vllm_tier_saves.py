"""What `CairnTier` tells vLLM of chunks that it saved and loaded, and what it calls them at the
node, with a store that answers at once."""

import hashlib
import queue
import types

import pytest

np = pytest.importorskip("numpy")

from vllm_standins import standing_in  # noqa: E402  (behind the skip)

ROW = 64


class Store:
    """Takes every part but those of `refused`: a key, or a key and a number of a part."""

    def __init__(self, refused=()):
        self.refused = refused
        self.saved = {}

    def save(self, parts, sizes):
        assert sizes == [len(part.data) for part in parts]
        good = []
        for part in parts:
            name = (bytes(part.key), part.rect.head_begin)
            good.append(name not in self.refused and name[0] not in self.refused)
            if good[-1]:
                self.saved[name] = bytes(part.data)
        return good

    def load_any(self, keys, into, rect):
        failed = set()
        for i, (one, memory) in enumerate(zip(keys, into, strict=True)):
            data = self.saved.get((one, rect.head_begin))
            if data is None:
                failed.add(i)
            else:
                memory[:] = np.frombuffer(data, np.uint8)
        return failed


def key(number, size=32, group=0):
    return bytes([number]) * size + group.to_bytes(4, "big")


def made(store, rows, groups=1, columns=1):
    """A tier without vLLM below it."""
    from cairn.types import Rect
    from cairn.vllm import CairnTier
    from cairn.vllm.tier import GroupKeys

    tier = CairnTier.__new__(CairnTier)
    tier._store, tier._ended, tier._keys = store, queue.SimpleQueue(), GroupKeys(groups)
    tier._rows, tier._row_bytes = rows, rows.shape[1]
    each = tier._row_bytes // columns
    tier._columns = [(Rect(0, 1, i, i + 1), i * each, (i + 1) * each) for i in range(columns)]
    return tier


def run(tier, how, keys, chunks, promotion=True):
    job = types.SimpleNamespace(job_id=7, keys=keys, chunk_ids=chunks, is_promotion=promotion)
    tier._run(job, getattr(tier, how))
    return tier._ended.get()


def test_each_result_is_that_of_its_own_key():
    keys = [key(i, 8 if i % 3 == 0 else 32) for i in range(40)]
    store = Store({key(4)[:32], key(25)[:32]})
    with standing_in(lambda device: 0):
        tier = made(store, np.arange(40 * ROW, dtype=np.uint8).reshape(40, ROW))
        chunks = list(reversed(range(40)))
        result, failed = run(tier, "_save", keys, chunks)
    bad = [i for i in range(40) if i % 3 == 0 or i in (4, 25)]
    assert failed == [keys[i] for i in bad]
    assert result.successful_keys == [keys[i] for i in range(40) if i not in bad]
    assert not result.success
    for i in range(40):
        if i not in bad:
            assert store.saved[keys[i][:32], 0] == tier._rows[chunks[i]].tobytes()


def test_rows_above_the_limit_of_a_part_are_cut(monkeypatch):
    """A chunk of which a part is missing is neither stored nor loaded."""
    keys = [key(i) for i in range(4)]
    store = Store({(key(1)[:32], 2)})
    source = np.random.default_rng(1).integers(0, 255, (4, ROW), dtype=np.uint8)
    with standing_in(lambda device: 0):
        tier = made(store, source, columns=4)
        result, _ = run(tier, "_save", keys, [0, 1, 2, 3])
        assert result.successful_keys == [keys[0], keys[2], keys[3]]
        assert len(store.saved) == 15
        into = made(store, np.zeros((4, ROW), np.uint8), columns=4)
        result, failed = run(into, "_load", keys, [3, 2, 1, 0])
        from cairn.vllm import tier as module

        # The longest part decides for the layout, and the last one is what is left.
        monkeypatch.setattr(module, "MAX_PART", 100)
        columns = module._columns(250)
    assert failed == [keys[1]] and result.successful_keys == [keys[0], keys[2], keys[3]]
    for i in (0, 2, 3):
        assert (into._rows[3 - i] == source[i]).all()
    assert [(c[0].head_begin, c[1], c[2]) for c in columns] == [
        (0, 0, 84),
        (1, 84, 168),
        (2, 168, 250),
    ]


def test_groups_have_keys_of_their_own():
    """Those of the pools of a layout: docs/inside/formats/keys.md."""
    with standing_in(lambda device: 0):
        from cairn.vllm.tier import GroupKeys, group_key

        assert group_key(key(5)) == key(5)[:32]
        mask = hashlib.sha256(b"cairn.pool.v1" + (2).to_bytes(4, "little")).digest()
        assert group_key(key(5, group=2)) == bytes(a ^ 5 for a in mask)
        assert len({group_key(key(i, group=g)) for i in range(50) for g in range(8)}) == 400

        one = GroupKeys(1)
        assert one.name(key(5)[:32]) == make_key(5, 0)
        several, named = GroupKeys(3), []
        # Without events nobody asks what a key stands for.
        several.told([key(5, group=1)])
        assert several.name(group_key(key(5, group=1))) is None
        several.when_named = named.append
        asked = [key(5, group=1), key(6), key(5, group=2)]
        own = several.told(asked)
        assert own == [group_key(k) for k in asked] == named
        several.told(asked)
        assert len(named) == 3
        assert [several.name(k) for k in own] == [make_key(5, 1), make_key(6, 0), make_key(5, 2)]
        assert several.name(key(7)[:32]) is None


def make_key(number, group):
    """As the stand-in for vLLM's function makes it."""
    return bytes([number]) * 32 + group.to_bytes(4, "little")
