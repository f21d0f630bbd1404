#include "tools/cairn/app.h"

int main(int argc, char** argv) { return cairn::cli::RunApp(argc, argv); }
