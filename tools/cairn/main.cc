#include "services/common/base/allocator.h"
#include "tools/cairn/app.h"

int main(int argc, char** argv) {
  cairn::TuneAllocator();  // For the worker in this process.
  return cairn::cli::RunApp(argc, argv);
}
