#include "services/worker/methods/reading/node_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn::worker {
namespace {

// The groups of a request, and where each one's rows go.
class Groups final : public client::RowSink {
 public:
  Groups(const RowRequest& request, const KvLayout& kv, size_t words)
      : row_bytes_(kv.row_bytes()), words_(words) {
    const auto block_tokens = static_cast<int32_t>(kv.block_tokens);
    for (const RowRequest::Head& head : request.heads) {
      for (size_t i = 0; i < head.rows.size();) {
        const int32_t block = head.rows[i] / block_tokens;
        Place place{.block = static_cast<uint32_t>(block),
                    .head = static_cast<uint32_t>(head.head),
                    .k = head.k + i * row_bytes_,
                    .v = head.v + i * row_bytes_,
                    .mask = std::vector<uint64_t>(words_)};
        for (; i < head.rows.size() && head.rows[i] / block_tokens == block; ++i, ++place.rows) {
          const auto token = static_cast<uint32_t>(head.rows[i] % block_tokens);
          place.mask[token / 64] |= uint64_t{1} << (token % 64);
        }
        places_.push_back(std::move(place));
      }
    }
    std::ranges::sort(places_, [](const Place& a, const Place& b) {
      return std::pair(a.block, a.head) < std::pair(b.block, b.head);
    });
    for (const Place& place : places_) groups_.push_back({place.block, place.head, place.mask});
  }

  std::span<const RowGroup> groups() const { return groups_; }
  bool failed() const { return failed_; }

  Status OnRows(size_t group, const RowsInfo& info, std::span<const std::byte> rows) override {
    const Place& place = places_[group];
    const size_t plane = place.rows * row_bytes_;
    if (info.codec != format::Codec::kRaw || rows.size() != 2 * plane) {
      return Errorf(StatusCode::kDataLoss, "block {}: {} bytes of {} rows, expected {} in raw",
                    place.block, rows.size(), place.rows, 2 * plane);
    }
    std::memcpy(place.k, rows.data(), plane);
    std::memcpy(place.v, rows.data() + plane, plane);
    return OkStatus();
  }
  void OnRowsFailed(size_t, MissReason) override { failed_ = true; }

 private:
  struct Place {
    uint32_t block = 0, head = 0;
    std::byte* k = nullptr;
    std::byte* v = nullptr;
    size_t rows = 0;
    std::vector<uint64_t> mask;
  };
  const size_t row_bytes_;
  const size_t words_;
  std::vector<Place> places_;
  std::vector<RowGroup> groups_;
  bool failed_ = false;
};

}  // namespace

Result<std::unique_ptr<NodeRows>> NodeRows::Hold(client::CacheClient& client, const Clock& clock,
                                                 const NamespaceSpec& spec, const KvLayout& kv,
                                                 const Digest& fingerprint,
                                                 std::span<const BlockKey> keys,
                                                 const Options& options, std::string trace) {
  CAIRN_ASSIGN_OR_RETURN(RowLayout layout, RowLayout::Of(spec));
  client::MatchOptions ask;
  ask.deadline = options.match_deadline;
  ask.lease_ttl = options.lease_ttl;
  ask.trace = trace;
  CAIRN_ASSIGN_OR_RETURN(client::MatchOutcome match, client.Match(fingerprint, keys, ask));
  if (match.matched_blocks < keys.size()) {
    return Errorf(StatusCode::kNotFound, "the cache node has {} of {} blocks of the context",
                  match.matched_blocks, keys.size());
  }
  return std::unique_ptr<NodeRows>(new NodeRows(client, clock, std::move(layout), kv,
                                                std::move(match.lease), options, std::move(trace)));
}

NodeRows::NodeRows(client::CacheClient& client, const Clock& clock, RowLayout layout,
                   const KvLayout& kv, client::Lease lease, const Options& options,
                   std::string trace)
    : client_(client),
      clock_(clock),
      layout_(std::move(layout)),
      kv_(kv),
      lease_(std::move(lease)),
      options_(options),
      trace_(std::move(trace)) {}

void NodeRows::Renew() {
  if (!lease_.held() || clock_.Now() < lease_.info().expires_at - options_.lease_ttl / 2) {
    return;
  }
  // If the lease is over, the fetch says so.
  (void)client_.RenewLease(lease_, options_.lease_ttl,
                           {.deadline = options_.match_deadline, .trace = trace_});
}

std::shared_ptr<RowGather> NodeRows::Gather(RowRequest request) {
  Renew();
  Groups groups(request, kv_, layout_.mask_words());
  client::FetchOptions fetch;
  fetch.progress = options_.progress;
  fetch.deadline = options_.deadline;
  fetch.trace = trace_;
  const Status status = client_.FetchRows(lease_, layout_, static_cast<uint32_t>(request.layer),
                                          groups.groups(), groups, fetch);
  auto gather = std::make_shared<RowGather>();
  gather->Finish(status.ok() && !groups.failed());
  return gather;
}

}  // namespace cairn::worker
