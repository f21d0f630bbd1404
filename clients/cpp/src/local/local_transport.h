#pragma once
// The same-node path as a transport.

#include "clients/cpp/src/core/transport.h"
#include "clients/cpp/src/local/local_path.h"

namespace cairn::client::local {

// Thread-safe.
class LocalTransport final : public NearTransport {
 public:
  // `clock` must outlive it.
  LocalTransport(const LocalPath::Options& options, const Clock* clock) : local_(options, clock) {}

  Path path() const override { return Path::kLocal; }
  std::optional<Result<Matched>> Match(const TransportCall& call, const Digest& fingerprint,
                                       std::span<const BlockKey> keys,
                                       const MatchOptions& options) override;
  std::optional<FetchReport> Fetch(const LeaseInfo& lease, const FetchRange& range, FetchSink& sink,
                                   const FetchOptions& options, TimePoint deadline) override;
  std::optional<RowReport> FetchRows(const LeaseInfo& lease, const RowsWanted& wanted,
                                     RowSink& sink, const FetchOptions& options,
                                     TimePoint deadline) override;
  std::optional<PushReport> Push(const TransportCall& call, const Digest& fingerprint,
                                 std::span<const PartToPush> parts,
                                 const PushOptions& options) override;
  std::optional<Result<TierList>> Exists(const TransportCall& call, const Digest& fingerprint,
                                         std::span<const BlockKey> keys,
                                         const CallOptions& options) override;
  std::optional<Result<Duration>> Renew(const LeaseInfo& lease, Duration ttl,
                                        const CallOptions& options, TimePoint deadline) override;
  bool Release(const LeaseInfo& lease) override { return local_.Drop(lease); }

  State GetState() const override { return local_.GetState(); }
  Status Unavailable() const override { return local_.Unavailable(); }
  void Remember(const Digest& fingerprint, std::string_view tenant) override {
    local_.Remember(fingerprint, tenant);
  }
  void Prepare(const TransportCall& call, const Digest& fingerprint) override {
    local_.Get(call.session, fingerprint, call.deadline);
  }
  void CheckAlive() override { local_.CheckAlive(); }
  std::optional<Result<std::unique_ptr<InPlacePush>>> BeginPush(const TransportCall& call,
                                                                const Digest& fingerprint,
                                                                std::span<const PartToWrite> parts,
                                                                const PushOptions& options,
                                                                const InPlaceHooks& hooks) override;

 private:
  LocalPath local_;
};

}  // namespace cairn::client::local
