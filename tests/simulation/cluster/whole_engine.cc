#include "tests/simulation/cluster/whole_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "cairn/common/hash.h"

namespace cairn::testing {
namespace {

using cache::testing::FakeTier;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr uint32_t kLayers = 2, kHeads = 2;
constexpr Duration kLook = milliseconds(1);  // Between two looks at a fetch.
constexpr uint64_t kFlushEvery = 10;         // Ticks.
// A process that did not look for so long was stopped.
constexpr Duration kStopped = milliseconds(50);

// SplitMix64 (Steele, Lea, Flood, 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t WordAt(std::span<const std::byte> bytes, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

// A slice: the stamp, then words that follow from all that names it.
void FillSlice(const BlockKey& key, uint64_t stamp, uint32_t layer, uint32_t head,
               std::span<std::byte> slice) {
  uint64_t state = WordAt(std::as_bytes(std::span(key.bytes)), 0) ^ Mix(stamp + 1) ^
                   Mix(uint64_t{layer} << 32 | head);
  for (size_t at = 0; at < slice.size(); at += sizeof(uint64_t)) {
    const uint64_t word = at == 0 ? stamp : Mix(state += 0x9e3779b97f4a7c15ull);
    std::memcpy(slice.data() + at, &word, sizeof word);
  }
}

std::vector<uint64_t> SliceLengths(const Layout& layout, const format::PartRect& rect) {
  std::vector<uint64_t> lengths;
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    lengths.push_back(layout.SliceBytes(layer, rect.head_begin, rect.head_end));
  }
  return lengths;
}

std::vector<std::byte> MakePart(const Layout& layout, const BlockKey& key, uint64_t stamp,
                                const format::PartRect& rect) {
  const std::vector<uint64_t> lengths = SliceLengths(layout, rect);
  std::vector<std::byte> part(format::PartBytes(lengths));
  size_t at = format::HeaderBytes(static_cast<uint32_t>(lengths.size()));
  for (size_t i = 0; i < lengths.size(); ++i) {
    FillSlice(key, stamp, rect.layer_begin + static_cast<uint32_t>(i), rect.head_begin,
              std::span(part).subspan(at, lengths[i]));
    at += lengths[i];
  }
  format::SealPart(part, format::Codec::kRaw, rect, static_cast<uint16_t>(layout.block_tokens),
                   lengths);
  return part;
}

std::vector<format::PartRect> RectsOf(const Layout& layout, uint32_t parts) {
  std::vector<format::PartRect> rects;
  const auto heads = static_cast<uint16_t>(kHeads / parts);
  for (uint16_t head = 0; head < kHeads; head = static_cast<uint16_t>(head + heads)) {
    format::PartRect rect = layout.WholeRect();
    rect.head_begin = head;
    rect.head_end = static_cast<uint16_t>(head + heads);
    rects.push_back(rect);
  }
  return rects;
}

}  // namespace

SimulatedNamespace MakeNamespace(const std::string& model, uint32_t block_tokens) {
  SimulatedNamespace ns;
  ns.spec.tenant = std::string("simulation");
  ns.spec.model = model;
  ns.spec.revision = std::string("1");
  ns.spec.numerics = std::string("none");
  ns.spec.layout.block_tokens = block_tokens;
  ns.spec.layout.form = NativeLayout{
      .groups = {{.count = kLayers,
                  .planes = {{.name = "k", .heads = kHeads, .dim = 1, .dtype = DType::kF16},
                             {.name = "v", .heads = kHeads, .dim = 1, .dtype = DType::kF16}}}},
      .kv_heads = kHeads};
  CAIRN_CHECK(Validate(ns.spec).ok());
  ns.fingerprint = Fingerprint(ns.spec);
  return ns;
}

struct WholeEngine::Request {
  SimulatedNamespace ns;
  std::vector<BlockKey> keys;
  Done done;
  Outcome outcome = {};
  cache::SessionId session = 0;
  std::unique_ptr<cache::FetchStream> stream = nullptr;
  TimePoint ends{}, looked{}, heard{};
  std::vector<uint32_t> cells = {};  // The cells of each block that came.
};

WholeEngine::WholeEngine(Options options, Surroundings surroundings, const SimulatedDisk& disk)
    : options_(options), s_(std::move(surroundings)), random_(s_.seed) {
  disk_ = disk.whole != nullptr
              ? disk.whole->CopyDevice(/*power_loss=*/true)
              : std::make_unique<FakeTier>(FakeTier::Options{.capacity_bytes = options.disk_bytes});
  disk_->HoldCallbacks();
  disk_->OnHeld([this] { s_.later(DiskTime(), [this] { disk_->RunOneHeld(); }); });
  cache::HostTierOptions host;
  host.capacity_bytes = options.host_bytes;
  host.prefault = false;
  host.check_memory = false;
  host_ = *cache::HostTier::Create(host);
  cache::EngineOptions engine;
  engine.watch_queue_capacity = static_cast<uint32_t>(options.events);
  engine.source_lookup_timeout = milliseconds(20);
  engine.source_read_timeout = std::chrono::seconds(1);
  auto created = cache::CacheEngine::Create(
      engine, {.tiers = cache::Tiers(host_.get()).Add(disk_.get()),
               .clock = s_.clock,
               .executor = s_.executor,
               .node_id = s_.node_id,
               .node_epoch = s_.epoch,
               .source = s_.source,
               .timers = s_.timers,
               .new_bump_id = [this] {
                 std::array<uint8_t, 16> id{};
                 for (uint8_t& byte : id) {
                   byte = static_cast<uint8_t>(Mix(random_ += 0x9e3779b97f4a7c15ull));
                 }
                 return id;
               }});
  CAIRN_CHECK(created.ok());
  engine_ = *std::move(created);
}

WholeEngine::~WholeEngine() {
  CAIRN_CHECK(closed_);
  FinishDisk();
  engine_.reset();
}

void WholeEngine::FinishDisk() {
  disk_->OnHeld(nullptr);
  disk_->HoldCallbacks(false);
  disk_->RunHeld();
}

Duration WholeEngine::DiskTime() {
  return microseconds(100) + microseconds(Mix(random_ += 0x9e3779b97f4a7c15ull) % 4000);
}

void WholeEngine::Close() {
  closed_ = true;
  for (const RequestPtr& request : requests_) {
    request->stream.reset();
    engine_->CloseSession(request->session);
  }
  requests_.clear();
}

SimulatedDisk WholeEngine::Save(bool power_loss) const {
  return {.whole = disk_->CopyDevice(power_loss)};
}

void WholeEngine::Break(DiskFault fault, int operations) {
  const Status error(StatusCode::kUnavailable, "the disk failed");
  disk_->FailReads(fault == DiskFault::kReadsFail ? operations : 0, error);
  disk_->FailWrites(fault == DiskFault::kWritesFail ? operations : 0, error);
  disk_->CorruptReads(fault == DiskFault::kReadsAreDamaged ? operations : 0);
}

void WholeEngine::Tick() {
  engine_->Tick();
  const uint64_t written = disk_->GetStats().written_bytes;
  if (++ticks_ % kFlushEvery != 0 || written == flushed_bytes_) return;
  flushed_bytes_ = written;
  CAIRN_CHECK(disk_->Flush().ok());
}

void WholeEngine::Know(const SimulatedNamespace& ns) {
  const auto opened = engine_->OpenNamespace(ns.spec, /*strict=*/false);
  if (!opened.ok()) s_.wrong("a namespace was refused: " + ToString(opened.status()));
}

bool WholeEngine::Knows(const Digest& fingerprint) const {
  return engine_->GetNamespace(fingerprint).ok();
}

bool WholeEngine::Has(const Digest& fingerprint, const BlockKey& key) {
  return Prefix(fingerprint, {&key, 1}) == 1;
}

uint32_t WholeEngine::Prefix(const Digest& fingerprint, std::span<const BlockKey> keys) {
  const auto found = engine_->Exists(fingerprint, keys);
  if (!found.ok()) return 0;
  const auto missing = std::find(found->begin(), found->end(), std::nullopt);
  return static_cast<uint32_t>(missing - found->begin());
}

void WholeEngine::Store(const SimulatedNamespace& ns, std::span<const BlockKey> keys) {
  const auto session = engine_->OpenSession("writer");
  if (!session.ok()) return;
  const uint64_t stamp = engine_->for_peers()->BumpsDigestOf(ns.fingerprint);
  const Layout& layout = ns.spec.layout;
  for (size_t i = 0; i < keys.size(); ++i) {
    for (const format::PartRect& rect : RectsOf(layout, options_.parts)) {
      cache::ReservePartRequest part;
      part.key = keys[i];
      if (i > 0) part.parent = keys[i - 1];
      part.first_position = i * layout.block_tokens;
      part.part = rect;
      part.bytes = format::PartBytes(SliceLengths(layout, rect));
      const Status stored = StoreOne(*session, ns, part, stamp);
      // Another writer was first, with another number of parts perhaps.
      if (stored.ok() || stored.code() == StatusCode::kAlreadyExists) continue;
      if (stored.code() != StatusCode::kResourceExhausted) {
        s_.wrong("a block was refused: " + ToString(stored));
      }
      return engine_->CloseSession(*session);
    }
  }
  engine_->CloseSession(*session);
}

Status WholeEngine::StoreOne(cache::SessionId session, const SimulatedNamespace& ns,
                             const cache::ReservePartRequest& part, uint64_t stamp) {
  CAIRN_ASSIGN_OR_RETURN(const auto rooms,
                         engine_->Reserve(session, ns.fingerprint, {&part, 1}, Duration(0)));
  CAIRN_ASSIGN_OR_RETURN(const cache::ReservationId room, rooms[0]);
  CAIRN_RETURN_IF_ERROR(
      engine_->Write(session, room, 0, MakePart(ns.spec.layout, part.key, stamp, part.part)));
  CAIRN_ASSIGN_OR_RETURN(const auto committed, engine_->Commit(session, {&room, 1}, ""));
  return committed[0];
}

void WholeEngine::Get(const SimulatedNamespace& ns, std::vector<BlockKey> keys, Done done) {
  auto request = std::make_shared<Request>(
      Request{.ns = ns, .keys = std::move(keys), .done = std::move(done)});
  const auto session = engine_->OpenSession("reader");
  if (!session.ok()) {
    request->outcome.lookup = session.status();
    return request->done(request->outcome);
  }
  request->session = *session;
  requests_.push_back(request);
  const auto match = engine_->Match({.session = *session,
                                     .fingerprint = ns.fingerprint,
                                     .keys = request->keys,
                                     .lease_ttl = options_.fetch_patience,
                                     .trace = ""});
  if (!match.ok()) return Matched(request, match);
  request->outcome.local = match->matched_blocks;
  if (match->further == nullptr) return Matched(request, match);
  match->further->Find(s_.clock->Now() + options_.lookup_patience,
                       [this, request](const Result<cache::MatchResult>& all) {
                         if (closed_) return;
                         s_.later(Duration(0), [this, request, all] { Matched(request, all); });
                       });
}

void WholeEngine::Matched(const RequestPtr& request, const Result<cache::MatchResult>& match) {
  if (closed_) return;
  Outcome& outcome = request->outcome;
  outcome.lookup = match.status();
  if (!match.ok() || match->matched_blocks == 0) return Finish(request);
  if (match->matched_blocks > request->keys.size() || match->matched_blocks < outcome.local) {
    s_.wrong(fmt::format("a match of {} keys found {} blocks, {} of them here",
                         request->keys.size(), match->matched_blocks, outcome.local));
    return Finish(request);
  }
  outcome.located = match->matched_blocks - outcome.local;
  if (!match->lease) {
    s_.wrong("a match has no lease");
    return Finish(request);
  }
  BeginFetch(request, *match);
}

void WholeEngine::BeginFetch(const RequestPtr& request, const cache::MatchResult& match) {
  auto stream = engine_->Fetch(
      {.session = request->session, .lease = *match.lease, .reader_verifies = true, .trace = ""});
  if (!stream.ok()) {
    // A bump ended the lease between match and fetch.
    if (stream.status().code() != StatusCode::kNotFound) {
      s_.wrong("a fetch was refused: " + ToString(stream.status()));
    }
    request->outcome.failed = request->outcome.located;
    return Finish(request);
  }
  request->stream = *std::move(stream);
  request->cells.resize(match.matched_blocks);
  request->looked = request->heard = s_.clock->Now();
  request->ends = request->heard + options_.fetch_patience;
  Pump(request);
}

void WholeEngine::Pump(const RequestPtr& request) {
  if (closed_) return;
  const TimePoint now = s_.clock->Now();
  if (now > request->looked + kStopped) request->heard = now;
  request->looked = now;
  for (;;) {
    auto item = request->stream->Next(now);
    if (!item.ok()) {
      if (item.status().code() != StatusCode::kDeadlineExceeded) {
        s_.wrong("a fetch failed: " + ToString(item.status()));
        return Finish(request);
      }
      break;
    }
    if (!item->has_value()) return Finish(request);
    request->heard = now;
    if (const auto* const slice = std::get_if<cache::FetchedSlice>(&**item)) Look(*request, *slice);
  }
  if (now > request->heard + options_.longest_silence) {
    s_.wrong("a fetch was silent for too long");
    return Finish(request);
  }
  if (now >= request->ends) return Finish(request);
  s_.later(kLook, [this, request] { Pump(request); });
}

void WholeEngine::Look(Request& request, const cache::FetchedSlice& slice) {
  const BlockKey& key = request.keys[slice.block];
  std::vector<std::byte> expected(slice.data.size());
  const uint64_t stamp = slice.data.size() < sizeof(uint64_t) ? 0 : WordAt(slice.data, 0);
  FillSlice(key, stamp, slice.layer, slice.part.head_begin, expected);
  if (!std::equal(slice.data.begin(), slice.data.end(), expected.begin()) ||
      slice.data.size() != request.ns.spec.layout.SliceBytes(slice.layer, slice.part.head_begin,
                                                             slice.part.head_end)) {
    s_.wrong("a fetch gave wrong bytes");
  }
  if (stamp != engine_->for_peers()->BumpsDigestOf(request.ns.fingerprint)) {
    s_.wrong("a block from before a bump was served by a node that knows the bump");
  }
  request.cells[slice.block] += slice.part.head_end - slice.part.head_begin;
}

void WholeEngine::Finish(const RequestPtr& request) {
  request->stream.reset();
  engine_->CloseSession(request->session);
  Outcome& outcome = request->outcome;
  for (size_t block = outcome.local; block < request->cells.size(); ++block) {
    ++(request->cells[block] == kLayers * kHeads ? outcome.read : outcome.failed);
  }
  accepted_ += outcome.read;
  requests_.remove(request);
  request->done(outcome);
}

}  // namespace cairn::testing
