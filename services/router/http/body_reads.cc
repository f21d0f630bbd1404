#include "services/router/http/body_reads.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "services/router/http/json_fields.h"

namespace cairn::router {
namespace {

// A text is copied out of the body into a buffer that doubles as it grows, and into the tree.
constexpr uint64_t kPerByte = 4;
// The largest value is a member of an object: a node of a map, its name and the value.
constexpr uint64_t kPerValue = 112;

}  // namespace

class BodyReads::Reading final : public FairQueue::Work {
 public:
  Reading(std::atomic<uint64_t>* used, uint64_t most, std::function<void()> read)
      : used_(*used), most_(most), read_(std::move(read)) {}

  uint64_t Step(uint64_t /*bytes*/) override {
    used_.fetch_add(most_, std::memory_order_relaxed);
    read_();
    used_.fetch_sub(most_, std::memory_order_relaxed);
    return 0;
  }

 private:
  std::atomic<uint64_t>& used_;
  const uint64_t most_;
  const std::function<void()> read_;
};

uint64_t BodyReads::MostBytes(uint64_t body) {
  // A value takes two bytes of the body at least.
  return kPerByte * body + kPerValue * std::min<uint64_t>(kMaxJsonValues, body / 2);
}

Status BodyReads::Post(std::string_view tenant, uint64_t bytes, std::function<void()> read) {
  if (bytes <= kShort) {
    read();
    return OkStatus();
  }
  std::unique_ptr<FairQueue::Work> work =
      std::make_unique<Reading>(&used_, MostBytes(bytes), std::move(read));
  return queue_.Post(tenant, bytes, work);
}

}  // namespace cairn::router
