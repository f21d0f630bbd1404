// What a policy lets callers do at a real node: roles, tenants, sessions, and changes of the file.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <fstream>

#include "cairn/client/connect.h"
#include "cairn/v1/cluster.grpc.pb.h"
#include "cairn/v1/peer.pb.h"
#include "common/auth/role.h"
#include "common/metrics/admin_server.h"
#include "common/status/matchers.h"
#include "protocol/wire/method_roles.h"
#include "tests/integration/cluster_certificates.h"
#include "tests/integration/node_client.h"
#include "tests/support/process.h"

namespace cairn::testing {
namespace {

using auth::Role;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPolicy[] = R"(rules:
  - {identity: "uri:spiffe://example/writer/a", role: writer, tenants: [a]}
  - {identity: "uri:spiffe://example/other/a", role: writer, tenants: [a]}
  - {identity: "uri:spiffe://example/reader/a", role: reader, tenants: [a]}
  - {identity: "uri:spiffe://example/writer/b", role: writer, tenants: [b]}
  - {identity: "uri:spiffe://example/router", role: reader, tenants: ["*"]}
  - {identity: "uri:spiffe://example/operator/b", role: operator, tenants: [b]}
  - {identity: "uri:spiffe://example/admin/b", role: admin, tenants: [b]}
  - {identity: "uri:spiffe://example/node", role: peer, tenants: ["*"]}
)";
constexpr char kOnlyB[] = R"(rules:
  - {identity: "uri:spiffe://example/writer/b", role: writer, tenants: [b]}
)";

const std::chrono::seconds kPatience(120);

struct Answer {
  grpc::StatusCode code;
  std::string text;
  friend bool operator==(const Answer&, const Answer&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Answer& answer) {
    return out << answer.code << " '" << answer.text << "'";
  }
};
Answer Of(const grpc::Status& status) { return {status.error_code(), status.error_message()}; }

class NodePolicyTest : public ::testing::Test, protected ClusterCertificates {
 protected:
  void SetUp() override {
    MakeAuthority();
    Issue("server", "DNS:localhost");
    for (const auto& [file, name] : kNames) Issue(file, "URI:spiffe://example/" + name);
    Issue("two", "URI:spiffe://example/writer/a,URI:spiffe://example/writer/b");
    WritePolicy(kPolicy);
    auto node = CacheNode::Start({"--tls.cert", Path("server.pem"), "--tls.key", Path("server.key"),
                                  "--tls.client_ca", Path("ca.pem"), "--auth.policy",
                                  Path("policy.yaml"), "--admin.socket", Path("admin.sock"),
                                  "--local.socket", Path("local.sock"), "--cluster.discovery",
                                  "static", "--cluster.members", "127.0.0.1:1"});
    ASSERT_OK(node);
    node_ = *std::move(node);
  }

  void WritePolicy(const std::string& text) {
    std::ofstream(Path("policy.new")) << text;
    ASSERT_EQ(rename(Path("policy.new").c_str(), Path("policy.yaml").c_str()), 0);
  }
  std::unique_ptr<NodeClient> Client(const std::string& who, const std::string& tenant) {
    return std::make_unique<NodeClient>(node_->address(), As(who), tenant);
  }
  std::string Scrape() {
    const auto text = metrics::HttpGet(node_->admin(), "/metrics", kPatience);
    EXPECT_OK(text);
    return text.value_or("");
  }
  template <typename Condition>
  bool Wait(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      Pause();
    }
    return true;
  }
  // A call with an empty request, which ends before it does anything: the status alone matters.
  grpc::Status Call(const std::string& who, const std::string& path) {
    const auto channel = grpc::CreateChannel(node_->address(), As(who));
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    grpc::CompletionQueue queue;
    // As a stream: some of them are.
    const auto call = stub.PrepareCall(&context, path, &queue);
    grpc::Status status;
    const auto step = [&](auto begin) {
      begin();
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    step([&] { call->StartCall(nullptr); });
    grpc::ByteBuffer request{nullptr, 0}, answer;
    step([&] { call->WriteLast(request, grpc::WriteOptions(), nullptr); });
    // One that was let in and goes on is ended here.
    if (step([&] { call->Read(&answer, nullptr); })) context.TryCancel();
    step([&] { call->Finish(&status, nullptr); });
    queue.Shutdown();
    return status;
  }

  static const std::vector<std::pair<std::string, std::string>> kNames;
  std::unique_ptr<CacheNode> node_;
};

const std::vector<std::pair<std::string, std::string>> NodePolicyTest::kNames = {
    {"writer_a", "writer/a"}, {"other_a", "other/a"}, {"reader_a", "reader/a"},
    {"writer_b", "writer/b"}, {"router", "router"},   {"operator_b", "operator/b"},
    {"admin_b", "admin/b"},   {"node", "node"},       {"nobody", "nobody"},
};

TEST_F(NodePolicyTest, EachMethodAsksForItsRole) {
  const std::pair<std::string, std::optional<Role>> callers[] = {
      {"reader_a", Role::kReader}, {"writer_a", Role::kWriter}, {"operator_b", Role::kOperator},
      {"admin_b", Role::kAdmin},   {"node", Role::kPeer},       {"nobody", std::nullopt},
      {"two", std::nullopt},
  };
  for (const auto* file :
       {v1::DropResponse::descriptor()->file(), v1::MatchRequest::descriptor()->file(),
        v1::MembersRequest::descriptor()->file(), v1::PeerMatchRequest::descriptor()->file()}) {
    const auto& service = *file->service(0);
    for (int m = 0; m < service.method_count(); ++m) {
      const std::string path = "/" + service.full_name() + "/" + service.method(m)->name();
      const Role needed = *wire::RoleOf(path);
      for (const auto& [who, role] : callers) {
        const grpc::Status status = Call(who, path);
        const bool refused = status.error_message().starts_with("the policy does not let") ||
                             status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
        EXPECT_EQ(!refused, role && auth::Includes(*role, needed))
            << who << " " << path << ": " << status.error_message();
      }
    }
  }
  EXPECT_EQ(Call("two", "/cairn.v1.Cache/Stat").error_code(), grpc::StatusCode::UNAUTHENTICATED)
      << "a certificate with two URIs proves nothing";
  EXPECT_THAT(Scrape(), HasSubstr("cairn_rpc_rejected_total{reason=\"auth\"}"));
  EXPECT_THAT(node_->process().err(), HasSubstr("call_refused"));
  EXPECT_THAT(node_->process().err(), HasSubstr("uri:spiffe://example/nobody"));
}

TEST_F(NodePolicyTest, ASessionIsForATenantThatItsCallerMayRead) {
  EXPECT_TRUE(Client("writer_a", "a")->error().ok());
  EXPECT_TRUE(Client("router", "")->error().ok());
  EXPECT_TRUE(Client("router", "a")->error().ok());
  const grpc::Status foreign = Client("writer_a", "b")->error();
  EXPECT_EQ(foreign.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(foreign.error_message(), HasSubstr("'b'"));
  EXPECT_EQ(Client("admin_b", "b")->error().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Client("nobody", "")->error().error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

// Tools of operators open one, and tenants forget to name themselves.
TEST_F(NodePolicyTest, ASessionWithoutATenantHasNoNamespaces) {
  const auto own = Client("writer_a", "a");
  const std::string there = own->Open(NodeClient::Spec("a"));
  for (const char* who : {"writer_a", "reader_a"}) {
    const auto client = Client(who, "");
    ASSERT_TRUE(client->error().ok());
    EXPECT_FALSE(client->Stat().node_id().empty());
    std::vector<Answer> answers;
    for (const std::string& fingerprint : {there, std::string(32, 'x')}) {
      v1::MatchRequest request;
      request.set_session_id(client->session());
      request.set_fingerprint(fingerprint);
      request.set_keys(NodeClient::Key(0));
      v1::MatchResponse response;
      grpc::ClientContext context;
      answers.push_back(Of(client->cache().Match(&context, request, &response)));
    }
    EXPECT_EQ(answers[0].code, grpc::StatusCode::PERMISSION_DENIED) << who;
    EXPECT_THAT(answers[0].text, HasSubstr("named no tenant"));
    EXPECT_EQ(answers[0], answers[1]);
  }
  EXPECT_TRUE(Client("admin_b", "")->error().ok());
}

// A session's id is a secret, but secrets leak: into logs, dumps and shared memory.
// Long: a call of each method that takes one.
TEST_F(NodePolicyTest, ASessionIsOfTheCallerThatOpenedIt) {
  const auto mine = Client("writer_a", "a");
  ASSERT_TRUE(mine->error().ok());
  const std::string fingerprint = mine->Open(NodeClient::Spec("a"));
  ASSERT_TRUE(mine->Store(fingerprint, 0).ok());
  const auto lease = mine->Match(fingerprint, 1, 60'000).lease_id();
  const uint64_t reservation = mine->Reserve(fingerprint, 1, 60'000);
  const auto other = Client("other_a", "a");
  ASSERT_TRUE(other->error().ok());
  // With an id, and with one that is no session's.
  const auto expect_unknown = [&](auto call) {
    const Answer theirs = Of(call(mine->session()));
    EXPECT_EQ(theirs.code, grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(theirs, Of(call(std::string(16, 'x'))));
  };
  expect_unknown([&](const std::string& session) {
    v1::MatchRequest request;
    request.set_session_id(session);
    request.set_fingerprint(fingerprint);
    request.set_keys(NodeClient::Key(0));
    v1::MatchResponse response;
    grpc::ClientContext context;
    return other->cache().Match(&context, request, &response);
  });
  expect_unknown([&](const std::string& session) {
    v1::PrefetchRequest request;
    request.set_session_id(session);
    request.set_fingerprint(fingerprint);
    request.set_keys(NodeClient::Key(0));
    v1::PrefetchResponse response;
    grpc::ClientContext context;
    return other->cache().Prefetch(&context, request, &response);
  });
  expect_unknown([&](const std::string& session) {
    v1::FetchRequest request;
    request.set_session_id(session);
    request.set_lease_id(lease);
    grpc::ClientContext context;
    const auto reader = other->cache().Fetch(&context, request);
    v1::FetchFrame frame;
    EXPECT_FALSE(reader->Read(&frame));
    return reader->Finish();
  });
  expect_unknown([&](const std::string& session) {
    v1::ReleaseRequest request;
    request.set_session_id(session);
    request.add_lease_ids(lease);
    v1::ReleaseResponse response;
    grpc::ClientContext context;
    return other->cache().Release(&context, request, &response);
  });
  expect_unknown([&](const std::string& session) {
    v1::RenewLeaseRequest request;
    request.set_session_id(session);
    request.set_lease_id(lease);
    v1::RenewLeaseResponse response;
    grpc::ClientContext context;
    return other->cache().RenewLease(&context, request, &response);
  });
  expect_unknown([&](const std::string& session) {
    v1::CommitRequest request;
    request.set_session_id(session);
    request.add_reservation_ids(reservation);
    v1::CommitResponse response;
    grpc::ClientContext context;
    return other->cache().Commit(&context, request, &response);
  });
  expect_unknown([&](const std::string& session) {
    v1::AbortRequest request;
    request.set_session_id(session);
    request.add_reservation_ids(reservation);
    v1::AbortResponse response;
    grpc::ClientContext context;
    return other->cache().Abort(&context, request, &response);
  });
  expect_unknown([&](const std::string& session) {
    v1::PushFrame frame;
    frame.set_session_id(session);
    v1::PushResponse response;
    grpc::ClientContext context;
    const auto writer = other->cache().Push(&context, &response);
    writer->Write(frame);
    writer->WritesDone();
    return writer->Finish();
  });
  expect_unknown([&](const std::string& session) {
    v1::WatchRequest request;
    request.set_session_id(session);
    grpc::ClientContext context;
    const auto reader = other->cache().Watch(&context, request);
    v1::Event event;
    EXPECT_FALSE(reader->Read(&event));
    return reader->Finish();
  });
  EXPECT_EQ(mine->Fetch(lease).size(), 1u) << "the lease is as it was";
}

// Whoever knows another tenant's fingerprint learns nothing with it.
// Long: a call of each method that takes one.
TEST_F(NodePolicyTest, AForeignNamespaceAnswersAsOneThatIsNotThere) {
  const auto owner = Client("writer_b", "b");
  const std::string foreign = owner->Open(NodeClient::Spec("b"));
  ASSERT_TRUE(owner->Store(foreign, 0).ok());
  const auto mine = Client("writer_a", "a");
  const std::string absent(32, '\x5a');
  const auto hex = [](const std::string& bytes) { return Digest::FromBytes(bytes, "f")->Hex(); };
  const auto expect_absent = [&](const char* what, auto call) {
    Answer of_foreign = Of(call(foreign)), of_absent = Of(call(absent));
    EXPECT_EQ(of_foreign.code, grpc::StatusCode::NOT_FOUND) << what << of_foreign;
    const auto at = of_absent.text.find(hex(absent));
    if (at != std::string::npos) of_absent.text.replace(at, 64, hex(foreign));
    EXPECT_EQ(of_foreign, of_absent) << what;
  };
  // In a session for one's own tenant, and in one that may read all but writes for none.
  for (NodeClient* client : {mine.get()}) {
    expect_absent("Match", [&](const std::string& fingerprint) {
      v1::MatchRequest request;
      request.set_session_id(client->session());
      request.set_fingerprint(fingerprint);
      request.set_keys(NodeClient::Key(0));
      v1::MatchResponse response;
      grpc::ClientContext context;
      return client->cache().Match(&context, request, &response);
    });
    expect_absent("Fetch", [&](const std::string& fingerprint) {
      v1::FetchRequest request;
      request.set_session_id(client->session());
      request.mutable_lookup()->set_fingerprint(fingerprint);
      request.mutable_lookup()->set_keys(NodeClient::Key(0));
      grpc::ClientContext context;
      const auto reader = client->cache().Fetch(&context, request);
      v1::FetchFrame frame;
      EXPECT_FALSE(reader->Read(&frame));
      return reader->Finish();
    });
    expect_absent("Prefetch", [&](const std::string& fingerprint) {
      v1::PrefetchRequest request;
      request.set_session_id(client->session());
      request.set_fingerprint(fingerprint);
      request.set_keys(NodeClient::Key(0));
      v1::PrefetchResponse response;
      grpc::ClientContext context;
      return client->cache().Prefetch(&context, request, &response);
    });
    expect_absent("Exists", [&](const std::string& fingerprint) {
      v1::ExistsRequest request;
      request.set_fingerprint(fingerprint);
      request.set_keys(NodeClient::Key(0));
      v1::ExistsResponse response;
      grpc::ClientContext context;
      return client->cache().Exists(&context, request, &response);
    });
    expect_absent("Reserve", [&](const std::string& fingerprint) {
      v1::ReserveRequest request;
      request.set_session_id(client->session());
      request.set_fingerprint(fingerprint);
      request.add_parts();
      v1::ReserveResponse response;
      grpc::ClientContext context;
      return client->cache().Reserve(&context, request, &response);
    });
    expect_absent("Watch", [&](const std::string& fingerprint) {
      v1::WatchRequest request;
      request.set_fingerprint(fingerprint);
      grpc::ClientContext context;
      const auto reader = client->cache().Watch(&context, request);
      v1::Event event;
      EXPECT_FALSE(reader->Read(&event));
      return reader->Finish();
    });
    expect_absent("Locate", [&](const std::string& fingerprint) {
      v1::LocateRequest request;
      request.set_fingerprint(fingerprint);
      request.set_keys(NodeClient::Key(0));
      v1::LocateResponse response;
      grpc::ClientContext context;
      const auto stub = v1::Cluster::NewStub(client->channel());
      return stub->Locate(&context, request, &response);
    });
  }
  // An administrator of one tenant, and another's namespace.
  const std::string of_a = mine->Open(NodeClient::Spec("a"));
  const auto admin = v1::Admin::NewStub(grpc::CreateChannel(node_->address(), As("admin_b")));
  for (const bool bump : {false, true}) {
    const auto drop = [&](const std::string& fingerprint) {
      grpc::ClientContext context;
      v1::DropResponse response;
      v1::BumpEpochRequest bumped;
      bumped.set_fingerprint(fingerprint);
      v1::DropNamespaceRequest dropped;
      dropped.set_fingerprint(fingerprint);
      return bump ? admin->BumpEpoch(&context, bumped, &response)
                  : admin->DropNamespace(&context, dropped, &response);
    };
    Answer of_foreign = Of(drop(of_a)), of_absent = Of(drop(absent));
    of_absent.text.replace(of_absent.text.find(hex(absent)), 64, hex(of_a));
    EXPECT_EQ(of_foreign, of_absent);
  }
  EXPECT_EQ(owner->Match(foreign, 1).matched_blocks(), 1u) << "it was there all the time";
  EXPECT_THAT(node_->process().err(), HasSubstr("tenant=b"));
}

TEST_F(NodePolicyTest, AnAdministratorSeesAndDropsItsOwnTenantsAlone) {
  const auto a = Client("writer_a", "a"), b = Client("writer_b", "b");
  ASSERT_TRUE(a->Store(a->Open(NodeClient::Spec("a")), 0).ok());
  ASSERT_TRUE(b->Store(b->Open(NodeClient::Spec("b")), 0).ok());
  const auto admin = v1::Admin::NewStub(grpc::CreateChannel(node_->address(), As("admin_b")));
  const auto tenants = [&](v1::Admin::Stub& stub, const std::string& asked) {
    v1::ListNamespacesRequest request;
    request.set_tenant(asked);
    v1::ListNamespacesResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub.ListNamespaces(&context, request, &response).ok());
    std::string names;
    for (const auto& row : response.namespaces()) names += row.spec().tenant();
    return names;
  };
  EXPECT_EQ(tenants(*admin, ""), "b");
  EXPECT_EQ(tenants(*admin, "a"), "");
  v1::DropTenantRequest drop;
  v1::DropResponse dropped;
  drop.set_tenant("a");
  {
    grpc::ClientContext context;
    EXPECT_EQ(admin->DropTenant(&context, drop, &dropped).error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
  }
  {
    grpc::ClientContext context;
    v1::DrainResponse drained;
    const grpc::Status status = admin->Drain(&context, v1::DrainRequest(), &drained);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(status.error_message(), HasSubstr("for all tenants"));
  }
  drop.set_tenant("b");
  {
    grpc::ClientContext context;
    EXPECT_TRUE(admin->DropTenant(&context, drop, &dropped).ok());
    EXPECT_EQ(dropped.hidden_blocks(), 1u);
  }
  // The process's own user needs no rule.
  const auto operators = v1::Admin::NewStub(
      grpc::CreateChannel("unix:" + Path("admin.sock"), grpc::InsecureChannelCredentials()));
  EXPECT_THAT(tenants(*operators, ""), HasSubstr("a"));
}

TEST_F(NodePolicyTest, StatAndWatchShowWhatTheCallerMayRead) {
  const auto a = Client("writer_a", "a"), b = Client("writer_b", "b");
  const auto router = Client("router", "");
  ASSERT_TRUE(b->Store(b->Open(NodeClient::Spec("b")), 0).ok());
  EXPECT_EQ(router->Stat().blocks(), 1u);
  const v1::StatResponse shown = a->Stat();
  EXPECT_EQ(shown.node_id(), router->Stat().node_id());
  EXPECT_EQ(shown.blocks(), 0u);
  EXPECT_EQ(shown.tiers_size(), 0);
  EXPECT_EQ(shown.pushed_bytes(), 0u);
  // Events of all: of the router alone. Those of a session: of its tenant.
  const auto first = [&](NodeClient& client, const std::string& session, v1::Event* event) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::WatchRequest request;
    request.set_session_id(session);
    request.set_snapshot(true);
    const auto reader = client.cache().Watch(&context, request);
    const bool read = reader->Read(event);
    if (read) context.TryCancel();
    return reader->Finish();
  };
  v1::Event event;
  EXPECT_EQ(first(*a, "", &event).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  first(*router, "", &event);
  EXPECT_EQ(event.kind(), v1::Event::KIND_STORED);
  first(*a, a->session(), &event);
  EXPECT_EQ(event.kind(), v1::Event::KIND_SNAPSHOT_END);
}

TEST_F(NodePolicyTest, AReaderStoresNothing) {
  const auto reader = Client("reader_a", "a");
  const std::string fingerprint = reader->Open(NodeClient::Spec("a"));
  EXPECT_FALSE(fingerprint.empty());
  EXPECT_EQ(reader->Store(fingerprint, 0).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  // One that may read all tenants and write none.
  const auto router = Client("router", "");
  EXPECT_EQ(router->Store(router->Open(NodeClient::Spec("a")), 0).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(reader->OpenSimilar(NodeClient::Spec("b")).fingerprint(), "");
}

TEST_F(NodePolicyTest, AChangeEndsSessionsWhoseRightsItChangesAndNoOthers) {
  const auto a = Client("writer_a", "a"), b = Client("writer_b", "b");
  ASSERT_TRUE(a->error().ok() && b->error().ok());
  grpc::ClientContext watching;
  v1::WatchRequest request;
  request.set_session_id(a->session());
  const auto watch = a->cache().Watch(&watching, request);
  WritePolicy(kOnlyB);
  const grpc::Status ended = a->WaitEnd();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(ended.error_message(), HasSubstr("the policy"));
  v1::Event nothing;
  EXPECT_FALSE(watch->Read(&nothing));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Client("writer_a", "a")->error().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(b->Store(b->Open(NodeClient::Spec("b")), 0).ok()) << "its rights are as before";
  // A wrong file takes nothing away and adds nothing.
  WritePolicy("rules:\n  - identity: x\n");
  ASSERT_TRUE(
      Wait([&] { return node_->process().err().find("policy_refused") != std::string::npos; }));
  EXPECT_TRUE(b->Flush().ok());
  const std::string scrape = Scrape();
  EXPECT_THAT(scrape, HasSubstr("cairn_auth_policy_refused 1"));
  EXPECT_THAT(scrape, HasSubstr("cairn_auth_policy_reloads_total{result=\"refused\"} 1"));
  EXPECT_THAT(scrape, HasSubstr("cairn_auth_policy_rules 1\n"));
  WritePolicy(kPolicy);
  EXPECT_TRUE(Wait([&] { return Client("writer_a", "a")->error().ok(); }));
  EXPECT_THAT(Scrape(), HasSubstr("cairn_auth_policy_refused 0"));
}

TEST_F(NodePolicyTest, ATenantHasTheRoomThatThePolicyGivesIt) {
  const auto a = Client("writer_a", "a"), b = Client("writer_b", "b");
  const std::string of_a = a->Open(NodeClient::Spec("a")), of_b = b->Open(NodeClient::Spec("b"));
  const auto stored = [](NodeClient& client, const std::string& fingerprint) {
    return client.Match(fingerprint, 8).matched_blocks();
  };
  // Blocks of a chain, whose last ones go first.
  const auto store = [](NodeClient& client, const std::string& fingerprint) {
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(client.Store(fingerprint, i).ok()) << i;
  };
  // Two blocks of 10,000 bytes, in pages.
  WritePolicy(std::string(kPolicy) + "limits:\n  - {tenants: [a], memory: 30KiB}\n");
  const std::string limit = "cairn_tenant_limit_bytes{tenant=\"a\",tier=\"host\"}";
  ASSERT_TRUE(Wait([&] { return Scrape().find(limit + " 30720") != std::string::npos; }));
  store(*a, of_a);
  store(*b, of_b);
  EXPECT_EQ(stored(*b, of_b), 8u) << "whom no limit names";
  EXPECT_LE(stored(*a, of_a), 2u);
  EXPECT_THAT(Scrape(), HasSubstr("cairn_tenant_room_bytes{tenant=\"a\",tier=\"host\"} 24576"));
  client::ConnectOptions operators;
  operators.address = "unix:" + Path("admin.sock");
  const auto admin = client::ConnectAdmin(operators);
  ASSERT_OK(admin);
  const auto listed = (*admin)->ListNamespaces("a", {.deadline = kPatience});
  ASSERT_OK(listed);
  ASSERT_EQ(listed->at(0).tenant_room.size(), 1u) << "the node has no disk";
  EXPECT_EQ(listed->at(0).tenant_room[0].tier, TierKind::kHost);
  EXPECT_EQ(listed->at(0).tenant_room[0].bytes, 24576u);
  EXPECT_EQ(listed->at(0).tenant_room[0].most, 30720u);
  // Who has no room for one block is told by whom and why. The session lives: its rights are as
  // before.
  WritePolicy(std::string(kPolicy) + "limits:\n  - {tenants: [a], memory: 4KiB}\n");
  ASSERT_TRUE(Wait([&] { return Scrape().find(limit + " 4096") != std::string::npos; }));
  const grpc::Status refused = a->Store(of_a, 21);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("tenant 'a'"));
  EXPECT_THAT(refused.error_message(), HasSubstr("its limit is 4096"));
  EXPECT_THAT(Scrape(), Not(HasSubstr("cairn_over_tenant_limit_total 0")));
  WritePolicy(kPolicy);
  ASSERT_TRUE(Wait([&] { return Scrape().find(limit) == std::string::npos; }));
  EXPECT_TRUE(a->Store(of_a, 22).ok());
}

// A client that does not read its stream cannot keep the session by that.
TEST_F(NodePolicyTest, ASessionEndsThoughNobodyReadsItsStream) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub =
      v1::Cache::NewStub(grpc::CreateCustomChannel(node_->address(), As("writer_a"), arguments));
  grpc::ClientContext context;
  v1::OpenSessionRequest request;
  request.set_client_name("deaf");
  request.set_tenant("a");
  const auto stream = stub->OpenSession(&context, request);
  v1::SessionEvent event;
  ASSERT_TRUE(stream->Read(&event));
  const auto b = Client("writer_b", "b");
  // The heartbeat that nobody reads, after 5 s, is under way.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(7);
  ASSERT_TRUE(Wait([&] { return std::chrono::steady_clock::now() > until; }));
  WritePolicy(kOnlyB);
  const auto operators = v1::Cache::NewStub(
      grpc::CreateChannel("unix:" + Path("admin.sock"), grpc::InsecureChannelCredentials()));
  EXPECT_TRUE(Wait([&] {
    grpc::ClientContext asking;
    v1::StatResponse stat;
    EXPECT_TRUE(operators->Stat(&asking, v1::StatRequest(), &stat).ok());
    return stat.sessions() == 1;
  }));
  context.TryCancel();
  stream->Finish();
}

// The client library, with the same-node path, for the tenant that the policy gives it.
TEST_F(NodePolicyTest, AClientOfOneTenantUsesSharedMemory) {
  client::ConnectOptions options = Connect();
  options.tls.cert_file = Path("writer_a.pem");
  options.tls.key_file = Path("writer_a.key");
  options.address = node_->address();
  options.tenant = "a";
  auto client = client::Connect(options);
  ASSERT_OK(client);
  const NamespaceSpec spec = NodeClient::Spec("a");
  ASSERT_OK((*client)->OpenNamespace(spec, {.deadline = kPatience}));
  const std::vector<BlockKey> keys = {*BlockKey::FromBytes(NodeClient::Key(0), "key")};
  // The first call may be over before the path is there.
  EXPECT_TRUE(Wait([&] {
    EXPECT_OK((*client)->Match(Fingerprint(spec), keys, {.deadline = kPatience}));
    return Scrape().find("cairn_local_sessions 1") != std::string::npos;
  }));
}

}  // namespace
}  // namespace cairn::testing
