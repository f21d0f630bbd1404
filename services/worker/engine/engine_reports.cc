// The reports of an EngineCore about itself.

#include <algorithm>
#include <functional>
#include <map>

#include "services/worker/engine/engine_core.h"

namespace cairn::worker {
namespace {

// One codec may store several namespaces, with other parameters.
void AddCodec(const KvCodec::Stats& codec, std::vector<KvCodec::Stats>* all) {
  const auto same = std::ranges::find(*all, codec.codec, &KvCodec::Stats::codec);
  if (same == all->end()) {
    all->push_back(codec);
    return;
  }
  same->encode += codec.encode;
  same->decode += codec.decode;
}

}  // namespace

WorkerEngine::Info EngineCore::GetInfo() const {
  WorkerEngine::Info info;
  info.model = parts_.model->name();
  info.weights_digest = parts_.model->weights_digest();
  info.numerics = parts_.transformer->numerics_id();
  info.context_tokens = context();
  info.block_tokens = BlockTokens();
  info.threads = parts_.transformer->threads();
  info.cache_address = parts_.options.cache_address;
  info.role = parts_.options.role;
  if (cache_ != nullptr) {
    info.cache_connected = cache_->session().GetStats().connected;
    info.fingerprint = cache_->session().fingerprint();
  }
  return info;
}

WorkerEngine::Stats EngineCore::GetStats() const {
  WorkerEngine::Stats stats;
  {
    MutexLock lock(mu_);
    stats = totals_;
  }
  stats.queued_requests = queue_.size();
  stats.kv_pages_total = static_cast<uint64_t>(parts_.pool->total_pages());
  stats.kv_pages_free = static_cast<uint64_t>(parts_.pool->free_pages());
  const Admission::Stats admission = admission_.GetStats();
  stats.requests_refused = admission.refused;
  stats.near_refusals = admission.near_refused;
  stats.lookahead_blocks = admission.lookahead_blocks;
  const IdleTurns::Stats idle = idle_turns_.GetStats();
  stats.idle_prefilled_tokens = idle.prefilled_tokens;
  stats.idle_turns_dropped = idle.dropped;
  if (cache_ != nullptr) {
    stats.prefix = cache_->session().GetStats();
    stats.push = cache_->push_stats();
  }
  stats.graphs = parts_.transformer->graph_stats();
  if (parts_.codec) stats.codecs = parts_.codec->GetStats();
  for (const PublishedNamespace& target : parts_.published) {
    for (const KvCodec::Stats& codec : target.codec->GetStats()) AddCodec(codec, &stats.codecs);
  }
  return stats;
}

void EngineCore::MeasureMemory(MemoryAccount* account) const {
  const WorkerEngine::Load load = GetLoad();
  uint64_t pool_refusals = 0;
  {
    MutexLock lock(mu_);
    pool_refusals = totals_.pool_refusals;
  }
  account->Measure(MemoryItem::kWeights, account->bound(MemoryItem::kWeights));
  account->Measure(MemoryItem::kCompute, account->bound(MemoryItem::kCompute));
  account->Measure(MemoryItem::kPool,
                   (load.kv_pages_total - load.kv_pages_free) * parts_.pool->layout().page_bytes(),
                   pool_refusals);
  account->Measure(MemoryItem::kParking, load.parked_bytes);
  account->Measure(MemoryItem::kNear, load.near_bytes, admission_.GetStats().near_refused);
}

WorkerEngine::Load EngineCore::GetLoad() const {
  WorkerEngine::Load load;
  {
    MutexLock lock(mu_);
    load = load_;
  }
  load.prefill_seconds = queue_.BacklogSeconds();
  if (cache_ != nullptr) load.cache_node_id = cache_->session().node_id();
  load.kv_pages_total = static_cast<uint64_t>(parts_.pool->total_pages());
  load.kv_pages_free = static_cast<uint64_t>(parts_.pool->free_pages());
  std::map<int32_t, WorkerEngine::Load::Queued, std::greater<>> queued;
  for (const PromptClaim& claim : queue_.Waiting()) {
    WorkerEngine::Load::Queued& one = queued[claim.priority];
    one.priority = claim.priority;
    ++one.requests;
    one.prefill_tokens += static_cast<uint64_t>(claim.prefill_tokens);
  }
  for (const auto& [priority, one] : queued) load.queued.push_back(one);
  return load;
}

}  // namespace cairn::worker
