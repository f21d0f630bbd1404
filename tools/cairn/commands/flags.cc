#include "tools/cairn/commands/flags.h"

#include <CLI/CLI.hpp>

#include "common/config/config.h"
#include "tools/cairn/launch/lookup.h"

namespace cairn::cli {

void AddTlsFlags(CLI::App& command, TlsFlags& tls) {
  command.add_option("--tls-ca", tls.ca, "PEM file: connect with TLS and trust these authorities");
  CLI::Option* cert = command.add_option("--tls-cert", tls.cert,
                                         "PEM file: the client's certificate, for mutual TLS");
  CLI::Option* key = command.add_option("--tls-key", tls.key, "PEM file: the key of --tls-cert");
  command.add_option("--tls-server-name", tls.server_name,
                     "Name expected in the server's certificate, if it is not the address's");
  cert->needs(key);
  key->needs(cert);
}

void AddNodeAddress(CLI::App& command, std::string& cache, const char* help) {
  command.add_option("--cache", cache, help)
      ->default_str(kDefaultNode)
      ->check([](const std::string& text) {
        return text.empty() ? "got '', expected HOST:PORT" : std::string();
      });
}

void AddWorkerFlags(CLI::App& command, WorkerOptions& options) {
  CLI::Option* model =
      command.add_option("--model", options.model, "GGUF file of a worker in this process")
          ->envname("CAIRN_MODEL")
          ->capture_default_str();
  CLI::Option* worker = command.add_option(
      "--worker", options.worker, "Ask the worker at HOST:PORT instead of running one here");
  command
      .add_option("--prefill-worker", options.prefill_worker,
                  "With --worker: let the worker at HOST:PORT compute the prompt for it")
      ->needs(worker);
  CLI::Option* cache = command.add_option("--cache", options.cache,
                                          "Fetch from and push to the cache node at HOST:PORT");
  CLI::Option* no_cache =
      command.add_flag("--no-cache", options.no_cache, "Neither fetch nor push");
  cache->excludes(no_cache)->excludes(worker);
  CLI::Option* arithmetic = command
                                .add_option("--arithmetic", options.arithmetic,
                                            "fast: bfloat16 if the CPU has it; float32: exact")
                                ->check(CLI::IsMember({"fast", "float32"}))
                                ->capture_default_str();
  CLI::Option* recipe =
      command
          .add_option("--recipe", options.recipe,
                      "How a worker in this process stores KV, as in its setting cache.recipe")
          ->capture_default_str()
          ->excludes(worker);
  command
      .add_option("--calibration", options.calibration,
                  "Folder of the files that recipes name, as in its setting cache.calibration")
      ->envname("CAIRN_CALIBRATION")
      ->capture_default_str();
  CLI::Option* policy = command
                            .add_option("--read-policy", options.read_policy,
                                        "How a worker in this process reads contexts by rows, for "
                                        "example precision:near=turbo3,rows=0.02")
                            ->excludes(worker);
  command
      .add_option("--kv-budget", options.kv_budget,
                  "With --read-policy: near memory for contexts, such as 256MiB")
      ->needs(policy);
  CLI::Option* threads =
      command.add_option("--threads", options.threads, "Threads that compute; 0: one per CPU")
          ->check(CLI::Range(0, 1024))
          ->capture_default_str();
  CLI::Option* device =
      command
          .add_option("--device", options.device,
                      "Where a worker in this process computes: cpu, or cuda:N for GPU number N")
          ->capture_default_str()
          ->excludes(worker);
  command.parse_complete_callback([=, &options] {
    options.model_given = model->count() > 0;
    for (const CLI::Option* flag : {cache, no_cache, arithmetic, recipe, policy, threads, device}) {
      options.local_flags = options.local_flags || flag->count() > 0;
    }
  });
  AddTlsFlags(command, options.tls);
}

void AddSamplingFlags(CLI::App& command, SamplingFlags& flags) {
  command.add_option("--max-tokens", flags.max_tokens, "The most tokens to generate")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  command.add_option("--temperature", flags.temperature, "0: always the most likely token")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command.add_option("--top-k", flags.top_k, "Choose among the K most likely tokens; 0: all")
      ->capture_default_str();
  command
      .add_option("--top-p", flags.top_p,
                  "Choose among the most likely tokens whose probabilities add up to P")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seed", flags.seed, "The same seed and prompt give the same answer")
      ->capture_default_str();
}

Result<uint64_t> ParseSize(const char* flag, const std::string& text) {
  const Result<uint64_t> bytes = config::ParseBytes(text);
  if (!bytes.ok()) return Annotate(bytes.status(), flag);
  const bool bare = text.find_first_not_of("0123456789") == std::string::npos;
  if (!bare || *bytes == 0 || *bytes >= 1024) return *bytes;
  return InvalidArgument("{}: got '{}', expected a size with a unit, such as {}MiB", flag, text,
                         *bytes);
}

std::string InFlags(std::string text, std::string_view address) {
  const std::pair<std::string_view, std::string_view> flags[] = {
      {"field 'address'", address},
      {"field 'tls.ca_file'", "--tls-ca"},
      {"field 'tls.cert_file'", "--tls-cert"},
      {"field 'tls.key_file'", "--tls-key"},
      {"option 'recipe'", "--recipe"},
      {"option 'read_policy'", "--read-policy"},
      {"option 'kv_budget'", "--kv-budget"},
      {"option 'device'", "--device"},
      {"lower host.capacity", "lower --ram"},
  };
  for (const auto& [name, flag] : flags) {
    const size_t at = text.find(name);
    if (at != std::string::npos) text.replace(at, name.size(), flag);
  }
  return text;
}

Status InFlags(const Status& status, std::string_view address) {
  return status.ok() ? status : Status(status.code(), InFlags(Message(status), address));
}

void AddJson(CLI::App& command, bool& json, const char* what) {
  command.add_flag("--json", json, what);
}

}  // namespace cairn::cli
