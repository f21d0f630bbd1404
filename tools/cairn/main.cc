#include "services/common/base/allocator.h"
#include "services/common/log/log.h"
#include "tools/cairn/app.h"

int main(int argc, char** argv) {
  cairn::TuneAllocator();  // For the worker in this process.
  // What the client library tells a server's log is no news to a person.
  cairn::log::Configure({.level = cairn::log::Level::kWarn, .format = cairn::log::Format::kText});
  return cairn::cli::RunApp(argc, argv);
}
