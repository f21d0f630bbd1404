#include "services/cache/serve/rpc/cluster_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "cairn/v1/cluster.grpc.pb.h"
#include "common/config/config.h"
#include "common/rpc/deferred_call.h"
#include "common/rpc/unary_call.h"
#include "protocol/wire/convert.h"
#include "services/cache/cluster/members/held_blocks.h"

namespace cairn::cache {
namespace {

constexpr Duration kLongestLocate = std::chrono::seconds(1);

void ToProto(const PeerHello& hello, v1::ClusterMember* out) {
  out->set_node_id(hello.caller.id);
  out->set_address(hello.address);
  out->set_node_epoch(hello.epoch);
  out->set_incarnation(hello.caller.incarnation);
  out->set_host(hello.host);
  out->set_zone(hello.zone);
  out->set_version(hello.program);
  out->set_leaving(hello.leaving);
}

void ToProto(const ClusterView& view, v1::ClusterNumbers* out) {
  out->set_waymarks(view.waymarks);
  out->set_directory_waymarks(view.directory_entries);
  out->set_directory_bytes(view.directory_bytes);
  out->set_directory_forgotten(view.directory_forgotten);
  out->set_announcing_members(static_cast<uint32_t>(view.announcing));
  out->set_announcements(view.announcements);
  out->set_failed_announcements(view.failed_announcements);
  out->set_found_blocks(view.found_blocks);
  out->set_read_blocks(view.read_blocks);
  out->set_read_bytes(view.read_bytes);
  out->set_failed_reads(view.failed_reads);
  out->set_sent_bytes(view.sent_bytes);
}

void ToProto(const ClusterView& view, v1::MembersResponse* out) {
  out->set_cluster(view.self.caller.cluster);
  ToProto(view.self, out->mutable_self());
  for (const ClusterView::Row& row : view.members) {
    v1::ClusterMember* const to = out->add_members();
    ToProto(row.member.hello, to);
    to->set_address(row.member.address);
    to->set_heard_seconds(Seconds(row.since_heard));
    to->set_same_view(row.same_view);
    to->set_same_bumps(row.same_bumps);
    to->set_skipped(row.skipped);
  }
  for (const AbsentMember& absent : view.absent) {
    v1::AbsentMember* const to = out->add_absent();
    to->set_address(absent.address);
    to->set_reason(Message(absent.why));
  }
  if (view.replaced_by) ToProto(*view.replaced_by, out->mutable_replaced_by());
  out->set_view_digest(view.view_digest);
  out->set_bumps_digest(view.self.bumps_digest);
  ToProto(view, out->mutable_numbers());
}

void AddTier(v1::TierKind tier, uint32_t blocks, uint64_t bytes, v1::LocatedBlocks* out) {
  if (blocks == 0) return;
  v1::TierShare* const to = out->add_tiers();
  to->set_tier(tier);
  to->set_blocks(blocks);
  to->set_bytes(bytes);
}

void ToProto(const LocatedAt& found, v1::LocatedBlocks* out) {
  const PeerMatch& held = found.held;
  out->set_node_id(found.member);
  out->set_blocks(held.blocks);
  out->set_bytes(held.bytes);
  out->set_seconds(held.seconds);
  AddTier(v1::TIER_KIND_HOST, held.memory_blocks, held.memory_bytes, out);
  AddTier(v1::TIER_KIND_DISK, held.blocks - held.memory_blocks, held.bytes - held.memory_bytes,
          out);
}

class ClusterCalls {
 public:
  using LocateCall = rpc::DeferredCall<v1::LocateRequest, v1::LocateResponse>;
  ClusterCalls(RpcContext* rpc, Cluster* cluster)
      : rpc_(*rpc), cluster_(cluster), held_(rpc->engine) {}

  Status Members(v1::MembersResponse* response) const {
    if (cluster_ != nullptr) {
      ToProto(cluster_->view(), response);
      return OkStatus();
    }
    v1::ClusterMember* const self = response->mutable_self();
    self->set_node_id(rpc_.node_id);
    self->set_node_epoch(rpc_.node_epoch);
    self->set_version(std::string(config::Version()));
    self->set_leaving(rpc_.draining.load());
    return OkStatus();
  }

  void Locate(LocateCall& call, const v1::LocateRequest& request) {
    const auto answer = [&](const Status& status) { call.Answer(status, {}); };
    const auto fingerprint = Digest::FromBytes(request.fingerprint(), "fingerprint");
    if (!fingerprint.ok()) return answer(fingerprint.status());
    const auto keys = wire::KeysFromProto(request.keys());
    if (!keys.ok()) return answer(keys.status());
    const Status allowed = CheckNamespace(rpc_, call.call(), *fingerprint, auth::Role::kReader);
    if (!allowed.ok()) return answer(allowed);
    const std::chrono::milliseconds asked(request.timeout_ms());
    if (asked > kLongestLocate) {
      return answer(
          InvalidArgument("field 'timeout_ms': got {}, expected 0 to 1000", request.timeout_ms()));
    }
    const auto held = held_.Match(*fingerprint, *keys);
    if (!held.ok()) return answer(held.status());
    const LocatedAt here{rpc_.node_id, *held};
    if (cluster_ == nullptr) return Answer(call, here, {});
    const TimePoint now = rpc_.clock->Now();
    const Duration left = std::max(Duration(0), call.call().Deadline(kLongestLocate) - now);
    const Duration wait = asked.count() > 0 ? std::min<Duration>(asked, left) : left / 2;
    cluster_->Locate(*fingerprint, *keys, now + std::min(wait, kLongestLocate),
                     [&call, here](const Locations& found) { Answer(call, here, found); });
  }

 private:
  static void Answer(LocateCall& call, const LocatedAt& here, const Locations& found) {
    std::vector<LocatedAt> nodes = found.members;
    const auto shorter = [&](const LocatedAt& other) {
      return other.held.blocks < here.held.blocks ||
             (other.held.blocks == here.held.blocks && other.held.seconds >= here.held.seconds);
    };
    nodes.insert(std::find_if(nodes.begin(), nodes.end(), shorter), here);
    v1::LocateResponse response;
    for (const LocatedAt& node : nodes) ToProto(node, response.add_nodes());
    response.set_silent_members(found.silent);
    call.Answer(OkStatus(), response);
  }

  RpcContext& rpc_;
  Cluster* const cluster_;
  HeldBlocks held_;
};

}  // namespace

void AddClusterService(rpc::CallServer* server, RpcContext* rpc, Cluster* cluster) {
  // The methods own it together.
  const auto service = std::make_shared<ClusterCalls>(rpc, cluster);
  const std::string_view name = v1::Cluster::service_full_name();
  rpc::AddUnary<v1::MembersRequest, v1::MembersResponse>(
      server, rpc, name, "Members", rpc->executor,
      [service](rpc::Call&, const v1::MembersRequest&, v1::MembersResponse* response) {
        return service->Members(response);
      });
  rpc::AddDeferred<v1::LocateRequest, v1::LocateResponse>(
      server, rpc, name, "Locate", /*executor=*/nullptr,
      [service](ClusterCalls::LocateCall& call, const v1::LocateRequest& request) {
        service->Locate(call, request);
      });
}

}  // namespace cairn::cache
