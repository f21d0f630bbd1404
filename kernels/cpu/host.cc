// The parts that all backends on CPUs have: the host's memory, and streams that run inside the
// call.

#include <cstring>
#include <new>

#include "cairn/kernels/memory.h"
#include "cairn/kernels/stream.h"

namespace cairn::kernels {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

void InlineStream::CopyIn(void* backend, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(backend, host, bytes);
}

void InlineStream::CopyOut(void* host, const void* backend, size_t bytes) {
  if (bytes > 0) std::memcpy(host, backend, bytes);
}

std::byte* HostMemory::Allocate(size_t bytes) {
  return static_cast<std::byte*>(::operator new[](bytes, kAlignment, std::nothrow));
}

void HostMemory::Free(std::byte* memory) { ::operator delete[](memory, kAlignment); }

}  // namespace cairn::kernels
