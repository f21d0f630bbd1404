#pragma once
// A bare client of one node: raw stubs, one session, blocks of an opaque layout. For tests of the
// node itself, so without the client library's own deadlines, retries and breaker.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/v1/admin.grpc.pb.h"
#include "cairn/v1/cache.grpc.pb.h"

namespace cairn::testing {

class NodeClient {
 public:
  // Opens a session. `credentials`: nullptr for none. `tenant`: the one that the session names.
  explicit NodeClient(const std::string& address,
                      std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr,
                      const std::string& tenant = "");
  ~NodeClient() { Close(); }
  // Ends the session's stream.
  void Close();
  // Waits until the node ends it.
  grpc::Status WaitEnd();

  // A spec with an opaque layout with one part, blocks of 16 tokens.
  static NamespaceSpec Spec(const std::string& tenant = "t",
                            const std::string& revision = "revision");
  static std::string Key(int i) { return std::string(28, 'k') + fmt::format("{:04}", i); }

  std::string Open(const NamespaceSpec& spec);  // The fingerprint.
  // The whole answer. Empty: refused.
  v1::OpenNamespaceResponse OpenSimilar(const NamespaceSpec& spec);
  // Reserves, pushes, commits block i of a chain, with a payload of `bytes` bytes that depends on
  // i.
  grpc::Status Store(const std::string& fingerprint, int i, size_t bytes = 10'000);
  static std::string Payload(int i, size_t bytes = 10'000);
  // Keys 0 to count - 1.
  v1::MatchResponse Match(const std::string& fingerprint, int count, uint32_t ttl_ms = 0);
  // Data by block; a failed block has none.
  std::map<uint32_t, std::string> Fetch(uint64_t lease);
  v1::StatResponse Stat();
  grpc::Status Flush();
  // A reservation that nobody commits.
  uint64_t Reserve(const std::string& fingerprint, int i, uint32_t ttl_ms);
  // Waits until Stat satisfies the predicate; false at the deadline.
  template <typename Predicate>
  bool WaitStat(Predicate predicate);

  const std::string& session() const { return session_; }
  const v1::SessionEvent& hello() const { return hello_; }
  grpc::ClientReader<v1::SessionEvent>* events() { return reader_.get(); }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }
  v1::Cache::Stub& cache() { return *cache_; }
  v1::Admin::Stub& admin() { return *admin_; }
  const grpc::Status& error() const { return error_; }  // The error of OpenSession.

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Cache::Stub> cache_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> reader_;
  std::string session_;
  v1::SessionEvent hello_;
  grpc::Status error_;
};

void Pause();  // Between two looks at a condition.

template <typename Predicate>
bool NodeClient::WaitStat(Predicate predicate) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!predicate(Stat())) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    Pause();
  }
  return true;
}

}  // namespace cairn::testing
