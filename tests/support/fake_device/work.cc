// Work of the fake device: what is checked when a stream gets it, and when it happens.

#include <algorithm>
#include <cstring>

#include "tests/support/fake_device/machine.h"

namespace cairn::device::fake {
namespace {

constexpr char kWork[] = "work";

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

bool Machine::CanGo(const StreamHandle& stream) const {
  if (stream.work.empty() || lost_[stream.device]) return false;
  const StreamHandle::Work& work = stream.work.front();
  if (work.waits != nullptr && !work.waits->done) return false;
  if (work.ready && !work.ready()) return false;
  return options_.bytes_per_second == 0 ||
         std::chrono::steady_clock::now() >= busy_until_[stream.device];
}

bool Machine::Step() {
  Lock lock(mu_);
  std::vector<StreamHandle*> can;
  for (const auto& stream : streams_) {
    if (CanGo(*stream)) can.push_back(stream.get());
  }
  if (can.empty()) return false;
  RunOne(can[rng_() % can.size()]);
  return true;
}

void Machine::RunOne(StreamHandle* stream) {
  StreamHandle::Work work = std::move(stream->work.front());
  stream->work.pop_front();
  if (work.records != nullptr) {
    work.records->code = std::exchange(stream->failed, Code::kOk);
    work.records->done = true;
  }
  if (work.run) {
    Failure failure;
    const Code code = Enter(kWork, stream->device, &failure);
    if (code == Code::kOk) work.run();
    if (code != Code::kOk && stream->failed == Code::kOk) stream->failed = code;
  }
  if (options_.bytes_per_second > 0) {
    const auto now = std::chrono::steady_clock::now();
    busy_until_[stream->device] =
        std::max(now, busy_until_[stream->device]) +
        std::chrono::nanoseconds(work.bytes * 1'000'000'000 / options_.bytes_per_second);
  }
  if (work.drop) work.drop();
}

void Machine::Push(StreamHandle* stream, StreamHandle::Work work) {
  stream->work.push_back(std::move(work));
  while (!options_.late && Step()) {
  }
}

bool Machine::Check(const StreamHandle& stream, const std::string& what, const Range& range,
                    bool writes) {
  const Memories::Place place = memories_->Find(range.address, range.bytes);
  const std::string named = "'" + what + "' of stream " + std::to_string(stream.line);
  switch (place.kind) {
    case Memories::Kind::kDevice:
      if (place.device != stream.device) {
        Report(named + " uses memory of another device");
        return false;
      }
      break;
    case Memories::Kind::kReleased:
      Report(named + " uses memory that was given back");
      return false;
    case Memories::Kind::kBeyond:
      Report(named + " goes beyond the memory where it begins");
      return false;
    case Memories::Kind::kStale:
      Report(named + " uses a registration whose memory has changed since");
      return false;
    case Memories::Kind::kReadOnly:
      if (writes) {
        Report(named + " writes memory that was registered to be read");
        return false;
      }
      break;
    case Memories::Kind::kPageable:
      ++stats_.pageable_copies;
      break;
    case Memories::Kind::kPinned:
    case Memories::Kind::kRegistered:
      break;
  }
  if (const auto wrong = order_.Access(stream.line, what, range.address, range.bytes, writes)) {
    Report(*wrong);
  }
  return true;
}

bool Machine::CheckAll(const StreamHandle& stream, const std::string& what,
                       std::span<const Range> reads, std::span<const Range> writes) {
  bool sound = true;
  for (const Range& range : reads) sound &= Check(stream, what, range, /*writes=*/false);
  for (const Range& range : writes) sound &= Check(stream, what, range, /*writes=*/true);
  return sound;
}

Code Machine::Copy(StreamHandle* stream, const char* what, std::span<const CopyTask> tasks,
                   Failure* failure) {
  Lock lock(mu_);
  stream = Own(stream);
  const Code code = Enter("copy", stream->device, failure);
  if (code != Code::kOk) return code;
  order_.Tick(stream->line);
  std::vector<CopyTask> sound;
  uint64_t bytes = 0;
  for (const CopyTask& task : tasks) {
    const bool from = Check(*stream, what, {task.from, task.bytes}, /*writes=*/false);
    const bool to = Check(*stream, what, {task.to, task.bytes}, /*writes=*/true);
    if (from && to) sound.push_back(task);
    bytes += task.bytes;
  }
  stats_.copies += tasks.size();
  stats_.copied_bytes += bytes;
  // Tasks of one call happen in any order.
  std::shuffle(sound.begin(), sound.end(), rng_);
  Push(stream, {.what = what,
                .run =
                    [sound = std::move(sound)] {
                      for (const CopyTask& task : sound) {
                        std::memcpy(Pointer(task.to), Pointer(task.from), task.bytes);
                      }
                    },
                .bytes = bytes});
  return Code::kOk;
}

Code Machine::Fill(StreamHandle* stream, const char* what, uint64_t address, uint8_t value,
                   uint64_t bytes, Failure* failure) {
  Lock lock(mu_);
  stream = Own(stream);
  const Code code = Enter("fill", stream->device, failure);
  if (code != Code::kOk) return code;
  order_.Tick(stream->line);
  if (!Check(*stream, what, {address, bytes}, /*writes=*/true)) return Code::kOk;
  Push(stream,
       {.what = what, .run = [=] { std::memset(Pointer(address), value, bytes); }, .bytes = bytes});
  return Code::kOk;
}

Code Machine::Issue(StreamHandle* stream, const char* what, std::span<const Range> reads,
                    std::span<const Range> writes, std::function<void()> run,
                    std::function<void()> drop, std::function<bool()> ready) {
  Lock lock(mu_);
  stream = Own(stream);
  Failure failure;
  const Code code = Enter("issue", stream->device, &failure);
  if (code != Code::kOk) {
    if (drop) drop();
    return code;
  }
  if (stream->capture != nullptr) {
    // A launch that waits for something outside cannot be noted.
    stream->spoilt |= ready != nullptr;
    const auto noted = std::make_shared<Noted>();
    noted->what = what;
    noted->reads.assign(reads.begin(), reads.end());
    noted->writes.assign(writes.begin(), writes.end());
    noted->run = std::move(run);
    noted->drop = std::move(drop);
    stream->capture->noted.push_back(noted);
    return Code::kOk;
  }
  order_.Tick(stream->line);
  StreamHandle::Work work{.what = what, .drop = std::move(drop)};
  if (CheckAll(*stream, what, reads, writes)) {
    work.run = std::move(run);
    work.ready = std::move(ready);
  }
  Push(stream, std::move(work));
  return Code::kOk;
}

}  // namespace cairn::device::fake
