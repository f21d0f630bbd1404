#include "tests/integration/router_support.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sstream>

#include "common/rpc/status.h"

namespace cairn::testing {
namespace {

std::string Field(const std::string& line, const std::string& name) {
  std::istringstream words(line);
  std::string word;
  while (words >> word) {
    if (word.rfind(name + "=", 0) == 0) return word.substr(name.size() + 1);
  }
  return "";
}

}  // namespace

Result<std::unique_ptr<RouterProcess>> RouterProcess::Start(const std::vector<std::string>& workers,
                                                            const std::vector<std::string>& args) {
  std::vector<std::string> all = {"--model", kSmallModel};
  all.insert(all.end(), args.begin(), args.end());
  return StartWith(workers, all);
}

Result<std::unique_ptr<RouterProcess>> RouterProcess::StartBeforeEngines(
    const std::vector<std::string>& urls, const std::vector<std::string>& args) {
  return StartWith(urls, args);
}

Result<std::unique_ptr<RouterProcess>> RouterProcess::StartWith(
    const std::vector<std::string>& workers, const std::vector<std::string>& args) {
  std::string list;
  for (const std::string& worker : workers) list += (list.empty() ? "" : ",") + worker;
  std::vector<std::string> argv = {
      Binary("cairn-router"), "--workers",      list,          "--listen",
      "127.0.0.1:0",          "--admin.listen", "127.0.0.1:0", "--http.listen",
      "127.0.0.1:0"};
  argv.insert(argv.end(), args.begin(), args.end());
  std::unique_ptr<RouterProcess> router(new RouterProcess());
  CAIRN_ASSIGN_OR_RETURN(router->process_,
                         Process::Start({.argv = argv, .environment = {}, .directory = {}}));
  CAIRN_ASSIGN_OR_RETURN(const std::string line,
                         router->process_->WaitForLine("ready ", std::chrono::seconds(120)));
  router->admin_ = Field(line, "admin");
  router->http_ = Field(line, "http");
  router->stub_ = v1::Router::NewStub(
      grpc::CreateChannel(Field(line, "grpc"), grpc::InsecureChannelCredentials()));
  return router;
}

v1::GenerateRequest RouterProcess::Request(uint32_t tokens, uint32_t seed, uint32_t max_tokens) {
  v1::GenerateRequest request;
  uint32_t state = seed * 2654435761u;
  for (uint32_t i = 0; i < tokens; ++i) {
    state = state * 1664525u + 1013904223u;
    request.mutable_tokens()->add_ids(static_cast<int32_t>(20 + (state >> 16) % 200));
  }
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  return request;
}

RoutedAnswer RouterProcess::Generate(const v1::GenerateRequest& request,
                                     const std::function<bool(size_t)>& on_token) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  auto reader = stub_->Generate(&context, request);
  RoutedAnswer answer;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_done()) {
      answer.done = response.done();
      continue;
    }
    answer.tokens.push_back(response.token().id());
    answer.text += response.token().text();
    if (on_token && !on_token(answer.tokens.size())) context.TryCancel();
  }
  answer.status = rpc::FromGrpc(reader->Finish());
  return answer;
}

Result<v1::PickResponse> RouterProcess::Pick(const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  v1::PickResponse response;
  CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->Pick(&context, request, &response)));
  return response;
}

Result<v1::RouterInfo> RouterProcess::GetInfo() {
  grpc::ClientContext context;
  v1::RouterInfo info;
  CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->GetInfo(&context, v1::RouterInfoRequest(), &info)));
  return info;
}

bool RouterProcess::WaitUntil(const std::function<bool(const v1::RouterInfo&)>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (std::chrono::steady_clock::now() < deadline) {
    const auto info = GetInfo();
    if (info.ok() && done(*info)) return true;
    poll(nullptr, 0, 10);  // A router does not announce changes: it has to be asked.
  }
  return false;
}

bool RouterProcess::WaitReady(int workers) {
  return WaitUntil([&](const v1::RouterInfo& info) {
    int ready = 0;
    for (const v1::RouterWorker& worker : info.workers()) {
      if (worker.condition() == "ready") ++ready;
    }
    return ready >= workers;
  });
}

std::string RouterProcess::Http(const std::string& method_and_path, const std::string& body) {
  const size_t colon = http_.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(http_.substr(colon + 1))));
  inet_pton(AF_INET, http_.substr(0, colon).c_str(), &address.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = fmt::format(
        "{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: "
        "application/json\r\nContent-Length: {}\r\n\r\n{}",
        method_and_path, http_, body.size(), body);
    (void)!write(fd, request.data(), request.size());
    char buffer[4096];
    for (ssize_t got = 0; (got = read(fd, buffer, sizeof(buffer))) > 0;) {
      answer.append(buffer, static_cast<size_t>(got));
    }
  }
  close(fd);
  return answer;
}

}  // namespace cairn::testing
