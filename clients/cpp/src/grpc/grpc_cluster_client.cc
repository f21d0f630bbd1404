// ClusterClient over gRPC.

#include <algorithm>
#include <utility>

#include "cairn/client/cluster.h"
#include "cairn/v1/cluster.grpc.pb.h"
#include "clients/cpp/src/grpc/channel.h"
#include "clients/cpp/src/grpc/unary_call.h"
#include "protocol/wire/convert.h"

namespace cairn::client {
namespace {

ClusterMember FromProto(const v1::ClusterMember& in) {
  return {.node_id = in.node_id(),
          .address = in.address(),
          .node_epoch = in.node_epoch(),
          .incarnation = in.incarnation(),
          .host = in.host(),
          .zone = in.zone(),
          .version = in.version(),
          .leaving = in.leaving(),
          .heard_seconds = in.heard_seconds(),
          .same_view = in.same_view(),
          .same_bumps = in.same_bumps(),
          .skipped = in.skipped()};
}

ClusterNumbers FromProto(const v1::ClusterNumbers& in) {
  return {.waymarks = in.waymarks(),
          .directory_waymarks = in.directory_waymarks(),
          .directory_bytes = in.directory_bytes(),
          .directory_forgotten = in.directory_forgotten(),
          .announcing_members = in.announcing_members(),
          .announcements = in.announcements(),
          .failed_announcements = in.failed_announcements(),
          .found_blocks = in.found_blocks(),
          .read_blocks = in.read_blocks(),
          .read_bytes = in.read_bytes(),
          .failed_reads = in.failed_reads(),
          .sent_bytes = in.sent_bytes()};
}

LocatedBlocks FromProto(const v1::LocatedBlocks& in) {
  LocatedBlocks out{
      .node_id = in.node_id(), .blocks = in.blocks(), .bytes = in.bytes(), .seconds = in.seconds()};
  for (const v1::TierShare& tier : in.tiers()) {
    if (tier.tier() == v1::TIER_KIND_DISK) continue;
    out.memory_blocks += tier.blocks();
    out.memory_bytes += tier.bytes();
  }
  return out;
}

class GrpcClusterClient final : public ClusterClient {
 public:
  explicit GrpcClusterClient(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::Cluster::NewStub(std::move(channel))) {}

  Result<ClusterMembers> Members(const CallOptions& options) override {
    CAIRN_ASSIGN_OR_RETURN(const auto in, CallUnary(stub_.get(), &v1::Cluster::Stub::Members,
                                                    v1::MembersRequest(), clock_, options));
    ClusterMembers out{.cluster = in.cluster(),
                       .self = FromProto(in.self()),
                       .view_digest = in.view_digest(),
                       .bumps_digest = in.bumps_digest(),
                       .numbers = FromProto(in.numbers())};
    for (const v1::ClusterMember& member : in.members()) out.members.push_back(FromProto(member));
    for (const v1::AbsentMember& absent : in.absent()) {
      out.absent.push_back({.address = absent.address(), .reason = absent.reason()});
    }
    if (in.has_replaced_by()) out.replaced_by = FromProto(in.replaced_by());
    return out;
  }

  Result<ClusterLocations> Locate(const Digest& fingerprint, std::span<const BlockKey> keys,
                                  const CallOptions& options) override {
    v1::LocateRequest request;
    request.set_fingerprint(std::string(fingerprint.View()));
    request.set_keys(wire::KeysToProto(keys));
    CAIRN_ASSIGN_OR_RETURN(const auto in, CallUnary(stub_.get(), &v1::Cluster::Stub::Locate,
                                                    request, clock_, options));
    ClusterLocations out{.silent_members = in.silent_members()};
    for (const v1::LocatedBlocks& node : in.nodes()) out.nodes.push_back(FromProto(node));
    return out;
  }

 private:
  const std::unique_ptr<v1::Cluster::Stub> stub_;
  const Clock& clock_ = SteadyClock::Get();
};

}  // namespace

Result<std::unique_ptr<ClusterClient>> ConnectCluster(const ConnectOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(auto channel, NewChannel(options));
  return std::make_unique<GrpcClusterClient>(std::move(channel));
}

}  // namespace cairn::client
