#pragma once
// The queue on which a backend runs operations.
//
//   host     launch A    launch B    ...    Synchronize() -> true
//   stream      [ A ]------>[ B ]------------->|            results of A and B are visible
//
// - Operations and copies of one stream run in the order in which they were launched. Streams are
//   not ordered among each other.
// - A launch copies the arguments' struct. The memory that the struct names belongs to the backend
//   (memory.h), and must stay allocated until Synchronize. So must the host's side of a copy.
// - An operation has no return value: the results, faults in the input among them, are written to
//   the backend's memory. The host gets them with CopyOut, and may read its copy after Synchronize.
// - Errors on the way (a lost device, memory of another backend) are reported by Synchronize.
//
// The backends of CPUs run an operation inside the call, on the caller's thread (InlineStream).

#include <cstddef>
#include <string_view>

namespace cairn::kernels {

// One thread at a time uses a stream, if the backend does not say otherwise.
class Stream {
 public:
  virtual ~Stream() = default;

  // Copies between the host's memory and the backend's. `bytes` may be 0.
  virtual void CopyIn(void* backend, const void* host, size_t bytes) = 0;
  virtual void CopyOut(void* host, const void* backend, size_t bytes) = 0;

  // Waits until everything that was launched has run. False: something of it did not, and error()
  // says why. The stream then stays as it is: it runs nothing more, and every later call is false.
  [[nodiscard]] virtual bool Synchronize() = 0;
  // Empty while nothing went wrong. Names the operation.
  virtual std::string_view error() const = 0;

  // The hardware's own stream, for the tables whose entries take one (batch/forward_kernels.h).
  // Null: there is none.
  virtual void* native() { return nullptr; }
};

// Runs everything inside the call. Stateless: all threads may use one at the same time, and callers
// that have an InlineStream need no Synchronize.
class InlineStream final : public Stream {
 public:
  void CopyIn(void* backend, const void* host, size_t bytes) override;
  void CopyOut(void* host, const void* backend, size_t bytes) override;
  [[nodiscard]] bool Synchronize() override { return true; }
  std::string_view error() const override { return {}; }
};

}  // namespace cairn::kernels
