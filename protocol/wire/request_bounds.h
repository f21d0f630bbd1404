#pragma once
// How many elements requests of proto/cairn/v1 may have, for servers that refuse more before they
// decode them. Services check the same again where it depends on more than the message.

#include "common/rpc/frame_bounds.h"

namespace cairn::wire {

// Of every repeated field of every request. Any thread.
const rpc::FrameBounds& RequestBounds();

}  // namespace cairn::wire
