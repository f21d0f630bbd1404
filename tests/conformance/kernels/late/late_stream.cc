#include "tests/conformance/kernels/late/late_stream.h"

#include <cstring>
#include <utility>

namespace cairn::kernels::testing {

std::byte* Access::Find(const void* address) {
  std::byte* const bytes = memory_.Reach(address);
  ok_ = ok_ && bytes != nullptr;
  return bytes;
}

void Access::Reach(PagedKv* kv, int64_t tokens) {
  const int64_t pages = (tokens + kv->block_tokens - 1) / kv->block_tokens;
  if (pages == 0) return;
  Reach(&kv->pages);
  if (!ok_) return;
  std::vector<const std::byte*>& table = tables_.emplace_back(kv->pages, kv->pages + pages);
  for (const std::byte*& page : table) Reach(&page);
  kv->pages = table.data();
}

void LateStream::CopyIn(void* backend, const void* host, size_t bytes) {
  if (bytes == 0) return;
  Push("copy in", [=](Access& access) mutable {
    access.Reach(&backend);
    if (access.ok()) std::memcpy(backend, host, bytes);
  });
}

void LateStream::CopyOut(void* host, const void* backend, size_t bytes) {
  if (bytes == 0) return;
  Push("copy out", [=](Access& access) mutable {
    access.Reach(&backend);
    if (access.ok()) std::memcpy(host, backend, bytes);
  });
}

bool LateStream::Synchronize() {
  for (const Operation& operation : std::exchange(waiting_, {})) {
    if (!error_.empty()) break;
    Access access(&memory_);
    operation.work(access);
    if (!access.ok()) {
      error_ = operation.name;
      error_ += ": an argument points to memory of another backend, or to none";
    }
  }
  return error_.empty();
}

void LateStream::Push(const char* name, std::function<void(Access&)> work) {
  waiting_.push_back({name, std::move(work)});
}

}  // namespace cairn::kernels::testing
