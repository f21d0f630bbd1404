#pragma once
// gRPC's own log, which is not ours and has another format.

#include <cstdlib>

namespace cairn {

// First thing in main: gRPC reads the variable once, when it starts. Our errors say what went wrong; gRPC would print its
// own dump before them. GRPC_VERBOSITY=DEBUG or ERROR in the environment brings it back.
inline void SilenceGrpcLog() { setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0); }

}  // namespace cairn
