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
      {"db_pass: pw1", "db_pass: [left out]"},
      {"dbPass=pw1 x", "dbPass=[left out] x"},
      {"AWS_SECRET_ACCESS_KEY: a/b+c", "AWS_SECRET_ACCESS_KEY: [left out]"},
      {"Cookie: a=b; c=d", "Cookie: [left out]"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(WithoutSecrets(text), expected);
}

TEST(WithoutSecretsTest, TheValueAfterAFlagIsLeftOut) {
  const std::pair<const char*, const char*> cases[] = {
      {"run --etcd-password pw4 --port 1", "run --etcd-password [left out] --port 1"},
      {"--api-key sekret1", "--api-key [left out]"},
      {"--api-key=sekret1 --x", "--api-key=[left out] --x"},
      {"-password pw", "-password [left out]"},
      {R"(["--etcd-password", "pw4", "--port"])", R"(["--etcd-password", "[left out]", "--port"])"},
      {"args:\n- --etcd-password\n- pw4\n- --port\n- 1\n",
       "args:\n- --etcd-password\n- [left out]\n- --port\n- 1\n"},
      {"--token --verbose", "--token --verbose"},
      {"- --token\n- --verbose\n", "- --token\n- --verbose\n"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(WithoutSecrets(text), expected);
}

TEST(WithoutSecretsTest, TheValueInTheNextLinesIsLeftOut) {
  const std::pair<const char*, const char*> cases[] = {
      {"etcd_password:\n  pw5\nport: 1\n", "etcd_password:\nport: 1\n"},
      {"secrets:\n- one\n- two\nport: 1\n", "secrets:\nport: 1\n"},
      {"password: one\n  two\nport: 1\n", "password: [left out]\nport: 1\n"},
      {"{\n  \"password\":\n    \"pw5\",\n  \"port\": 1\n}\n",
       "{\n  \"password\":\n  \"port\": 1\n}\n"},
      {"- name: DB_PASSWORD\n  value: pw6\n- name: PORT\n  value: 1\n",
       "- name: DB_PASSWORD\n  value: [left out]\n- name: PORT\n  value: 1\n"},
      {R"({"name":"DB_PASSWORD","value":"pw6"},{"name":"PORT","value":"1"})",
       R"({"name":"DB_PASSWORD","value":[left out]},{"name":"PORT","value":"1"})"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(WithoutSecrets(text), expected);
}

TEST(WithoutSecretsTest, ATokenThatSaysWhatItIsIsLeftOutAnywhere) {
  // Made of parts, or scanners of sources would take them for real ones.
  const std::string tail(36, 'a'), aws(16, 'A');
  for (const std::string& token : {"ghp_" + tail, "github_pat_" + tail, "AKIA" + aws, "hf_" + tail,
                                   "sk-" + tail, "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0." + tail}) {
    EXPECT_EQ(WithoutSecrets("cloned with " + token + " at 12:00"),
              "cloned with [left out] at 12:00");
    EXPECT_EQ(WithoutSecrets("x=" + token + ",y"), "x=[left out],y");
  }
}

TEST(WithoutSecretsTest, WhatOnlyLooksAlikeStays) {
  for (const std::string text : {"bypass: true",
                                 "compass=north",
                                 "hf_model",
                                 "AKIA",
                                 "eyJ",
                                 "ask-for-more-of-the-same",
                                 "the flag --port 1",
                                 "name: cache\nvalue: 5\n",
                                 "a sk-1",
                                 "tenant_salt_file: /etc/cairn/salt",
                                 "prompt_tokens: 12",
                                 "token",
                                 "salt:",
                                 "password: \"\"",
                                 "cairn_rpc_seconds{method=\"Match\"} 1",
                                 "-----BEGIN",
                                 "http://host:1/a@b",
                                 "tokens=5",
                                 "a line\n\nanother\n",
                                 ""}) {
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
