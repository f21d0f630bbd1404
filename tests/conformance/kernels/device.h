#pragma once
// A backend in a test: its tables, a stream, inputs that are put into its memory, and outputs with
// guards. The same test so runs on the host and on hardware that only copies reach.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "cairn/kernels/backend.h"

namespace cairn::kernels::testing {

// One thread at a time.
class Device {
 public:
  explicit Device(const Backend& backend) : backend_(backend), stream_(backend.new_stream()) {}
  ~Device() {
    Synchronize();
    for (std::byte* memory : memory_) backend_.memory->Free(memory);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Backend& backend() const { return backend_; }
  const ForwardKernels& forward() const { return *backend_.forward; }
  const CodecKernels& codecs() const { return *backend_.codecs; }
  const SelectionKernels& selections() const { return *backend_.selections; }

  const SliceKernels& slices() const { return *backend_.slices; }
  const ReadingKernels& reading() const { return *backend_.reading; }

  Stream& stream() { return *stream_; }
  void Synchronize() {
    EXPECT_TRUE(stream_->Synchronize()) << stream_->error();
    staged_.clear();
  }

  // Launches an operation: here.Run(&ForwardKernels::rope, {...}).
  template <typename Args>
  void Run(void (*ForwardKernels::*op)(Stream&, const Args&),
           const std::type_identity_t<Args>& args) {
    (forward().*op)(*stream_, args);
  }
  template <typename Args>
  void Run(void (*CodecKernels::*op)(Stream&, const Args&),
           const std::type_identity_t<Args>& args) {
    (codecs().*op)(*stream_, args);
  }
  template <typename Args>
  void Run(void (*SelectionKernels::*op)(Stream&, const Args&),
           const std::type_identity_t<Args>& args) {
    (selections().*op)(*stream_, args);
  }
  template <typename Args>
  void Run(void (*SliceKernels::*op)(Stream&, const Args&),
           const std::type_identity_t<Args>& args) {
    (slices().*op)(*stream_, args);
  }
  template <typename Args>
  void Run(batch::Op<Args> batch::ForwardKernels::*op, const std::type_identity_t<Args>& args) {
    EXPECT_EQ((backend_.batch_forward->*op)(stream_->native(), args), 0);
  }
  template <typename Args>
  void Run(void (*ReadingKernels::*op)(Stream&, const Args&),
           const std::type_identity_t<Args>& args) {
    (reading().*op)(*stream_, args);
  }

  // Memory of the backend, for as long as the device lives; In copies something into it.
  template <typename T>
  T* Allocate(size_t n) {
    memory_.push_back(backend_.memory->Allocate(n * sizeof(T)));
    EXPECT_NE(memory_.back(), nullptr) << "the backend has no room left";
    return reinterpret_cast<T*>(memory_.back());
  }
  std::byte* Scratch(size_t bytes) { return Allocate<std::byte>(bytes); }
  template <typename T>
  T* In(std::span<T> host) {
    using Value = std::remove_const_t<T>;
    Value* const to = Allocate<Value>(host.size());
    CopyIn(to, host.data(), host.size_bytes());
    return to;
  }
  template <typename T>
  T* In(const std::vector<T>& host) {
    return const_cast<T*>(In(std::span<const T>(host)));
  }
  PackedView In(const PackedMatrix& w) { return w.At(In(std::span(w.data(), w.bytes()))); }
  // The pages of the first `tokens` tokens, each of `page_bytes`.
  PagedKv In(PagedKv kv, int64_t tokens, size_t page_bytes) {
    std::vector<const std::byte*> pages;
    for (int64_t page = 0; page * kv.block_tokens < tokens; ++page) {
      pages.push_back(In(std::span(kv.pages[page], page_bytes)));
    }
    kv.pages = In(pages);
    return kv;
  }

  // The host's bytes may change afterwards.
  void CopyIn(void* to, const void* host, size_t bytes) {
    if (bytes == 0) return;
    const auto* from = static_cast<const std::byte*>(host);
    staged_.emplace_back(from, from + bytes);
    stream_->CopyIn(to, staged_.back().data(), bytes);
  }
  // Waits for everything that was launched.
  template <typename T>
  std::vector<T> Out(const T* from, size_t n) {
    std::vector<T> host(n);
    stream_->CopyOut(host.data(), from, n * sizeof(T));
    Synchronize();
    return host;
  }

 private:
  const Backend& backend_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::byte*> memory_;
  std::list<std::vector<std::byte>> staged_;  // Until the copies have run.
};

// An output in the memory of a device, with guards before and behind it: writing outside is seen
// when it is destroyed. The device must outlive it.
template <typename T>
class Guarded {
 public:
  Guarded(Device& device, int64_t n, T fill = T{})
      : Guarded(device, std::vector<T>(static_cast<size_t>(n), fill)) {}
  Guarded(Device& device, const std::vector<T>& content)
      : device_(device), n_(content.size()), all_(device.Allocate<T>(n_ + 2 * kGuard)) {
    std::vector<T> host(n_ + 2 * kGuard);
    std::memset(static_cast<void*>(host.data()), 0xa5, host.size() * sizeof(T));
    std::copy(content.begin(), content.end(), host.begin() + kGuard);
    device_.CopyIn(all_, host.data(), host.size() * sizeof(T));
  }
  ~Guarded() {
    const std::vector<T> host = device_.Out(all_, n_ + 2 * kGuard);
    const auto* bytes = reinterpret_cast<const uint8_t*>(host.data());
    for (size_t i = 0; i < kGuard * sizeof(T); ++i) {
      EXPECT_EQ(bytes[i], 0xa5) << "written before the output, byte " << i;
      EXPECT_EQ(bytes[(kGuard + n_) * sizeof(T) + i], 0xa5) << "written behind the output, " << i;
    }
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  // For operations.
  T* get() { return all_ + kGuard; }
  // For the host: waits for what was launched, and copies.
  std::vector<T> Read() { return device_.Out(all_ + kGuard, n_); }

 private:
  static constexpr size_t kGuard = 64;
  Device& device_;
  const size_t n_;
  T* const all_;
};

// The names of all backends that this program knows, those that this machine lacks among them.
inline std::vector<std::string> BackendNames() {
  std::vector<std::string> names;
  for (const Backend* backend : Backends()) names.emplace_back(backend->name);
  for (const MissingBackend& missing : MissingBackends()) names.emplace_back(missing.name);
  return names;
}

// Why the tests of a family skip a backend. Empty: they run on it.
template <typename Table>
std::string WhySkipped(const std::string& name, const Table* Backend::*family) {
  for (const MissingBackend& missing : MissingBackends()) {
    if (missing.name == name) return name + ": " + std::string(missing.reason);
  }
  const Backend& backend = *FindBackend(name);
  if (backend.*family == nullptr) return name + ": the backend lacks this family of kernels";
  for (const Backend* other : Backends()) {
    if (other == &backend) break;
    if (other->*family == backend.*family) {
      return name + ": the kernels are those of " + std::string(other->name);
    }
  }
  return {};
}

// The same for codecs and selections as a whole, which work on the host.
template <typename Table>
std::string WhySkippedOnHost(const std::string& name, const Table* Backend::*family) {
  const std::string why = WhySkipped(name, family);
  if (!why.empty() || FindBackend(name)->runs_inline) return why;
  return name + ": the backend does not run inline";
}

}  // namespace cairn::kernels::testing
