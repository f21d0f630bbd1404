#include "services/worker/rpc/worker_config.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/status/matchers.h"
#include "tests/support/methods.h"

namespace cairn::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class WorkerConfigTest : public ::testing::Test {
 protected:
  WorkerConfigTest() : schema_("cairn-worker", "") { Register(schema_, config_); }
  Status Load(const std::vector<std::string>& args) {
    return config::Load(schema_, ExpandShortFlags(args)).status();
  }

  WorkerConfig config_;
  config::Schema schema_;
};

TEST_F(WorkerConfigTest, ShortFlagsAreTheLongOnes) {
  EXPECT_THAT(
      ExpandShortFlags({"--cache", "a:1", "--admin=b:2", "--kv-pool", "1GiB", "--model"}),
      ElementsAre("--cache.address", "a:1", "--admin.listen=b:2", "--kv_pool", "1GiB", "--model"));
}

TEST_F(WorkerConfigTest, FlagsReachTheEngine) {
  ASSERT_OK(Load({"--model", "m.gguf", "--cache", "node:1", "--arithmetic", "float32", "--threads",
                  "3", "--kv-pool", "1GiB", "--tenant", "blue", "--cache.match_deadline", "20ms",
                  "--cache.overlap", "false"}));
  const auto options = EngineOptions(config_);
  ASSERT_OK(options);
  EXPECT_EQ(options->model_path, "m.gguf");
  EXPECT_EQ(options->arithmetic, Arithmetic::kFloat32);
  EXPECT_EQ(options->threads, 3);
  EXPECT_EQ(options->kv_pool_bytes, 1u << 30);
  EXPECT_EQ(options->tenant, "blue");
  EXPECT_EQ(options->prefix.match_deadline, std::chrono::milliseconds(20));
  EXPECT_FALSE(options->prefix.overlap);
  EXPECT_EQ(CacheConnection(config_).address, "node:1");
}

TEST_F(WorkerConfigTest, OfSeveralNodesWorkersPreferTheirOwnAndKeepIt) {
  ASSERT_OK(Load({"--model", "m.gguf", "--cache", "a:1,dns:b:2", "--cache.host", "h",
                  "--cache.zone", "z", "--listen", "127.0.0.1:7"}));
  const client::ConnectOptions options = CacheConnection(config_);
  EXPECT_EQ(options.address, "a:1,dns:b:2");
  EXPECT_EQ(options.host, "h");
  EXPECT_EQ(options.zone, "z");
  EXPECT_THAT(options.home_key, HasSubstr("127.0.0.1:7"));
  EXPECT_THAT(options.home_key, Not(HasSubstr(std::to_string(getpid())))) << "the same next time";
  config_.cache_home_key = "rack";
  EXPECT_EQ(CacheConnection(config_).home_key, "rack");
}

TEST_F(WorkerConfigTest, ModelIsRequired) {
  EXPECT_THAT(Load({}), testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("model")));
}

TEST_F(WorkerConfigTest, CheckConfigFindsWhatAStartWouldRefuse) {
  if (!testing::kBuiltWithMethods) GTEST_SKIP() << testing::kNoMethods;
  const auto check = [](std::vector<std::string> args) {
    WorkerConfig config;
    config::Schema schema("cairn-worker", "");
    Register(schema, config);
    args.insert(args.begin(), {"--check-config", "--model", "tests/data/gguf/kquant.gguf"});
    return config::Load(schema, args).status();
  };
  EXPECT_OK(check({}));
  EXPECT_OK(check({"--device", "cuda:1"}));  // Not whether it is there.
  EXPECT_OK(check({"--cache.recipe", "int8", "--cache.publish", "raw;turbo:bits=4"}));
  EXPECT_OK(check({"--read_policy", "precision:rows=0.1", "--kv_budget", "1MiB"}));

  const std::pair<std::vector<std::string>, const char*> wrong[] = {
      {{"--device", "gpu"}, "option 'device': got 'gpu', expected cpu, or cuda:N"},
      {{"--cache.recipe", "int9"}, "cache.recipe: codec: got 'int9'"},
      {{"--cache.publish", "int8;int9"}, "cache.publish: codec: got 'int9'"},
      {{"--read_policy", "all"}, "read_policy: read policy: got 'all', expected one of precision"},
      {{"--read_policy", "precision:rows=2"}, "read policy parameter 'rows': got '2'"},
      {{"--read_policy", "precision", "--device", "cuda:0"}, "on the CPU only"},
      {{"--read_policy", "precision", "--cache.recipe", "streaming:keep=0.4+raw"},
       "which selects tokens"},
      {{"--kv_budget", "1MiB"}, "option 'kv_budget': got 1MiB, expected 0"},
      {{"--model", "docs/README.md"}, "model: file 'docs/README.md' is not a GGUF file"},
  };
  for (const auto& [args, message] : wrong) {
    EXPECT_THAT(check(args), testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr(message)));
  }
  EXPECT_THAT(check({"--model", "/nonexistent.gguf"}),
              testing::StatusIs(StatusCode::kNotFound, HasSubstr("/nonexistent.gguf")));
  EXPECT_THAT(check({"--tenant_salt_file", "/nonexistent"}),
              testing::StatusIs(StatusCode::kFailedPrecondition, HasSubstr("tenant_salt_file")));
}

TEST_F(WorkerConfigTest, PlaintextBeyondLoopbackMustBeAskedFor) {
  EXPECT_THAT(Load({"--model", "m", "--listen", "0.0.0.0:7500"}),
              testing::StatusIs(StatusCode::kPermissionDenied, HasSubstr("0.0.0.0:7500")));
  EXPECT_OK(
      Load({"--model", "m", "--listen", "0.0.0.0:7500", "--i-accept-plaintext-on-the-network"}));
}

TEST_F(WorkerConfigTest, NodeSeesTheServersCertificateUnlessAnotherIsNamed) {
  config_.tls.certificate = "own.pem";
  config_.tls.private_key = "own.key";
  config_.tls.client_ca = "ca.pem";
  EXPECT_EQ(CacheConnection(config_).tls.cert_file, "own.pem");
  EXPECT_EQ(CacheConnection(config_).tls.ca_file, "ca.pem");
  config_.cache_certificate = "other.pem";
  EXPECT_EQ(CacheConnection(config_).tls.cert_file, "other.pem");
}

TEST_F(WorkerConfigTest, TheDocumentIsTheTable) {
  std::ostringstream document;
  document << std::ifstream("docs/operate/config-worker.md").rdbuf();
  EXPECT_THAT(document.str(), HasSubstr(schema_.PrintMarkdown()))
      << "print it with cairn-worker --print-config-docs";
}

TEST(ParseTenantsTest, NamesWeightsAndPriorities) {
  const auto tenants = ParseTenants({"chat=2", "batch=0.5:-1", "a=b=1:10"});
  ASSERT_OK(tenants);
  EXPECT_EQ(tenants->at("chat").weight, 2);
  EXPECT_EQ(tenants->at("chat").max_priority, 0);
  EXPECT_EQ(tenants->at("batch").weight, 0.5);
  EXPECT_EQ(tenants->at("batch").max_priority, -1);
  EXPECT_EQ(tenants->at("a=b").max_priority, 10);
  for (const char* wrong : {"chat", "=1", "chat=", "chat=0", "chat=-1", "chat=nan", "chat=1001",
                            "chat=1x", "chat=1:", "chat=1:11", "chat=1:2x"}) {
    EXPECT_THAT(
        ParseTenants({wrong}).status(),
        testing::StatusIs(StatusCode::kInvalidArgument,
                          ::testing::HasSubstr(fmt::format("queue.tenants: got '{}'", wrong))));
  }
  EXPECT_FALSE(ParseTenants({"a=1", "a=2"}).ok());
}

TEST_F(WorkerConfigTest, SaltComesFromAFile) {
  config_.tenant_salt_file = "no/such/file";
  EXPECT_THAT(EngineOptions(config_),
              testing::StatusIs(StatusCode::kFailedPrecondition, HasSubstr("tenant_salt_file")));
  const auto path = std::filesystem::temp_directory_path() /
                    ("cairn-worker-config-test-salt." + std::to_string(getpid()));
  std::ofstream(path) << "pepper";
  config_.tenant_salt_file = path.string();
  const auto options = EngineOptions(config_);
  ASSERT_OK(options);
  EXPECT_EQ(options->salt, "pepper");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace cairn::worker
