#include "services/cache/store/tier/read_line.h"

#include <utility>

#include "common/concurrency/runs_once.h"

namespace cairn::cache {

void ReadLine::Read(Tier* tier, std::vector<Part> parts, Done done) {
  CAIRN_CHECK(!parts.empty());
  {
    MutexLock lock(mu_);
    line_.push_back(std::make_shared<Block>(Block{
        .tier = tier, .kind = tier->kind(), .parts = std::move(parts), .done = std::move(done)}));
  }
  Pump();
}

std::shared_ptr<ReadLine::Block> ReadLine::Next(size_t started, size_t* part) {
  MutexLock lock(mu_);
  if (started == 0) {
    if (pumping_) return nullptr;
    pumping_ = true;
  }
  const bool enough = started >= kBurst && under_way_ > 0;
  if (line_.empty() || under_way_ >= kAtOnce || enough) {
    pumping_ = false;
    return nullptr;
  }
  std::shared_ptr<Block> block = std::move(line_.front());
  line_.pop_front();
  *part = block->next++;
  if (block->next < block->parts.size()) line_.push_back(block);
  ++under_way_;
  return block;
}

// One thread at a time posts, and sees what ends meanwhile. It may leave parts in line as long as
// some are under way: their ends go on.
void ReadLine::Pump() {
  size_t number = 0;
  for (size_t started = 0; auto block = Next(started, &number); ++started) {
    Tier& tier = *block->tier;
    const Part part = block->parts[number];
    // A tier that goes away waits for its callbacks, and so for this line: the block, and whoever
    // waits for it, lives until the line is done with the part.
    IoCallback done =
        RunsOnce([this, block, number](Status status) { End(*block, number, std::move(status)); },
                 [kind = block->kind] {
                   return Errorf(StatusCode::kCancelled, "the {} tier went away", Name(kind));
                 });
    if (part.offset) {
      tier.ReadRange(part.extent, *part.offset, part.destination, std::move(done));
    } else {
      tier.Read(part.extent, part.destination, std::move(done));
    }
  }
}

void ReadLine::End(const Block& block, size_t part, Status status) {
  block.done(part, std::move(status));
  {
    MutexLock lock(mu_);
    --under_way_;
  }
  Pump();
}

}  // namespace cairn::cache
