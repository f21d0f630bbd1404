// cairn_gpu_link: moves blocks between two processes on one device, by NCCL. The other process is
// cairn_link_peer. Rows go to stdout (tests/gpu/probe/rows.h).
//
//   cairn_gpu_link --library PATH --nccl PATH [--tiny]
//
// Exit codes: 0; 1: it failed, and stderr says how; 2: wrong arguments; 3: there is no NCCL, or it
// is too old.

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/gpu/probe/rows.h"
#include "tests/support/link_peer/link_process.h"
#include "tests/support/process.h"

namespace cairn::gpu {
namespace {

using std::chrono::seconds;

constexpr int kRank = 160;
constexpr uint32_t kSeed = 5;
constexpr char kHost[] = "this machine";

struct Options {
  std::string library, nccl;
  bool tiny = false;
};

class LinkProbe {
 public:
  LinkProbe(const Options& options, std::shared_ptr<const link::nccl::Library> nccl)
      : options_(options),
        nccl_(std::move(nccl)),
        bytes_(options.tiny ? 2 << 20 : uint64_t{512} << 20) {}

  Status Run() {
    CAIRN_ASSIGN_OR_RETURN(const auto driver, device::Driver::Load(options_.library));
    CAIRN_ASSIGN_OR_RETURN(const auto device, driver->Open(0));
    reader_ = std::make_unique<testing::LinkProcess>(testing::LinkProcess::Options{
        .device = device,
        .nccl = nccl_,
        .bytes = bytes_,
        .links = {.link = {.join = seconds(20)}, .host = kHost},
        .history = {.first_pause = Duration(1), .longest_pause = Duration(1)}});
    CAIRN_RETURN_IF_ERROR(StartPeer());
    // The first one also makes the communicator.
    CAIRN_RETURN_IF_ERROR(Move("making a link and the first move", kRank + 1, 64, seconds(40)));
    CAIRN_RETURN_IF_ERROR(Move("blocks between two processes", kRank, 64, seconds(20)));
    CAIRN_RETURN_IF_ERROR(Move("small pieces between two processes", kRank + 2, 2048, seconds(20)));
    return KillPeer();
  }

 private:
  Status StartPeer() {
    testing::Process::Options process;
    process.argv = {testing::Binary("cairn_link_peer"),
                    options_.library,
                    options_.nccl,
                    std::to_string(bytes_),
                    std::to_string(kSeed),
                    kHost};
    CAIRN_ASSIGN_OR_RETURN(peer_, testing::Process::Start(process));
    CAIRN_ASSIGN_OR_RETURN(const std::string line, peer_->WaitForLine("ready ", seconds(60)));
    reader_->SetPeer("holder", std::stoi(line.substr(6)));
    return OkStatus();
  }

  Status Move(const char* what, int rank, uint64_t pieces, Duration timeout) {
    const TimePoint begin = SteadyClock::Get().Now();
    CAIRN_RETURN_IF_ERROR(reader_->Fetch("holder", pieces, timeout));
    const double took = Seconds(SteadyClock::Get().Now() - begin);
    CAIRN_RETURN_IF_ERROR(reader_->Verify(kSeed));
    Print({.rank = rank,
           .what = fmt::format("NCCL: {}, {} pieces", what, pieces),
           .value = static_cast<double>(bytes_) / took / 1e9,
           .unit = "GB/s",
           .note = "bytes are right"});
    return OkStatus();
  }

  // A holder that is gone costs an error in time, and another one serves.
  Status KillPeer() {
    peer_->Kill();
    const TimePoint begin = SteadyClock::Get().Now();
    const Status status = reader_->Fetch("holder", 64, seconds(5));
    const double took = Seconds(SteadyClock::Get().Now() - begin);
    if (status.ok() || took > 6) {
      return Errorf(StatusCode::kInternal,
                    "a holder that was killed: got {} after {:.1f} s, expected an error within 5",
                    ToString(status), took);
    }
    Print({.rank = kRank + 3,
           .what = "NCCL: a holder that was killed is an error, after",
           .value = took,
           .unit = "s",
           .floor = "<=6",
           .note = cairn::Message(status)});
    CAIRN_RETURN_IF_ERROR(StartPeer());
    return Move("another holder after that", kRank + 4, 64, seconds(40));
  }

  const Options& options_;
  const std::shared_ptr<const link::nccl::Library> nccl_;
  const uint64_t bytes_;
  std::unique_ptr<testing::LinkProcess> reader_;
  std::unique_ptr<testing::Process> peer_;
};

int Run(const std::vector<std::string>& args) {
  Options options;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--tiny") {
      options.tiny = true;
    } else if (args[i] == "--library" && i + 1 < args.size()) {
      options.library = args[++i];
    } else if (args[i] == "--nccl" && i + 1 < args.size()) {
      options.nccl = args[++i];
    } else {
      std::fprintf(stderr,
                   "cairn_gpu_link: got '%s', expected --library PATH --nccl PATH [--tiny]\n",
                   args[i].c_str());
      return 2;
    }
  }
  // Before there are other threads: it may change the environment.
  const auto nccl = link::nccl::Library::Load({.path = options.nccl});
  if (!nccl.ok()) {
    std::fprintf(stderr, "%s\n", Message(nccl.status()).c_str());
    return 3;
  }
  const Status status = LinkProbe(options, *nccl).Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", ToString(status).c_str());
  return 1;
}

}  // namespace
}  // namespace cairn::gpu

int main(int count, char** arguments) {
  return cairn::gpu::Run({arguments + 1, arguments + count});
}
