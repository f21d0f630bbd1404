#pragma once
// A cache node that does what a test tells it, over real gRPC on loopback. Keeps what is pushed;
// knows no engine.

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cairn/common/part.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "common/concurrency/mutex.h"
#include "common/rpc/status.h"
#include "common/rpc/trace.h"
#include "protocol/wire/convert.h"
#include "protocol/wire/message_limits.h"
#include "tests/support/etcd_cluster.h"

namespace cairn::client::testing {

class ScriptedNode final : public v1::Cache::Service {
 public:
  struct Script {
    bool hang = false;  // Every call waits until it is cancelled or the script changes.
    uint64_t frame_bytes = 1 << 20;  // Data in one fetch frame.
    int corrupt_block = -1;          // Its slices have one byte changed.
    bool mends = false;              // But not where the node is to verify them itself.
    bool looks_up = true;            // In a Fetch; a node of before does not.
    // A Push names reservations at its end; a node of before does not commit them.
    bool commits = false;
    int break_fetch_after = -1;    // Frames; then the stream ends with UNAVAILABLE.
    int hang_fetch_after = -1;     // Frames; then nothing comes.
    bool end_fetch_early = false;  // Leaves out the last piece of the last slice and says OK.
    // The end of the Push stream, sent before it is read to its end.
    grpc::Status push = grpc::Status::OK;
    uint32_t commit_code = 0;  // The code of every part, if not 0.
  };

  // Nobody else gets a port of FreePort, so another node can come back at it.
  explicit ScriptedNode(int port = cairn::testing::FreePort()) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(wire::kMaxMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~ScriptedNode() override { Stop(); }

  bool running() const { return server_ != nullptr; }
  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void Stop() {
    if (server_ == nullptr) return;
    {
      MutexLock lock(mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  void Set(const Script& script) {
    MutexLock lock(mu_);
    script_ = script;
    ++script_version_;
    changed_.NotifyAll();
  }
  // Ends all sessions; the server stays.
  void EndSessions() {
    MutexLock lock(mu_);
    ++sessions_ended_;
    changed_.NotifyAll();
  }
  void ForgetNamespaces() {
    MutexLock lock(mu_);
    namespaces_.clear();
  }
  // Waits up to a minute until it is true of the node; `what` runs under its lock.
  bool Eventually(const std::function<bool()>& what) {
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + std::chrono::seconds(60),
                              what);
  }

  // Under the lock (Eventually).
  int sessions_opened = 0;
  int match_calls = 0;
  int commit_calls = 0;
  std::multiset<uint64_t> released;
  std::vector<std::string> watched_by;  // Session ids.
  std::multiset<uint64_t> aborted;
  std::set<std::string> traces;
  bool knows(const std::string& fingerprint) const { return namespaces_.contains(fingerprint); }

  std::set<std::string> tenants;  // That sessions named.

  grpc::Status OpenSession(grpc::ServerContext* context, const v1::OpenSessionRequest* request,
                           grpc::ServerWriter<v1::SessionEvent>* writer) override {
    if (!Enter(context)) return grpc::Status::CANCELLED;
    v1::SessionEvent event;
    int ended = 0;
    {
      MutexLock lock(mu_);
      tenants.insert(request->tenant());
      event.set_session_id(fmt::format("session-{:08}", ++sessions_opened));
      event.set_node_id("scripted");
      event.set_max_frame_bytes(64 << 10);
      current_session_ = event.session_id();
      ended = sessions_ended_;
      changed_.NotifyAll();
    }
    writer->Write(event);
    Wait(context, [&] { return sessions_ended_ != ended; });
    return grpc::Status::OK;
  }

  grpc::Status OpenNamespace(grpc::ServerContext* context, const v1::OpenNamespaceRequest* request,
                             v1::OpenNamespaceResponse* response) override {
    if (!Enter(context)) return grpc::Status::CANCELLED;
    const auto spec = wire::FromProto(request->spec());
    if (!spec.ok()) return rpc::ToGrpc(spec.status());
    MutexLock lock(mu_);
    response->set_fingerprint(std::string(Fingerprint(*spec).View()));
    response->set_created(namespaces_.insert(response->fingerprint()).second);
    changed_.NotifyAll();
    return grpc::Status::OK;
  }

  grpc::Status Match(grpc::ServerContext* context, const v1::MatchRequest* request,
                     v1::MatchResponse* response) override {
    if (!Enter(context)) return grpc::Status::CANCELLED;
    MutexLock lock(mu_);
    ++match_calls;
    changed_.NotifyAll();
    return Find(*request, response);
  }

  // Leases what it finds.
  grpc::Status Find(const v1::MatchRequest& wanted, v1::MatchResponse* response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const v1::MatchRequest* const request = &wanted;
    if (const grpc::Status known = Check(request->session_id(), request->fingerprint());
        !known.ok())
      return known;
    std::vector<std::string> keys;
    for (size_t at = 0; at < request->keys().size(); at += 32)
      keys.push_back(request->keys().substr(at, 32));
    while (response->matched_blocks() < keys.size() &&
           parts_.contains(keys[response->matched_blocks()])) {
      response->set_matched_blocks(response->matched_blocks() + 1);
    }
    keys.resize(response->matched_blocks());
    response->set_miss_reason(keys.size() * 32 == request->keys().size() ? v1::MISS_REASON_NONE
                                                                         : v1::MISS_REASON_ABSENT);
    if (!keys.empty() && !request->no_lease()) {
      response->set_lease_id(++last_id_);
      response->set_lease_ttl_ms(30000);
      leases_[last_id_] = keys;
    }
    return grpc::Status::OK;
  }

  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::FetchFrame>* writer) override {
    if (!Enter(context)) return grpc::Status::CANCELLED;
    Script script;
    std::vector<std::string> keys;
    std::map<std::string, std::string> parts;
    v1::FetchFrame matched;
    uint64_t version = 0;
    {
      MutexLock lock(mu_);
      script = script_;
      version = script_version_;
      uint64_t lease = request->lease_id();
      if (request->has_lookup() && script.looks_up) {
        v1::MatchRequest match;
        match.set_session_id(request->session_id());
        match.set_fingerprint(request->lookup().fingerprint());
        match.set_keys(request->lookup().keys());
        if (const grpc::Status found = Find(match, matched.mutable_matched()); !found.ok())
          return found;
        lease = matched.matched().lease_id();
        matched.mutable_matched()->clear_lease_id();
      } else if (lease == 0) {
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "lease_id: got 0");
      }
      if (request->session_id() != current_session_ || (lease != 0 && !leases_.contains(lease)))
        return NotFound("lease");
      if (lease != 0) keys = leases_[lease];
      parts = parts_;
    }
    if (script.mends && !request->reader_verifies()) script.corrupt_block = -1;
    if (matched.has_matched() && script.hang_fetch_after != 0) writer->Write(matched);
    const std::vector<v1::FetchFrame> frames = Frames(keys, parts, script);
    for (size_t i = 0; i < frames.size(); ++i) {
      if (static_cast<int>(i) == script.break_fetch_after)
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken");
      if (static_cast<int>(i) == script.hang_fetch_after) {
        Wait(context, [&] { return script_version_ != version; });
        return grpc::Status::CANCELLED;
      }
      if (!writer->Write(frames[i])) return grpc::Status::CANCELLED;
    }
    return grpc::Status::OK;
  }

  grpc::Status Reserve(grpc::ServerContext* context, const v1::ReserveRequest* request,
                       v1::ReserveResponse* response) override {
    if (!Enter(context)) return grpc::Status::CANCELLED;
    MutexLock lock(mu_);
    if (const grpc::Status known = Check(request->session_id(), request->fingerprint());
        !known.ok())
      return known;
    for (const v1::ReservePart& part : request->parts()) {
      v1::PartResult* result = response->add_results();
      if (parts_.contains(part.key())) {
        result->set_code(static_cast<uint32_t>(StatusCode::kAlreadyExists));
        continue;
      }
      result->set_reservation_id(++last_id_);
      reserved_[last_id_] = {part.key(), std::string(part.bytes(), '\0')};
    }
    return grpc::Status::OK;
  }

  grpc::Status Push(grpc::ServerContext* context, grpc::ServerReader<v1::PushFrame>* reader,
                    v1::PushResponse* response) override {
    if (!Enter(context)) return grpc::Status::CANCELLED;
    v1::PushFrame frame;
    std::vector<uint64_t> commit;
    while (reader->Read(&frame)) {
      MutexLock lock(mu_);
      commit.insert(commit.end(), frame.commit_ids().begin(), frame.commit_ids().end());
      if (!script_.push.ok()) return script_.push;
      for (const auto& piece : frame.pieces()) {
        std::string& to = reserved_[piece.reservation_id()].second;
        if (piece.offset() + piece.data().size() > to.size())
          return grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "piece");
        to.replace(piece.offset(), piece.data().size(), piece.data());
      }
    }
    MutexLock lock(mu_);
    if (script_.commits) {
      for (const uint64_t id : commit) CommitOne(id, response->add_committed());
    }
    return grpc::Status::OK;
  }

  grpc::Status Commit(grpc::ServerContext* context, const v1::CommitRequest* request,
                      v1::CommitResponse* response) override {
    if (!Enter(context)) return grpc::Status::CANCELLED;
    MutexLock lock(mu_);
    ++commit_calls;
    changed_.NotifyAll();
    for (const uint64_t id : request->reservation_ids()) CommitOne(id, response->add_results());
    return grpc::Status::OK;
  }

  grpc::Status Abort(grpc::ServerContext*, const v1::AbortRequest* request,
                     v1::AbortResponse*) override {
    MutexLock lock(mu_);
    for (const uint64_t id : request->reservation_ids()) aborted.insert(id);
    changed_.NotifyAll();
    return grpc::Status::OK;
  }

  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest* request,
                       v1::ReleaseResponse*) override {
    MutexLock lock(mu_);
    for (const uint64_t id : request->lease_ids()) released.insert(id);
    changed_.NotifyAll();
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::Event>* writer) override {
    {
      MutexLock lock(mu_);
      watched_by.push_back(request->session_id());
      changed_.NotifyAll();
    }
    v1::Event event;
    event.set_kind(static_cast<v1::Event::Kind>(50));  // A kind of the future.
    writer->Write(event);
    event.set_kind(v1::Event::KIND_STORED);
    event.set_sequence(7);
    event.set_key(std::string(32, 'k'));
    event.set_tier(v1::TIER_KIND_DISK);
    writer->Write(event);
    Wait(context, [] { return false; });
    return grpc::Status::OK;
  }

 private:
  void CommitOne(uint64_t id, v1::PartResult* result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto& [key, bytes] = reserved_[id];
    const auto part = format::VerifyPart(std::as_bytes(std::span(bytes)));
    wire::ToProto(part.status(), result);
    if (script_.commit_code != 0) result->set_code(script_.commit_code);
    if (result->code() == 0) parts_[key] = bytes;
    reserved_.erase(id);
  }
  static grpc::Status NotFound(const std::string& what) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, what);
  }

  grpc::Status Check(const std::string& session, const std::string& fingerprint)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (session != current_session_) return NotFound("session");
    return namespaces_.contains(fingerprint) ? grpc::Status::OK : NotFound("namespace");
  }

  // Blocks until `done`, the call is cancelled or the server stops.
  void Wait(grpc::ServerContext* context, const std::function<bool()>& done) {
    while (!context->IsCancelled()) {
      MutexLock lock(mu_);
      const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
      const bool over = changed_.WaitUntil(
          mu_, soon, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || done(); });
      if (over) return;
    }
  }

  // False when the call was cancelled while the script made it hang.
  bool Enter(grpc::ServerContext* context) {
    bool hang = false;
    {
      MutexLock lock(mu_);
      const auto& metadata = context->client_metadata();
      if (const auto it = metadata.find(rpc::kTraceMetadata); it != metadata.end()) {
        traces.emplace(it->second.data(), it->second.size());
        changed_.NotifyAll();
      }
      hang = script_.hang;
    }
    if (hang) Wait(context, [&] { return !script_.hang; });
    return !context->IsCancelled();
  }

  static std::vector<v1::FetchFrame> Frames(const std::vector<std::string>& keys,
                                            const std::map<std::string, std::string>& parts,
                                            const Script& script) {
    std::vector<v1::FetchFrame> frames;
    for (size_t block = 0; block < keys.size(); ++block) {
      const std::string& bytes = parts.at(keys[block]);
      const auto header = *format::ParseHeader(std::as_bytes(std::span(bytes)));
      for (size_t i = 0; i < header.slices.size(); ++i) {
        const format::SliceEntry& entry = header.slices[i];
        std::string data = bytes.substr(entry.offset, entry.length);
        if (static_cast<int>(block) == script.corrupt_block && !data.empty())
          data[0] = static_cast<char>(data[0] ^ 1);
        size_t at = 0;
        do {
          v1::FetchFrame frame;
          v1::Slice* slice = frame.add_slices();
          slice->set_block(static_cast<uint32_t>(block));
          wire::ToProto(header.rect, slice->mutable_part());
          slice->set_layer(static_cast<uint32_t>(header.rect.layer_begin + i));
          slice->set_codec(wire::ToProto(header.codec));
          slice->set_slice_bytes(data.size());
          slice->set_xxh3(entry.xxh3);
          slice->set_offset(at);
          slice->set_data(data.substr(at, script.frame_bytes));
          slice->set_tier(v1::TIER_KIND_DISK);
          at += slice->data().size();
          frames.push_back(std::move(frame));
        } while (at < data.size());
      }
    }
    if (script.end_fetch_early) frames.pop_back();
    return frames;
  }

  int port_ = 0;
  Mutex mu_;
  CondVar changed_;
  Script script_ ABSL_GUARDED_BY(mu_);
  uint64_t script_version_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int sessions_ended_ ABSL_GUARDED_BY(mu_) = 0;
  std::string current_session_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> namespaces_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, std::string> parts_ ABSL_GUARDED_BY(mu_);  // One part a block.
  std::map<uint64_t, std::pair<std::string, std::string>> reserved_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, std::vector<std::string>> leases_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace cairn::client::testing
