#include "common/service/policy.h"

#include "common/log/log.h"

namespace cairn::service {
namespace {

constexpr char kSetting[] = "auth.policy";

void Export(const auth::Access* access, metrics::Registry* registry) {
  registry->AddCollector([access](metrics::Sink& sink) {
    const auth::Access::Counts counts = access->counts();
    const std::string name = "cairn_auth_policy_reloads_total";
    const std::string help = "Policies that were read, by what became of them.";
    sink.Counter(name, help, {{"result", "taken"}}, metrics::Number(counts.loads));
    sink.Counter(name, help, {{"result", "refused"}}, metrics::Number(counts.failures));
    sink.Gauge("cairn_auth_policy_refused",
               "1: the policy's file is wrong, and the policy of before holds.", {},
               counts.stale ? 1 : 0);
    sink.Gauge("cairn_auth_policy_rules", "Rules of the policy in force.", {},
               metrics::Number(counts.rules));
  });
}

}  // namespace

void RegisterPolicy(std::string* path, config::Schema* schema) {
  schema->Text(kSetting, path,
               "YAML file that says which callers may read, write, operate and administer which "
               "tenants. It is read again when it changes. It needs tls.client_ca. Empty: whoever "
               "may connect may use every tenant.");
}

Status CheckPolicy(const std::string& path, const net::TlsOptions& tls, const std::string& listen) {
  if (path.empty()) return OkStatus();
  if (!tls.mutual()) {
    return InvalidArgument(
        "{}: got '{}' without tls.client_ca, expected both: only a certificate says who a caller "
        "is",
        kSetting, path);
  }
  if (listen.starts_with("unix:")) {
    return InvalidArgument(
        "listen: got '{}' next to {}, expected host:port: a Unix socket says nothing of its caller",
        listen, kSetting);
  }
  return auth::Access::Open(path, kSetting, &SteadyClock::Get()).status();
}

Result<std::unique_ptr<auth::Access>> OpenPolicy(const std::string& path, const Clock* clock,
                                                 metrics::Registry* registry) {
  if (path.empty()) {
    log::Info("no_policy", {{"setting", kSetting}});
    return nullptr;
  }
  CAIRN_ASSIGN_OR_RETURN(auto access, auth::Access::Open(path, kSetting, clock));
  Export(access.get(), registry);
  return access;
}

}  // namespace cairn::service
