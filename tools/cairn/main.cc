#include <iostream>

#include "common/log/log.h"
#include "common/service/process_start.h"
#include "tools/cairn/app.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/exit_codes.h"

int main(int argc, char** argv) {
  cairn::service::InitProcess("cairn");
  // The commands say themselves what the client library would warn a server's log of.
  cairn::log::Configure({.level = cairn::log::Level::kError, .format = cairn::log::Format::kText});
  const int code = cairn::cli::RunApp(argc, argv);
  // CLI11 writes help to std::cout.
  std::cout.flush();
  const cairn::Status written = cairn::service::FlushOutput();
  return code == cairn::cli::kExitOk && !written.ok() ? cairn::cli::Fail(written) : code;
}
