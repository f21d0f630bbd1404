#include "common/log/log.h"
#include "common/service/init.h"
#include "tools/cairn/app.h"

int main(int argc, char** argv) {
  cairn::service::InitProcess();
  // The commands say themselves what the client library would warn a server's log of.
  cairn::log::Configure({.level = cairn::log::Level::kError, .format = cairn::log::Format::kText});
  return cairn::cli::RunApp(argc, argv);
}
