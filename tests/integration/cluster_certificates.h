#pragma once
// Certificates of members, and what nodes and clients need to show them.

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cairn/client/cluster.h"
#include "common/status/matchers.h"
#include "tests/support/process.h"

namespace cairn::testing {

// A base of fixtures.
class ClusterCertificates {
 protected:
  void MakeAuthority() {
    Sh("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out "
       "ca.pem -subj /CN=ca -days 2");
  }
  // A certificate for loopback with one more name.
  void Issue(const std::string& file, const std::string& name) {
    std::ofstream(Path(file + ".ext")) << "subjectAltName=IP:127.0.0.1," << name << "\n";
    Sh("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout " + file +
       ".key -out " + file + ".csr -subj /CN=" + file + " && openssl x509 -req -in " + file +
       ".csr -CA ca.pem -CAkey ca.key -CAcreateserial -out " + file + ".pem -days 2 -extfile " +
       file + ".ext");
  }
  // That of a member with the id `id`.
  void IssueMember(const std::string& id) { Issue(id, "URI:spiffe://example/cairn/" + id); }
  std::string Path(const std::string& file) const { return directory_.path() + "/" + file; }
  // `args`, and those of a node with this certificate.
  std::vector<std::string> Args(std::vector<std::string> args,
                                const std::string& certificate) const {
    args.insert(args.end(), {"--tls.cert", Path(certificate + ".pem"), "--tls.key",
                             Path(certificate + ".key"), "--tls.client_ca", Path("ca.pem"),
                             "--cluster.peer_identities", "spiffe://example/cairn/{node_id}"});
    return args;
  }
  std::shared_ptr<grpc::ChannelCredentials> As(const std::string& certificate) const {
    const auto read = [&](const std::string& file) {
      std::ifstream stream(Path(file));
      std::ostringstream text;
      text << stream.rdbuf();
      return text.str();
    };
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = read("ca.pem");
    options.pem_cert_chain = read(certificate + ".pem");
    options.pem_private_key = read(certificate + ".key");
    return grpc::SslCredentials(options);
  }
  client::ConnectOptions Connect() const {
    client::ConnectOptions options;
    options.tls.enabled = true;
    options.tls.ca_file = Path("ca.pem");
    options.tls.cert_file = Path("n0.pem");
    options.tls.key_file = Path("n0.key");
    return options;
  }

 private:
  void Sh(const std::string& command) {
    auto process =
        Process::Start({.argv = {"/bin/sh", "-c", command}, .directory = directory_.path()});
    ASSERT_OK(process);
    const auto exit = (*process)->WaitExit(std::chrono::seconds(120));
    ASSERT_OK(exit);
    ASSERT_EQ(exit->code, 0) << command << (*process)->err();
  }

  TemporaryDirectory directory_;
};

}  // namespace cairn::testing
