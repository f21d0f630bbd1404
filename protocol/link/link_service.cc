#include "protocol/link/link_service.h"

#include <utility>

#include "cairn/v1/link.grpc.pb.h"
#include "common/rpc/deferred_call.h"
#include "common/rpc/unary_call.h"
#include "protocol/link/link_convert.h"

namespace cairn::link {
namespace {

class Service {
 public:
  Service(std::shared_ptr<LinkHolder> holder, CallerRule rule)
      : holder_(std::move(holder)), rule_(std::move(rule)) {}

  Status Open(const rpc::Call& call, const v1::LinkOpenRequest& proto,
              v1::LinkOpenResponse* response) {
    CAIRN_ASSIGN_OR_RETURN(const std::string reader, ReaderOf(call, proto.reader()));
    CAIRN_ASSIGN_OR_RETURN(const OpenRequest request, FromProto(proto));
    CAIRN_ASSIGN_OR_RETURN(const OpenAnswer answer, holder_->Open(reader, request));
    ToProto(answer, response);
    return OkStatus();
  }
  Status Move(const rpc::Call& call, const v1::LinkMoveRequest& proto, v1::LinkMoveResponse*) {
    CAIRN_ASSIGN_OR_RETURN(const std::string reader, ReaderOf(call, proto.reader()));
    CAIRN_ASSIGN_OR_RETURN(const MoveRequest request, FromProto(proto));
    return holder_->Move(reader, request);
  }
  using CloseCall = rpc::DeferredCall<v1::LinkCloseRequest, v1::LinkCloseResponse>;
  void Close(CloseCall& call, const v1::LinkCloseRequest& proto) {
    const Result<std::string> reader = ReaderOf(call.call(), proto.reader());
    if (!reader.ok()) return call.Answer(reader.status(), {});
    holder_->Close(*reader, proto.epoch(),
                   [&call](const Status& status) { call.Answer(status, {}); });
  }

 private:
  Result<std::string> ReaderOf(const rpc::Call& call, const std::string& claimed) const {
    CAIRN_RETURN_IF_ERROR(CheckReader(claimed));
    return rule_(call, claimed);
  }

  const std::shared_ptr<LinkHolder> holder_;
  const CallerRule rule_;
};

}  // namespace

void AddLinkService(rpc::CallServer* server, const rpc::Context* rpc,
                    std::shared_ptr<LinkHolder> holder, CallerRule rule) {
  const auto service = std::make_shared<Service>(std::move(holder), std::move(rule));
  // On the poller: no handler waits.
  const auto add = [&]<typename Request, typename Response>(
                       std::string_view method,
                       Status (Service::*handler)(const rpc::Call&, const Request&, Response*)) {
    rpc::AddUnary<Request, Response>(
        server, rpc, v1::Link::service_full_name(), method, nullptr,
        [service, handler](rpc::Call& call, const Request& request, Response* response) {
          return ((*service).*handler)(call, request, response);
        });
  };
  add("Open", &Service::Open);
  add("Move", &Service::Move);
  rpc::AddDeferred<v1::LinkCloseRequest, v1::LinkCloseResponse>(
      server, rpc, v1::Link::service_full_name(), "Close", nullptr,
      [service](Service::CloseCall& call, const v1::LinkCloseRequest& request) {
        service->Close(call, request);
      });
}

}  // namespace cairn::link
