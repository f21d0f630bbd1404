// The errors of calls about fields that are wrong.

#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <vector>

#include "protocol/wire/convert.h"
#include "tests/unit/cache/serve/rpc/service_fixture.h"

namespace cairn::cache {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Calls of each kind with one field made wrong.
template <typename Request>
struct Bad {
  const char* message;  // Must name field and expectation.
  std::function<void(Request*)> spoil;
  grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT;
};

template <typename Request, typename Call>
void ExpectRefused(const Request& good, const std::vector<Bad<Request>>& cases, Call call) {
  EXPECT_TRUE(call(good).ok()) << call(good).error_message();
  for (const Bad<Request>& bad : cases) {
    Request request = good;
    bad.spoil(&request);
    const grpc::Status status = call(request);
    EXPECT_EQ(status.error_code(), bad.code) << bad.message << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(bad.message));
  }
}

TEST_F(ServiceTest, MatchNamesEveryBadField) {
  v1::MatchRequest good;
  good.set_session_id(Session());
  good.set_fingerprint(FingerprintBytes());
  good.set_keys(std::string(64, 'k'));
  using R = v1::MatchRequest;
  ExpectRefused<R>(
      good,
      {{"session_id", [](R* r) { r->set_session_id("short"); }},
       {"session_id", [](R* r) { r->set_session_id(std::string(16, 'x')); },
        grpc::StatusCode::NOT_FOUND},
       {"fingerprint", [](R* r) { r->set_fingerprint("f"); }},
       {"fingerprint", [](R* r) { r->set_fingerprint(std::string(32, 'f')); },
        grpc::StatusCode::NOT_FOUND},
       {"keys", [](R* r) { r->set_keys(""); }},
       {"keys", [](R* r) { r->set_keys(std::string(33, 'k')); }},
       {"keys", [](R* r) { r->set_keys(std::string(32 * 65537, 'k')); }},
       {"lease_ttl_ms: got 600001, expected 0 to 600000",
        [](R* r) { r->set_lease_ttl_ms(600001); }},
       {"prefill_tokens_per_second", [](R* r) { r->set_prefill_tokens_per_second(-1); }},
       {"prefill_tokens_per_second",
        [](R* r) { r->set_prefill_tokens_per_second(std::numeric_limits<double>::quiet_NaN()); }},
       {"prefill_tokens_per_second",
        [](R* r) { r->set_prefill_tokens_per_second(std::numeric_limits<double>::infinity()); }},
       {"'next': got 4, expected 0 to 3", [](R* r) { r->set_next(static_cast<v1::NextUse>(4)); }},
       {"holders: got 5 of them, expected at most 4",
        [](R* r) {
          for (int i = 0; i < 5; ++i) r->add_holders("node");
        }},
       {"holders[1]: got 0 characters, expected 1 to 128",
        [](R* r) {
          r->add_holders("node");
          r->add_holders("");
        }},
       {"holders[0]: got 129 characters", [](R* r) { r->add_holders(std::string(129, 'n')); }}},
      [&](const R& request) {
        grpc::ClientContext context;
        v1::MatchResponse response;
        return stub->Match(&context, request, &response);
      });
}

TEST_F(ServiceTest, ReserveNamesEveryBadField) {
  v1::ReserveRequest good;
  good.set_session_id(Session());
  good.set_fingerprint(FingerprintBytes());
  for (int i = 0; i < 3; ++i) {
    v1::ReservePart* part = good.add_parts();
    part->set_key(std::string(32, static_cast<char>('a' + i)));
    part->mutable_part()->set_layer_end(4);
    part->mutable_part()->set_head_end(2);
    part->set_bytes(1000);
  }
  using R = v1::ReserveRequest;
  ExpectRefused<R>(
      good,
      {{"session_id", [](R* r) { r->clear_session_id(); }},
       {"fingerprint", [](R* r) { r->clear_fingerprint(); }},
       {"parts: got 0 of them, expected 1 to 4096", [](R* r) { r->clear_parts(); }},
       {"parts: got 4097",
        [](R* r) {
          for (int i = 0; i < 4094; ++i) *r->add_parts() = r->parts(0);
        }},
       {"ttl_ms", [](R* r) { r->set_ttl_ms(600001); }},
       {"parts[1].key", [](R* r) { r->mutable_parts(1)->set_key("k"); }},
       {"parts[2].parent", [](R* r) { r->mutable_parts(2)->set_parent("p"); }},
       {"parts[0].first_position",
        [](R* r) { r->mutable_parts(0)->set_first_position(1ull << 41); }},
       {"parts[0].part", [](R* r) { r->mutable_parts(0)->clear_part(); }},
       {"parts[1]: ", [](R* r) { r->mutable_parts(1)->mutable_part()->set_layer_begin(4); }},
       {"parts[1]: ", [](R* r) { r->mutable_parts(1)->mutable_part()->set_layer_end(5); }},
       {"parts[1]: ", [](R* r) { r->mutable_parts(1)->mutable_part()->set_head_end(3); }},
       {"parts[1]: ", [](R* r) { r->mutable_parts(1)->mutable_part()->set_head_begin(70000); }},
       {"parts[0].bytes: got 0, expected 1 to", [](R* r) { r->mutable_parts(0)->set_bytes(0); }},
       {"parts[0].bytes", [](R* r) { r->mutable_parts(0)->set_bytes((64ull << 20) + 1); }},
       {"parts[0].compute_seconds", [](R* r) { r->mutable_parts(0)->set_compute_seconds(-1); }},
       {"parts[0].compute_seconds",
        [](R* r) {
          r->mutable_parts(0)->set_compute_seconds(std::numeric_limits<double>::quiet_NaN());
        }}},
      [&](const R& request) {
        grpc::ClientContext context;
        v1::ReserveResponse response;
        return stub->Reserve(&context, request, &response);
      });
}

// Long: a table of calls and what is wrong with them.
TEST_F(ServiceTest, OtherCallsNameEveryBadField) {
  const std::string session = Session();
  const std::string fingerprint = FingerprintBytes();
  {
    using R = v1::ExistsRequest;
    R good;
    good.set_fingerprint(fingerprint);
    good.set_keys(std::string(32, 'k'));
    ExpectRefused<R>(good,
                     {{"fingerprint", [](R* r) { r->clear_fingerprint(); }},
                      {"keys", [](R* r) { r->clear_keys(); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::ExistsResponse response;
                       return stub->Exists(&context, request, &response);
                     });
  }
  {
    using R = v1::PrefetchRequest;
    R good;
    good.set_session_id(session);
    good.set_fingerprint(fingerprint);
    good.set_keys(std::string(96, 'k'));
    good.set_needed_in_ms(1500);
    ExpectRefused<R>(good,
                     {{"session_id", [](R* r) { r->clear_session_id(); }},
                      {"fingerprint", [](R* r) { r->clear_fingerprint(); }},
                      {"keys", [](R* r) { r->set_keys("short"); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::PrefetchResponse response;
                       const grpc::Status status = stub->Prefetch(&context, request, &response);
                       if (status.ok()) {
                         EXPECT_EQ(response.present_blocks(), 1u);
                         EXPECT_EQ(response.queued_blocks(), 2u);
                         EXPECT_EQ(response.estimated_seconds(), 0.5);
                         EXPECT_EQ(engine.prefetch_needed_in, std::chrono::milliseconds(1500));
                       }
                       return status;
                     });
  }
  {
    using R = v1::CommitRequest;
    R good;
    good.set_session_id(session);
    good.add_reservation_ids(1);
    ExpectRefused<R>(good,
                     {{"session_id", [](R* r) { r->clear_session_id(); }},
                      {"reservation_ids: got 0 ids, expected 1 to 4096",
                       [](R* r) { r->clear_reservation_ids(); }},
                      {"reservation_ids[1]", [](R* r) { r->add_reservation_ids(0); }},
                      {"reservation_ids",
                       [](R* r) {
                         for (int i = 0; i < 4096; ++i) r->add_reservation_ids(1);
                       }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::CommitResponse response;
                       return stub->Commit(&context, request, &response);
                     });
  }
  {
    using R = v1::AbortRequest;
    R good;
    good.set_session_id(session);
    ExpectRefused<R>(good,
                     {{"session_id", [](R* r) { r->clear_session_id(); }},
                      {"reservation_ids[0]", [](R* r) { r->add_reservation_ids(0); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::AbortResponse response;
                       return stub->Abort(&context, request, &response);
                     });
  }
  {
    using R = v1::ReleaseRequest;
    R good;
    good.set_session_id(session);
    good.add_lease_ids(1);
    ExpectRefused<R>(good,
                     {{"session_id", [](R* r) { r->set_session_id(std::string(17, 's')); }},
                      {"lease_ids[1]", [](R* r) { r->add_lease_ids(0); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::ReleaseResponse response;
                       return stub->Release(&context, request, &response);
                     });
  }
  {
    using R = v1::RenewLeaseRequest;
    R good;
    good.set_session_id(session);
    good.set_lease_id(1);
    ExpectRefused<R>(good,
                     {{"session_id", [](R* r) { r->clear_session_id(); }},
                      {"lease_id", [](R* r) { r->set_lease_id(0); }},
                      {"ttl_ms", [](R* r) { r->set_ttl_ms(600001); }}},
                     [&](const R& request) {
                       grpc::ClientContext context;
                       v1::RenewLeaseResponse response;
                       return stub->RenewLease(&context, request, &response);
                     });
  }
  {
    using R = v1::OpenNamespaceRequest;
    R good;
    wire::ToProto(Spec(), good.mutable_spec());
    ExpectRefused<R>(
        good,
        {{"spec", [](R* r) { r->clear_spec(); }},
         {"tenant", [](R* r) { r->mutable_spec()->set_tenant("a b"); }},
         {"block_tokens", [](R* r) { r->mutable_spec()->mutable_layout()->set_block_tokens(17); }},
         {"layout", [](R* r) { r->mutable_spec()->clear_layout(); }}},
        [&](const R& request) {
          grpc::ClientContext context;
          v1::OpenNamespaceResponse response;
          return stub->OpenNamespace(&context, request, &response);
        });
  }
  {
    using R = v1::FetchRequest;
    R good;
    good.set_session_id(session);
    good.set_lease_id(7);
    ExpectRefused<R>(
        good,
        {{"session_id", [](R* r) { r->clear_session_id(); }},
         {"lease_id: got 0", [](R* r) { r->set_lease_id(0); }},
         {"lease_id", [](R* r) { r->set_lease_id(8); }, grpc::StatusCode::NOT_FOUND},
         {"block_begin: got 2, expected less than block_end = 2",
          [](R* r) {
            r->set_block_begin(2);
            r->set_block_end(2);
          }},
         {"layer_begin",
          [](R* r) {
            r->set_layer_begin(3);
            r->set_layer_end(1);
          }},
         {"lease_id: got 7, expected 0 together with a lookup", [](R* r) { r->mutable_lookup(); }},
         {"block_end: got 2, expected 0 together with a lookup",
          [](R* r) {
            r->mutable_lookup();
            r->clear_lease_id();
            r->set_block_end(2);
          }},
         {"fingerprint",
          [](R* r) {
            r->mutable_lookup();
            r->clear_lease_id();
          }},
         {"keys",
          [&](R* r) {
            r->mutable_lookup()->set_fingerprint(FingerprintBytes());
            r->clear_lease_id();
          }},
         {"prefill_tokens_per_second",
          [&](R* r) {
            r->clear_lease_id();
            r->mutable_lookup()->set_fingerprint(FingerprintBytes());
            r->mutable_lookup()->set_keys(std::string(64, 'k'));
            r->mutable_lookup()->set_prefill_tokens_per_second(-1);
          }},
         {"holders[0]",
          [&](R* r) {
            r->clear_lease_id();
            r->mutable_lookup()->set_fingerprint(FingerprintBytes());
            r->mutable_lookup()->set_keys(std::string(64, 'k'));
            r->mutable_lookup()->add_holders("");
          }}},
        [&](const R& request) {
          grpc::ClientContext context;
          auto reader = stub->Fetch(&context, request);
          v1::FetchFrame frame;
          while (reader->Read(&frame)) {
          }
          return reader->Finish();
        });
  }
}

TEST_F(ServiceTest, StreamsNameEveryBadField) {
  const std::string session = Session();
  const auto push = [&](const std::vector<v1::PushFrame>& frames) {
    grpc::ClientContext context;
    v1::PushResponse response;
    auto writer = stub->Push(&context, &response);
    for (const auto& frame : frames) {
      if (!writer->Write(frame)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  };
  v1::PushFrame good;
  good.set_session_id(session);
  auto* piece = good.add_pieces();
  piece->set_reservation_id(1);
  piece->set_data("abc");
  EXPECT_TRUE(push({good}).ok());
  v1::PushFrame bad = good;
  bad.set_session_id("x");
  EXPECT_THAT(push({bad}).error_message(), HasSubstr("session_id"));
  bad = good;
  bad.set_session_id(std::string(16, 'y'));
  EXPECT_EQ(push({good, bad}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  bad = good;
  bad.mutable_pieces(0)->set_reservation_id(0);
  EXPECT_THAT(push({bad}).error_message(), HasSubstr("pieces[0].reservation_id: got 0"));
  bad = good;
  bad.mutable_pieces(0)->clear_data();
  EXPECT_THAT(push({bad}).error_message(), HasSubstr("pieces[0].data"));
  bad = good;
  bad.mutable_pieces(0)->set_offset((64ull << 20) + 1);
  EXPECT_THAT(push({bad}).error_message(), HasSubstr("pieces[0].offset"));
  bad = good;
  bad.mutable_pieces(0)->set_data(std::string((4 << 20) + 1, 'd'));
  EXPECT_THAT(push({bad}).error_message(), HasSubstr("pieces[0].data"));

  grpc::ClientContext context;
  v1::OpenSessionRequest open;
  open.set_client_name(std::string(129, 'c'));
  auto sessions_reader = stub->OpenSession(&context, open);
  v1::SessionEvent event;
  EXPECT_FALSE(sessions_reader->Read(&event));
  EXPECT_THAT(sessions_reader->Finish().error_message(), HasSubstr("client_name: got 129"));
  for (const std::string& tenant : {std::string("a b"), std::string(129, 't')}) {
    grpc::ClientContext refused;
    open.set_client_name("test");
    open.set_tenant(tenant);
    auto reader = stub->OpenSession(&refused, open);
    EXPECT_FALSE(reader->Read(&event));
    EXPECT_THAT(reader->Finish().error_message(), HasSubstr("tenant: got"));
  }
  {
    grpc::ClientContext named;
    open.set_tenant("mine");
    auto reader = stub->OpenSession(&named, open);
    EXPECT_TRUE(reader->Read(&event));
    MutexLock lock(engine.mu);
    EXPECT_EQ(engine.tenant, "mine");
    named.TryCancel();
  }

  for (const auto& [bytes, code] : {std::pair(size_t{5}, grpc::StatusCode::INVALID_ARGUMENT),
                                    std::pair(size_t{32}, grpc::StatusCode::NOT_FOUND)}) {
    grpc::ClientContext watch_context;
    v1::WatchRequest watch;
    watch.set_fingerprint(std::string(bytes, 'f'));
    auto reader = stub->Watch(&watch_context, watch);
    v1::Event got;
    EXPECT_FALSE(reader->Read(&got));
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), code);
    EXPECT_THAT(status.error_message(), HasSubstr("fingerprint"));
  }
}

TEST_F(ServiceTest, AWatchIsOfTheSessionThatItNames) {
  const auto watch = [&](const std::string& session) {
    grpc::ClientContext watch_context;
    v1::WatchRequest request;
    request.set_session_id(session);
    auto reader = stub->Watch(&watch_context, request);
    v1::Event got;
    if (reader->Read(&got)) watch_context.TryCancel();
    return reader->Finish();
  };
  engine.events.emplace_back().sequence = 1;
  EXPECT_THAT(watch("short").error_message(), HasSubstr("session_id"));
  EXPECT_EQ(watch("short").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(watch(std::string(16, 'x')).error_code(), grpc::StatusCode::NOT_FOUND);
  watch(Session());
  watch("");
  MutexLock lock(engine.mu);
  ASSERT_EQ(engine.watched_by.size(), 2u);
  EXPECT_TRUE(engine.watched_by[0].has_value());
  EXPECT_FALSE(engine.watched_by[1].has_value());
}

TEST_F(ServiceTest, AdminCallsNameEveryBadField) {
  grpc::Status status;
  v1::DropResponse response;
  v1::DropTenantRequest tenant;
  for (const std::string& bad : {std::string(), std::string("a/b"), std::string(129, 'a')}) {
    grpc::ClientContext context;
    tenant.set_tenant(bad);
    EXPECT_THAT(admin->DropTenant(&context, tenant, &response).error_message(),
                HasSubstr("tenant: got"));
  }
  {
    grpc::ClientContext context;
    v1::DropNamespaceRequest request;
    request.set_fingerprint("x");
    EXPECT_THAT(admin->DropNamespace(&context, request, &response).error_message(),
                HasSubstr("fingerprint"));
  }
  {
    grpc::ClientContext context;
    v1::BumpEpochRequest request;
    EXPECT_THAT(admin->BumpEpoch(&context, request, &response).error_message(),
                HasSubstr("fingerprint"));
    request.set_fingerprint(std::string(32, 'f'));
    grpc::ClientContext again;
    EXPECT_TRUE(admin->BumpEpoch(&again, request, &response).ok());
    EXPECT_EQ(response.hidden_blocks(), 5u);
  }
  grpc::ClientContext context;
  v1::ListNamespacesRequest list;
  v1::ListNamespacesResponse listed;
  list.set_tenant("a b");
  EXPECT_THAT(admin->ListNamespaces(&context, list, &listed).error_message(), HasSubstr("tenant"));
}

TEST_F(ServiceTest, HoldersReachTheEngine) {
  v1::MatchRequest match;
  match.set_session_id(Session());
  match.set_fingerprint(FingerprintBytes());
  match.set_keys(std::string(64, 'k'));
  match.add_holders("node-1");
  match.add_holders("node-2");
  grpc::ClientContext context;
  v1::MatchResponse response;
  ASSERT_TRUE(stub->Match(&context, match, &response).ok());
  EXPECT_THAT(engine.holders, ElementsAre("node-1", "node-2"));

  v1::FetchRequest fetch;
  fetch.set_session_id(match.session_id());
  fetch.mutable_lookup()->set_fingerprint(FingerprintBytes());
  fetch.mutable_lookup()->set_keys(match.keys());
  fetch.mutable_lookup()->add_holders("node-3");
  grpc::ClientContext fetching;
  auto reader = stub->Fetch(&fetching, fetch);
  v1::FetchFrame frame;
  while (reader->Read(&frame)) {
  }
  EXPECT_THAT(engine.holders, ElementsAre("node-3"));
}

TEST_F(ServiceTest, HintsOfPlacementReachTheEngine) {
  v1::MatchRequest match;
  match.set_session_id(Session());
  match.set_fingerprint(FingerprintBytes());
  match.set_keys(std::string(64, 'k'));
  match.set_next(v1::NEXT_USE_LATER);
  grpc::ClientContext context;
  v1::MatchResponse response;
  ASSERT_TRUE(stub->Match(&context, match, &response).ok());
  EXPECT_EQ(engine.next, NextUse::kLater);

  v1::FetchRequest fetch;
  fetch.set_session_id(match.session_id());
  fetch.mutable_lookup()->set_fingerprint(FingerprintBytes());
  fetch.mutable_lookup()->set_keys(match.keys());
  fetch.mutable_lookup()->set_next(v1::NEXT_USE_NEVER);
  grpc::ClientContext fetching;
  auto reader = stub->Fetch(&fetching, fetch);
  v1::FetchFrame frame;
  while (reader->Read(&frame)) {
  }
  EXPECT_EQ(engine.next, NextUse::kNever);
}

TEST_F(ServiceTest, TraceIsCheckedAndReachesTheEngine) {
  v1::MatchRequest request;
  request.set_session_id(Session());
  request.set_fingerprint(FingerprintBytes());
  request.set_keys(std::string(64, 'k'));
  v1::MatchResponse response;
  grpc::ClientContext good;
  good.AddMetadata("x-cairn-trace", "abc-123");
  EXPECT_TRUE(stub->Match(&good, request, &response).ok());
  EXPECT_EQ(engine.trace, "abc-123");
  EXPECT_EQ(response.matched_blocks(), 1u);
  EXPECT_EQ(response.miss_reason(), v1::MISS_REASON_EVICTED);
  grpc::ClientContext bad;
  bad.AddMetadata("x-cairn-trace", "a b");
  EXPECT_THAT(stub->Match(&bad, request, &response).error_message(), HasSubstr("x-cairn-trace"));
}

}  // namespace
}  // namespace cairn::cache
