#include "clients/cpp/src/grpc/grpc_transport.h"

#include <algorithm>
#include <utility>

#include "clients/cpp/src/grpc/channel.h"
#include "clients/cpp/src/grpc/event_stream.h"
#include "clients/cpp/src/grpc/grpc_fetch.h"
#include "clients/cpp/src/grpc/grpc_rows.h"
#include "clients/cpp/src/grpc/push.h"
#include "common/rpc/status.h"
#include "protocol/wire/convert.h"
#include "protocol/wire/joint.h"
#include "protocol/wire/node_statistics.h"

namespace cairn::client {
namespace {

std::string Bytes(const Digest& digest) { return std::string(digest.View()); }

uint32_t Millis(Duration d) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, 600'000));
}

NodeStats FromProto(const v1::StatResponse& in) {
  NodeStats out;
  wire::FromProto(in, &out);
  out.version = in.version();
  out.draining = in.draining();
  for (const v1::TierStat& tier : in.tiers()) {
    if (const auto known = wire::FromProto(tier)) out.tiers.push_back(*known);
  }
  return out;
}

}  // namespace

GrpcTransport::GrpcTransport(Channels channels, GrpcSessionLink::Client client, const Clock* clock)
    : clock_(clock),
      stub_(v1::Cache::NewStub(channels.control)),
      events_reconnect_(channels.events),
      events_(std::make_unique<grpc::GenericStub>(std::move(channels.events))),
      data_(std::move(channels.data)),
      sender_(stub_.get(), clock),
      releases_(&sender_),
      link_(std::move(channels.control), std::move(client), clock) {}

Result<OpenedNamespace> GrpcTransport::OpenNamespace(const NamespaceSpec& spec,
                                                     const NamespaceOptions& how,
                                                     const CallOptions& options,
                                                     TimePoint deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline, options.trace);
  v1::OpenNamespaceRequest request;
  v1::OpenNamespaceResponse response;
  wire::ToProto(spec, request.mutable_spec());
  request.set_block_life_ms(static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(how.block_life).count())));
  CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->OpenNamespace(&context, request, &response)));
  OpenedNamespace opened;
  CAIRN_ASSIGN_OR_RETURN(opened.fingerprint,
                         Digest::FromBytes(response.fingerprint(), "fingerprint"));
  opened.created = response.created();
  for (const v1::FieldDifference& d : response.differs()) {
    opened.differs.push_back({wire::FromProto(d), d.stored_blocks()});
  }
  return opened;
}

std::optional<Result<Matched>> GrpcTransport::Match(const TransportCall& call,
                                                    const Digest& fingerprint,
                                                    std::span<const BlockKey> keys,
                                                    const MatchOptions& options) {
  grpc::ClientContext context;
  Prepare(context, call.deadline, options.trace);
  v1::MatchRequest request;
  v1::MatchResponse response;
  request.set_session_id(call.session->id);
  request.set_fingerprint(Bytes(fingerprint));
  request.set_keys(wire::KeysToProto(keys));
  request.set_lease_ttl_ms(Millis(options.lease_ttl));
  request.set_no_lease(!options.lease);
  request.set_prefill_tokens_per_second(options.prefill_tokens_per_second);
  request.mutable_holders()->Assign(options.holders.begin(), options.holders.end());
  request.set_next(static_cast<v1::NextUse>(options.next));
  request.set_wait_ms(Millis(options.wait));
  request.set_wait_blocks(options.wait_blocks);
  request.set_announce(options.announce);
  if (options.joint.asked()) wire::ToProto(options.joint, request.mutable_joint());
  const Status status = rpc::FromGrpc(stub_->Match(&context, request, &response));
  if (!status.ok()) return status;
  Result<MatchOutcome> outcome = ToOutcome(response, keys.size(), options.joint);
  if (!outcome.ok()) return outcome.status();
  return Matched{.outcome = *std::move(outcome),
                 .lease = response.lease_id(),
                 .lease_ttl = std::chrono::milliseconds(response.lease_ttl_ms())};
}

std::optional<FetchReport> GrpcTransport::Fetch(const LeaseInfo& lease, const FetchRange& range,
                                                FetchSink& sink, const FetchOptions& options,
                                                TimePoint deadline) {
  v1::FetchRequest request;
  request.set_session_id(lease.session);
  request.set_lease_id(lease.id);
  request.set_block_begin(range.block_begin);
  request.set_block_end(range.block_end);
  request.set_layer_begin(range.layer_begin);
  request.set_layer_end(range.layer_end);
  request.set_reader_verifies(true);
  GrpcFetch fetch(&data_, clock_, &sink, lease.blocks, options, deadline);
  Status status = fetch.Run(request, nullptr);
  if (status.ok() && fetch.has_wrong_slices()) status = fetch.RunAgain(std::move(request));
  return fetch.Report(std::move(status));
}

std::optional<RowReport> GrpcTransport::FetchRows(const LeaseInfo& lease, const RowsWanted& wanted,
                                                  RowSink& sink, const FetchOptions& options,
                                                  TimePoint deadline) {
  return GrpcRows(clock_, wanted, &sink, options, deadline).Run(&data_, lease);
}

std::optional<GetReport> GrpcTransport::Get(const TransportCall& call, const Digest& fingerprint,
                                            std::span<const BlockKey> keys,
                                            const LayerRange& layers, FetchSink& sink,
                                            const MatchOptions& match, const FetchOptions& options,
                                            TimePoint deadline) {
  v1::FetchRequest request;
  request.set_session_id(call.session->id);
  request.set_layer_begin(layers.begin);
  request.set_layer_end(layers.end);
  request.set_reader_verifies(true);
  v1::Lookup& wanted = *request.mutable_lookup();
  wanted.set_fingerprint(Bytes(fingerprint));
  wanted.set_keys(wire::KeysToProto(keys));
  wanted.set_prefill_tokens_per_second(match.prefill_tokens_per_second);
  wanted.mutable_holders()->Assign(match.holders.begin(), match.holders.end());
  wanted.set_next(static_cast<v1::NextUse>(match.next));
  GrpcFetch::Lookup lookup = {.asked = keys.size(), .deadline = call.deadline};
  GrpcFetch fetch(&data_, clock_, &sink, static_cast<uint32_t>(keys.size()), options, deadline);
  Status status = fetch.Run(request, &lookup);
  if (status.code() == StatusCode::kInvalidArgument && !lookup.answer) return std::nullopt;
  if (status.ok() && !lookup.answer) {
    status = Errorf(StatusCode::kInternal, "fetch: the node did not report what it matched");
  }
  if (status.ok() && fetch.has_wrong_slices()) {
    status = FetchWrongSlices(fetch, std::move(request), options, deadline);
  }
  return GetReport{.outcome = std::move(lookup.answer), .fetch = fetch.Report(std::move(status))};
}

Status GrpcTransport::FetchWrongSlices(GrpcFetch& fetch, v1::FetchRequest request,
                                       const FetchOptions& options, TimePoint deadline) {
  v1::MatchRequest match;
  match.set_session_id(request.session_id());
  match.set_fingerprint(request.lookup().fingerprint());
  match.set_keys(request.lookup().keys());
  v1::MatchResponse matched;
  grpc::ClientContext context;
  Prepare(context, deadline, options.trace);
  CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->Match(&context, match, &matched)));
  if (matched.lease_id() == 0) {
    fetch.GiveUpWrongSlices();
    return OkStatus();
  }
  request.clear_lookup();
  request.set_lease_id(matched.lease_id());
  const Status status = fetch.RunAgain(request);
  releases_.ReleaseLease(request.session_id(), matched.lease_id());
  return status;
}

std::optional<PushReport> GrpcTransport::Push(const TransportCall& call, const Digest& fingerprint,
                                              std::span<const PartToPush> parts,
                                              const PushOptions& options) {
  const DataConnections::Use data = data_.Take();
  Pusher pusher({.control = stub_.get(), .data = data.stub(), .releases = &releases_}, call,
                fingerprint, options);
  return pusher.Push(parts);
}

Result<PrefetchOutcome> GrpcTransport::Prefetch(const TransportCall& call,
                                                const Digest& fingerprint,
                                                std::span<const BlockKey> keys, Duration needed_in,
                                                const CallOptions& options) {
  grpc::ClientContext context;
  Prepare(context, call.deadline, options.trace);
  v1::PrefetchRequest request;
  v1::PrefetchResponse response;
  request.set_session_id(call.session->id);
  request.set_fingerprint(Bytes(fingerprint));
  request.set_keys(wire::KeysToProto(keys));
  request.set_needed_in_ms(Millis(needed_in));
  CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->Prefetch(&context, request, &response)));
  return PrefetchOutcome{.present_blocks = response.present_blocks(),
                         .queued_blocks = response.queued_blocks(),
                         .absent_blocks = response.absent_blocks(),
                         .refused_blocks = response.refused_blocks(),
                         .estimated_seconds = response.estimated_seconds()};
}

std::optional<Result<TierList>> GrpcTransport::Exists(const TransportCall& call,
                                                      const Digest& fingerprint,
                                                      std::span<const BlockKey> keys,
                                                      const CallOptions& options) {
  grpc::ClientContext context;
  Prepare(context, call.deadline, options.trace);
  v1::ExistsRequest request;
  v1::ExistsResponse response;
  request.set_fingerprint(Bytes(fingerprint));
  request.set_keys(wire::KeysToProto(keys));
  const Status status = rpc::FromGrpc(stub_->Exists(&context, request, &response));
  if (!status.ok()) return status;
  if (static_cast<size_t>(response.tiers_size()) != keys.size()) {
    return Errorf(StatusCode::kInternal, "exists: {} answers for {} keys", response.tiers_size(),
                  keys.size());
  }
  TierList tiers;
  for (const int tier : response.tiers()) tiers.push_back(wire::TierFromProto(tier));
  return tiers;
}

std::optional<Result<Duration>> GrpcTransport::Renew(const LeaseInfo& lease, Duration ttl,
                                                     const CallOptions& options,
                                                     TimePoint deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline, options.trace);
  v1::RenewLeaseRequest request;
  v1::RenewLeaseResponse response;
  request.set_session_id(lease.session);
  request.set_lease_id(lease.id);
  request.set_ttl_ms(Millis(ttl));
  const Status status = rpc::FromGrpc(stub_->RenewLease(&context, request, &response));
  if (!status.ok()) return status;
  return std::chrono::milliseconds(response.ttl_ms());
}

bool GrpcTransport::Release(const LeaseInfo& lease) {
  releases_.ReleaseLease(lease.session, lease.id);
  return true;
}

Status GrpcTransport::Flush(const CallOptions& options, TimePoint deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline, options.trace);
  v1::FlushResponse response;
  return rpc::FromGrpc(stub_->Flush(&context, v1::FlushRequest(), &response));
}

Result<NodeStats> GrpcTransport::Stat(const CallOptions& options, TimePoint deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline, options.trace);
  v1::StatResponse response;
  CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->Stat(&context, v1::StatRequest(), &response)));
  return FromProto(response);
}

Result<std::unique_ptr<EventStream>> GrpcTransport::WatchEvents(const SessionPtr& session,
                                                                const WatchOptions& options) {
  events_reconnect_.BeforeCall(clock_->Now());
  return NewEventStream(events_.get(), session == nullptr ? std::string() : session->id, options,
                        clock_);
}

}  // namespace cairn::client
