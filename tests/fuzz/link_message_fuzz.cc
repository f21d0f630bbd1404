// Any bytes as messages about links (proto/cairn/v1/link.proto): an error that names a field, or
// values in the ranges that both ends count on, which go onto the wire again with the same meaning.
// A stranger's requests to a holder never reach memory beyond the holder's own.
//
// First byte: which message. The rest is the message; calls to a holder: several, each after a byte
// that says which, where bits repair its epoch and number, and a byte with its length in units of 4
// bytes.

#include <memory>

#include "cairn/v1/link.pb.h"
#include "common/concurrency/executor.h"
#include "common/link/link_holder.h"
#include "protocol/link/link_convert.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;
using fuzz::Expect;

template <typename Message, typename Use>
void With(std::string_view bytes, Use use) {
  Message message;
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) use(message);
}

void CheckMemories(const std::vector<link::MemorySize>& memories) {
  Expect(memories.size() <= link::OpenRequest::kMostMemories);
  for (size_t i = 0; i < memories.size(); ++i) {
    Expect(memories[i].bytes > 0);
    Expect(i == 0 || memories[i - 1].number < memories[i].number);
  }
}

void Open(const v1::LinkOpenRequest& message) {
  const auto request = link::FromProto(message);
  if (!request.ok()) return;
  Expect(request->epoch != 0 && request->version > 0);
  Expect(!request->host.empty() && request->host.size() <= 128);
  CheckMemories(request->memories);
  v1::LinkOpenRequest again;
  link::ToProto(*request, message.reader(), &again);
  const auto same = fuzz::Get(link::FromProto(again));
  Expect(same.epoch == request->epoch && same.id == request->id && same.host == request->host);
  Expect(same.version == request->version && same.memories == request->memories);
}

void Opened(const v1::LinkOpenResponse& message) {
  const auto answer = link::FromProto(message);
  if (!answer.ok()) return;
  Expect(!answer->host.empty() && answer->host.size() <= 128 && answer->version > 0);
  CheckMemories(answer->memories);
  v1::LinkOpenResponse again;
  link::ToProto(*answer, &again);
  const auto same = fuzz::Get(link::FromProto(again));
  Expect(same.host == answer->host && same.memories == answer->memories);
}

void Move(const v1::LinkMoveRequest& message) {
  const auto request = link::FromProto(message);
  if (!request.ok()) return;
  Expect(request->epoch != 0 && request->sequence != 0);
  Expect(request->timeout > Duration(0) && request->timeout <= std::chrono::minutes(10));
  const auto& pieces = request->plan.pieces;
  Expect(!pieces.empty() && pieces.size() <= link::Plan::kMostPieces);
  Expect(request->plan.bytes() <= link::Plan::kMostBytes);
  for (size_t i = 0; i < pieces.size(); ++i) {
    Expect(pieces[i].bytes > 0);
    Expect(pieces[i].source_offset + pieces[i].bytes > pieces[i].source_offset);
    Expect(pieces[i].target_offset + pieces[i].bytes > pieces[i].target_offset);
    for (size_t k = 0; k < i && i < 64; ++k) {
      Expect(pieces[i].target != pieces[k].target ||
             pieces[i].target_offset >= pieces[k].target_offset + pieces[k].bytes ||
             pieces[k].target_offset >= pieces[i].target_offset + pieces[i].bytes);
    }
  }
  v1::LinkMoveRequest again;
  link::ToProto(*request, message.reader(), &again);
  const auto same = fuzz::Get(link::FromProto(again));
  Expect(same.plan.pieces == pieces && same.way == request->way);
  Expect(same.epoch == request->epoch && same.sequence == request->sequence);
}

constexpr uint64_t kBase = 1 << 20;
constexpr uint64_t kBytes = 4096;

// A communicator that joins at once, and checks where it is sent to.
class CheckedCommunicator final : public link::Communicator {
 public:
  explicit CheckedCommunicator(std::vector<link::CommunicatorMaker::Window> windows)
      : windows_(std::move(windows)) {}
  Status Join() override { return OkStatus(); }
  Status Issue(const link::Move& move) override {
    Expect(!move.receives && !move.parts.empty());
    for (const link::Move::Part& part : move.parts) {
      Expect(part.bytes > 0 && part.address >= kBase && part.bytes <= kBytes);
      Expect(part.address + part.bytes <= kBase + kBytes);
      if (move.way == link::Way::kPut) Expect(part.window < windows_.size());
    }
    return OkStatus();
  }
  Result<bool> Poll() override { return true; }
  bool puts() const override { return !windows_.empty(); }
  void Revoke() override {}
  void Abort() override {}

 private:
  const std::vector<link::CommunicatorMaker::Window> windows_;
};

class CheckedMaker final : public link::CommunicatorMaker {
 public:
  int32_t version() const override { return 22902; }
  Result<link::UniqueId> NewId() override { return link::UniqueId{}; }
  std::shared_ptr<link::Communicator> Make(const link::UniqueId&, int rank,
                                           std::vector<Window> windows) override {
    Expect(rank == 1);
    for (const Window& window : windows) Expect(window.address == kBase && window.bytes == kBytes);
    return std::make_shared<CheckedCommunicator>(std::move(windows));
  }
};

void Calls(fuzz::Input input) {
  FakeClock clock;
  Timers timers(&clock);
  CheckedMaker maker;
  link::Memories memories;
  memories.Add(kBase, kBytes);
  link::LinkTable table({.most = 2});
  link::PeerHistory history({}, &clock);
  const auto executor = std::make_shared<ManualExecutor>();
  const auto holder = std::make_shared<link::LinkHolder>(
      link::LinkOptions{.host = "here"},
      link::LinkDependencies{.maker = &maker,
                             .memories = &memories,
                             .table = &table,
                             .link = {.timers = &timers,
                                      .clock = &clock,
                                      .threads = [executor](const char*) { return executor; }}},
      [](const std::string&, const link::Plan&) -> Result<std::shared_ptr<void>> {
        return std::make_shared<int>(0);
      },
      &history);
  uint64_t epoch = 0, sequence = 0;
  int closes = 0;  // Without an answer.
  for (int calls = 0; !input.empty() && calls < 32; ++calls) {
    const uint8_t which = input.U8();
    const std::string peer = (which & 4) != 0 ? "b" : "a";
    const std::string_view bytes = input.Bytes(static_cast<size_t>(input.U8()) * 4);
    if ((which & 3) == 0) {
      With<v1::LinkOpenRequest>(bytes, [&](const v1::LinkOpenRequest& message) {
        auto request = link::FromProto(message);
        if (!request.ok()) return;
        if ((which & 8) != 0) request->epoch = ++epoch;
        if ((which & 16) != 0) request->host = "here";
        if (holder->Open(peer, *request).ok()) {
          epoch = request->epoch;
          sequence = 0;
          // An old epoch is refused.
          Expect(!holder->Open(peer, *request).ok());
        }
      });
    } else if ((which & 3) == 1) {
      With<v1::LinkMoveRequest>(bytes, [&](const v1::LinkMoveRequest& message) {
        auto request = link::FromProto(message);
        if (!request.ok()) return;
        if ((which & 8) != 0) request->epoch = epoch;
        if ((which & 16) != 0) request->sequence = ++sequence;
        if (holder->Move(peer, *request).ok()) {
          // A number is used once.
          Expect(!holder->Move(peer, *request).ok());
        }
      });
    } else if ((which & 3) == 2) {
      ++closes;
      holder->Close(peer, epoch, [&closes](const Status&) { --closes; });
    } else {
      clock.Advance(std::chrono::milliseconds(which));
      timers.RunDue();
    }
    if ((which & 32) != 0) executor->RunAll();
    Expect(table.stats().links <= 2);
  }
  holder->Stop();
  table.EndAll();
  for (int i = 0; i < 64 && table.stats().links > 0; ++i) {
    executor->RunAll();
    clock.Advance(std::chrono::seconds(1));
    timers.RunDue();
  }
  Expect(table.stats().links == 0 && table.stats().abandoned == 0 && closes == 0);
}

}  // namespace

CAIRN_FUZZ_ENTRY(link_message)(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  switch (input.U8() % 4) {
    case 0:
      With<v1::LinkOpenRequest>(input.Rest(), Open);
      break;
    case 1:
      With<v1::LinkOpenResponse>(input.Rest(), Opened);
      break;
    case 2:
      With<v1::LinkMoveRequest>(input.Rest(), Move);
      break;
    default:
      Calls(input);
  }
  return 0;
}
