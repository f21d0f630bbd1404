#include "tests/integration/node_client.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>

#include "cairn/common/part.h"
#include "protocol/wire/convert.h"

namespace cairn::testing {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + kTimeout);
}

// A refusal is an answer, and calls that only ask return nothing for it. No answer is none.
void ExpectAnswer(const grpc::Status& status, const char* call) {
  EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED)
      << call << ": the node does not answer";
}

}  // namespace

void Pause() { poll(nullptr, 0, 10); }

NodeClient::NodeClient(const std::string& address,
                       std::shared_ptr<grpc::ChannelCredentials> credentials,
                       const std::string& tenant) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // A connection of its own.
  arguments.SetMaxReceiveMessageSize(64 << 20);
  channel_ = grpc::CreateCustomChannel(
      address, credentials != nullptr ? credentials : grpc::InsecureChannelCredentials(),
      arguments);
  cache_ = v1::Cache::NewStub(channel_);
  admin_ = v1::Admin::NewStub(channel_);
  v1::OpenSessionRequest request;
  request.set_client_name("node_client");
  request.set_tenant(tenant);
  reader_ = cache_->OpenSession(&context_, request);
  if (reader_->Read(&hello_)) {
    session_ = hello_.session_id();
  } else {
    error_ = reader_->Finish();
    reader_.reset();
  }
}

void NodeClient::Close() {
  if (reader_ == nullptr) return;
  context_.TryCancel();
  reader_->Finish();
  reader_.reset();
}

grpc::Status NodeClient::WaitEnd() {
  v1::SessionEvent event;
  while (reader_->Read(&event)) {
  }
  const grpc::Status status = reader_->Finish();
  reader_.reset();
  return status;
}

NamespaceSpec NodeClient::Spec(const std::string& tenant, const std::string& revision) {
  NamespaceSpec spec;
  spec.tenant = tenant;
  spec.model = "model";
  spec.revision = revision;
  spec.numerics = "any";
  spec.layout.block_tokens = 16;
  spec.layout.form = OpaqueLayout{.description = "test", .max_part_bytes = 8 << 20, .parts = 1};
  return spec;
}

std::string NodeClient::Open(const NamespaceSpec& spec) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::OpenNamespaceRequest request;
  v1::OpenNamespaceResponse response;
  wire::ToProto(spec, request.mutable_spec());
  const grpc::Status status = cache_->OpenNamespace(&context, request, &response);
  return status.ok() ? response.fingerprint() : "error: " + status.error_message();
}

v1::OpenNamespaceResponse NodeClient::OpenSimilar(const NamespaceSpec& spec) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::OpenNamespaceRequest request;
  v1::OpenNamespaceResponse response;
  wire::ToProto(spec, request.mutable_spec());
  if (!cache_->OpenNamespace(&context, request, &response).ok()) response.Clear();
  return response;
}

std::string NodeClient::Payload(int i, size_t bytes) {
  std::string payload(bytes, 0);
  for (size_t at = 0; at < bytes; ++at)
    payload[at] = static_cast<char>(at * 31 + static_cast<size_t>(i) * 17 + at / 251);
  return payload;
}

uint64_t NodeClient::Reserve(const std::string& fingerprint, int i, uint32_t ttl_ms) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::ReserveRequest request;
  v1::ReserveResponse response;
  request.set_session_id(session_);
  request.set_fingerprint(fingerprint);
  request.set_ttl_ms(ttl_ms);
  v1::ReservePart* part = request.add_parts();
  part->set_key(Key(i));
  part->mutable_part()->set_layer_end(1);
  part->mutable_part()->set_head_end(1);
  part->set_bytes(1000);
  cache_->Reserve(&context, request, &response);
  return response.results_size() == 1 ? response.results(0).reservation_id() : 0;
}

grpc::Status NodeClient::Store(const std::string& fingerprint, int i, size_t bytes) {
  const std::string payload = Payload(i, bytes);
  const uint64_t lengths[] = {payload.size()};
  std::string part_bytes(format::PartBytes(lengths), 0);
  payload.copy(part_bytes.data() + part_bytes.size() - payload.size(), payload.size());
  format::SealPart(std::as_writable_bytes(std::span(part_bytes)), format::Codec::kOpaque,
                   {.layer_begin = 0, .layer_end = 1, .head_begin = 0, .head_end = 1}, 16, lengths);
  uint64_t reservation = 0;
  {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::ReserveRequest request;
    v1::ReserveResponse response;
    request.set_session_id(session_);
    request.set_fingerprint(fingerprint);
    v1::ReservePart* part = request.add_parts();
    part->set_key(Key(i));
    if (i > 0) part->set_parent(Key(i - 1));
    part->set_first_position(static_cast<uint64_t>(i) * 16);
    part->mutable_part()->set_layer_end(1);
    part->mutable_part()->set_head_end(1);
    part->set_bytes(part_bytes.size());
    const grpc::Status status = cache_->Reserve(&context, request, &response);
    if (!status.ok()) return status;
    if (response.results(0).code() != 0) {
      return grpc::Status(static_cast<grpc::StatusCode>(response.results(0).code()),
                          response.results(0).message());
    }
    reservation = response.results(0).reservation_id();
  }
  {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::PushResponse response;
    auto writer = cache_->Push(&context, &response);
    for (size_t at = 0; at < part_bytes.size(); at += 1 << 20) {
      v1::PushFrame frame;
      if (at == 0) frame.set_session_id(session_);
      auto* piece = frame.add_pieces();
      piece->set_reservation_id(reservation);
      piece->set_offset(at);
      piece->set_data(part_bytes.substr(at, 1 << 20));
      if (!writer->Write(frame)) break;
    }
    writer->WritesDone();
    if (const grpc::Status status = writer->Finish(); !status.ok()) return status;
  }
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::CommitRequest request;
  v1::CommitResponse response;
  request.set_session_id(session_);
  request.add_reservation_ids(reservation);
  const grpc::Status status = cache_->Commit(&context, request, &response);
  if (!status.ok()) return status;
  return grpc::Status(static_cast<grpc::StatusCode>(response.results(0).code()),
                      response.results(0).message());
}

v1::MatchResponse NodeClient::Match(const std::string& fingerprint, int count, uint32_t ttl_ms) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::MatchRequest request;
  v1::MatchResponse response;
  request.set_session_id(session_);
  request.set_fingerprint(fingerprint);
  for (int i = 0; i < count; ++i) *request.mutable_keys() += Key(i);
  request.set_lease_ttl_ms(ttl_ms);
  ExpectAnswer(cache_->Match(&context, request, &response), "Match");
  return response;
}

std::map<uint32_t, std::string> NodeClient::Fetch(uint64_t lease) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::FetchRequest request;
  request.set_session_id(session_);
  request.set_lease_id(lease);
  auto reader = cache_->Fetch(&context, request);
  std::map<uint32_t, std::string> blocks;
  v1::FetchFrame frame;
  while (reader->Read(&frame)) {
    for (const v1::Slice& slice : frame.slices()) {
      std::string& bytes = blocks[slice.block()];
      if (bytes.size() < slice.offset() + slice.data().size())
        bytes.resize(slice.offset() + slice.data().size());
      slice.data().copy(bytes.data() + slice.offset(), slice.data().size());
    }
  }
  ExpectAnswer(reader->Finish(), "Fetch");
  return blocks;
}

v1::StatResponse NodeClient::Stat() {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::StatResponse response;
  ExpectAnswer(cache_->Stat(&context, v1::StatRequest(), &response), "Stat");
  return response;
}

grpc::Status NodeClient::Flush() {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::FlushResponse response;
  return cache_->Flush(&context, v1::FlushRequest(), &response);
}

}  // namespace cairn::testing
