#include "common/rpc/status.h"

namespace cairn::rpc {

// Messages travel in an HTTP/2 header, which has a limit of some KiB.
constexpr size_t kMaxMessage = 2048;

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      Message(status).substr(0, kMaxMessage));
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return Status(absl::StatusCode(static_cast<int>(status.error_code())), status.error_message());
}

}  // namespace cairn::rpc
