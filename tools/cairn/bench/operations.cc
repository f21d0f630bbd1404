#include "tools/cairn/bench/operations.h"

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>

namespace cairn::cli::bench {

Operations RunOperations(uint32_t threads, uint32_t most, double seconds,
                         const std::function<Status(uint32_t thread, uint32_t i)>& operation) {
  using Clock = std::chrono::steady_clock;
  struct Lane {
    std::vector<double> latencies_us;
    Status status;
    Clock::time_point end;
  };
  std::vector<Lane> lanes(threads);
  std::atomic<uint32_t> next{0};
  std::atomic<bool> stop{false};
  std::latch ready(threads + 1);
  Clock::time_point start;

  const auto work = [&](uint32_t thread) {
    Lane& lane = lanes[thread];
    ready.arrive_and_wait();
    const Clock::time_point until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                       std::chrono::duration<double>(seconds));
    lane.end = Clock::now();
    while (!stop.load(std::memory_order_relaxed)) {
      const uint32_t i = next.fetch_add(1);
      if (i >= most) break;
      const Clock::time_point begin = Clock::now();
      lane.status = operation(thread, i);
      lane.end = Clock::now();
      if (!lane.status.ok() || lane.end >= until) stop = true;
      if (!lane.status.ok()) break;
      lane.latencies_us.push_back(
          std::chrono::duration<double, std::micro>(lane.end - begin).count());
    }
  };
  {
    std::vector<std::jthread> running;
    for (uint32_t t = 0; t < threads; ++t) running.emplace_back(work, t);
    start = Clock::now();
    ready.arrive_and_wait();
  }

  Operations result;
  Clock::time_point end = start;
  for (Lane& lane : lanes) {
    if (result.status.ok()) result.status = lane.status;
    end = std::max(end, lane.end);
    result.latencies_us.insert(result.latencies_us.end(), lane.latencies_us.begin(),
                               lane.latencies_us.end());
  }
  result.done = static_cast<uint32_t>(result.latencies_us.size());
  result.seconds = std::chrono::duration<double>(end - start).count();
  return result;
}

}  // namespace cairn::cli::bench
