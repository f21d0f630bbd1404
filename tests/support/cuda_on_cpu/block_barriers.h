#pragma once
// The ends of blocks, for barriers that are not those of all threads.

namespace cairn::kernels::testing {

// Forgets everything of the block that has ended. True: a bulk copy was never waited for.
bool EndBlockBarriers();

}  // namespace cairn::kernels::testing
