// `cairn up`, `top` and `down` with real processes and a tiny model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <set>
#include <vector>

#include "tests/integration/cli_support.h"
#include "tools/cairn/launch/http_port.h"
#include "tools/cairn/launch/lookup.h"
#include "tools/cairn/process/identity.h"
#include "tools/cairn/process/ports.h"
#include "tools/cairn/process/wait_until.h"

namespace cairn::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::seconds kPatience(120);
// It waits for an answer as long as until the next look, which does not come.
const std::vector<std::string> kOneLook = {"top", "--count", "1", "--interval", "10", "--json"};

// Whether the process with this pid runs. One of which only the exit status is left does not.
bool Runs(pid_t pid) { return cli::IdentityOf(pid).ok(); }

// The whole answer to one request over a connection of its own.
std::string Post(const std::string& address, const std::string& path, const std::string& body) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  const std::string request = fmt::format(
      "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\nconnection: close\r\n"
      "content-length: {}\r\n\r\n{}",
      path, address, body.size(), body);
  EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return answer;
}

// Listens at a port of loopback, so that nobody else can. Port 0: a free one.
class Listener {
 public:
  explicit Listener(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    socklen_t size = sizeof(at);
    listens_ = bind(fd_, reinterpret_cast<const sockaddr*>(&at), size) == 0 && listen(fd_, 1) == 0;
    if (listens_) getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size);
    address_ = fmt::format("127.0.0.1:{}", ntohs(at.sin_port));
  }
  ~Listener() { close(fd_); }
  bool listens() const { return listens_; }
  const std::string& address() const { return address_; }

 private:
  const int fd_;
  bool listens_ = false;
  std::string address_;
};

// All sockets of nodes go to a folder of this test, so that it can see what is left.
class CliUpTest : public ::testing::Test {
 protected:
  CliUpTest() : directory_(root_.path() + "/up"), runtime_(root_.path() + "/run") {
    std::filesystem::create_directory(runtime_);
    std::filesystem::permissions(runtime_, std::filesystem::perms::owner_all);
  }
  ~CliUpTest() override {
    if (std::filesystem::exists(directory_ + "/state.json")) Run({"down", "--timeout", "1"});
    if (std::filesystem::exists(runtime_ + "/cairn-up/state.json")) {
      RunInDefault({"down", "--timeout", "1"});
    }
  }

  // A command with its --dir.
  CommandResult Run(std::vector<std::string> args) {
    args.insert(args.end(), {"--dir", directory_});
    return RunInDefault(std::move(args));
  }
  // Without one: the default directory is this test's own.
  CommandResult RunInDefault(std::vector<std::string> args) {
    args.insert(args.begin(), Binary("cairn"));
    auto process = Process::Start({.argv = args,
                                   .environment = {"XDG_RUNTIME_DIR=" + runtime_, "CAIRN_MODEL="},
                                   .directory = {}});
    CommandResult result;
    if (!process.ok()) {
      ADD_FAILURE() << process.status();
      return result;
    }
    const auto exit = (*process)->WaitExit(kPatience);
    result.code = exit.ok() && exit->exited ? exit->code : 128;
    result.out = (*process)->out();
    result.err = (*process)->err();
    return result;
  }
  static std::vector<std::string> UpArguments(const std::vector<std::string>& more) {
    std::vector<std::string> args = {"up",    "--model",   kTinyModel, "--ram",
                                     "16MiB", "--threads", "1",        "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  CommandResult Up(const std::vector<std::string>& more) {
    const CommandResult result = Run(UpArguments(more));
    if (result.code == 0) up_ = result.Json();
    return result;
  }
  nlohmann::json ProcessNamed(const std::string& name) {
    for (const auto& process : up_["processes"]) {
      if (process["name"] == name) return process;
    }
    ADD_FAILURE() << "no " << name << " in " << up_;
    return {};
  }
  pid_t PidOf(const std::string& name) { return ProcessNamed(name)["pid"].get<pid_t>(); }
  void KillAndWait(const std::string& name) {
    const auto identity = cli::IdentityOf(PidOf(name));
    ASSERT_TRUE(identity.ok()) << identity.status();
    auto process = cli::ProcessHandle::Open(*identity);
    ASSERT_TRUE(process.ok()) << process.status();
    process->Signal(SIGKILL);
    std::vector<cli::ProcessHandle> killed;
    killed.push_back(*std::move(process));
    ASSERT_TRUE(cli::WaitEnded(killed, kPatience)) << name;
  }

  void ExpectNothingIsLeft() {
    for (const auto& process : up_["processes"]) {
      EXPECT_FALSE(Runs(process["pid"].get<pid_t>())) << process;
    }
    EXPECT_FALSE(std::filesystem::exists(directory_));
    EXPECT_TRUE(std::filesystem::is_empty(runtime_))
        << std::filesystem::directory_iterator(runtime_)->path();
  }

  const TemporaryDirectory root_;
  const std::string directory_, runtime_;
  nlohmann::json up_;  // The answer of the last `up`.
};

// Long: the life of one cluster, from its start to its end.
TEST_F(CliUpTest, StartsShowsAndEndsAClusterWithWorkers) {
  const CommandResult up = Up({"--nodes", "2", "--workers", "2"});
  ASSERT_EQ(up.code, 0) << up.err;
  ASSERT_EQ(up_["processes"].size(), 5u);

  const std::string prompt(200, 'x');
  const auto generate = [&](const std::string& worker) {
    return Cairn({"generate", "--worker", ProcessNamed(worker)["grpc"], "--prompt", prompt,
                  "--max-tokens", "4", "--ignore-eos", "--json"});
  };
  const CommandResult cold = generate("worker-1");
  ASSERT_EQ(cold.code, 0) << cold.err;

  // The endpoint that `up` prints, as a client of OpenAI uses it.
  const std::string endpoint = up_["endpoint"];
  const std::string http = ProcessNamed("router")["http"];
  EXPECT_EQ(endpoint, "http://" + http + "/v1");
  const std::string answer =
      Post(http, "/v1/chat/completions",
           R"({"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 4})");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("chat.completion"));
  EXPECT_THAT(answer, HasSubstr("\"usage\""));

  // The blocks that the worker computed go to the node after the answer.
  const auto pushed = [](const nlohmann::json& seen) {
    uint64_t blocks = 0;
    bool free = true;
    for (const auto& node : seen["nodes"]) {
      if (node["away"] == false) blocks += node["tiers"]["host"]["blocks"].get<uint64_t>();
    }
    for (const auto& worker : seen["workers"]) {
      free = free && worker["away"] == false && worker["kv_pages_free"] == worker["kv_pages_total"];
    }
    return blocks > 0 && free;
  };
  const Status settled = cli::WaitUntil(
      [&]() -> Result<bool> {
        const CommandResult now = Run(kOneLook);
        return now.code == 0 && pushed(now.Json());
      },
      kPatience, "nothing was pushed");
  ASSERT_TRUE(settled.ok()) << settled;
  // A busy machine may answer later than the second look: then there is no rate.
  CommandResult top;
  const Status answered = cli::WaitUntil(
      [&]() -> Result<bool> {
        top = Run({"top", "--count", "2", "--interval", "0.5", "--json"});
        return top.out.find("\"away\":true") == top.out.npos;
      },
      kPatience, "some did not answer");
  ASSERT_TRUE(answered.ok()) << answered << top.out;
  ASSERT_EQ(top.code, 0) << top.err;
  ASSERT_EQ(std::count(top.out.begin(), top.out.end(), '\n'), 2) << top.out;
  const auto first = nlohmann::json::parse(top.out.substr(0, top.out.find('\n')));
  const auto second = nlohmann::json::parse(top.out.substr(top.out.find('\n') + 1));
  EXPECT_TRUE(first["interval_s"].is_null());
  EXPECT_GT(second["interval_s"].get<double>(), 0.1);
  ASSERT_EQ(second["nodes"].size(), 2u);
  ASSERT_EQ(second["workers"].size(), 2u);
  uint64_t blocks = 0;
  for (const auto& node : second["nodes"]) {
    EXPECT_EQ(node["away"], false) << node;
    EXPECT_TRUE(node["to_workers_bytes_per_s"].is_number()) << node;
    blocks += node["tiers"]["host"]["blocks"].get<uint64_t>();
  }
  EXPECT_GT(blocks, 0u) << "what the worker pushed";
  for (const auto& worker : second["workers"]) {
    EXPECT_EQ(worker["away"], false) << worker;
    EXPECT_EQ(worker["cache_connected"], true) << worker;
    EXPECT_EQ(worker["kv_pages_free"], worker["kv_pages_total"]);
  }

  EXPECT_EQ(second["router"]["away"], false) << second["router"];
  EXPECT_EQ(second["router"]["ready_workers"], 2) << second["router"];
  EXPECT_EQ(second["router"]["requests_completed"], 1) << second["router"];

  const CommandResult down = Run({"down", "--json"});
  ASSERT_EQ(down.code, 0) << down.err;
  EXPECT_EQ(down.Json()["ended"], 5);
  EXPECT_EQ(down.Json()["killed"].size(), 0u);
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, StartsWorkersForPromptsBesideTheOthers) {
  const CommandResult up = Up({"--prefill-workers", "1"});
  ASSERT_EQ(up.code, 0) << up.err;
  ASSERT_EQ(up_["processes"].size(), 4u);
  EXPECT_EQ(ProcessNamed("prefill-1")["role"], "worker");
  const CommandResult refused = Cairn({"generate", "--worker", ProcessNamed("prefill-1")["grpc"],
                                       "--prompt", "x", "--max-tokens", "1"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("'prefill'"));
  const CommandResult top = Run(kOneLook);
  ASSERT_EQ(top.code, 0) << top.err;
  EXPECT_EQ(top.Json()["workers"].size(), 2u);
  EXPECT_EQ(top.Json()["router"]["workers"], 2);
  EXPECT_EQ(top.Json()["router"]["ready_workers"], 2);
  ASSERT_EQ(Run({"down"}).code, 0);
  ExpectNothingIsLeft();
  EXPECT_EQ(Up({"--prefill-workers", "1", "--nodes", "0"}).code, 2);
}

TEST_F(CliUpTest, AWorkerThatWasKilledIsAway) {
  ASSERT_EQ(Up({"--workers", "2"}).code, 0);
  KillAndWait("worker-2");
  const CommandResult json = Run(kOneLook);
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_EQ(json.Json()["workers"][0]["away"], false);
  EXPECT_EQ(json.Json()["workers"][1]["name"], "worker-2");
  EXPECT_EQ(json.Json()["workers"][1]["away"], true);
  const CommandResult lines = Run({"top", "--count", "1", "--interval", "10"});
  EXPECT_THAT(lines.out, HasSubstr("free[pages]"));
  EXPECT_THAT(lines.out, ::testing::ContainsRegex("worker  worker-1 +0 "));
  EXPECT_THAT(lines.out, ::testing::ContainsRegex("worker  worker-2 +away: "));
  EXPECT_THAT(lines.out, Not(HasSubstr("\x1b")));
  const CommandResult down = Run({"down", "--json"});
  ASSERT_EQ(down.code, 0) << down.err;
  EXPECT_EQ(down.Json()["gone"], nlohmann::json::array({"worker-2"}));
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, AReportHasWhatRunsAndNamesWhatDoesNot) {
  ASSERT_EQ(Up({"--workers", "2"}).code, 0);
  KillAndWait("worker-2");
  const std::string path = root_.path() + "/report.txt";
  const std::string settings = root_.path() + "/cairn.yaml";
  std::ofstream(settings) << "listen: 127.0.0.1:7400\npassword: hunter2\n";
  const std::vector<std::string> command = {
      "report", "--config", settings, "--log", root_.path() + "/none", "--json", "--out", path};
  const CommandResult made = Run(command);
  ASSERT_EQ(made.code, 0) << made.err;
  const nlohmann::json json = made.Json();
  EXPECT_EQ(json["file"], path);
  EXPECT_EQ(json["bytes"], std::filesystem::file_size(path));
  std::set<std::string> missing;
  for (const auto& part : json["parts"]) {
    if (part["missing"] != "") missing.insert(part["name"].get<std::string>());
  }
  EXPECT_THAT(missing, ::testing::ElementsAre("log " + root_.path() + "/none", "worker-2: metrics",
                                              "worker-2: state"));

  std::stringstream read;
  read << std::ifstream(path).rdbuf();
  const std::string report = read.str();
  EXPECT_THAT(report,
              AllOf(HasSubstr("==== machine ===="), HasSubstr("==== node-1: stat ===="),
                    HasSubstr("==== node-1: members ===="), HasSubstr("cairn_lookup_tokens_total"),
                    HasSubstr("==== worker-1: state ====\n200 ready\n"),
                    HasSubstr("cairn_worker_tokens_total"), HasSubstr("cairn_router_tokens_total"),
                    HasSubstr("==== worker-2: log ====\n"), HasSubstr("starting")));
  EXPECT_THAT(report, HasSubstr("listen: 127.0.0.1:7400\npassword: [left out]\n"));
  EXPECT_THAT(report, Not(HasSubstr("hunter2")));

  const CommandResult again = Run(command);
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, HasSubstr("is there already"));
  ASSERT_EQ(Run({"down"}).code, 0);
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, TheSocketsOfANodeThatWasKilledGoWithDown) {
  ASSERT_EQ(Up({}).code, 0);
  EXPECT_FALSE(std::filesystem::is_empty(runtime_));
  KillAndWait("node-1");
  const CommandResult top = Run(kOneLook);
  ASSERT_EQ(top.code, 0) << top.err;
  EXPECT_EQ(top.Json()["nodes"][0]["name"], "node-1");
  EXPECT_EQ(top.Json()["nodes"][0]["away"], true);
  ASSERT_EQ(Run({"down"}).code, 0);
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, OneThatHangsIsKilledByDown) {
  ASSERT_EQ(Up({}).code, 0);
  ASSERT_EQ(kill(PidOf("worker-1"), SIGSTOP), 0);
  const CommandResult down = Run({"down", "--timeout", "0.5", "--json"});
  ASSERT_EQ(down.code, 0) << down.err;
  EXPECT_THAT(down.Json()["killed"].dump(), HasSubstr("worker-1"));
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, ASecondUpSaysWhatRuns) {
  ASSERT_EQ(Up({}).code, 0);
  const auto first = up_;
  const CommandResult second = Up({});
  EXPECT_EQ(second.code, 1);
  EXPECT_EQ(second.out, "");
  EXPECT_THAT(second.err, HasSubstr("node-1"));
  EXPECT_THAT(second.err, HasSubstr(first["processes"][0]["grpc"].get<std::string>()));
  EXPECT_TRUE(Runs(PidOf("node-1")));
  ASSERT_EQ(Run({"down"}).code, 0);
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, WhereEverythingDiedANewUpStarts) {
  ASSERT_EQ(Up({}).code, 0);
  for (const char* name : {"router", "worker-1", "node-1"}) KillAndWait(name);
  ASSERT_EQ(Up({}).code, 0);
  ASSERT_EQ(Run({"down"}).code, 0);
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, AnUpThatFailsSaysWhyAndLeavesNothing) {
  // A fault that only a start finds.
  const CommandResult failed = Up({"--worker-set", "kv_pool=1KiB"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_EQ(failed.out, "");
  EXPECT_THAT(failed.err, HasSubstr("worker-1: ended at start"));
  EXPECT_THAT(failed.err, HasSubstr("kv_pool: got 1KiB")) << "the end of its log";
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, WrongSettingsAreFoundBeforeAnythingStarts) {
  struct Wrong {
    const char *flag, *setting, *message;
  };
  for (const auto& [flag, setting, message] :
       {Wrong{"--router-set", "max_wait=long", "cairn-router: flag: max_wait: got 'long'"},
        Wrong{"--router-set", "max_wit=1s", "did you mean 'max_wait'?"},
        Wrong{"--worker-set", "cache.recipe=nonsense", "cairn-worker: cache.recipe: codec"},
        Wrong{"--node-set", "host.capacity=much", "cairn-cache: flag: host.capacity"}}) {
    const CommandResult refused = Up({flag, setting});
    EXPECT_EQ(refused.code, 2) << setting;
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err, HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(directory_)) << setting;
  }
}

TEST_F(CliUpTest, DataStaysIfAsked) {
  ASSERT_EQ(Up({"--disk", "64MiB"}).code, 0);
  ASSERT_EQ(Run({"down", "--keep"}).code, 0);
  EXPECT_FALSE(std::filesystem::is_empty(directory_ + "/data/node-1"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/state.json"));
  // A failure does not cost what was there before.
  EXPECT_EQ(Up({"--disk", "64MiB", "--worker-set", "kv_pool=1KiB"}).code, 1);
  EXPECT_FALSE(std::filesystem::is_empty(directory_ + "/data/node-1"));
  ASSERT_EQ(Up({"--disk", "64MiB"}).code, 0);
  ASSERT_EQ(Run({"down"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/data"));
}

TEST_F(CliUpTest, InTheForegroundItEndsEverythingOnCtrlC) {
  std::vector<std::string> args = UpArguments({"--foreground"});
  args.insert(args.begin(), Binary("cairn"));
  args.insert(args.end(), {"--dir", directory_});
  auto process = Process::Start(
      {.argv = args, .environment = {"XDG_RUNTIME_DIR=" + runtime_}, .directory = {}});
  ASSERT_TRUE(process.ok()) << process.status();
  const auto line = (*process)->WaitForLine("{", kPatience);
  ASSERT_TRUE(line.ok()) << line.status();
  up_ = nlohmann::json::parse(*line);
  EXPECT_TRUE(Runs(PidOf("worker-1")));
  (*process)->Signal(SIGINT);
  const auto exit = (*process)->WaitExit(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_TRUE(exit->exited);
  EXPECT_EQ(exit->code, 0);
  ExpectNothingIsLeft();
}

// Whatever moment it is: what has started is in the state, and `down` ends it.
TEST_F(CliUpTest, AnUpThatIsKilledLeavesNothingThatDownCannotEnd) {
  std::vector<std::string> args = UpArguments({"--workers", "2"});
  args.insert(args.begin(), Binary("cairn"));
  args.insert(args.end(), {"--dir", directory_});
  auto process = Process::Start(
      {.argv = args, .environment = {"XDG_RUNTIME_DIR=" + runtime_}, .directory = {}});
  ASSERT_TRUE(process.ok()) << process.status();
  const Status began = cli::WaitUntil(
      [&] { return Result<bool>(std::filesystem::exists(directory_ + "/worker-1.log")); },
      kPatience, "no worker began");
  ASSERT_TRUE(began.ok()) << began;
  (*process)->Kill();
  up_ = nlohmann::json::parse(ReadFile(directory_ + "/state.json"));
  EXPECT_GE(up_["processes"].size(), 1u);
  ASSERT_EQ(Run({"down"}).code, 0);
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, ServesAtPort8000UnlessItIsTaken) {
  // Others may take the port, or leave it, at any time: what is said must be true in both cases.
  const CommandResult up = Up({});
  ASSERT_EQ(up.code, 0) << up.err;
  const bool said = up.err.find("port 8000 is taken, so it serves at http://") != up.err.npos;
  EXPECT_EQ(ProcessNamed("router")["http"] == cli::kDefaultHttp, !said) << up.err;
  ASSERT_EQ(Run({"down"}).code, 0);

  // Here it is taken for sure, by this test if by nobody else.
  const Listener holder(8000);
  const CommandResult second = Up({});
  ASSERT_EQ(second.code, 0) << second.err;
  const std::string endpoint = up_["endpoint"];
  EXPECT_THAT(second.err, HasSubstr("port 8000 is taken, so it serves at " + endpoint + "\n"));
  EXPECT_NE(ProcessNamed("router")["http"], cli::kDefaultHttp);
  EXPECT_THAT(Post(ProcessNamed("router")["http"], "/v1/completions",
                   R"({"prompt": "Why?", "max_tokens": 1})"),
              HasSubstr("HTTP/1.1 200"));
  ASSERT_EQ(Run({"down"}).code, 0);
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, AGivenPortThatIsTakenIsAnError) {
  const Listener holder(0);
  ASSERT_TRUE(holder.listens());
  const CommandResult up = Up({"--http", holder.address()});
  EXPECT_EQ(up.code, 1);
  EXPECT_EQ(up.out, "");
  EXPECT_THAT(up.err, HasSubstr("--http: " + holder.address() + " is taken"));
  EXPECT_FALSE(std::filesystem::exists(directory_)) << "nothing was started";
  EXPECT_EQ(Up({"--http", ""}).code, 2);
  // A setting of the router wins, and nothing is said of the default port.
  const CommandResult set = Up({"--router-set", "http.listen=127.0.0.1:0"});
  ASSERT_EQ(set.code, 0) << set.err;
  EXPECT_THAT(set.err, Not(HasSubstr("is taken")));
}

TEST_F(CliUpTest, TwoBesideEachOtherServe) {
  struct Set {
    std::string directory;
    std::unique_ptr<Process> up;
    nlohmann::json said;
  };
  std::vector<Set> sets(2);
  for (Set& set : sets) {
    set.directory = fmt::format("{}/up-{}", root_.path(), &set - sets.data());
    std::vector<std::string> args = UpArguments({"--dir", set.directory});
    args.insert(args.begin(), Binary("cairn"));
    auto started = Process::Start(
        {.argv = args, .environment = {"XDG_RUNTIME_DIR=" + runtime_}, .directory = {}});
    ASSERT_TRUE(started.ok()) << started.status();
    set.up = *std::move(started);
  }
  std::set<std::string> endpoints;
  for (Set& set : sets) {
    const auto exit = set.up->WaitExit(kPatience);
    ASSERT_TRUE(exit.ok()) << exit.status();
    EXPECT_EQ(exit->code, 0) << set.up->err();
    set.said = nlohmann::json::parse(set.up->out(), nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(set.said.is_discarded()) << set.up->err();
    endpoints.insert(set.said["endpoint"].get<std::string>());
    EXPECT_THAT(Post(set.said["processes"].back()["http"], "/v1/completions",
                     R"({"prompt": "Why?", "max_tokens": 1})"),
                HasSubstr("HTTP/1.1 200"));
  }
  EXPECT_EQ(endpoints.size(), 2u);
  for (const Set& set : sets) {
    EXPECT_EQ(RunInDefault({"down", "--dir", set.directory}).code, 0);
    EXPECT_FALSE(std::filesystem::exists(set.directory));
  }
}

// Commands without an address. Whoever has a node of their own at the default address gets that.
TEST_F(CliUpTest, CommandsFindWhatUpStarted) {
  const CommandResult up = RunInDefault(UpArguments({"--nodes", "2"}));
  ASSERT_EQ(up.code, 0) << up.err;
  up_ = up.Json();
  if (cli::SomebodyListens(cli::kDefaultNode)) {
    EXPECT_THAT(RunInDefault({"stat"}).err, Not(HasSubstr("uses what")));
    return;
  }
  const std::string first = ProcessNamed("node-1")["grpc"];
  const std::string folder = runtime_ + "/cairn-up";
  const std::string uses = "cairn: uses what `cairn up` started in " + folder + ": ";

  const CommandResult stat = RunInDefault({"stat", "--json"});
  ASSERT_EQ(stat.code, 0) << stat.err;
  EXPECT_EQ(stat.err, uses + first + "\n");
  EXPECT_EQ(stat.Json()["address"], first);
  const CommandResult whole = RunInDefault({"stat", "--cluster", "--json"});
  EXPECT_EQ(whole.code, 0) << whole.err << whole.out;
  EXPECT_EQ(whole.Json()["nodes"].size(), 2u);
  EXPECT_EQ(RunInDefault({"cluster", "members"}).code, 0);
  const CommandResult drain = RunInDefault({"cluster", "drain"});
  EXPECT_EQ(drain.code, 1) << "it chose one of two nodes";
  EXPECT_THAT(drain.err, HasSubstr("node-2 at "));
  EXPECT_EQ(RunInDefault(kOneLook).Json()["nodes"].size(), 2u);

  const std::vector<std::string> question = {"generate", "--prompt",     "Why?",  "--max-tokens",
                                             "2",        "--ignore-eos", "--json"};
  const auto ask = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = question;
    args.insert(args.end(), more.begin(), more.end());
    return RunInDefault(args);
  };
  const CommandResult answer = ask({"--model", kTinyModel});
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr(uses + ProcessNamed("worker-1")["grpc"].get<std::string>()));
  EXPECT_EQ(answer.Json()["tokens"].size(), 2u);
  // Neither another model nor a flag of a worker in this process goes to that worker.
  const std::string other = root_.path() + "/other.gguf";
  std::filesystem::copy_file(kTinyModel, other);
  for (const auto& local : {std::vector<std::string>{"--model", other},
                            {"--model", kTinyModel, "--no-cache"},
                            {"--model", kTinyModel, "--threads", "1"}}) {
    const CommandResult here = ask(local);
    EXPECT_EQ(here.code, 0) << here.err;
    EXPECT_THAT(here.err, Not(HasSubstr("uses what")));
    EXPECT_EQ(here.Json()["tokens"], answer.Json()["tokens"]);
  }
  // A given address is used, whatever was started.
  const CommandResult away = RunInDefault({"stat", "--cache", "127.0.0.1:1", "--timeout", "1"});
  EXPECT_EQ(away.code, 1);
  EXPECT_THAT(away.err, AllOf(HasSubstr("127.0.0.1:1"), Not(HasSubstr("uses what"))));
  EXPECT_EQ(RunInDefault({"stat", "--cache", ""}).code, 2);

  for (const char* name : {"router", "worker-1", "node-2", "node-1"}) KillAndWait(name);
  for (const char* command : {"stat", "top"}) {
    const CommandResult stale = RunInDefault({command});
    EXPECT_EQ(stale.code, 1);
    EXPECT_THAT(stale.err, AllOf(HasSubstr("nothing listens at 127.0.0.1:7400, and what"),
                                 HasSubstr("has ended: node-1, node-2")));
  }
  EXPECT_THAT(ask({}).err, HasSubstr("has ended: worker-1"));
  ASSERT_EQ(RunInDefault({"down"}).code, 0);
  for (const char* command : {"stat", "top"}) {
    const CommandResult neither = RunInDefault({command});
    EXPECT_EQ(neither.code, 1);
    EXPECT_THAT(neither.err,
                AllOf(HasSubstr("nothing listens at 127.0.0.1:7400, and `cairn up` has started "
                                "nothing in " +
                                folder),
                      HasSubstr("start one with `cairn up`")));
  }
  EXPECT_EQ(RunInDefault({"stat", "--cluster"}).code, 2);
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, DownWithoutUpSaysSo) {
  const CommandResult down = Run({"down"});
  EXPECT_EQ(down.code, 1);
  EXPECT_THAT(down.err, HasSubstr(directory_));
  EXPECT_FALSE(std::filesystem::exists(directory_));
  const CommandResult top = Run({"top", "--count", "1"});
  EXPECT_EQ(top.code, 1);
  EXPECT_THAT(top.err, HasSubstr("cairn up"));
}

TEST_F(CliUpTest, AHostileStateHarmsNobody) {
  std::filesystem::create_directory(directory_);
  std::filesystem::permissions(directory_, std::filesystem::perms::owner_all);
  auto bystander = Process::Start({.argv = {"/bin/sleep", "1000"}});
  ASSERT_TRUE(bystander.ok()) << bystander.status();
  std::ofstream(directory_ + "/state.json")
      << R"({"version": 1, "boot_id": ")" << cli::BootId()
      << R"(", "model": "", "made_directory": false, "processes": [{"role": "worker",
         "name": "worker-1", "pid": )"
      << (*bystander)->pid() << R"(, "start_ticks": 1, "grpc": "", "admin": "", "http": ""}]})";
  const CommandResult down = Run({"down", "--json"});
  ASSERT_EQ(down.code, 0) << down.err;
  EXPECT_EQ(down.Json()["gone"][0], "worker-1") << "its pid is somebody else's now";
  EXPECT_TRUE((*bystander)->running());

  std::filesystem::create_directories(directory_);
  std::ofstream(directory_ + "/state.json") << "{}";
  EXPECT_EQ(Run({"down"}).code, 1);
  EXPECT_THAT(Up({}).err, HasSubstr("state.json"));
  std::filesystem::remove(directory_ + "/state.json");
}

TEST_F(CliUpTest, TheCommandsOfTheReadmeRunAsTheyAreWritten) {
  const std::string readme = ReadFile("README.md");
  const std::string title =
      "## A cluster on this machine, after `make demo` and `make build`\n```sh\n";
  const size_t begin = readme.find(title);
  ASSERT_NE(begin, readme.npos);
  std::string script = readme.substr(begin + title.size());
  script.resize(script.find("```"));
  const std::string folder = "build/release/bin/";
  const std::string here = Binary("");
  for (size_t at = 0; (at = script.find(folder, at)) != script.npos; at += here.size()) {
    script.replace(at, folder.size(), here);
  }
  auto shell = Process::Start(
      {.argv = {"/bin/sh", "-e", "-c", script},
       .environment = {"XDG_RUNTIME_DIR=" + runtime_, std::string("CAIRN_MODEL=") + kTinyModel}});
  ASSERT_TRUE(shell.ok()) << shell.status();
  const auto exit = (*shell)->WaitExit(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_TRUE(exit->exited && exit->code == 0) << (*shell)->err();
  EXPECT_THAT((*shell)->out(), HasSubstr("worker-2"));
  EXPECT_THAT((*shell)->out(), HasSubstr("5 processes ended"));
  ExpectNothingIsLeft();
}

TEST_F(CliUpTest, AWrongCommandLineIsExitCodeTwo) {
  EXPECT_EQ(Cairn({"up", "--workers", "0"}).code, 2);
  EXPECT_EQ(Cairn({"up", "--disk", "1GiB"}).code, 2) << "needs a directory on a disk";
  EXPECT_EQ(Cairn({"up", "--worker-set", "threads"}).code, 2);
  EXPECT_EQ(Cairn({"top", "--dir", "x", "--cache", "127.0.0.1:1"}).code, 2);
  EXPECT_EQ(Run({"up", "--model", "/nonexistent.gguf"}).code, 1);
  EXPECT_EQ(Run({"up", "--model", kTinyModel, "--ram", "much"}).code, 2);
  EXPECT_FALSE(std::filesystem::exists(directory_));
}

}  // namespace
}  // namespace cairn::testing
