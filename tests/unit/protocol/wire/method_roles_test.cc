#include "protocol/wire/method_roles.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <string>

#include "cairn/v1/admin.pb.h"
#include "cairn/v1/cache.pb.h"
#include "cairn/v1/cluster.pb.h"
#include "cairn/v1/link.pb.h"
#include "cairn/v1/peer.pb.h"
#include "cairn/v1/router.pb.h"
#include "cairn/v1/worker.pb.h"

namespace cairn::wire {
namespace {

using google::protobuf::FileDescriptor;

// A method that was added without a thought of who may call it fails here, and is refused to all
// where there is a policy.
TEST(MethodRolesTest, EveryMethodHasOne) {
  int methods = 0;
  for (const FileDescriptor* file :
       {v1::DropResponse::descriptor()->file(), v1::MatchRequest::descriptor()->file(),
        v1::MembersRequest::descriptor()->file(), v1::LinkOpenRequest::descriptor()->file(),
        v1::PeerMatchRequest::descriptor()->file(), v1::PickResponse::descriptor()->file(),
        v1::ScoreRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto& service = *file->service(s);
      for (int m = 0; m < service.method_count(); ++m) {
        const std::string path = "/" + service.full_name() + "/" + service.method(m)->name();
        EXPECT_TRUE(RoleOf(path).has_value()) << path;
        ++methods;
      }
    }
  }
  EXPECT_EQ(methods, 40);
  EXPECT_FALSE(RoleOf("/cairn.v1.Cache/Read").has_value());
  EXPECT_FALSE(RoleOf("").has_value());
}

}  // namespace
}  // namespace cairn::wire
