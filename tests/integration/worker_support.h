#pragma once
// A real cairn-worker for tests, and requests to it.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tests/support/process.h"

namespace cairn::testing {

// The answer of a worker.
struct Answer {
  Status status;
  std::vector<int32_t> tokens;
  std::string text;
  std::string logits_digest;
  std::string finish_reason;
  uint32_t prompt_tokens = 0;
  uint32_t fetched_tokens = 0;
  int miss_reason = 0;
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;
  double ttft_seconds = 0;
  uint32_t selected_tokens = 0;
};

// Not thread-safe but for Generate.
class WorkerProcess {
 public:
  // Args are added to the model, free ports on loopback and two threads; cache may be empty.
  // Deadlines are generous unless args say otherwise: tests run on busy machines.
  static Result<std::unique_ptr<WorkerProcess>> Start(const std::string& cache,
                                                      const std::vector<std::string>& args = {});
  ~WorkerProcess();

  Process& process() { return *process_; }
  const std::string& address() const { return address_; }
  const std::string& admin() const { return admin_; }

  // A prompt of `tokens` tokens that begins alike for all requests of one `seed`; with the logits'
  // digest, greedy, not ended by the model. `prefix_end`: as in v1::GenerateRequest.
  Answer Generate(uint32_t tokens, uint32_t seed = 1, uint32_t max_tokens = 8,
                  uint32_t prefix_end = 0);
  // Prefill and decode apart: fields of v1::GenerateRequest; `announced` is called when the worker
  // says so.
  struct Apart {
    bool prefill_only = false;
    uint32_t await_prefill_ms = 0;
    std::function<void()> announced = nullptr;
  };
  Answer GenerateApart(uint32_t tokens, const Apart& apart, uint32_t seed = 1);
  bool WaitIdle(std::chrono::milliseconds timeout = std::chrono::seconds(60));
  // Waits until GetInfo says so.
  bool WaitConnected(bool connected, std::chrono::milliseconds timeout = std::chrono::seconds(30));
  // The admin port's metrics.
  std::string Metrics();
  // Value of a metric with its labels as printed; -1 when it is not there.
  double Metric(const std::string& name_and_labels);

 private:
  struct Stub;
  WorkerProcess();
  std::unique_ptr<Process> process_;
  std::unique_ptr<Stub> stub_;
  std::string address_, admin_;
};

// SmolLM2 when it was fetched (CAIRN_TEST_MODEL, or build/models): else the small random model. The
// same tests hold for both.
std::string TestModel();
bool HaveLargeModel();

}  // namespace cairn::testing
