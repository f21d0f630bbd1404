#include <grpcpp/grpcpp.h>

#include "cairn/v1/worker.grpc.pb.h"
#include "clients/cpp/src/grpc/channel.h"
#include "common/rpc/status.h"
#include "tools/cairn/generator/connection.h"
#include "tools/cairn/generator/worker_load.h"

namespace cairn::cli {
namespace {

class RemoteLoad final : public WorkerLoadSource {
 public:
  explicit RemoteLoad(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Worker::NewStub(channel)) {}

  Result<WorkerLoad> Ask(Duration timeout) override {
    const TimePoint end = SteadyClock::Get().Now() + timeout;
    WorkerLoad load;
    grpc::ClientContext about;
    client::Prepare(about, end, "");
    v1::WorkerInfo info;
    CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->GetInfo(&about, v1::WorkerInfoRequest(), &info)));
    load.model = info.model();
    load.cache_address = info.cache_address();
    load.cache_connected = info.cache_connected();
    CAIRN_RETURN_IF_ERROR(FirstReport(end, &load));
    return load;
  }

 private:
  // The first report comes at once, and no other one is asked for.
  Status FirstReport(TimePoint end, WorkerLoad* load) {
    grpc::ClientContext context;
    client::Prepare(context, end, "");
    v1::WatchLoadRequest request;
    request.set_interval_ms(60000);
    const auto reader = stub_->WatchLoad(&context, request);
    v1::LoadReport report;
    const bool told = reader->Read(&report);
    context.TryCancel();
    const grpc::Status status = reader->Finish();
    if (!told) return rpc::FromGrpc(status);
    load->running_prompts = report.running_prompts();
    load->running_decodes = report.running_decodes();
    load->parked = report.parked();
    for (const v1::QueuedRequests& queued : report.queued()) {
      load->queued_requests += queued.requests();
    }
    load->prefill_seconds = report.prefill_seconds();
    load->kv_pages_free = report.kv_pages_free();
    load->kv_pages_total = report.kv_pages_total();
    load->prefill_tokens_per_second = report.prefill_tokens_per_second();
    load->step_seconds = report.step_seconds();
    load->draining = report.draining();
    return OkStatus();
  }

  const std::unique_ptr<v1::Worker::Stub> stub_;
};

}  // namespace

Result<std::unique_ptr<WorkerLoadSource>> ConnectWorkerLoad(const std::string& address,
                                                            const TlsFlags& tls) {
  CAIRN_ASSIGN_OR_RETURN(const auto channel, client::NewChannel(ConnectionTo(address, tls)));
  return std::make_unique<RemoteLoad>(channel);
}

}  // namespace cairn::cli
