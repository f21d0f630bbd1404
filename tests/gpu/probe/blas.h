#pragma once
// A product of NVIDIA's cuBLAS as a yardstick, where its library is on the machine.

#include <cstdint>
#include <memory>

#include "cairn/common/status.h"

namespace cairn::gpu {

// Thread-compatible. The functions are those of cuBLAS 11 and later, declared here.
class Blas {
 public:
  // NOT_FOUND: the linker finds neither libcublas.so.13 nor .12. Work goes on `stream`, a
  // cudaStream_t of the thread's current device.
  static Result<std::unique_ptr<Blas>> Open(void* stream);
  ~Blas();

  // y = a w^T, bfloat16 with float32 sums: a [rows][cols], w [outputs][cols], y [rows][outputs]
  // bfloat16. 0, or cuBLAS's error number.
  int Gemm(const uint16_t* a, const uint16_t* w, uint16_t* y, int rows, int outputs, int cols);

 private:
  struct Functions;
  explicit Blas(std::unique_ptr<Functions> functions);

  std::unique_ptr<Functions> functions_;
  void* handle_ = nullptr;
};

}  // namespace cairn::gpu
