"""An offloading spec that lets vLLM's OffloadingConnector run where there is no GPU.

vLLM's own CPU spec refuses on the CPU backend ("only supported on CUDA-alike and XPU"), but the connector takes the
name of another spec from its extra configuration. Here only the byte mover differs: it copies between the engine's KV
tensors and host tensors at once. Lookup, eviction, scheduling and the vllm:kv_offload_* series are vLLM's.

Written for vLLM 0.32.0. The folder of this file must be on PYTHONPATH of `vllm serve`.
HOST_OFFLOAD_DELAY_S: seconds that each copy takes longer, to make loads and stores visible.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostWorker(OffloadingWorker):
    """Copies blocks between the engine's KV tensors and the host tier, in the calling thread."""

    def __init__(
        self,
        caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        chunks: int,
        region: SharedOffloadRegion | None = None,
    ) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._groups = caches.group_data_refs
        self._region = region
        self._finished: list[TransferResult] = []
        self._engine: list[torch.Tensor] = []
        self._host: list[torch.Tensor] = []
        for cache in caches.tensors:
            page = cache.page_size_bytes
            self._engine.append(cache.tensor.view(torch.int8).reshape(-1, page))
            row = page * blocks_per_chunk
            # A tiering manager reads the primary tier from another process, so its rows must lie in shared memory.
            self._host.append(
                torch.zeros((chunks, row), dtype=torch.int8) if region is None else region.create_next_worker_view(row)
            )

    def _places(self, engine: GPULoadStoreSpec, host: BlockIDsLoadStoreSpec) -> Iterator[tuple[int, int, int, int]]:
        """(group, engine block, host chunk, block inside the chunk) of every block of a transfer."""
        blocks, chunks = iter(engine.block_ids.tolist()), iter(host.block_ids.tolist())
        for group, (count, first) in enumerate(zip(engine.group_sizes, engine.block_indices, strict=True)):
            chunk = -1
            for n in range(count):
                inside = (first + n) % self._blocks_per_chunk
                if n == 0 or inside == 0:
                    chunk = next(chunks)
                yield group, next(blocks), chunk, inside

    def _copy(self, job: int, engine: GPULoadStoreSpec, host: BlockIDsLoadStoreSpec, *, store: bool) -> bool:
        started = time.perf_counter()
        moved = 0
        for group, block, chunk, inside in self._places(engine, host):
            for ref in self._groups[group]:
                rows = self._engine[ref.tensor_idx]
                start = inside * rows.shape[1]
                here = rows[block, : ref.page_size_bytes]
                there = self._host[ref.tensor_idx][chunk, start : start + ref.page_size_bytes]
                if store:
                    there.copy_(here)
                else:
                    here.copy_(there)
                moved += ref.page_size_bytes
        time.sleep(float(os.environ.get("HOST_OFFLOAD_DELAY_S", "0")))
        spent = time.perf_counter() - started
        self._finished.append(TransferResult(job_id=job, success=True, transfer_size=moved, transfer_time=spent))
        return True

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._copy(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._copy(job_id, dst_spec, src_spec, store=False)

    def get_finished(self) -> list[TransferResult]:
        done, self._finished = self._finished, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Every copy ended before its submit returned."""

    def shutdown(self) -> None:
        self._host.clear()
        if self._region is not None:
            self._region.cleanup()
            self._region = None


class HostOffloadingSpec(CPUOffloadingSpec):
    """A host tier alone."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not self._worker:
            self._worker = HostWorker(kv_caches, self.blocks_per_chunk, self.num_chunks)
        return self._worker


class HostTieringSpec(TieringOffloadingSpec):
    """A host tier with further tiers behind it, for instance {"type": "fs", "root_dir": "..."}."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostWorker(kv_caches, self.blocks_per_chunk, self.num_chunks, region)
        return self._worker
