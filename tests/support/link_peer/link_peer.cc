// The other process of tests of links: holds bytes of a pattern on its device, and serves them.
//
//   cairn_link_peer DEVICE_LIBRARY NCCL_LIBRARY BYTES SEED HOST
//
// Prints "ready PORT", and ends with SIGTERM.

#include <cstdio>
#include <cstdlib>

#include "tests/support/link_peer/link_process.h"

namespace {

cairn::Status Run(char** arguments) {
  using namespace cairn;
  ShutdownSignals signals;
  // Before there are other threads: it may change the environment.
  CAIRN_ASSIGN_OR_RETURN(const auto nccl, link::nccl::Library::Load({.path = arguments[2]}));
  CAIRN_ASSIGN_OR_RETURN(const auto driver, device::Driver::Load(arguments[1]));
  CAIRN_ASSIGN_OR_RETURN(const auto device, driver->Open(0));
  testing::LinkProcess process(
      {.name = "holder",
       .device = device,
       .nccl = nccl,
       .bytes = std::strtoull(arguments[3], nullptr, 10),
       .links = {.link = {.join = std::chrono::seconds(3)}, .host = arguments[5]},
       // Tests open links again at once.
       .history = {.first_pause = Duration(1), .longest_pause = Duration(1)}});
  CAIRN_RETURN_IF_ERROR(
      process.Fill(static_cast<uint32_t>(std::strtoul(arguments[4], nullptr, 10))));
  CAIRN_ASSIGN_OR_RETURN(const int port, process.Serve());
  std::printf("ready %d\n", port);
  std::fflush(stdout);
  signals.Wait();
  return OkStatus();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) return 2;
  const cairn::Status status = Run(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", cairn::Message(status).c_str());
  return 1;
}
