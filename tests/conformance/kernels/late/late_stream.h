#pragma once
// A stream that does nothing before Synchronize, and then everything in order, on the thread that
// waits. So a caller that forgets to wait reads what was there before, in every run.

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/kernels/attention.h"
#include "cairn/kernels/stream.h"
#include "tests/conformance/kernels/late/late_memory.h"

namespace cairn::kernels::testing {

// The memory that a running operation may touch. Used by one operation, on one thread.
class Access {
 public:
  explicit Access(LateMemory* memory) : memory_(*memory) {}

  // Replaces an address of the memory by the place where its bytes are. Null stays null.
  template <typename T>
  void Reach(T** pointer) {
    if (*pointer != nullptr) *pointer = reinterpret_cast<T*>(Find(*pointer));
  }
  // The page table of the first `tokens` tokens, and the pages in it.
  void Reach(PagedKv* kv, int64_t tokens);

  // False: an address was not one of the memory.
  bool ok() const { return ok_; }

 private:
  std::byte* Find(const void* address);

  LateMemory& memory_;
  std::deque<std::vector<const std::byte*>> tables_;
  bool ok_ = true;
};

// One thread at a time.
class LateStream final : public Stream {
 public:
  // The memory must outlive the stream.
  explicit LateStream(LateMemory* memory) : memory_(*memory) {}

  void CopyIn(void* backend, const void* host, size_t bytes) override;
  void CopyOut(void* host, const void* backend, size_t bytes) override;
  [[nodiscard]] bool Synchronize() override;
  std::string_view error() const override { return error_; }

  // `work` runs at the next Synchronize. It must do nothing when access is not ok().
  void Push(const char* name, std::function<void(Access&)> work);

 private:
  struct Operation {
    const char* name;
    std::function<void(Access&)> work;
  };

  LateMemory& memory_;
  std::vector<Operation> waiting_;
  std::string error_;
};

}  // namespace cairn::kernels::testing
