#pragma once
// The values of the command line, command by command. Defaults are those of the help texts.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn::cli {

inline constexpr char kDefaultModel[] = "build/models/SmolLM2-135M-Instruct.Q4_1.gguf";

// PEM files for connections to nodes and workers. All empty: plaintext.
struct TlsFlags {
  std::string ca;    // Trusts these authorities.
  std::string cert;  // Own chain and key, for mutual TLS: both or neither.
  std::string key;
  std::string server_name;  // Expected in the server's certificate. Empty: the address's.
};

// Which worker answers, shared by generate and chat.
struct WorkerOptions {
  std::string model = kDefaultModel;
  std::string worker;          // Address; empty: in this process.
  std::string prefill_worker;  // Address of one that computes the prompts for it; empty: none.
  std::string cache;           // Address of a cache node; empty: none.
  bool no_cache = false;
  std::string arithmetic = "fast";
  std::string recipe = "raw";
  std::string calibration = "calibration";
  std::string read_policy;  // Empty: all KV stays in the pool.
  std::string kv_budget;    // Bytes, such as 256MiB. Empty: no limit.
  int threads = 0;
  std::string device = "cpu";
  bool model_given = false;  // By a flag, or by the environment.
  bool local_flags = false;  // A flag says how a worker in this process computes.
  TlsFlags tls;
};

struct SamplingFlags {
  uint32_t max_tokens = 256;
  double temperature = 0;
  uint32_t top_k = 0;
  double top_p = 1;
  uint64_t seed = 0;
};

struct GenerateOptions {
  WorkerOptions worker;
  SamplingFlags sampling;
  std::string prompt;
  std::string prompt_file;  // "-": standard input.
  std::string system;
  uint32_t prefix_end = 0;
  std::vector<std::string> stop;
  int32_t priority = 0;
  std::string tenant;
  double deadline_seconds = 0;  // 0: none.
  std::string next = "unknown";
  bool raw = false;
  bool ignore_eos = false;
  bool json = false;
};

// The name of the offline bound for --policy.
inline constexpr char kOptimum[] = "optimum";

struct ReplayFlags {
  std::string trace;  // "-": standard input.
  uint64_t capacity_tokens = 0;
  uint64_t disk_tokens = 0;
  uint32_t block_tokens = 512;
  std::string policy = "lru";
  uint32_t hints = 0;  // Percent of the requests.
  // Addresses of nodes to replay on. Empty: an index without bytes, in this process.
  std::vector<std::string> nodes;
  uint64_t block_bytes = 4096;  // On nodes.
  TlsFlags tls;                 // For nodes.
  bool json = false;
};

struct SizeFlags {
  std::string model;  // GGUF file, config.json or its folder. Empty: the shape is given below.
  uint32_t layers = 0;
  uint32_t heads = 0, kv_heads = 0;  // 0: not given.
  uint32_t head_dim = 0, v_head_dim = 0;
  uint32_t latent_dim = 0, rope_dim = 0;
  uint32_t shared_layers = 0;
  uint32_t window = 0;
  std::optional<uint32_t> window_layers;
  std::string dtype;  // Empty: the file's own.
  uint32_t block_tokens = 64;
  std::vector<std::string> recipes = {"raw", "int8", "turbo:bits=4", "cachegen"};
  uint64_t context_tokens = 0;  // 0: the model's own.
  std::string ram, disk;        // Empty: not asked.
  bool json = false;
};

struct ChatOptions {
  WorkerOptions worker;
  SamplingFlags sampling;
  std::string system;
  std::string system_file;
  bool drop_oldest = false;
  bool json = false;
};

struct StatOptions {
  std::string cache;  // Empty: the default address, or what `cairn up` started.
  double timeout_s = 5;
  TlsFlags tls;
  bool cluster = false;  // All members, instead of one node.
  bool json = false;
};

// Shared by all of `cairn cluster ...`.
struct ClusterOptions {
  std::string cache;     // As in StatOptions.
  double timeout_s = 5;  // The timeout of each call.
  double wait_s = 0;     // For all of it; each command has a default of its own.
  std::string fingerprint;
  std::string keys = "-";  // File, or "-".
  std::string tenant;
  TlsFlags tls;
  bool json = false;
};

struct ClusterCommands {
  ClusterOptions members, locate, drain, bump, drop_tenant;
};

struct UpOptions {
  std::string directory;  // Empty: the default one.
  uint32_t nodes = 1, workers = 1, prefill_workers = 0;
  std::string model = kDefaultModel;
  int threads = 0;  // Threads of each worker. 0: the CPUs, divided.
  std::string ram = "512MiB";
  std::string disk;  // Empty: none.
  std::string http;  // Empty: port 8000, or a free one if that is taken.
  std::vector<std::string> node_settings, worker_settings, router_settings;
  double timeout_s = 120;  // For each role to serve.
  bool foreground = false;
  bool keep = false;  // With foreground: the nodes' data.
  bool json = false;
};

struct DownOptions {
  std::string directory;
  double timeout_s = 30;  // For each role to end.
  bool keep = false;
  bool json = false;
};

struct TopOptions {
  std::string directory;             // The directory of `cairn up`.
  std::string cache;                 // Instead of it: addresses, with commas.
  std::vector<std::string> workers;  // Addresses.
  std::string router;                // Address; empty: none.
  double interval_s = 1;
  uint32_t count = 0;  // Snapshots; 0: until Ctrl-C.
  TlsFlags tls;
  bool json = false;
};

struct DoctorOptions {
  std::string model = kDefaultModel;
  std::string directory = ".";
  std::string cache;  // Also ask this node; empty: none.
  // The configuration that vLLM's --kv-transfer-config gets, a file or JSON: look at this instead
  // of the machine.
  std::string vllm;
  std::string vllm_model;
  std::string python = "python3";
  TlsFlags tls;
  bool json = false;
};

struct ReportOptions {
  std::string out;        // "-": standard output. Empty: a name with the time.
  std::string directory;  // As in TopOptions.
  std::string cache;      // Addresses of nodes with commas.
  std::vector<std::string> admins, configs, logs;
  double timeout_s = 5;  // The timeout of each answer.
  TlsFlags tls;
  bool json = false;
};

struct DemoOptions {
  std::string model = kDefaultModel;
  std::string out = "build/demo";
  std::string cache;       // A running node; empty: start one.
  std::string document;    // The system message instead of the built-in ones.
  uint32_t questions = 0;  // 0: those for which there is time.
  uint32_t turns = 4;
  int threads = 0;
  bool keep = false;
  bool json = false;
};

struct FidelityOptions {
  std::string model = kDefaultModel;
  std::vector<std::string> recipes = {"raw"};
  std::vector<std::string> read_policies;  // Each a row, over the recipe raw.
  std::vector<std::string> suites = {"prose"};
  std::string split = "published";
  std::string texts = "benchmarks/fidelity/texts";
  std::string out = "build/fidelity";
  uint32_t limit = 0;
  uint32_t context_tokens = 1536;   // Tokens of a document.
  uint32_t question_tokens = 1024;  // Tokens of a context that questions are asked about.
  int threads = 0;
  bool exact = false;
  bool kept = false;
  bool json = false;
};

}  // namespace cairn::cli
