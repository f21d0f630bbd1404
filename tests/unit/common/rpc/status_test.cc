#include "common/rpc/status.h"

#include <gtest/gtest.h>

#include "common/rpc/trace.h"

namespace cairn::rpc {
namespace {

TEST(RpcStatusTest, EveryCodeGoesThereAndBack) {
  for (int code = 0; code <= 16; ++code) {
    const Status status = code == 0 ? OkStatus() : Status(static_cast<StatusCode>(code), "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
  EXPECT_EQ(FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(77), "x")).code(),
            StatusCode::kUnknown);
  EXPECT_LE(ToGrpc(Status(StatusCode::kInternal, std::string(1 << 20, 'x'))).error_message().size(),
            2048u);
}

TEST(RpcStatusTest, AFailedAttemptToConnectIsExplained) {
  const auto read = [](const std::string& text) {
    return Message(FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, text)));
  };
  EXPECT_EQ(read("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7401: "
                 "Trying to connect an http1.x server"),
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7401: "
            "Trying to connect an http1.x server: this is an HTTP port, such as that of probes; "
            "expected the one of gRPC");
  EXPECT_EQ(read("Socket closed"), "Socket closed") << "of a call that had a connection";
}

TEST(RpcTraceTest, IsShortAndPlain) {
  EXPECT_TRUE(IsTrace("abc-DEF-123"));
  EXPECT_FALSE(IsTrace(""));
  EXPECT_FALSE(IsTrace("a b"));
  EXPECT_FALSE(IsTrace(std::string(65, 'a')));
}

}  // namespace
}  // namespace cairn::rpc
