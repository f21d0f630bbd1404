"""Lets vLLM's own offloading run on the CPU, which it refuses in one place: the worker that copies
between device and host.

`CpuTieringSpec` gives it one that copies with numpy. Scheduler half, tier manager, shared memory,
promotion and cascade are vLLM's.
"""

import time

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class NumpyWorker(OffloadingWorker):
    """Whole blocks, at once."""

    def __init__(self, kv_caches, region, blocks_per_chunk):
        self._each = blocks_per_chunk
        self._region = region
        self._device = [t.tensor.numpy() for t in kv_caches.tensors]
        self._host = [
            region.create_next_worker_view(t.page_size_bytes * blocks_per_chunk).numpy()
            for t in kv_caches.tensors
        ]
        self._groups = kv_caches.group_data_refs
        self._ended = []

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(
            job_id, src_spec, dst_spec, lambda device, host: host.__setitem__(..., device)
        )

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(
            job_id, dst_spec, src_spec, lambda device, host: device.__setitem__(..., host)
        )

    def _copy(self, job_id, device, host, move):
        begin, total, first_block, first_chunk = time.monotonic(), 0, 0, 0
        for refs, size, index in zip(self._groups, device.group_sizes, device.block_indices):
            skip = index % self._each
            for i in range(size):
                block = device.block_ids[first_block + i]
                chunk, place = divmod(i + skip, self._each)
                row = host.block_ids[first_chunk + chunk]
                for ref in refs:
                    page = self._device[ref.tensor_idx]
                    offset = place * page.shape[1]
                    move(
                        page[block, : ref.page_size_bytes],
                        self._host[ref.tensor_idx][row, offset : offset + ref.page_size_bytes],
                    )
                    total += ref.page_size_bytes
            first_block += size
            first_chunk += -(-(size + skip) // self._each) if size else 0
        self._ended.append(TransferResult(job_id, True, total, time.monotonic() - begin))
        return True

    def get_finished(self):
        ended, self._ended = self._ended, []
        return ended

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self._device, self._host = [], []
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = NumpyWorker(kv_caches, region, self.blocks_per_chunk)
        return self._worker
