#include "common/tenants/fair_queue.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "common/concurrency/mutex.h"
#include "common/tenants/tenant_accounts.h"

namespace cairn {
namespace {

// As in the worker's order of prompts: for each second that work waited it counts as shorter by
// this fraction of the wait, so that long work is not left forever.
constexpr double kAgeing = 0.1;
// The bytes that a thread handles in a second, to compare bytes with seconds.
constexpr double kBytesPerSecond = 1e6;

constexpr size_t kShort = 0, kLong = 1, kSides = 2;

}  // namespace

struct FairQueue::State : std::enable_shared_from_this<FairQueue::State> {
  struct Item {
    uint32_t tenant = 0;
    size_t side = kShort;
    uint64_t id = 0;
    uint64_t posted = 0;  // Bytes, when it came.
    uint64_t left = 0;
    TimePoint arrived;
    std::unique_ptr<Work> work;
  };
  // All work ages alike, so the order of two waiting works does not change while they wait.
  using Place = std::pair<double, uint64_t>;
  struct Lane {
    std::array<std::map<Place, Item>, kSides> waiting;
    uint64_t bytes = 0;  // Bytes of all work that is not done, as they were when it came.
    size_t works = 0;
  };

  // Short work and long work: each has tasks on its executor.
  struct Side {
    size_t waiting = 0;  // In all lanes.
    size_t runners = 0;  // Tasks of the executor.
  };

  State(Options given, Executor* on, const Clock* time)
      : options(std::move(given)), short_work(on), clock(time), accounts(options.tenants) {}

  size_t SideOf(const Work& work) const {
    return options.long_work != nullptr && work.is_long() ? kLong : kShort;
  }

  static Place PlaceOf(const Item& item) {
    return {static_cast<double>(item.left) / kBytesPerSecond +
                kAgeing * Seconds(item.arrived.time_since_epoch()),
            item.id};
  }
  void Insert(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Lane& lane = lanes[item.tenant];
    const size_t side = item.side;
    const Place place = PlaceOf(item);
    lane.waiting[side].emplace(place, std::move(item));
    ++sides[side].waiting;
  }
  Item TakeNext(size_t side) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::map<Place, Item>* best = nullptr;
    std::pair<double, Place> first;
    for (auto& [tenant, lane] : lanes) {
      std::map<Place, Item>& places = lane.waiting[side];
      if (places.empty()) continue;
      const std::pair<double, Place> rank{accounts.StandingOf(tenant).served,
                                          places.begin()->first};
      if (best != nullptr && rank >= first) continue;
      best = &places;
      first = rank;
    }
    Item item = std::move(best->begin()->second);
    best->erase(best->begin());
    --sides[side].waiting;
    return item;
  }
  // Forgets work that is done, or was never begun.
  void Forget(uint32_t tenant, uint64_t posted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto lane = lanes.find(tenant);
    lane->second.bytes -= posted;
    numbers.bytes -= posted;
    --numbers.works;
    if (--lane->second.works == 0) lanes.erase(lane);
    accounts.Leave(tenant);
  }
  // False: there is none, and the runner ends.
  bool HasNext(size_t side) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (sides[side].waiting > 0) return true;
    --sides[side].runners;
    return false;
  }
  Status PostRunner(size_t side) {
    Executor* const executor = side == kLong ? options.long_work : short_work;
    return executor->Post([self = shared_from_this(), side] { self->Run(side); });
  }
  // Does one piece, and sees that the next one is done.
  void Run(size_t side) {
    for (;;) {
      std::optional<Item> item;
      {
        MutexLock lock(mu);
        if (!HasNext(side)) return;
        item = TakeNext(side);
      }
      const uint64_t before = item->left;
      item->left = item->work->Step(options.piece_bytes);
      // It may have found that there is more to do than it said.
      const uint64_t done = before > item->left ? before - item->left : options.piece_bytes;
      accounts.Charge(item->tenant, static_cast<double>(done));
      if (item->left == 0) item->work.reset();  // Where no lock is held.
      {
        MutexLock lock(mu);
        if (item->left == 0) {
          Forget(item->tenant, item->posted);
        } else {
          Insert(*std::move(item));
        }
        if (!HasNext(side)) return;
      }
      // Behind other tasks of the executor. One that is full must not lose the work.
      if (PostRunner(side).ok()) return;
    }
  }

  const Options options;
  Executor* const short_work;
  const Clock* const clock;
  TenantAccounts accounts;
  Mutex mu;
  std::map<uint32_t, Lane> lanes ABSL_GUARDED_BY(mu);  // Tenants whose work is not all done.
  std::array<Side, kSides> sides ABSL_GUARDED_BY(mu);
  uint64_t next_id ABSL_GUARDED_BY(mu) = 0;
  Numbers numbers ABSL_GUARDED_BY(mu);
};

FairQueue::FairQueue(Options options, Executor* executor, const Clock* clock)
    : state_(std::make_shared<State>(std::move(options), executor, clock)) {}

FairQueue::~FairQueue() = default;

Status FairQueue::Post(std::string_view tenant, uint64_t bytes, std::unique_ptr<Work>& work) {
  State& state = *state_;
  uint64_t id = 0;
  const size_t side = state.SideOf(*work);
  const uint32_t account = state.accounts.Enter(tenant);
  bool start = false;
  {
    MutexLock lock(state.mu);
    const auto known = state.lanes.find(account);
    const uint64_t held = known == state.lanes.end() ? 0 : known->second.bytes;
    if (held > 0 && bytes > state.options.piece_bytes &&
        held + bytes > state.options.tenant_bytes) {
      ++state.numbers.refused;
      state.accounts.Leave(account);
      return Errorf(StatusCode::kResourceExhausted,
                    "tenant '{}': got {} bytes in addition to {} that wait, expected at most {} "
                    "together{}{}",
                    tenant, bytes, held, state.options.tenant_bytes,
                    state.options.setting.empty() ? "" : "; see ", state.options.setting);
    }
    State::Lane& lane = state.lanes[account];
    lane.bytes += bytes;
    ++lane.works;
    state.numbers.bytes += bytes;
    ++state.numbers.works;
    id = state.next_id++;
    state.Insert({.tenant = account,
                  .side = side,
                  .id = id,
                  .posted = bytes,
                  .left = bytes,
                  .arrived = state.clock->Now(),
                  .work = std::move(work)});
    start = state.sides[side].runners < state.options.threads;
    if (start) ++state.sides[side].runners;
  }
  if (!start) return OkStatus();
  const Status posted = state.PostRunner(side);
  if (posted.ok()) return OkStatus();
  bool others_wait = false;
  Status refusal;
  {
    MutexLock lock(state.mu);
    // Another thread that works here does it, if there is one, or has done it.
    if (--state.sides[side].runners > 0) return OkStatus();
    const auto lane = state.lanes.find(account);
    if (lane != state.lanes.end()) {
      auto& places = lane->second.waiting[side];
      const auto mine =
          std::ranges::find_if(places, [id](const auto& place) { return place.second.id == id; });
      if (mine != places.end()) {
        work = std::move(mine->second.work);
        places.erase(mine);
        --state.sides[side].waiting;
        ++state.numbers.refused;
        state.Forget(account, bytes);
        refusal = posted;
      }
    }
    // Work that was taken because this thread was about to post.
    others_wait = state.sides[side].waiting > 0;
    if (others_wait) ++state.sides[side].runners;
  }
  if (others_wait) state.Run(side);
  return refusal;
}

FairQueue::Numbers FairQueue::numbers() const {
  MutexLock lock(state_->mu);
  return state_->numbers;
}

}  // namespace cairn
