#include "tests/gpu/probe/blas.h"

#include <dlfcn.h>

#include <string>

namespace cairn::gpu {
namespace {

// The constants of library_types.h and cublas_api.h.
constexpr int kBfloat16 = 14, kComputeFloat32 = 68, kDefaultAlgorithm = -1;
constexpr int kAsItIs = 0, kTransposed = 1;

}  // namespace

struct Blas::Functions {
  int (*create)(void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*set_stream)(void* handle, void* stream) = nullptr;
  int (*gemm)(void* handle, int a_form, int b_form, int m, int n, int k, const void* alpha,
              const void* a, int a_type, int a_stride, const void* b, int b_type, int b_stride,
              const void* beta, void* c, int c_type, int c_stride, int compute,
              int algorithm) = nullptr;
};

Blas::Blas(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}

Blas::~Blas() {
  if (handle_ != nullptr) (void)functions_->destroy(handle_);
}

Result<std::unique_ptr<Blas>> Blas::Open(void* stream) {
  void* library = nullptr;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return Errorf(StatusCode::kNotFound, "no libcublas.so.13 or .12 where the linker looks");
  }
  auto functions = std::make_unique<Functions>();
  const auto find = [&](auto* function, const char* name) {
    *function =
        reinterpret_cast<std::remove_reference_t<decltype(*function)>>(dlsym(library, name));
    return *function != nullptr;
  };
  if (!find(&functions->create, "cublasCreate_v2") ||
      !find(&functions->destroy, "cublasDestroy_v2") ||
      !find(&functions->set_stream, "cublasSetStream_v2") ||
      !find(&functions->gemm, "cublasGemmEx")) {
    return Errorf(StatusCode::kFailedPrecondition, "libcublas lacks a function: {}", dlerror());
  }
  std::unique_ptr<Blas> blas(new Blas(std::move(functions)));
  int error = blas->functions_->create(&blas->handle_);
  if (error == 0) error = blas->functions_->set_stream(blas->handle_, stream);
  if (error != 0) return Errorf(StatusCode::kInternal, "cuBLAS does not start: error {}", error);
  return blas;
}

// cuBLAS counts columns first: y^T = w a^T.
int Blas::Gemm(const uint16_t* a, const uint16_t* w, uint16_t* y, int rows, int outputs, int cols) {
  const float one = 1, zero = 0;
  return functions_->gemm(handle_, kTransposed, kAsItIs, outputs, rows, cols, &one, w, kBfloat16,
                          cols, a, kBfloat16, cols, &zero, y, kBfloat16, outputs, kComputeFloat32,
                          kDefaultAlgorithm);
}

}  // namespace cairn::gpu
