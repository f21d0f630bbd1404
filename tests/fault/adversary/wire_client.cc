#include "tests/fault/adversary/wire_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <cstring>
#include <map>
#include <span>

#include "cairn/common/part.h"

namespace cairn::fault {
namespace {

constexpr size_t kPartsAtOnce = 1024;
constexpr size_t kFrameBytes = 3 << 20;
constexpr size_t kPieceBytes = 1 << 20;

template <typename T>
void Append(std::string* to, T value) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

CallContext::CallContext(const std::stop_token& stop, Duration deadline)
    : cancel_(stop, [this] { context_.TryCancel(); }) {
  context_.set_deadline(std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline));
}

WireClient::WireClient(const std::string& address, const std::stop_token& stop,
                       const std::string& tenant)
    : stop_(stop) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // A connection of its own.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetMaxSendMessageSize(64 << 20);
  channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  cache_ = v1::Cache::NewStub(channel_);
  admin_ = v1::Admin::NewStub(channel_);
  v1::OpenSessionRequest request;
  request.set_client_name("hostile");
  request.set_tenant(tenant);
  std::stop_callback cancel(stop, [this] { context_.TryCancel(); });
  events_ = cache_->OpenSession(&context_, request);
  if (!events_->Read(&hello_)) {
    hello_.Clear();
    context_.TryCancel();
    events_->Finish();
    events_.reset();
  }
}

WireClient::~WireClient() { Close(); }

void WireClient::Close() {
  if (events_ == nullptr) return;
  context_.TryCancel();
  events_->Finish();
  events_.reset();
}

std::string WireClient::Open(const v1::NamespaceSpec& spec, grpc::Status* error) {
  CallContext context(stop_);
  v1::OpenNamespaceRequest request;
  v1::OpenNamespaceResponse response;
  *request.mutable_spec() = spec;
  const grpc::Status status = cache_->OpenNamespace(context.get(), request, &response);
  if (error != nullptr) *error = status;
  return status.ok() ? response.fingerprint() : "";
}

std::vector<v1::PartResult> WireClient::Reserve(const std::string& fingerprint,
                                                const std::vector<PartToStore>& parts,
                                                uint32_t ttl_ms) {
  CallContext context(stop_);
  v1::ReserveRequest request;
  v1::ReserveResponse response;
  request.set_session_id(session());
  request.set_fingerprint(fingerprint);
  request.set_ttl_ms(ttl_ms);
  for (const PartToStore& part : parts) {
    v1::ReservePart* to = request.add_parts();
    to->set_key(part.key);
    to->set_parent(part.parent);
    *to->mutable_part() = part.rect;
    to->set_bytes(part.bytes.size());
  }
  const grpc::Status status = cache_->Reserve(context.get(), request, &response);
  if (!status.ok()) {
    NoteRefusal("Reserve: " + status.error_message());
    return {};
  }
  return {response.results().begin(), response.results().end()};
}

std::vector<int> WireClient::Store(const std::string& fingerprint,
                                   const std::vector<PartToStore>& parts) {
  std::vector<int> codes;
  for (size_t at = 0; at < parts.size(); at += kPartsAtOnce) {
    const auto begin = parts.begin() + static_cast<ptrdiff_t>(at);
    const auto end =
        parts.begin() + static_cast<ptrdiff_t>(std::min(parts.size(), at + kPartsAtOnce));
    const std::vector<int> some = StoreSome(fingerprint, {begin, end});
    codes.insert(codes.end(), some.begin(), some.end());
  }
  return codes;
}

std::vector<int> WireClient::StoreSome(const std::string& fingerprint,
                                       const std::vector<PartToStore>& parts) {
  std::vector<int> codes(parts.size(), -1);
  const std::vector<v1::PartResult> reserved = Reserve(fingerprint, parts);
  if (reserved.size() != parts.size()) return codes;

  v1::PushFrame frame;
  frame.set_session_id(session());
  std::vector<size_t> sent;
  for (size_t i = 0; i < parts.size(); ++i) {
    codes[i] = static_cast<int>(reserved[i].code());
    if (codes[i] != 0) NoteRefusal(reserved[i].message());
    if (codes[i] == 0) {
      sent.push_back(i);
      frame.add_commit_ids(reserved[i].reservation_id());
    }
  }
  if (sent.empty()) return codes;
  CallContext context(stop_);
  v1::PushResponse response;
  auto writer = cache_->Push(context.get(), &response);
  size_t size = 0;
  for (const size_t i : sent) {
    for (size_t at = 0; at < parts[i].bytes.size(); at += kPieceBytes) {
      const std::string data = parts[i].bytes.substr(at, kPieceBytes);
      if (size + data.size() > kFrameBytes) {
        if (!writer->Write(frame)) break;
        frame.Clear();
        size = 0;
      }
      auto* piece = frame.add_pieces();
      piece->set_reservation_id(reserved[i].reservation_id());
      piece->set_offset(at);
      piece->set_data(data);
      size += data.size();
    }
  }
  writer->Write(frame);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  const bool ok = status.ok() && response.committed_size() == static_cast<int>(sent.size());
  if (!status.ok()) NoteRefusal("Push: " + status.error_message());
  for (size_t i = 0; i < sent.size(); ++i) {
    codes[sent[i]] = ok ? static_cast<int>(response.committed(static_cast<int>(i)).code()) : -1;
    if (ok && codes[sent[i]] != 0) {
      NoteRefusal(response.committed(static_cast<int>(i)).message());
    }
  }
  return codes;
}

void WireClient::NoteRefusal(const std::string& text) {
  MutexLock lock(mu_);
  last_refusal_ = text;
}

std::string WireClient::last_refusal() const {
  MutexLock lock(mu_);
  return last_refusal_;
}

grpc::Status WireClient::Match(const std::string& fingerprint, const std::string& keys,
                               uint32_t ttl_ms, v1::MatchResponse* response) {
  CallContext context(stop_);
  v1::MatchRequest request;
  request.set_session_id(session());
  request.set_fingerprint(fingerprint);
  request.set_keys(keys);
  request.set_lease_ttl_ms(ttl_ms);
  request.set_no_lease(ttl_ms == 0);
  return cache_->Match(context.get(), request, response);
}

uint32_t WireClient::Matched(const std::string& fingerprint, const std::string& keys) {
  v1::MatchResponse response;
  return Match(fingerprint, keys, 0, &response).ok() ? response.matched_blocks() : 0;
}

void WireClient::Release(uint64_t lease) {
  CallContext context(stop_);
  v1::ReleaseRequest request;
  v1::ReleaseResponse response;
  request.set_session_id(session());
  request.add_lease_ids(lease);
  cache_->Release(context.get(), request, &response);
}

std::vector<std::string> WireClient::Fetch(uint64_t lease, uint32_t blocks) {
  CallContext context(stop_);
  v1::FetchRequest request;
  request.set_session_id(session());
  request.set_lease_id(lease);
  auto reader = cache_->Fetch(context.get(), request);
  std::vector<std::map<uint64_t, std::string>> pieces(blocks);
  std::vector<bool> failed(blocks, false);
  v1::FetchFrame frame;
  while (reader->Read(&frame)) {
    for (const v1::Slice& slice : frame.slices()) {
      if (slice.block() >= blocks) continue;
      const uint64_t order = uint64_t{slice.part().head_begin()} << 40 | slice.offset();
      pieces[slice.block()][order] = slice.data();
    }
    for (const v1::BlockFailed& block : frame.failed()) {
      if (block.block() < blocks) failed[block.block()] = true;
    }
  }
  const bool ok = reader->Finish().ok();
  std::vector<std::string> data(blocks);
  for (uint32_t block = 0; ok && block < blocks; ++block) {
    if (failed[block]) continue;
    for (const auto& [order, piece] : pieces[block]) data[block] += piece;
  }
  return data;
}

v1::StatResponse WireClient::Stat() {
  CallContext context(stop_);
  v1::StatResponse response;
  cache_->Stat(context.get(), v1::StatRequest(), &response);
  return response;
}

grpc::Status WireClient::Flush(Duration deadline) {
  CallContext context(stop_, deadline);
  v1::FlushResponse response;
  return cache_->Flush(context.get(), v1::FlushRequest(), &response);
}

grpc::Status WireClient::DropTenant(const std::string& tenant) {
  CallContext context(stop_);
  v1::DropTenantRequest request;
  v1::DropResponse response;
  request.set_tenant(tenant);
  return admin_->DropTenant(context.get(), request, &response);
}

grpc::Status WireClient::BumpEpoch(const std::string& fingerprint) {
  CallContext context(stop_);
  v1::BumpEpochRequest request;
  v1::DropResponse response;
  request.set_fingerprint(fingerprint);
  return admin_->BumpEpoch(context.get(), request, &response);
}

std::string KeyOf(std::string_view tag, uint64_t number) {
  std::string key(24, '.');
  for (size_t i = 0; i < key.size(); ++i) key[i] = tag[i % tag.size()];
  Append(&key, number);
  return key;
}

std::string CollidingKey(uint64_t number) {
  std::string key;
  Append(&key, number);
  Append(&key, uint64_t{0xe7037ed1a0b428db});
  Append(&key, uint64_t{0x8ebc6af09c88c6e3});
  Append(&key, ~number);
  return key;
}

v1::PartRect RectOf(uint32_t layer_begin, uint32_t layer_end, uint32_t head_begin,
                    uint32_t head_end) {
  v1::PartRect rect;
  rect.set_layer_begin(layer_begin);
  rect.set_layer_end(layer_end);
  rect.set_head_begin(head_begin);
  rect.set_head_end(head_end);
  return rect;
}

v1::NamespaceSpec OpaqueSpec(const std::string& tenant, const std::string& revision,
                             uint32_t parts) {
  v1::NamespaceSpec spec;
  spec.set_tenant(tenant);
  spec.set_model("model");
  spec.set_revision(revision);
  spec.set_numerics("none");
  spec.set_recipe("raw");
  spec.set_key_version(1);
  spec.set_key_scheme("adversary");
  spec.mutable_layout()->set_block_tokens(16);
  v1::OpaqueLayout* opaque = spec.mutable_layout()->mutable_opaque();
  opaque->set_description("adversary");
  opaque->set_max_part_bytes(8 << 20);
  opaque->set_parts(parts);
  return spec;
}

v1::NamespaceSpec NativeSpec(const std::string& tenant, const std::string& revision,
                             uint32_t kv_heads, uint32_t block_tokens, const std::string& recipe) {
  v1::NamespaceSpec spec = OpaqueSpec(tenant, revision);
  spec.set_recipe(recipe);
  spec.mutable_layout()->set_block_tokens(block_tokens);
  spec.mutable_layout()->mutable_native()->set_kv_heads(kv_heads);
  return spec;
}

void AddGroup(v1::NamespaceSpec* spec, uint32_t layers, const std::vector<v1::Plane>& planes) {
  v1::LayerGroup* group = spec->mutable_layout()->mutable_native()->add_groups();
  group->set_count(layers);
  for (const v1::Plane& plane : planes) *group->add_planes() = plane;
}

v1::Plane PlaneOf(const std::string& name, uint32_t heads, uint32_t dim, v1::DType dtype) {
  v1::Plane plane;
  plane.set_name(name);
  plane.set_heads(heads);
  plane.set_dim(dim);
  plane.set_dtype(dtype);
  return plane;
}

std::string SealedPart(const std::vector<std::string>& slices, uint16_t codec,
                       const v1::PartRect& rect, uint16_t tokens) {
  std::vector<uint64_t> lengths;
  for (const std::string& slice : slices) lengths.push_back(slice.size());
  std::string part(format::PartBytes(lengths), 0);
  size_t at = format::HeaderBytes(static_cast<uint32_t>(slices.size()));
  for (const std::string& slice : slices) {
    slice.copy(part.data() + at, slice.size());
    at += slice.size();
  }
  format::SealPart(
      std::as_writable_bytes(std::span(part)), static_cast<format::Codec>(codec),
      {static_cast<uint16_t>(rect.layer_begin()), static_cast<uint16_t>(rect.layer_end()),
       static_cast<uint16_t>(rect.head_begin()), static_cast<uint16_t>(rect.head_end())},
      tokens, lengths);
  return part;
}

std::string OpaquePart(const std::string& slice, uint32_t head) {
  return SealedPart({slice}, static_cast<uint16_t>(format::Codec::kOpaque),
                    RectOf(0, 1, head, head + 1));
}

}  // namespace cairn::fault
