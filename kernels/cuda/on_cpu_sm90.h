#pragma once
// The functions that kernels for compute capability 9.0a need on a CPU, in addition to on_cpu.h.

#include "kernels/cuda/on_cpu.h"

namespace cairn::kernels::cuda::on_cpu {

// Pauses the running thread until ready(state) is true. It is asked while the thread is paused.
void WaitUntil(bool (*ready)(void*), void* state);

// Returns when `threads` threads have come to barrier `id` of the block, 0 to 15.
void NamedBarrier(unsigned id, unsigned threads);

// Barriers in shared memory: a phase ends when all arrivals have come and all bytes that they
// announced have landed. At most 255 arrivals.
void InitialiseBarrier(uint64_t* barrier, unsigned arrivals);
void Arrive(uint64_t* barrier, uint32_t bytes);
// Returns when the phase of this parity has ended. Copies land here.
void WaitPhase(uint64_t* barrier, unsigned parity);

// A matrix of 16-bit numbers without gaps between rows, and the boxes of 64 columns that are copied
// of it.
struct MatrixFacts {
  const uint8_t* base = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t box_rows = 0;
};
// Box at (row, col) to lines of 128 bytes; chunk c of line l goes to place c ^ l % 8. Zeros where
// the matrix is not.
struct BoxCopy {
  void* to = nullptr;  // Aligned to 1024 bytes.
  MatrixFacts matrix;
  int64_t row = 0;
  int64_t col = 0;
};
void IssueBoxCopy(const BoxCopy& copy, uint64_t* barrier);

}  // namespace cairn::kernels::cuda::on_cpu
