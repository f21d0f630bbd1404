#include "services/cache/cluster/link/member_links.h"

#include <set>
#include <utility>

#include "common/log/log.h"

namespace cairn::cache {
namespace {

// Says why links break. A failure that settings cause comes again and again, and is said once for
// each member.
class BreakLog {
 public:
  void Note(const std::string& member, const Status& why) {
    if (why.code() == StatusCode::kUnimplemented || why.code() == StatusCode::kPermissionDenied) {
      MutexLock lock(mu_);
      // Ids may change with each start. Then it is said again.
      if (said_.size() >= link::PeerHistory::kMostPeers) said_.clear();
      if (!said_.emplace(member, why.code()).second) return;
    }
    log::Warn("link_broke", {{"member", member}, {"error", Message(why)}});
  }

 private:
  Mutex mu_;
  std::set<std::pair<std::string, StatusCode>> said_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

MemberLinks::MemberLinks(const Options& options, const Dependencies& dependencies)
    : options_(options),
      dependencies_(dependencies),
      table_(options.table),
      reader_history_(options.history, dependencies.clock),
      holder_history_(options.history, dependencies.clock) {}

Result<std::unique_ptr<MemberLinks>> MemberLinks::Create(const Options& options,
                                                         const Dependencies& dependencies) {
  std::unique_ptr<MemberLinks> links(new MemberLinks(options, dependencies));
  DeviceTier* const tier = dependencies.tier;
  CAIRN_ASSIGN_OR_RETURN(
      links->buffer_, ExchangeBuffer::Create(tier->device_of(options.pool), options.buffer_bytes));
  const uint32_t memory = links->memories_.Add(links->buffer_->address(), links->buffer_->bytes());
  const link::LinkDependencies shared{
      .maker = dependencies.maker,
      .memories = &links->memories_,
      .table = &links->table_,
      .link = {.timers = dependencies.timers,
               .clock = dependencies.clock,
               .threads = dependencies.threads},
      .broke = [said = std::make_shared<BreakLog>()](const std::string& member, const Status& why) {
        said->Note(member, why);
      }};
  links->reader_ = std::make_shared<link::LinkReader>(options.links, shared, dependencies.calls,
                                                      &links->reader_history_);
  links->lent_ = std::make_shared<LentBlocks>(
      LentBlocks::Options{.memory = memory, .pool = options.pool, .life = 3 * options.timeout},
      links->buffer_, tier, dependencies.timers, dependencies.clock);
  links->holder_ = std::make_shared<link::LinkHolder>(
      options.links, shared,
      [lent = links->lent_](const std::string& member, const link::Plan& plan) {
        return lent->Grant(member, plan);
      },
      &links->holder_history_);
  links->receiver_ = std::make_shared<BlockReceiver>(
      BlockReceiver::Options{.memory = memory, .pool = options.pool, .timeout = options.timeout},
      links->buffer_, tier, links->reader_, &links->reader_history_, dependencies.clock);
  return links;
}

void MemberLinks::Close() {
  if (std::exchange(closed_, true)) return;
  lent_->Stop();
  reader_->Stop();
  holder_->Stop();
  table_.EndAll();
}

bool MemberLinks::Stop() {
  if (receiver_ == nullptr) return true;  // Create has failed.
  if (std::exchange(stopped_, true)) return ended_;
  Close();
  const auto& limits = options_.links.link;
  const Clock& clock = *dependencies_.clock;
  ended_ = table_.WaitUntilEmpty(clock, clock.Now() + limits.grace + limits.revoke + limits.abort +
                                            std::chrono::seconds(1)) &&
           table_.stats().abandoned == 0;
  receiver_->Stop();
  return ended_;
}

MemberLinks::Stats MemberLinks::stats() const {
  return {.links = table_.stats(),
          .received = receiver_->counts(),
          .lent = lent_->counts(),
          .quarantined = reader_history_.quarantined() + holder_history_.quarantined(),
          .buffer_bytes = buffer_->bytes(),
          .buffer_used = buffer_->used_bytes()};
}

}  // namespace cairn::cache
