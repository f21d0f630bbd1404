#pragma once
// An IoBackend that does to requests what a bad device does. Header-only; for tests of the disk
// tier.
//
//   auto faults = std::make_shared<FaultyIo::Plan>();
//   options.wrap_io = [faults](auto io) {
//     return std::make_unique<FaultyIo>(std::move(io), faults);
//   };
//   faults->Set([](const IoRequest& r) {
//     return FaultyIo::Fault{.kind = FaultyIo::Kind::kError, .error = EIO};
//   });

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/io_backend.h"

namespace cairn::cache::testing {

class FaultyIo final : public disk::IoBackend {
 public:
  enum class Kind {
    kNone,
    kError,  // Nothing moves; -error comes back.
    kShort,  // `bytes` move, and are said to.
    // A write of which only the first `bytes` reach the device, and which is said to be whole.
    kTorn,
    kFlipBit,  // One bit of the byte at `bytes` is wrong: of what is written, or of what was read.
  };
  struct Fault {
    Kind kind = Kind::kNone;
    int error = EIO;
    uint64_t bytes = 0;
  };
  // The outcome of each request. Shared by the backends of a tier. Thread-safe.
  class Plan {
   public:
    using Decide = std::function<Fault(const disk::IoRequest&)>;
    void Set(Decide decide) {
      MutexLock lock(mu_);
      decide_ = std::move(decide);
    }
    void Clear() { Set(nullptr); }
    Fault Next(const disk::IoRequest& request) {
      MutexLock lock(mu_);
      const Fault fault = decide_ ? decide_(request) : Fault{};
      if (fault.kind != Kind::kNone) ++faults_;
      return fault;
    }
    uint64_t faults() const { return faults_; }

   private:
    Mutex mu_;
    Decide decide_ ABSL_GUARDED_BY(mu_);
    std::atomic<uint64_t> faults_{0};
  };

  FaultyIo(std::unique_ptr<disk::IoBackend> real, std::shared_ptr<Plan> plan)
      : real_(std::move(real)), plan_(std::move(plan)) {}

  disk::IoKind kind() const override { return real_->kind(); }

  void Submit(disk::IoRequest* request) override {
    const Fault fault = plan_->Next(*request);
    if (fault.kind == Kind::kNone) return real_->Submit(request);
    auto* const altered = new Altered{.original = request, .fault = fault};
    altered->whole = Total(*request);
    uint64_t moved = altered->whole;
    // Something has to come back on the backend's thread.
    if (fault.kind == Kind::kError) moved = kPage;
    if (fault.kind == Kind::kShort || fault.kind == Kind::kTorn) {
      moved = std::min(moved, std::max<uint64_t>(kPage, fault.bytes / kPage * kPage));
    }
    altered->request = *request;
    altered->request.owner = altered;
    altered->request.done = &Done;
    // An error that was a write must not have written.
    altered->request.write = request->write && fault.kind != Kind::kError;
    const bool copy =
        fault.kind == Kind::kError || (fault.kind == Kind::kFlipBit && request->write);
    altered->memory.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, altered->whole)));
    if (copy) {
      uint64_t at = 0;
      for (int i = 0; i < request->iov_count; ++i) {
        std::memcpy(altered->memory.get() + at, request->iov[i].iov_base, request->iov[i].iov_len);
        at += request->iov[i].iov_len;
      }
      if (fault.kind == Kind::kFlipBit) {
        altered->memory.get()[fault.bytes % altered->whole] ^= std::byte{4};
      }
      altered->iov.push_back({altered->memory.get(), moved});
    } else {
      uint64_t left = moved;
      for (int i = 0; i < request->iov_count && left > 0; ++i) {
        iovec iov = request->iov[i];
        iov.iov_len = std::min<uint64_t>(iov.iov_len, left);
        left -= iov.iov_len;
        altered->iov.push_back(iov);
      }
    }
    altered->request.iov = altered->iov.data();
    altered->request.iov_count = static_cast<int>(altered->iov.size());
    real_->Submit(&altered->request);
  }

 private:
  static constexpr uint64_t kPage = 4096;
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  struct Altered {
    disk::IoRequest request = {};
    disk::IoRequest* original = nullptr;
    Fault fault = {};
    uint64_t whole = 0;
    std::vector<iovec> iov = {};
    std::unique_ptr<std::byte, Free> memory = {};
  };

  static uint64_t Total(const disk::IoRequest& request) {
    uint64_t total = 0;
    for (int i = 0; i < request.iov_count; ++i) total += request.iov[i].iov_len;
    return total;
  }

  static void Done(disk::IoRequest* request, int64_t result) {
    const std::unique_ptr<Altered> altered(static_cast<Altered*>(request->owner));
    disk::IoRequest* const original = altered->original;
    switch (altered->fault.kind) {
      case Kind::kError:
        result = -altered->fault.error;
        break;
      case Kind::kTorn:
        if (result > 0) result = static_cast<int64_t>(altered->whole);
        break;
      case Kind::kFlipBit:
        if (!original->write && result > 0) {
          Flip(*original, altered->fault.bytes % static_cast<uint64_t>(result));
        }
        break;
      case Kind::kShort:
      case Kind::kNone:
        break;
    }
    original->done(original, result);
  }

  static void Flip(const disk::IoRequest& request, uint64_t at) {
    for (int i = 0; i < request.iov_count; ++i) {
      if (at < request.iov[i].iov_len) {
        static_cast<std::byte*>(request.iov[i].iov_base)[at] ^= std::byte{4};
        return;
      }
      at -= request.iov[i].iov_len;
    }
  }

  const std::unique_ptr<disk::IoBackend> real_;
  const std::shared_ptr<Plan> plan_;
};

}  // namespace cairn::cache::testing
