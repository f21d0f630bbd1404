#pragma once
// A real cairn-router for tests, and requests to it.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/v1/router.grpc.pb.h"
#include "tests/support/process.h"

namespace cairn::testing {

// The answer of a router.
struct RoutedAnswer {
  Status status;
  std::vector<int32_t> tokens;  // Streamed.
  std::string text;             // Streamed.
  v1::GenerateSummary done;
};

// Not thread-safe but for Generate.
class RouterProcess {
 public:
  // `args` are added to the small model, free ports on loopback and http.listen of a free port.
  static Result<std::unique_ptr<RouterProcess>> Start(const std::vector<std::string>& workers,
                                                      const std::vector<std::string>& args = {});
  // The same before engines with OpenAI's API, without a model.
  static Result<std::unique_ptr<RouterProcess>> StartBeforeEngines(
      const std::vector<std::string>& urls, const std::vector<std::string>& args = {});

  Process& process() { return *process_; }
  const std::string& admin() const { return admin_; }
  const std::string& http() const { return http_; }

  // A prompt of `tokens` tokens that begins alike for all requests of one `seed`, greedy, not ended
  // by the model.
  static v1::GenerateRequest Request(uint32_t tokens, uint32_t seed = 1, uint32_t max_tokens = 8);
  // `on_token` gets how many have come; false cancels.
  RoutedAnswer Generate(const v1::GenerateRequest& request,
                        const std::function<bool(size_t)>& on_token = nullptr);
  Result<v1::PickResponse> Pick(const v1::GenerateRequest& request);
  Result<v1::RouterInfo> GetInfo();
  // Until `done` says so of what GetInfo answers.
  bool WaitUntil(const std::function<bool(const v1::RouterInfo&)>& done);
  bool WaitReady(int workers);
  // Sends the request over HTTP and returns all of the answer, from its status line on.
  std::string Http(const std::string& method_and_path, const std::string& body = "");

 private:
  RouterProcess() = default;
  static Result<std::unique_ptr<RouterProcess>> StartWith(const std::vector<std::string>& workers,
                                                          const std::vector<std::string>& args);
  std::unique_ptr<Process> process_;
  std::unique_ptr<v1::Router::Stub> stub_;
  std::string admin_, http_;
};

inline constexpr char kSmallModel[] = "tests/data/gguf/kquant.gguf";

}  // namespace cairn::testing
