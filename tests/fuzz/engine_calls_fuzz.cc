// A sequence of calls to a whole engine, as the edge passes them on: no byte is served that was not
// committed since the last drop, none of another tenant or block, what was given out stays as it
// was while it is held, nobody touches what belongs to another session, and at the end nothing is
// held, reserved or stored.
//
// First byte: bit 0 no disk. Then one byte for each call, and its arguments: Calls::Step.

#include <algorithm>
#include <cstring>
#include <iterator>

#include "tests/fuzz/engine_world.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;
using namespace cairn::cache;
using namespace cairn::cache::fuzz;

constexpr size_t kMaxCalls = 96;
constexpr size_t kMaxHeld = 8;  // Slices that a client keeps.

class Calls {
 public:
  Calls(cairn::fuzz::Input* input, bool disk) : in_(*input), world_(disk) { OpenSession(); }

  void Run() {
    for (size_t i = 0; i < kMaxCalls && !in_.empty(); ++i) Step();
    End();
  }

 private:
  struct Lease {
    SessionId session;
    LeaseId id;
    uint32_t space, first, blocks, generation;
  };
  struct Reservation {
    SessionId session;
    ReservationId id;
    uint32_t space, n, generation;
    format::PartRect rect;
    std::vector<std::byte> part;
    uint8_t version;
    std::vector<std::byte> written = std::vector<std::byte>(part.size());
    std::string missing = std::string(part.size(), 'x');  // 'x' where nothing was written.
    bool Right() const {
      return std::memcmp(written.data(), part.data(), part.size()) == 0 &&
             missing.find('x') == std::string::npos;
    }
  };
  struct Reader {
    std::unique_ptr<FetchStream> stream;
    uint32_t space, first, generation;
  };

  CacheEngine& engine() { return *world_.engine; }
  Space& AnySpace() { return world_.spaces[in_.Below(4)]; }
  template <typename T>
  T* Any(std::vector<T>& all) {
    const uint8_t choice = in_.U8();
    return all.empty() ? nullptr : &all[choice % all.size()];
  }
  template <typename T>
  static void Erase(std::vector<T>& all, T* one) {
    all.erase(all.begin() + (one - all.data()));
  }
  // Mostly the first one, else any, or one that does not exist.
  SessionId AnySession() {
    const uint8_t choice = in_.U8();
    if (choice == 255 || sessions_.empty()) return 999;
    return sessions_[choice < 192 ? 0 : choice % sessions_.size()];
  }
  Duration AnyTtl() { return std::chrono::milliseconds(in_.U8() * 250); }

  void OpenSession() {
    const auto session = engine().OpenSession("fuzz");
    if (session.ok()) sessions_.push_back(*session);
  }
  void CloseSession() {
    SessionId* session = Any(sessions_);
    if (session == nullptr) return;
    engine().CloseSession(*session);
    std::erase_if(leases_, [&](const Lease& lease) { return lease.session == *session; });
    std::erase_if(reserved_, [&](const Reservation& r) { return r.session == *session; });
    Erase(sessions_, session);
  }

  std::vector<BlockKey> Path(uint32_t first, uint32_t blocks) const {
    std::vector<BlockKey> keys;
    for (uint32_t b = 0; b < blocks; ++b) keys.push_back(KeyOf(first + b));
    return keys;
  }

  Lease* Match() {
    Space& space = AnySpace();
    const uint32_t first = in_.Below(3) * kChain, blocks = 1 + in_.Below(kChain);
    const auto keys = Path(first, blocks);
    const SessionId session = AnySession();
    const auto match = engine().Match({.session = session,
                                       .fingerprint = space.fingerprint,
                                       .keys = keys,
                                       .lease_ttl = AnyTtl(),
                                       .lease = in_.U8() != 255,
                                       .trace = "trace"});
    if (!match.ok()) return nullptr;
    Expect(match->matched_blocks <= blocks);
    uint32_t by_tiers = 0;
    for (const TierRun& run : match->tiers) by_tiers += run.blocks;
    Expect(by_tiers == match->matched_blocks);
    for (uint32_t b = 0; b < match->matched_blocks; ++b) Expect(space.Covers(first + b));
    if (!match->lease) return nullptr;
    leases_.push_back(
        {session, *match->lease, space.number, first, match->matched_blocks, space.generation});
    return &leases_.back();
  }

  void Fetch(const Lease* lease, bool ranges) {
    if (lease == nullptr || readers_.size() >= 4) return;
    const SessionId session = ranges ? AnySession() : lease->session;
    FetchRequest request{.session = session, .lease = lease->id, .trace = "trace"};
    if (ranges) {
      request.block_begin = in_.Below(kChain);
      request.block_end = in_.Below(kChain + 2);
      request.layer_begin = in_.Below(kLayers + 1);
      request.layer_end = in_.Below(kLayers + 2);
      request.reader_verifies = in_.Below(2) == 1;
    }
    auto stream = engine().Fetch(request);
    if (!stream.ok()) return;
    Expect(session == lease->session);
    readers_.push_back({*std::move(stream), lease->space, lease->first, lease->generation});
  }
  // Takes up to `items`; the reader ends with its stream.
  void Read(Reader* reader, uint32_t items) {
    if (reader == nullptr) return;
    const Space& space = world_.spaces[reader->space];
    for (uint32_t i = 0; i < items; ++i) {
      auto item = reader->stream->Next(world_.clock.Now());
      if (!item.ok()) return;
      if (!item->has_value()) return Erase(readers_, reader);
      if (const auto* failure = std::get_if<FetchFailure>(&**item)) {
        Expect(failure->block < kChain && static_cast<size_t>(failure->reason) < kMissReasonCount);
        continue;
      }
      auto& slice = std::get<FetchedSlice>(**item);
      Expect(reader->generation == space.generation);
      CheckSlice(space, reader->first + slice.block, slice);
      if (held_.size() < kMaxHeld && i % 4 == 0) held_.push_back(std::move(slice));
    }
  }
  void CheckHeld() const {
    for (const FetchedSlice& slice : held_) Expect(Xxh3(slice.data) == slice.xxh3);
  }

  void Release() {
    Lease* lease = Any(leases_);
    const SessionId session = AnySession();
    const LeaseId id = lease == nullptr ? 12345 : lease->id;
    const Status released = engine().Release(session, {&id, 1});
    if (lease != nullptr && released.ok() && session == lease->session) Erase(leases_, lease);
  }

  void Renew() {
    const Lease* lease = Any(leases_);
    const SessionId session = AnySession();
    if (lease == nullptr) return;
    const auto renewed = engine().RenewLease(session, lease->id, AnyTtl());
    Expect(!renewed.ok() || session == lease->session);
  }
  void LookAtHeld() {
    CheckHeld();
    if (!held_.empty()) held_.erase(held_.begin());
  }

  Reservation* Reserve() {
    Space& space = AnySpace();
    const uint8_t choice = in_.U8();
    const uint32_t n = in_.Below(kBlocks);
    ReservePartRequest part;
    part.key = KeyOf(n);
    part.part = space.spec.layout.WholeRect();
    // A half, which an opaque part always is; sometimes a single layer, which overlaps halves.
    if ((choice & 3) == 1 || !space.spec.layout.IsNative()) {
      part.part.head_begin = static_cast<uint16_t>(choice >> 7);
      part.part.head_end = static_cast<uint16_t>(part.part.head_begin + 1);
    } else if ((choice & 3) == 2) {
      part.part.layer_end = 1;
    }
    if (n % kChain != 0 && (choice & 12) != 12) part.parent = KeyOf(n - 1);
    if ((choice & 0x70) == 0x70) part.parent = KeyOf(in_.Below(kBlocks));
    part.first_position = FirstPosition(n);
    const uint64_t opaque_bytes = 2 + in_.Below(200) * 10u;
    if (version_ == 250) return nullptr;
    const auto bytes = PartOf(space, n, ++version_, part.part, opaque_bytes);
    part.bytes = bytes.size() + (choice == 13 ? 1 : 0);
    const SessionId session = AnySession();
    const auto results = engine().Reserve(session, space.fingerprint, {&part, 1}, AnyTtl());
    if (!results.ok() || !(*results)[0].ok()) return nullptr;
    reserved_.push_back(
        {session, *(*results)[0], space.number, n, space.generation, part.part, bytes, version_});
    return &reserved_.back();
  }
  void Write(Reservation* r, bool whole) {
    if (r == nullptr) return;
    const size_t offset = whole ? 0 : std::min<size_t>(in_.U16(), r->part.size() + 1);
    const size_t bytes = whole ? r->part.size() : in_.U16() % (r->part.size() + 2);
    const SessionId session = whole ? r->session : AnySession();
    const uint8_t damage = whole ? 0 : in_.U8();
    std::vector<std::byte> data(bytes);
    if (offset < r->part.size()) {
      std::copy_n(r->part.begin() + static_cast<ptrdiff_t>(offset),
                  std::min(bytes, r->part.size() - offset), data.begin());
    }
    if (damage == 255 && bytes > 0) data[0] ^= std::byte{1};
    const Status written = engine().Write(session, r->id, offset, data);
    Expect(!written.ok() || session == r->session);
    Expect(!written.ok() || offset + bytes <= r->part.size());
    if (!written.ok()) return;
    std::copy(data.begin(), data.end(), r->written.begin() + static_cast<ptrdiff_t>(offset));
    std::memset(r->missing.data() + offset, ' ', bytes);
  }
  void Commit(Reservation* r, bool own) {
    if (r == nullptr) return;
    const SessionId session = own ? r->session : AnySession();
    const auto results = engine().Commit(session, {&r->id, 1}, "trace");
    if (!results.ok()) return;
    const Status status = (*results)[0];
    if (status.ok()) {
      Expect(session == r->session && r->Right());
      Space& space = world_.spaces[r->space];
      Expect(r->generation == space.generation);
      space.committed[r->n].emplace(r->rect, r->version);
    }
    if (session == r->session) Erase(reserved_, r);
  }
  void Abort() {
    Reservation* r = Any(reserved_);
    const SessionId session = AnySession();
    if (r == nullptr) return;
    (void)engine().Abort(session, {&r->id, 1});
    if (session == r->session) Erase(reserved_, r);
  }

  void Forget(Space& space) {
    space.committed.clear();
    ++space.generation;
  }
  void Drop() {
    const uint8_t how = in_.U8();
    Space& space = AnySpace();
    if (how % 3 == 0) {
      if (engine().BumpEpoch(space.fingerprint).ok()) Forget(space);
    } else if (how % 3 == 1) {
      if (engine().DropNamespace(space.fingerprint).ok()) Forget(space);
    } else if (engine().DropTenant(space.spec.tenant).ok()) {
      for (Space& other : world_.spaces) {
        if (other.spec.tenant == space.spec.tenant) Forget(other);
      }
    }
    if (how >= 128) return;
    for (const Space& other : world_.spaces) (void)engine().OpenNamespace(other.spec, false);
  }

  void Ask() {
    Space& space = AnySpace();
    const uint32_t first = in_.Below(kBlocks);
    const auto keys = Path(first, 1 + in_.Below(kBlocks - first));
    const auto tiers = engine().Exists(space.fingerprint, keys);
    if (!tiers.ok()) return;
    Expect(tiers->size() == keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      if ((*tiers)[i]) Expect(space.Covers(first + static_cast<uint32_t>(i)));
    }
  }
  void Prefetch() {
    const uint32_t first = in_.Below(3) * kChain;
    const auto keys = Path(first, 1 + in_.Below(kChain));
    const auto hint = engine().Prefetch({.session = AnySession(),
                                         .fingerprint = AnySpace().fingerprint,
                                         .keys = keys,
                                         .needed_in = AnyTtl()});
    if (!hint.ok()) return;
    Expect(hint->present_blocks + hint->queued_blocks + hint->absent_blocks +
               hint->refused_blocks ==
           keys.size());
  }
  void Watch() {
    const uint8_t how = in_.U8();
    if (how % 4 == 0) {
      std::optional<cache::Fingerprint> one;
      if (how >= 128) one = world_.spaces[how % 3].fingerprint;
      auto watch = engine().Watch({.fingerprint = one, .snapshot = (how & 4) != 0});
      Expect(watch.ok() || one);
      watch_ = watch.ok() ? *std::move(watch) : nullptr;
    } else if (how % 4 == 1) {
      watch_.reset();
    } else if (watch_ != nullptr) {
      const auto events = watch_->Next(1 + how / 8, world_.clock.Now());
      if (!events.ok()) watch_.reset();
    }
  }

  void Faults() {
    const uint8_t what = in_.U8();
    if (world_.disk == nullptr) return;
    const auto status = Errorf(StatusCode::kUnavailable, "fault");
    switch (what % 6) {
      case 0:
        return world_.disk->FailWrites(1 + what / 64, status);
      case 1:
        return world_.disk->FailReads(1 + what / 64, status);
      case 2:
        return world_.disk->CorruptReads(1);
      case 3:
        return world_.disk->FailFlushes(1, status);
      case 4:
        return world_.disk->RefuseReservations(what >= 128);
      default:
        return world_.disk->HoldCallbacks(what >= 128);
    }
  }
  void Time() {
    world_.clock.Advance(std::chrono::milliseconds(in_.U16()));
    engine().Tick();
  }
  void Work() {
    for (uint32_t left = 1 + in_.Below(16); left > 0; --left) {
      if (world_.executor.RunOne()) continue;
      if (world_.disk == nullptr || !world_.disk->RunOneHeld()) return;
    }
  }
  void Crash() {
    const uint8_t how = in_.U8();
    if (world_.disk == nullptr || crashes_ == 2) return;
    ++crashes_;
    LetGo();
    if (how < 128) (void)world_.disk->Flush();
    world_.Crash();
    OpenSession();
  }
  void LetGo() {
    CheckHeld();
    held_.clear();
    watch_.reset();
    readers_.clear();
    leases_.clear();
    reserved_.clear();
    sessions_.clear();
  }

  void Store() {
    Reservation* r = Reserve();
    Write(r, true);
    Commit(r, true);
  }
  void Serve() {
    const size_t before = readers_.size();
    Fetch(Match(), false);
    if (readers_.size() > before) Read(&readers_.back(), 64);
  }

  void Step() {
    static constexpr void (*kSteps[])(Calls&) = {
        [](Calls& c) { c.OpenSession(); },
        [](Calls& c) { c.CloseSession(); },
        [](Calls& c) { (void)c.engine().OpenNamespace(c.AnySpace().spec, c.in_.Below(2) == 1); },
        [](Calls& c) { (void)c.Match(); },
        [](Calls& c) { c.Fetch(c.Any(c.leases_), true); },
        [](Calls& c) { c.Read(c.Any(c.readers_), 1 + c.in_.Below(8)); },
        [](Calls& c) { c.Release(); },
        [](Calls& c) { c.Renew(); },
        [](Calls& c) { (void)c.Reserve(); },
        [](Calls& c) { c.Write(c.Any(c.reserved_), false); },
        [](Calls& c) { c.Write(c.Any(c.reserved_), true); },
        [](Calls& c) { c.Commit(c.Any(c.reserved_), c.in_.Below(4) != 0); },
        [](Calls& c) { c.Abort(); },
        [](Calls& c) { c.Prefetch(); },
        [](Calls& c) { c.Ask(); },
        [](Calls& c) { c.Drop(); },
        [](Calls& c) { c.Watch(); },
        [](Calls& c) { c.Time(); },
        [](Calls& c) { c.Work(); },
        [](Calls& c) { c.Faults(); },
        [](Calls& c) { c.in_.Below(4) == 0 ? c.Crash() : c.world_.Settle(); },
        [](Calls& c) { c.LookAtHeld(); },
        [](Calls& c) { c.Serve(); },
        [](Calls& c) { c.Store(); },
    };
    kSteps[in_.Below(std::size(kSteps))](*this);
  }

  // Nothing is pinned, and a drop gives back every byte.
  void End() {
    if (world_.disk != nullptr) {
      world_.disk->HoldCallbacks(false);
      world_.disk->RefuseReservations(false);
      world_.disk->CorruptReads(0);
      world_.disk->FailReads(0, OkStatus());
      world_.disk->FailWrites(0, OkStatus());
    }
    for (const SessionId session : sessions_) engine().CloseSession(session);
    LetGo();
    for (int i = 0; i < 12; ++i) {
      world_.clock.Advance(std::chrono::seconds(10));
      engine().Tick();
      world_.Settle();
    }
    const EngineStats stats = engine().GetStats();
    Expect(stats.leases == 0 && stats.reservations == 0 && stats.reserved_bytes == 0);
    Expect(stats.incomplete_blocks == 0 && stats.mover_queue_depth == 0);
    (void)engine().DropTenant("a");
    (void)engine().DropTenant("b");
    world_.Settle();
    Expect(engine().GetStats().blocks == 0);
    Expect(world_.host->GetStats().used_bytes == 0);
    if (world_.disk != nullptr) Expect(world_.disk->GetStats().used_bytes == 0);
  }

  cairn::fuzz::Input& in_;
  World world_;
  std::vector<SessionId> sessions_;
  std::vector<Lease> leases_;
  std::vector<Reservation> reserved_;
  std::vector<Reader> readers_;
  std::vector<FetchedSlice> held_;
  std::unique_ptr<EventQueue> watch_;
  uint8_t version_ = 0;
  int crashes_ = 0;
};

}  // namespace

CAIRN_FUZZ_ENTRY(engine_calls)(const uint8_t* data, size_t size) {
  cairn::fuzz::Input input(data, size);
  const bool disk = (input.U8() & 1) == 0;
  Calls(&input, disk).Run();
  return 0;
}
