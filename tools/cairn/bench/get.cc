#include <algorithm>
#include <cstring>

#include "tools/cairn/bench/cpu_meter.h"
#include "tools/cairn/bench/operations.h"
#include "tools/cairn/bench/test_node.h"
#include "tools/cairn/bench/throughput.h"
#include "tools/cairn/bench/workloads.h"

namespace cairn::cli::bench {
namespace {

class Get final : public Workload {
 public:
  explicit Get(const BenchOptions& options) : options_(options) {}

  Status Prepare() override {
    CAIRN_ASSIGN_OR_RETURN(set_, BlockSet::Make({.block_bytes = options_.block_bytes,
                                                 .layers = options_.layers,
                                                 .blocks = options_.blocks()}));
    CAIRN_ASSIGN_OR_RETURN(destination_, Buffer::Allocate(options_.data_bytes));
    // Room for the blocks twice: nothing that is measured is evicted.
    CAIRN_ASSIGN_OR_RETURN(
        node_, TestNode::Start(options_, {.host_bytes = 2 * options_.data_bytes +
                                                        uint64_t{set_->blocks()} * 8192 +
                                                        (uint64_t{64} << 20)}));
    CAIRN_ASSIGN_OR_RETURN(clients_, ConnectAll(*node_, options_, set_->spec()));
    CAIRN_RETURN_IF_ERROR(Store(*clients_[0], *set_, kGeneration, ChainBlocks()));
    if (!options_.lookup) {
      for (size_t c = 0; c < clients_.size(); ++c) {
        CAIRN_ASSIGN_OR_RETURN(client::Lease lease, Match(c, 0, set_->blocks()));
        leases_.push_back(std::move(lease));
      }
    }
    lent_.resize(options_.lent ? Calls() : 0);
    return OkStatus();
  }

  Result<std::vector<Metric>> Trial(double seconds) override {
    Throughput sum;
    do {
      // Stale bytes of the last pass would pass for those of this one.
      std::memset(destination_.bytes().data(), 0, destination_.bytes().size());
      const CpuMeter cpu(Children());
      const Operations pass = RunOperations(
          options_.clients * options_.depth, Calls(), seconds - sum.seconds(),
          [&](uint32_t thread, uint32_t i) { return GetOne(thread % options_.clients, i); });
      CAIRN_RETURN_IF_ERROR(pass.status);
      sum.Add(pass, options_.batch * set_->block_bytes(), cpu.Read().own_seconds);
      CAIRN_RETURN_IF_ERROR(Verify(pass.done));
    } while (sum.seconds() < seconds);
    return sum.Metrics();
  }

  std::vector<pid_t> Children() const override { return node_->Pids(); }

  std::vector<std::pair<std::string, std::string>> Facts() const override {
    return {{"path", std::string(client::Name(clients_[0]->GetStats().path))}};
  }

 private:
  static constexpr uint64_t kGeneration = 1;

  uint32_t Calls() const { return set_->blocks() / options_.batch; }
  // One lease for all blocks, or one a call.
  uint32_t ChainBlocks() const { return options_.lookup ? options_.batch : set_->blocks(); }

  Result<client::Lease> Match(size_t client, uint32_t begin, uint32_t end) {
    const auto keys = set_->Keys(kGeneration, begin, end);
    CAIRN_ASSIGN_OR_RETURN(client::MatchOutcome match,
                           clients_[client]->Match(set_->fingerprint(), keys, PatientMatch()));
    CAIRN_RETURN_IF_ERROR(AllMatched(match, keys.size()));
    return std::move(match.lease);
  }

  static Status AllMatched(const client::MatchOutcome& match, size_t asked) {
    if (match.matched_blocks == asked) return OkStatus();
    return Errorf(StatusCode::kDataLoss, "{} of {} stored blocks matched: {}", match.matched_blocks,
                  asked, client::Name(match.miss_reason));
  }

  Status GetOne(size_t client, uint32_t call) {
    const uint32_t begin = call * options_.batch, end = begin + options_.batch;
    const uint64_t bytes = options_.batch * set_->block_bytes();
    std::vector<LentSlice>* const lent = options_.lent ? &lent_[call] : nullptr;
    const client::FetchOptions fetch = PatientFetch(options_.verify);
    if (options_.lookup) {
      const auto keys = set_->Keys(kGeneration, begin, end);
      MemorySink sink(destination_.bytes().subspan(call * bytes, bytes), set_->block_bytes(), lent);
      CAIRN_ASSIGN_OR_RETURN(
          const client::MatchOutcome found,
          clients_[client]->Get(set_->fingerprint(), keys, {}, sink, PatientMatch(), fetch));
      CAIRN_RETURN_IF_ERROR(AllMatched(found, keys.size()));
      return sink.Check(bytes);
    }
    MemorySink sink(destination_.bytes(), set_->block_bytes(), lent);
    CAIRN_RETURN_IF_ERROR(clients_[client]->Fetch(
        leases_[client], {.block_begin = begin, .block_end = end}, sink, fetch));
    return sink.Check(bytes);
  }

  // Everything that the first `calls` calls brought.
  Status Verify(uint32_t calls) {
    if (!options_.lent) {
      return ComparePayload(*set_, 0, calls * options_.batch, destination_.bytes());
    }
    for (uint32_t call = 0; call < calls; ++call) {
      const uint32_t first = options_.lookup ? call * options_.batch : 0;
      CAIRN_RETURN_IF_ERROR(CompareLent(*set_, first, lent_[call]));
      lent_[call].clear();
    }
    return OkStatus();
  }

  const BenchOptions options_;
  std::shared_ptr<const BlockSet> set_;
  Buffer destination_;
  std::unique_ptr<TestNode> node_;
  std::vector<std::unique_ptr<client::CacheClient>> clients_;
  std::vector<client::Lease> leases_;         // One a client, unless --lookup.
  std::vector<std::vector<LentSlice>> lent_;  // The slices of each call, until they are compared.
};

}  // namespace

std::unique_ptr<Workload> NewGet(const BenchOptions& options) {
  return std::make_unique<Get>(options);
}

}  // namespace cairn::cli::bench
