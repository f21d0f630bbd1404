#include "tools/cairn/report/secrets.h"

#include <gtest/gtest.h>

#include <string>

namespace cairn::cli {
namespace {

TEST(WithoutSecretsTest, AValueOfASecretsKeyIsLeftOut) {
  const std::pair<const char*, const char*> cases[] = {
      {"password: hunter2 and more", "password: [left out]"},
      {"  tenant_salt: \"a \\\" b\" # c", "  tenant_salt: [left out] # c"},
      {"HF_TOKEN=abc model=x", "HF_TOKEN=[left out] model=x"},
      {R"({"api_key":"abc","port":1})", R"({"api_key":[left out],"port":1})"},
      {R"(settings="{\"secret\": \"abc\"}")", R"(settings="{\"secret\": [left out])"},
      {"a_token=1 b_token=2", "a_token=[left out] b_token=[left out]"},
      {"Authorization: Bearer abc", "Authorization: [left out]"},
      {"got Bearer abc.def, expected", "got Bearer [left out] expected"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(WithoutSecrets(text), expected);
}

TEST(WithoutSecretsTest, WhatOnlyLooksAlikeStays) {
  for (const std::string text :
       {"tenant_salt_file: /etc/cairn/salt", "prompt_tokens: 12", "token",
        "salt:", "password: \"\"", "cairn_rpc_seconds{method=\"Match\"} 1", "-----BEGIN",
        "http://host:1/a@b", "tokens=5", "a line\n\nanother\n", ""}) {
    EXPECT_EQ(WithoutSecrets(text), text);
  }
}

TEST(WithoutSecretsTest, ABlockOfYamlIsLeftOutToItsEnd) {
  EXPECT_EQ(WithoutSecrets("a:\n  secret: |\n    one\n\n    two\n  port: 1\n"),
            "a:\n  secret: [left out]\n  port: 1\n");
}

TEST(WithoutSecretsTest, TheUserOfAUrlIsLeftOut) {
  EXPECT_EQ(WithoutSecrets("to http://me:pa@ss@host:1/x and https://you@other"),
            "to http://[left out]@host:1/x and https://[left out]@other");
}

TEST(WithoutSecretsTest, PemIsLeftOutAndWhatFollowsStays) {
  const std::string block =
      "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN\nAb+/9==\n-----END PRIVATE KEY-----\n";
  EXPECT_EQ(WithoutSecrets("before\n" + block + "after\n"), "before\n[left out]\nafter\n");
  // In a line of JSON.
  EXPECT_EQ(WithoutSecrets(R"({"k":"-----BEGIN A-----\nMII\n-----END A-----","n":1})"),
            R"({"k":"[left out]","n":1})");
  // Cut off: it ends where no line of its kind follows.
  EXPECT_EQ(WithoutSecrets("-----BEGIN A-----\nMIIE\nready grpc=1\n"),
            "[left out]\nready grpc=1\n");
  EXPECT_EQ(WithoutSecrets("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"
                           "DEK-Info: AES-128-CBC,AB\n\nMIIE\n-----END RSA PRIVATE KEY-----\nx"),
            "[left out]\nx");
}

}  // namespace
}  // namespace cairn::cli
