// Two processes that move bytes between their devices: over the fake device and the fake NCCL. The
// parts between them are real: shared memory, gRPC, kill -9.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/status/matchers.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_nccl/fake_library.h"
#include "tests/support/link_peer/link_process.h"
#include "tests/support/process.h"

namespace cairn::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 2 << 20;
constexpr uint32_t kSeed = 5;
// Limit for waiting: the machine may be busy with other things.
constexpr seconds kPatience(120);
// Limit for a fetch that has to fail. Longer than what comes before the fault, also on a busy
// machine.
constexpr milliseconds kTimeout(2500);

// The reader is this process, the holder a child.
class LinkProcessesTest : public ::testing::Test {
 protected:
  // `mine` and `theirs`: what the fake NCCL of each process does (fake_nccl/actions.h).
  void Start(const std::string& mine, const std::string& theirs) {
    nccl_.emplace(mine);
    reader_ = std::make_unique<LinkProcess>(LinkProcess::Options{
        .device = fake_->Open(),
        .nccl = nccl_->library(),
        .bytes = kBytes,
        .links = {.link = {.join = seconds(4),
                           .grace = milliseconds(50),
                           .revoke = milliseconds(500),
                           .abort = milliseconds(3000)},
                  .host = "here",
                  .settling = milliseconds(1)},
        .table = {.most_abandoned = 1},
        // Here no peer is left alone: each test asks again at once.
        .history = {.first_pause = Duration(1), .longest_pause = Duration(1)}});
    ASSERT_OK(reader_->Fill(0));
    StartPeer(theirs);
  }
  void StartPeer(const std::string& options, const std::string& host = "here") {
    auto peer = Process::Start(
        {.argv = {Binary("cairn_link_peer"), device::fake::LibraryPath(), link::fake::LibraryPath(),
                  std::to_string(kBytes), std::to_string(kSeed), host},
         .environment = {"CAIRN_FAKE_NCCL=" + options}});
    ASSERT_OK(peer);
    peer_ = *std::move(peer);
    const auto line = peer_->WaitForLine("ready ", kPatience);
    ASSERT_OK(line);
    reader_->SetPeer("holder", std::stoi(line->substr(6)));
  }
  // How it ended. One that never ends hangs the test, until its limit kills it.
  Status Fetch(uint64_t pieces = 7, Duration timeout = kTimeout) {
    return reader_->Fetch("holder", pieces, timeout);
  }
  // Without a fault a fetch brings the right bytes.
  void ExpectWorks(uint64_t pieces = 7) {
    // A thread that hangs may keep those of an earlier fetch.
    const long kept = reader_->kept();
    ASSERT_OK(Fetch(pieces, kPatience));
    EXPECT_OK(reader_->Verify(kSeed));
    EXPECT_LE(reader_->kept(), kept);
  }
  // The links of this process are gone, and nothing keeps the bytes.
  void ExpectQuiet() {
    auto& clock = SteadyClock::Get();
    EXPECT_TRUE(reader_->table().WaitUntilEmpty(clock, clock.Now() + kPatience));
  }
  // Nothing keeps the bytes, once the holder has answered or cannot be asked.
  void ExpectLetGo() {
    const TimePoint deadline = std::chrono::steady_clock::now() + kPatience;
    while (reader_->kept() > 1 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(reader_->kept(), 1);
  }

  std::unique_ptr<device::fake::FakeDevices> fake_ = std::make_unique<device::fake::FakeDevices>();
  std::optional<link::fake::FakeNccl> nccl_;
  std::unique_ptr<LinkProcess> reader_;
  std::unique_ptr<Process> peer_;
};

TEST_F(LinkProcessesTest, BytesMoveByPuts) {
  Start("", "");
  for (const uint64_t pieces : {1u, 7u, 300u}) ExpectWorks(pieces);
  EXPECT_EQ(nccl_->control().calls("WaitSignal"), 3u);
  EXPECT_EQ(nccl_->control().calls("CommInitRankConfig"), 1u);
}

TEST_F(LinkProcessesTest, BytesMoveBySendAndReceiveWithoutWindows) {
  Start("no_windows", "no_windows");
  for (const uint64_t pieces : {1u, 7u, 300u}) ExpectWorks(pieces);
  EXPECT_EQ(nccl_->control().calls("Recv"), 308u);
}

TEST_F(LinkProcessesTest, PutsThatAreRefusedBecomeSends) {
  Start("", "no_puts");
  EXPECT_THAT(Fetch(), StatusIs(StatusCode::kDeadlineExceeded, _));
  ExpectQuiet();
  ExpectWorks();
  EXPECT_EQ(nccl_->control().calls("Recv"), 7u);
}

// The call of the holder in which it is killed, or never comes back.
class HolderFaultTest : public LinkProcessesTest,
                        public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(
    States, HolderFaultTest,
    ::testing::Values("die=CommInitRankConfig:0", "die=CommGetAsyncError:0",
                      "die=CommWindowRegister:0", "die=GroupStart:0", "die=PutSignal:3",
                      "die=GroupEnd:0", "die=work:0", "die=Send:3,no_windows",
                      "die=work:0,no_windows", "hang=CommInitRankConfig:0",
                      "hang=CommWindowRegister:0", "hang=GroupEnd:0", "hang=work:0",
                      "hang=work:0,no_windows", "fail=CommInitRankConfig:0", "fail=GroupEnd:0"),
    [](const auto& tested) {
      std::string name = tested.param;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
      return name;
    });

TEST_P(HolderFaultTest, CostsAFallbackAndAnotherHolderServes) {
  const std::string fault = GetParam();
  Start(fault.find("no_windows") != std::string::npos ? "no_windows" : "", fault);
  EXPECT_THAT(Fetch(),
              AnyOf(StatusIs(StatusCode::kDeadlineExceeded, _),
                    StatusIs(StatusCode::kUnavailable, _), StatusIs(StatusCode::kInternal, _)));
  ExpectQuiet();
  if (fault.rfind("die", 0) == 0) {
    const auto exit = peer_->WaitExit(kPatience);
    ASSERT_OK(exit);
    EXPECT_EQ(exit->code, SIGKILL);
  }
  // A communicator whose calls hang may never end at the holder.
  if (fault.rfind("hang", 0) != 0) ExpectLetGo();
  nccl_->control().reset("");
  StartPeer("");
  ExpectWorks();
}

TEST_F(LinkProcessesTest, AHolderThatIsKilledBetweenMovesOrStopped) {
  Start("", "");
  ExpectWorks();
  peer_->Signal(SIGSTOP);
  EXPECT_THAT(Fetch(), StatusIs(StatusCode::kDeadlineExceeded, _));
  peer_->Kill();
  ExpectQuiet();
  EXPECT_FALSE(Fetch().ok());
  StartPeer("");
  ExpectQuiet();
  ExpectWorks();
  // It starts again under the same name, and knows nothing of the link.
  peer_->Kill();
  StartPeer("");
  EXPECT_THAT(Fetch(7, kPatience), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("epoch")));
  ExpectQuiet();  // Until then a fetch may still come to the link that ends.
  ExpectWorks();
}

// The call of this process that never comes back.
class ReaderFaultTest : public LinkProcessesTest,
                        public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(States, ReaderFaultTest,
                         ::testing::Values("GetUniqueId:0", "CommInitRankConfig:0",
                                           "CommGetAsyncError:0", "CommWindowRegister:0",
                                           "WaitSignal:0", "work:0"),
                         [](const auto& tested) {
                           const std::string name = tested.param;
                           return name.substr(0, name.find(':'));
                         });

TEST_P(ReaderFaultTest, AHangInTheLibraryHoldsNobodyUp) {
  Start("hang=" + std::string(GetParam()), "");
  EXPECT_THAT(Fetch(), StatusIs(StatusCode::kDeadlineExceeded, _));
  ExpectQuiet();
  // The thread stays in the library for good; a communicator that was never made is not left.
  nccl_->control().reset("");
  if (reader_->table().stats().abandoned == 0) ExpectWorks();
}

TEST_F(LinkProcessesTest, AnAbortThatHangsKeepsItsBytes) {
  Start("hang=work:0,hang=CommAbort:0", "");
  EXPECT_THAT(Fetch(), StatusIs(StatusCode::kDeadlineExceeded, _));
  ExpectQuiet();
  EXPECT_EQ(reader_->table().stats().abandoned, 1u);
  EXPECT_GT(reader_->kept(), 1) << "nobody knows whether the peer still writes there";
  EXPECT_THAT(Fetch(), StatusIs(StatusCode::kUnavailable, HasSubstr("did not end")));
  // Its parts of the device are left, too.
  nccl_->ExpectLeft(1);
  reader_.reset();
  (void)fake_.release();
}

TEST_F(LinkProcessesTest, ARevokeThatHangsIsLeftBehind) {
  Start("hang=work:0,hang=CommRevoke:0", "");
  EXPECT_THAT(Fetch(), StatusIs(StatusCode::kDeadlineExceeded, _));
  ExpectQuiet();
  EXPECT_EQ(reader_->table().stats().abandoned, 0u);
  ExpectLetGo();
  ExpectWorks();
}

TEST_F(LinkProcessesTest, AnotherHostIsRefused) {
  Start("", "");
  StartPeer("", "there");
  EXPECT_THAT(Fetch(7, kPatience), StatusIs(StatusCode::kPermissionDenied, HasSubstr("trusted")));
  EXPECT_EQ(nccl_->control().calls("CommInitRankConfig"), 0u);
}

}  // namespace
}  // namespace cairn::testing
