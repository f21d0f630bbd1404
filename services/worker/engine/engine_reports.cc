// What an EngineCore says of itself.

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
  if (session_) {
    info.cache_connected = session_->GetStats().connected;
    info.fingerprint = session_->fingerprint();
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
  if (session_) stats.prefix = session_->GetStats();
  if (push_) {
    stats.push = push_->GetStats() + urgent_push_->GetStats() + spill_push_->GetStats();
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
  account->Measure(MemoryItem::kWeights, account->bound(MemoryItem::kWeights));
  account->Measure(MemoryItem::kCompute, account->bound(MemoryItem::kCompute));
  account->Measure(MemoryItem::kPool,
                   (load.kv_pages_total - load.kv_pages_free) * parts_.pool->layout().page_bytes());
  account->Measure(MemoryItem::kParking, load.parked_bytes);
  account->Measure(MemoryItem::kNear, load.near_bytes);
}

WorkerEngine::Load EngineCore::GetLoad() const {
  WorkerEngine::Load load;
  {
    MutexLock lock(mu_);
    load = load_;
  }
  load.prefill_seconds = queue_.BacklogSeconds();
  if (session_) load.cache_node_id = session_->node_id();
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
