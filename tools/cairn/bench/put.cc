#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "cairn/common/seal_copy.h"
#include "common/memory/bulk_copy.h"
#include "tools/cairn/bench/cpu_meter.h"
#include "tools/cairn/bench/operations.h"
#include "tools/cairn/bench/test_node.h"
#include "tools/cairn/bench/throughput.h"
#include "tools/cairn/bench/workloads.h"

namespace cairn::cli::bench {
namespace {

class Put final : public Workload {
 public:
  explicit Put(const BenchOptions& options) : options_(options) {}

  Status Prepare() override {
    CAIRN_ASSIGN_OR_RETURN(set_, BlockSet::Make({.block_bytes = options_.block_bytes,
                                                 .layers = options_.layers,
                                                 .blocks = options_.blocks()}));
    lengths_.assign(options_.layers, set_->slice_bytes());
    CAIRN_ASSIGN_OR_RETURN(read_back_, Buffer::Allocate(options_.data_bytes));
    CAIRN_ASSIGN_OR_RETURN(node_, TestNode::Start(options_, {.host_bytes = HostBytes()}));
    CAIRN_ASSIGN_OR_RETURN(clients_, ConnectAll(*node_, options_, set_->spec()));
    // A full node: from now on each put evicts, as in a cache that has run for a while.
    for (uint64_t filled = 0; filled < HostBytes(); filled += options_.data_bytes) {
      CAIRN_RETURN_IF_ERROR(Store(*clients_[0], *set_, NextGeneration(), options_.batch));
    }
    return OkStatus();
  }

  Result<std::vector<Metric>> Trial(double seconds) override {
    Throughput sum;
    do {
      NextGeneration();
      const CpuMeter cpu(Children());
      const Operations pass =
          RunOperations(options_.clients * options_.depth, set_->blocks() / options_.batch,
                        seconds - sum.seconds(), [&](uint32_t thread, uint32_t i) {
                          return PutOne(*clients_[thread % clients_.size()], i * options_.batch);
                        });
      CAIRN_RETURN_IF_ERROR(pass.status);
      sum.Add(pass, options_.batch * set_->block_bytes(), cpu.Read().own_seconds);
      for (uint32_t i = 0; i < pass.done; ++i) CAIRN_RETURN_IF_ERROR(ReadBack(i * options_.batch));
    } while (sum.seconds() < seconds);
    return sum.Metrics();
  }

  std::vector<pid_t> Children() const override { return node_->Pids(); }

  std::vector<std::pair<std::string, std::string>> Facts() const override {
    return {{"path", std::string(client::Name(clients_[0]->GetStats().path))}};
  }

 private:
  // The last pass and the one before.
  uint64_t HostBytes() const {
    return 2 * options_.data_bytes + uint64_t{set_->blocks()} * 8192 + (uint64_t{64} << 20);
  }

  // The node tells uses apart by 17 ms: a node that is filled several times within that may evict
  // what was stored last, and readers would miss it. A pass of the usual size takes longer anyway.
  uint64_t NextGeneration() {
    std::this_thread::sleep_until(next_generation_at_);
    next_generation_at_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    return ++generation_;
  }

  Status PutOne(client::CacheClient& client, uint32_t begin) {
    if (client.GetStats().path == client::Path::kLocal) return PutInPlace(client, begin);
    const auto parts = set_->ToPush(generation_, begin, begin + options_.batch, options_.batch);
    CAIRN_ASSIGN_OR_RETURN(const std::vector<Status> stored,
                           client.Push(set_->fingerprint(), parts, PatientPush()));
    return First(stored);
  }

  // The only copy is the one into the node's memory. Verified: hashed on the way; else the parts
  // come with the hashes that they got when they were made.
  Status PutInPlace(client::CacheClient& client, uint32_t begin) {
    const auto parts = set_->ToWrite(generation_, begin, begin + options_.batch, options_.batch);
    CAIRN_ASSIGN_OR_RETURN(const auto push,
                           client.BeginPush(set_->fingerprint(), parts, PatientPush()));
    for (uint32_t i = 0; i < options_.batch; ++i) {
      const client::InPlacePush::Slot& slot = push->slots()[i];
      CAIRN_RETURN_IF_ERROR(slot.status);
      if (slot.room.empty()) {
        return Errorf(StatusCode::kInternal, "the node says that it already has a new block");
      }
      if (options_.verify) {
        format::SealCopy(slot.room, set_->Payload(begin + i), format::Codec::kRaw, set_->rect(),
                         set_->block_tokens(), lengths_, /*streaming=*/true);
      } else {
        StreamingCopy(slot.room.data(), set_->Part(begin + i).data(), slot.room.size());
      }
    }
    StreamingFence();
    CAIRN_ASSIGN_OR_RETURN(const std::vector<Status> stored, push->Commit());
    return First(stored);
  }

  static Status First(const std::vector<Status>& statuses) {
    for (const Status& status : statuses) CAIRN_RETURN_IF_ERROR(status);
    return OkStatus();
  }

  Status ReadBack(uint32_t begin) {
    const uint64_t bytes = options_.batch * set_->block_bytes();
    const auto memory = read_back_.bytes().subspan(0, bytes);
    std::memset(memory.data(), 0, memory.size());
    const auto keys = set_->Keys(generation_, begin, begin + options_.batch);
    CAIRN_ASSIGN_OR_RETURN(const client::MatchOutcome match,
                           clients_[0]->Match(set_->fingerprint(), keys, PatientMatch()));
    if (match.matched_blocks != keys.size()) {
      return Errorf(StatusCode::kDataLoss, "of {} blocks just stored {} are there: {}", keys.size(),
                    match.matched_blocks, client::Name(match.miss_reason));
    }
    MemorySink sink(memory, set_->block_bytes());
    CAIRN_RETURN_IF_ERROR(clients_[0]->Fetch(match.lease, {}, sink, PatientFetch(true)));
    CAIRN_RETURN_IF_ERROR(sink.Check(bytes));
    for (uint32_t i = 0; i < options_.batch; ++i) {
      const auto expected = set_->Payload(begin + i);
      if (std::memcmp(memory.data() + i * set_->block_bytes(), expected.data(), expected.size()) !=
          0) {
        return Errorf(StatusCode::kDataLoss, "block {} came back with other bytes", begin + i);
      }
    }
    return OkStatus();
  }

  const BenchOptions options_;
  std::shared_ptr<const BlockSet> set_;
  std::vector<uint64_t> lengths_;  // The lengths of a part's slices.
  Buffer read_back_;
  std::unique_ptr<TestNode> node_;
  std::vector<std::unique_ptr<client::CacheClient>> clients_;
  uint64_t generation_ = 0;
  std::chrono::steady_clock::time_point next_generation_at_ = {};
};

}  // namespace

std::unique_ptr<Workload> NewPut(const BenchOptions& options) {
  return std::make_unique<Put>(options);
}

}  // namespace cairn::cli::bench
