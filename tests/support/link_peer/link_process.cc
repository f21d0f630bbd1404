#include "tests/support/link_peer/link_process.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "common/link/lone_thread.h"
#include "common/rpc/channel.h"
#include "protocol/link/link_service.h"

namespace cairn::testing {

using link::Piece;

LinkProcess::LinkProcess(Options options)
    : options_(std::move(options)),
      timers_(&clock_),
      table_(options_.table),
      maker_(options_.nccl, options_.device),
      reader_history_(options_.history, &clock_),
      holder_history_(options_.history, &clock_) {
  auto memory = options_.device->Allocate(options_.bytes, /*exportable=*/true);
  CAIRN_CHECK(memory.ok());
  memory_ = *std::move(memory);
  memories_.Add(memory_.address(), options_.bytes);
  calls_ = std::make_unique<link::GrpcLinkCalls>(
      options_.name, [this](const std::string& peer) -> std::shared_ptr<grpc::Channel> {
        MutexLock lock(mu_);
        const auto it = channels_.find(peer);
        return it == channels_.end() ? nullptr : it->second;
      });
  const link::LinkDependencies dependencies{
      .maker = &maker_,
      .memories = &memories_,
      .table = &table_,
      .link = {.timers = &timers_, .clock = &clock_, .threads = [](const char* name) {
                 return std::make_shared<link::LoneThread>(name);
               }}};
  reader_ = std::make_shared<link::LinkReader>(options_.links, dependencies, calls_.get(),
                                               &reader_history_);
  holder_ = std::make_shared<link::LinkHolder>(
      options_.links, dependencies,
      [](const std::string&, const link::Plan&) -> Result<std::shared_ptr<void>> {
        return std::shared_ptr<void>();
      },
      &holder_history_);
  timers_.Start();
}

LinkProcess::~LinkProcess() {
  server_.Shutdown(Duration(0));
  reader_->Stop();
  holder_->Stop();
  table_.EndAll();
  const auto& limits = options_.links.link;
  (void)table_.WaitUntilEmpty(
      clock_, clock_.Now() + limits.grace + limits.revoke + limits.abort + std::chrono::seconds(1));
  calls_.reset();
  timers_.Stop();
}

Result<int> LinkProcess::Serve() {
  context_.clock = &clock_;
  context_.metrics = &metrics_;
  context_.gate = &gate_;
  link::AddLinkService(
      server_.calls(), &context_, holder_,
      [](const rpc::Call&, const std::string& claimed) -> Result<std::string> { return claimed; });
  rpc::Server::Options server;
  server.listen = "127.0.0.1:0";
  CAIRN_RETURN_IF_ERROR(server_.Start(server));
  return server_.port();
}

void LinkProcess::SetPeer(const std::string& name, int port) {
  MutexLock lock(mu_);
  channels_[name] =
      grpc::CreateCustomChannel(fmt::format("127.0.0.1:{}", port),
                                grpc::InsecureChannelCredentials(), rpc::ChannelArguments(4 << 20));
}

Status LinkProcess::Fill(uint32_t seed) {
  CAIRN_ASSIGN_OR_RETURN(device::PinnedMemory pinned,
                         options_.device->AllocatePinned(options_.bytes));
  for (uint64_t i = 0; i < options_.bytes; ++i) {
    pinned.bytes()[i] = static_cast<std::byte>(PatternAt(seed, i));
  }
  CAIRN_ASSIGN_OR_RETURN(device::Stream stream, options_.device->NewStream());
  CAIRN_ASSIGN_OR_RETURN(const device::Event event, options_.device->NewEvent());
  const device::CopyTask task{.to = memory_.address(),
                              .from = reinterpret_cast<uint64_t>(pinned.bytes().data()),
                              .bytes = options_.bytes};
  CAIRN_RETURN_IF_ERROR(stream.Copy("filling", {&task, 1}));
  CAIRN_RETURN_IF_ERROR(stream.Record(event));
  return event.Synchronize();
}

Result<std::vector<uint8_t>> LinkProcess::Read() {
  CAIRN_ASSIGN_OR_RETURN(device::PinnedMemory pinned,
                         options_.device->AllocatePinned(options_.bytes));
  CAIRN_ASSIGN_OR_RETURN(device::Stream stream, options_.device->NewStream());
  CAIRN_ASSIGN_OR_RETURN(const device::Event event, options_.device->NewEvent());
  const device::CopyTask task{.to = reinterpret_cast<uint64_t>(pinned.bytes().data()),
                              .from = memory_.address(),
                              .bytes = options_.bytes};
  CAIRN_RETURN_IF_ERROR(stream.Copy("reading back", {&task, 1}));
  CAIRN_RETURN_IF_ERROR(stream.Record(event));
  CAIRN_RETURN_IF_ERROR(event.Synchronize());
  std::vector<uint8_t> bytes(options_.bytes);
  std::memcpy(bytes.data(), pinned.bytes().data(), bytes.size());
  return bytes;
}

Status LinkProcess::Fetch(const std::string& peer, uint64_t pieces, Duration timeout) {
  // Pieces of uneven sizes; the target's places in another order.
  std::mt19937 rng(static_cast<uint32_t>(pieces));
  std::vector<uint64_t> order(pieces);
  for (uint64_t i = 0; i < pieces; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), rng);
  const uint64_t place = options_.bytes / pieces;
  plan_.pieces.clear();
  for (uint64_t i = 0; i < pieces; ++i) {
    plan_.pieces.push_back(Piece{.source = 0,
                                 .source_offset = i * place,
                                 .target = 0,
                                 .target_offset = order[i] * place,
                                 .bytes = place - rng() % std::min<uint64_t>(place, 7)});
  }
  Mutex mu;
  CondVar changed;
  std::optional<Status> result;
  reader_->Fetch(peer, plan_, keep_, clock_.Now() + timeout, [&](const Status& status) {
    MutexLock lock(mu);
    result = status;
    changed.NotifyAll();
  });
  MutexLock lock(mu);
  // The mutex is held, as for every predicate.
  changed.Wait(mu, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return result.has_value(); });
  return *result;
}

Status LinkProcess::Verify(uint32_t seed) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, Read());
  for (const Piece& piece : plan_.pieces) {
    for (uint64_t i = 0; i < piece.bytes; ++i) {
      const uint8_t expected = PatternAt(seed, piece.source_offset + i);
      if (bytes[piece.target_offset + i] == expected) continue;
      return Errorf(StatusCode::kDataLoss, "byte {} of the piece at {}: got {}, expected {}", i,
                    piece.target_offset, bytes[piece.target_offset + i], expected);
    }
  }
  return OkStatus();
}

}  // namespace cairn::testing
