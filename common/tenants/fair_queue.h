#pragma once
// Work of many tenants, done in pieces on the threads of an executor.
//
//   Post ─► refused: the tenant has too much here
//        ─► waits ─► a piece of it is done ─► waits ... ─► done
//               ▲              │
//               └──────────────┘
//
// The tenant that was served least goes next (tenant_accounts.h), and of its work what has the
// least left, with ageing. This is asked again after each piece. So short work waits for the pieces
// that are being done when it comes, and for no more, however much long work there is. It does not
// even wait for these if long work has an executor of its own, whose threads should give way to
// others. Tenants have one account for both.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/executor.h"
#include "common/tenants/tenant_terms.h"

namespace cairn {

// Thread-safe.
class FairQueue {
 public:
  // Work that is done in pieces. One thread at a time works on it, and destroys it when it is done.
  class Work {
   public:
    virtual ~Work() = default;
    // Does about `bytes` of it. Returns how many are left; 0: it is done.
    virtual uint64_t Step(uint64_t bytes) = 0;
    // True: it is done on Options::long_work. Does not change.
    virtual bool is_long() const { return false; }
  };
  struct Options {
    size_t threads = 1;  // Pieces that are done at the same time, on each executor.
    uint64_t piece_bytes = 16 << 10;
    // The executor of long work. It must outlive what it was posted. nullptr: all work has one.
    Executor* long_work = nullptr;
    // Limit for the work of one tenant that is not done. Work of at most a piece is taken beyond
    // that: whoever posts bounds its number.
    uint64_t tenant_bytes = 64 << 20;
    std::string_view setting = {};                    // That gives tenant_bytes, for errors.
    std::map<std::string, TenantTerms> tenants = {};  // By name. Others have the defaults.
  };
  struct Numbers {
    uint64_t works = 0;  // Works that are not done.
    uint64_t bytes = 0;  // Their bytes when they came.
    uint64_t refused = 0;
  };

  // `executor` must outlive what it was posted, and `clock` too.
  FairQueue(Options options, Executor* executor, const Clock* clock);
  ~FairQueue();
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  // Takes the work, unless it says why not. RESOURCE_EXHAUSTED: the tenant has too many bytes here
  // already, or the executor is full. UNAVAILABLE: the executor has stopped.
  Status Post(std::string_view tenant, uint64_t bytes, std::unique_ptr<Work>& work);
  Numbers numbers() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;  // Pieces that are being done hold it, too.
};

}  // namespace cairn
