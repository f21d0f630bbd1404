#include "services/common/base/allocator.h"
#include "services/common/base/grpc_log.h"
#include "services/common/base/lock_checks.h"
#include "services/common/log/log.h"
#include "tools/cairn/app.h"

int main(int argc, char** argv) {
  cairn::TuneAllocator();  // For the worker in this process.
  cairn::SilenceGrpcLog();
  cairn::SkipLockChecks();
  // The commands say themselves what the client library would warn a server's log of.
  cairn::log::Configure({.level = cairn::log::Level::kError, .format = cairn::log::Format::kText});
  return cairn::cli::RunApp(argc, argv);
}
